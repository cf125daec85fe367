//! Expressions as trees, and their text with every amplitude once.

/// An operation on one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unary {
    Pow,
    NegLog,
    Exp,
}

impl Unary {
    pub(super) const ALL: [Unary; 3] = [Unary::Pow, Unary::NegLog, Unary::Exp];
}

/// An expression; sums and products are flat and their members are in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tree {
    /// A call such as `log(b, a)`, whose first argument is its amplitude.
    Base(String),
    Unary(Unary, Box<Tree>),
    Product(Vec<Tree>),
    Sum(Vec<Tree>),
}

/// Whether an expression has an amplitude of its own.
#[derive(Clone, Copy, PartialEq)]
enum Amplitude {
    Learned,
    /// 1: what the expression is part of has one.
    One,
}

impl Tree {
    pub(super) fn sum(first: &Tree, second: &Tree) -> Tree {
        let members = |tree: &Tree| if let Tree::Sum(of) = tree { of.clone() } else { vec![tree.clone()] };
        Tree::Sum(sorted([members(first), members(second)].concat()))
    }

    pub(super) fn product(first: &Tree, second: &Tree) -> Tree {
        let factors = |tree: &Tree| if let Tree::Product(of) = tree { of.clone() } else { vec![tree.clone()] };
        // sums come last, so that the first factor has an amplitude that is one number
        Tree::Product(sorted([factors(first), factors(second)].concat()))
    }

    pub(super) fn is_unary(&self) -> bool {
        matches!(self, Tree::Unary(..))
    }

    /// The text that is parsed.
    pub(super) fn text(&self) -> String {
        self.written(Amplitude::Learned)
    }

    fn written(&self, amplitude: Amplitude) -> String {
        let scaled = |text: String| if amplitude == Amplitude::Learned { format!("s*{text}") } else { text };
        match self {
            Tree::Base(call) if amplitude == Amplitude::Learned => call.clone(),
            Tree::Base(call) => with_amplitude_one(call),
            Tree::Unary(Unary::Pow, of) => scaled(format!("pow({}, q)", of.written(Amplitude::One))),
            Tree::Unary(Unary::NegLog, of) => scaled(format!("neglog({})", of.written(Amplitude::Learned))),
            Tree::Unary(Unary::Exp, of) => scaled(format!("exp({})", of.written(Amplitude::Learned))),
            Tree::Sum(of) => {
                let first = std::iter::once(of[0].written(amplitude));
                let texts = first.chain(of[1..].iter().map(|member| member.written(Amplitude::Learned)));
                texts.collect::<Vec<_>>().join(" + ")
            }
            Tree::Product(of) => {
                let factor = |(i, of): (usize, &Tree)| {
                    let own = if i == 0 && !matches!(of, Tree::Sum(_)) { amplitude } else { Amplitude::One };
                    let text = of.written(own);
                    if matches!(of, Tree::Sum(_)) { format!("({text})") } else { text }
                };
                let text = of.iter().enumerate().map(factor).collect::<Vec<_>>().join("*");
                if matches!(of[0], Tree::Sum(_)) { scaled(text) } else { text }
            }
        }
    }
}

fn sorted(mut of: Vec<Tree>) -> Vec<Tree> {
    of.sort();
    of
}

/// `log(b, a)` as `log(1, a)`.
fn with_amplitude_one(call: &str) -> String {
    let Some((function, arguments)) = call.split_once('(') else { return call.to_owned() };
    match arguments.split_once(',') {
        Some((_, rest)) => format!("{function}(1,{rest}"),
        None => format!("{function}(1)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_amplitude_that_matters_is_learned_once() {
        let [log, exp] = ["log(b, a)", "exp(c, a, 1)"].map(|call| Tree::Base(call.to_owned()));
        let unary = |operation, of: &Tree| Tree::Unary(operation, Box::new(of.clone()));
        // the text, and how many amplitudes are linear; none where a fit has too many parameters
        let cases = [
            (Tree::sum(&log, &exp), "exp(c, a, 1) + log(b, a)", Some(2)),
            (Tree::product(&exp, &exp), "exp(c, a, 1)*exp(1, a, 1)", Some(1)),
            (unary(Unary::Pow, &log), "s*pow(log(1, a), q)", Some(1)),
            (unary(Unary::Pow, &Tree::sum(&log, &log)), "s*pow(log(1, a) + log(b, a), q)", Some(1)),
            (unary(Unary::NegLog, &log), "s*neglog(log(b, a))", Some(1)),
            (unary(Unary::Exp, &log), "s*exp(log(b, a))", Some(1)),
            (Tree::product(&Tree::sum(&exp, &exp), &exp), "exp(c, a, 1)*(exp(1, a, 1) + exp(c, a, 1))", Some(1)),
            (
                Tree::product(&Tree::sum(&exp, &exp), &Tree::sum(&exp, &exp)),
                "s*(exp(1, a, 1) + exp(c, a, 1))*(exp(1, a, 1) + exp(c, a, 1))",
                None,
            ),
        ];
        for (tree, text, amplitudes) in cases {
            assert_eq!(tree.text(), text);
            let family = crate::Family::read(&tree.text(), false);
            assert_eq!(family.ok().map(|family| family.amplitudes.len()), amplitudes, "{text}");
        }
        assert_eq!(Tree::sum(&log, &Tree::sum(&exp, &log)), Tree::sum(&Tree::sum(&log, &log), &exp));
        assert_eq!(with_amplitude_one("sqdist"), "sqdist");
    }
}
