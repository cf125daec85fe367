//! Families: expressions of the kernel calculus, taken apart into amplitudes and the parameters that a search is for.
//!
//! | name | expression | searched, in the box |
//! |---|---|---|
//! | `const` | `const(c)` | |
//! | `linear` | `power(a, 1)`, ALiBi | |
//! | `power` | `power(a, p)` | p `[0.01, 2]` |
//! | `log`, `log3` | `log(b, a)`, `log3(b, a, p)` | a `[1e-6, 1e3]`, p |
//! | `root_log` | `s*pow(log(1, a), q)` | a, q `[0.01, 0.99]` |
//! | `exp`, `gauss`, `stretched` | `exp(c, a, 1)`, `gauss(c, a)`, `exp(c, a, p)` | a, p |
//! | `two_exp` | `exp(c, a, 1) + exp(c, a, 1)`, the faster first | a, a2 |
//! | `log_linear` | `log(b, a) + power(a, 1)` | a |
//! | `damped_cos` | `exp(c, a, 1)*cos(1, w)` | a, w `[1e-4, pi]` |

use kerple_core::calculus::expr::Expr;
use kerple_core::calculus::parameter::Role;
use kerple_run::{Error, Result};
use std::f64::consts::PI;

/// Most parameters that a search is for.
pub const MAX_SEARCHED: usize = 4;
/// Most amplitudes, whose subsets are all tried.
pub const MAX_AMPLITUDES: usize = 4;

/// Families with a name: the name, the expression, and the families that are special cases, with the values at which they are.
const NAMED: [(&str, &str, &[NestedIn]); 12] = [
    ("const", "const(c)", &[]),
    ("linear", "power(a, 1)", &[]),
    ("power", "power(a, p)", &[("linear", &[Some(1.0)])]),
    ("log", "log(b, a)", &[]),
    ("log3", "log3(b, a, p)", &[("log", &[None, Some(1.0)])]),
    ("root_log", "s*pow(log(1, a), q)", &[]),
    ("exp", "exp(c, a, 1)", &[]),
    ("gauss", "gauss(c, a)", &[]),
    ("stretched", "exp(c, a, p)", &[("exp", &[None, Some(1.0)]), ("gauss", &[None, Some(2.0)])]),
    ("two_exp", "exp(c, a, 1) + exp(c, a, 1)", &[("exp", &[None, Some(0.01)]), ("exp", &[None, Some(1.0)])]),
    ("log_linear", "log(b, a) + power(a, 1)", &[("log", &[None]), ("linear", &[Some(0.1)])]),
    // at the lowest frequency the wave is all but 1 over the distances of a curve
    ("damped_cos", "exp(c, a, 1)*cos(1, w)", &[("exp", &[None, Some(1e-4)])]),
];

/// A special case: its family, and for each searched parameter the value it has, or none where it is that family's own.
type NestedIn = (&'static str, &'static [Option<f64>]);

/// A parameter that a search is for, in a closed box.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchedParameter {
    /// Its name: `a`, `p`, and `a2` for the second `a` of an expression.
    pub name: String,
    /// What it does in the expression.
    pub role: Role,
    /// Lower end of the box.
    pub low: f64,
    /// Upper end of the box.
    pub high: f64,
}

/// A member of a family's sum, without its amplitude.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub expr: Expr,
    /// Index of the amplitude among the expression's parameters.
    pub amplitude: Option<usize>,
    /// Index among the expression's parameters, and among the family's searched ones.
    pub searched: Vec<(usize, usize)>,
}

/// A family of kernels: `k(d) = sum_i c_i k_i(d; searched)` with amplitudes `c_i >= 0`.
#[derive(Clone, Debug)]
pub struct Family {
    /// Its short name, or the expression where it has none.
    pub name: String,
    /// The expression, with learned parameters.
    pub expr: Expr,
    /// Names of the amplitudes, in the order of the expression.
    pub amplitudes: Vec<String>,
    /// The other parameters.
    pub searched: Vec<SearchedParameter>,
    pub(crate) members: Vec<Member>,
    pub(crate) nested: Vec<(&'static str, Vec<Option<f64>>)>,
    /// For each parameter of the expression the amplitude or searched parameter it is; none for a constant.
    slots: Vec<Option<Slot>>,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    Amplitude(usize),
    Searched(usize),
}

impl Family {
    /// All families that have a name, in the order of tables.
    pub fn named() -> Vec<Family> {
        NAMED.iter().map(|(name, ..)| Family::read(name, false).expect("named families are families")).collect()
    }

    /// A family by its name, or of any expression. `unproven` admits expressions without a proof.
    ///
    /// # Errors
    /// An expression that cannot be read or is not proven, that has no learned parameter, and one with more parameters than
    /// a search is for.
    ///
    /// ```
    /// use kerple_fit::Family;
    /// let family = Family::read("log(b, a) + 0.5*power(a, 1)", false)?;
    /// assert_eq!(family.amplitudes, ["b", "a2"]);
    /// assert_eq!((family.searched[0].name.as_str(), family.parameter_count()), ("a", 5));
    /// # Ok::<(), kerple_run::Error>(())
    /// ```
    pub fn read(text: &str, unproven: bool) -> Result<Family> {
        let named = NAMED.iter().find(|(name, ..)| *name == text.trim());
        let (name, source, nested) =
            named.map_or((text.trim(), text, &[][..]), |(name, source, nested)| (*name, *source, *nested));
        let read = if unproven { Expr::parse_unproven(source) } else { Expr::parse(source) };
        let expr = read.map_err(|error| {
            let names: Vec<&str> = NAMED.iter().map(|(name, ..)| *name).collect();
            let hint = format!("give expressions, or names among {}", names.join(", "));
            Error::refused(format!("family `{}`: {error}", text.trim()), hint)
        })?;
        // the name is in every table, and so is the word
        if expr.class().is_cpd() {
            Family::of(name, expr, nested)
        } else {
            Family::of(&format!("{name} [unproven]"), expr, nested)
        }
    }

    /// Families of a list such as `log,power,exp(c, a, 1)*cos(1, w)`; commas inside parentheses belong to an expression.
    /// `all` stands for those with a name.
    ///
    /// # Errors
    /// As [`Family::read`]; an empty list, and a family that is there twice.
    pub fn list(text: &str, unproven: bool) -> Result<Vec<Family>> {
        let mut depth = 0usize;
        let mut families: Vec<Family> = Vec::new();
        let separates = |c: char| {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            c == ',' && depth == 0
        };
        let parts: Vec<&str> = text.split(separates).map(str::trim).collect();
        if parts.iter().all(|part| part.is_empty()) {
            return Err(Error::refused("no family is given", "give a list such as log,power, or all"));
        }
        for (at, part) in parts.into_iter().enumerate() {
            if part.is_empty() {
                return Err(Error::refused(
                    format!("family {} of `{text}` is empty", at + 1),
                    "write one comma between two families, and none after the last",
                ));
            }
            let new = if part == "all" { Family::named() } else { vec![Family::read(part, unproven)?] };
            for family in new {
                if let Some(other) = families.iter().find(|other| other.expr == family.expr) {
                    let as_other =
                        if other.name == family.name { String::new() } else { format!(", as `{}` too", other.name) };
                    let message = format!("family `{}` is given twice{as_other}", family.name);
                    return Err(Error::refused(message, "name each family once; `all` stands for those with a name"));
                }
                families.push(family);
            }
        }
        Ok(families)
    }

    fn of(name: &str, expr: Expr, nested: &[NestedIn]) -> Result<Family> {
        let refuse = |what: String, hint: &str| Err(Error::refused(format!("family `{name}`: {what}"), hint));
        let (mut amplitudes, mut searched, mut members, mut slots) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut seen: Vec<String> = Vec::new();
        for member in expr.members() {
            let parameters = member.parameters();
            if member.is_constant() {
                slots.extend(parameters.iter().map(|_| None)); // the level, which softmax ignores, stands for it
                continue;
            }
            let own = member.amplitudes();
            if own.len() > 1 {
                let what = format!("in `{member}` only the product of {} amplitudes matters", own.len());
                return refuse(what, "give all but one of them a number, e.g. 1*log(b, a)");
            }
            let mut terms = Vec::new();
            for (at, (parameter, role)) in parameters.iter().zip(member.roles()).enumerate() {
                let base = parameter.name.rsplit('.').next().unwrap_or(&parameter.name).to_owned();
                let before = seen.iter().filter(|other| **other == base).count();
                let unique = if before == 0 { base.clone() } else { format!("{base}{}", before + 1) };
                seen.push(base);
                if own.contains(&at) {
                    slots.push(Some(Slot::Amplitude(amplitudes.len())));
                    amplitudes.push(unique);
                } else {
                    terms.push((at, searched.len()));
                    slots.push(Some(Slot::Searched(searched.len())));
                    let (low, high) = bounds(role);
                    searched.push(SearchedParameter { name: unique, role, low, high });
                }
            }
            members.push(Member { expr: member, amplitude: own.first().copied(), searched: terms });
        }
        if searched.len() > MAX_SEARCHED {
            let what = format!(
                "a search is for at most {MAX_SEARCHED} parameters besides amplitudes, found {}",
                searched.len()
            );
            return refuse(what, "give some of them a number, e.g. power(a, 1)");
        }
        if amplitudes.len() > MAX_AMPLITUDES {
            let what = format!("at most {MAX_AMPLITUDES} amplitudes are fitted, found {}", amplitudes.len());
            return refuse(what, "give some of them a number, e.g. power(0.5, 1)");
        }
        let nested = nested.iter().map(|(family, values)| (*family, values.to_vec())).collect();
        Ok(Family { name: name.to_owned(), expr, amplitudes, searched, members, nested, slots })
    }

    /// Number of fitted parameters k: amplitudes, searched ones, the level and sigma.
    pub fn parameter_count(&self) -> usize {
        2 + self.amplitudes.len() + self.searched.len()
    }

    /// Values of the expression's parameters in its own order; a learned constant is 0, as the level is apart.
    pub fn values(&self, amplitudes: &[f64], searched: &[f64]) -> Vec<f64> {
        let value = |slot: &Option<Slot>| match slot {
            None => 0.0,
            Some(Slot::Amplitude(i)) => amplitudes[*i],
            Some(Slot::Searched(i)) => searched[*i],
        };
        self.slots.iter().map(value).collect()
    }

    /// Names of the expression's parameters in its own order; none for a constant, which the level stands for.
    pub fn parameter_names(&self) -> Vec<Option<String>> {
        let name = |slot: &Option<Slot>| match slot {
            None => None,
            Some(Slot::Amplitude(i)) => Some(self.amplitudes[*i].clone()),
            Some(Slot::Searched(i)) => Some(self.searched[*i].name.clone()),
        };
        self.slots.iter().map(name).collect()
    }

    /// Indices among the expression's parameters of the amplitudes, then of the searched parameters.
    pub(crate) fn parameter_order(&self) -> Vec<usize> {
        let place = |wanted: &dyn Fn(Slot) -> Option<usize>| {
            let mut found: Vec<(usize, usize)> =
                self.slots.iter().enumerate().filter_map(|(at, slot)| wanted((*slot)?).map(|i| (i, at))).collect();
            found.sort_unstable();
            found.into_iter().map(|(_, at)| at)
        };
        let amplitude = |slot| if let Slot::Amplitude(i) = slot { Some(i) } else { None };
        let searched = |slot| if let Slot::Searched(i) = slot { Some(i) } else { None };
        place(&amplitude).chain(place(&searched)).collect()
    }

    /// The kernel at a distance, without the level.
    pub fn at(&self, amplitudes: &[f64], searched: &[f64], d: f64) -> f64 {
        let values = self.values(amplitudes, searched);
        let (mut next, mut sum) = (0, 0.0);
        for member in self.expr.members() {
            let count = member.roles().len();
            if !member.is_constant() {
                sum += member.at(&values[next..next + count], d);
            }
            next += count;
        }
        sum
    }

    /// Exchanges members of equal form so that the faster is first.
    pub(crate) fn put_faster_first(&self, amplitudes: &mut [f64], searched: &mut [f64]) {
        if let [first, second] = &self.members[..]
            && first.expr == second.expr
            && let (&[(_, a)], &[(_, b)]) = (&first.searched[..], &second.searched[..])
            && searched[a] < searched[b]
        {
            searched.swap(a, b);
            amplitudes.swap(0, amplitudes.len() - 1);
        }
    }
}

fn bounds(role: Role) -> (f64, f64) {
    match role {
        Role::Amplitude | Role::Rate | Role::Level => (1e-6, 1e3),
        Role::Exponent => (0.01, 2.0),
        Role::Fraction => (0.01, 0.99),
        Role::Frequency => (1e-4, PI),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_families_have_the_parameters_of_the_table() {
        let found: Vec<(String, usize, String)> = Family::named()
            .into_iter()
            .map(|family| {
                let searched: Vec<String> = family.searched.iter().map(|p| p.name.clone()).collect();
                let names = format!("{}; {}", family.amplitudes.join(" "), searched.join(" "));
                (family.name.clone(), family.parameter_count(), names)
            })
            .collect();
        let expected = [
            ("const", 2, "; "),
            ("linear", 3, "a; "),
            ("power", 4, "a; p"),
            ("log", 4, "b; a"),
            ("log3", 5, "b; a p"),
            ("root_log", 5, "s; a q"),
            ("exp", 4, "c; a"),
            ("gauss", 4, "c; a"),
            ("stretched", 5, "c; a p"),
            ("two_exp", 6, "c c2; a a2"),
            ("log_linear", 5, "b a2; a"),
            ("damped_cos", 5, "c; a w"),
        ];
        assert_eq!(found, expected.map(|(name, k, names)| (name.to_owned(), k, names.to_owned())));
    }

    #[test]
    fn a_special_case_names_a_family_and_its_values() {
        for family in Family::named() {
            for (name, values) in &family.nested {
                let special = Family::read(name, false).unwrap();
                assert_eq!(values.len(), family.searched.len(), "{}", family.name);
                assert_eq!(
                    values.iter().filter(|value| value.is_none()).count(),
                    special.searched.len(),
                    "{}",
                    family.name
                );
            }
        }
    }

    #[test]
    fn what_cannot_be_fitted_is_refused() {
        let cases = [
            ("power(1, 2.5)", "Corollary 1"),
            ("logg", "unknown function `logg`"),
            ("s*log(b, a)", "only the product of 2 amplitudes matters"),
            ("log3(b, a, p) + exp(c, a, p) + gauss(c, a)", "at most 4 parameters besides amplitudes, found 5"),
            ("power(a, 1)+power(a, 1)+power(a, 1)+power(a, 1)+power(a, 1)", "at most 4 amplitudes are fitted, found 5"),
        ];
        for (text, message) in cases {
            let error = Family::read(text, false).unwrap_err();
            assert!(error.to_string().contains(message), "{text}: {error}");
        }
        let unproven = Family::read("power(a, 1) - 0.1*power(1, 2)", true).unwrap();
        assert_eq!(unproven.name, "power(a, 1) - 0.1*power(1, 2) [unproven]");
        assert!(Family::list("log,log", false).unwrap_err().to_string().contains("given twice"));
        assert!(Family::list(" , ", false).unwrap_err().to_string().contains("no family"));
        let names: Vec<String> =
            Family::list("all, exp(c, 0.5, p)", false).unwrap().into_iter().map(|family| family.name).collect();
        assert_eq!((names.len(), names[12].as_str()), (13, "exp(c, 0.5, p)"));
    }

    #[test]
    fn values_are_those_of_the_expression() {
        let family = Family::read("log(b, a) + const(c) + power(a, 1)", false).unwrap();
        assert_eq!(family.values(&[2.0, 0.1], &[0.5]), [2.0, 0.5, 0.0, 0.1]);
        assert!((family.at(&[2.0, 0.1], &[0.5], 4.0) + 2.0 * 3f64.ln() + 0.1 * 4.0).abs() < 1e-14);
    }
}
