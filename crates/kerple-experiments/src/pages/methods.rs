//! The methods that a page compares, as its description lists them, and which runs are theirs.

use serde::Deserialize;

/// A method in tables, legends and claims.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ComparedMethod {
    /// Its name in the page's description.
    pub key: String,
    /// Its name on the page.
    pub name: String,
    /// The kind of its encoding and the keys that distinguish it on this page, as in labels: `dape-base=alibi`.
    pub label: String,
    /// The name under which its numbers were printed; empty where none were.
    #[serde(default)]
    pub printed: String,
    /// Colour in figures.
    #[serde(default)]
    pub colour: usize,
    /// Whether its line is dashed.
    #[serde(default)]
    pub dashed: bool,
    /// Rotary rates that its evaluations set in place of the trained ones.
    #[serde(default)]
    pub rope_scaling: Option<String>,
    /// Its evaluation, where it is another one than that of the claim or table.
    #[serde(default)]
    pub evaluation: Option<String>,
    /// A variant whose runs count as usual runs: settings of its own, as published.
    #[serde(default)]
    pub usual_variant: Option<String>,
    /// Key of the method it is tested against: DAPE over the same bias, or over KERPLE's where it has none.
    #[serde(default)]
    pub adapted: Option<String>,
    /// Labels of other methods of the page that are this one with more keys.
    #[serde(skip)]
    narrower: Vec<String>,
}

impl ComparedMethod {
    /// Whether a run of this label is of this method: of its kind, with its keys, and of no narrower method.
    pub(super) fn is_of(&self, label: &str) -> bool {
        has_parts(label, &self.label) && !self.narrower.iter().any(|narrower| has_parts(label, narrower))
    }

    /// Variants of its runs.
    pub(super) fn variants<'a>(&'a self, variant: &'a str) -> impl Iterator<Item = &'a str> {
        let usual = self.usual_variant.as_deref().filter(|_| variant.is_empty());
        std::iter::once(variant).chain(usual)
    }
}

/// Lets every method know the narrower ones among them.
pub(super) fn distinguish(methods: &mut [ComparedMethod]) {
    let labels: Vec<String> = methods.iter().map(|method| method.label.clone()).collect();
    for method in methods {
        let is_narrower = |label: &&String| has_parts(label, &method.label) && !has_parts(&method.label, label);
        method.narrower = labels.iter().filter(is_narrower).cloned().collect();
    }
}

/// Whether a label has the kind and the keys of another one. A key may continue: `base=alibi` is in `base=alibi.behind0.5`,
/// `randomized` in `randomized8192`.
fn has_parts(label: &str, other: &str) -> bool {
    let is_in = |part: &str, wanted: &str| {
        part.strip_prefix(wanted).is_some_and(|rest| {
            let is_count = !wanted.ends_with(|c: char| c.is_ascii_digit()) && rest.bytes().all(|b| b.is_ascii_digit());
            rest.is_empty() || rest.starts_with('.') || is_count
        })
    };
    let (mut parts, mut wanted) = (label.split('-'), other.split('-'));
    parts.next() == wanted.next() && wanted.all(|wanted| label.split('-').skip(1).any(|part| is_in(part, wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(labels: &[&'a str], label: &str) -> Vec<&'a str> {
        let method = |label: &&str| ComparedMethod { label: (*label).to_owned(), ..ComparedMethod::default() };
        let mut methods: Vec<ComparedMethod> = labels.iter().map(method).collect();
        distinguish(&mut methods);
        labels.iter().zip(&methods).filter(|(_, method)| method.is_of(label)).map(|(label, _)| *label).collect()
    }

    #[test]
    fn every_label_has_one_method() {
        let spe = ["sinusoidal", "sine_spe", "sine_spe-gated=false", "conv_spe", "conv_spe-gated=false", "kerple_log"];
        let dape = ["alibi", "rotary", "rotary-randomized", "dape", "dape-base=alibi", "dape-base=alibi-hidden=64"];
        let hierarchy = ["learned", "rotary", "alibi", "kerple_log", "dape", "dape-base=alibi"];
        let kerple = ["t5", "rotary", "rotary-bf16"];
        for (methods, label, method) in [
            (&spe[..], "sine_spe", "sine_spe"),
            (&spe, "sine_spe-waves=8-gated=false", "sine_spe-gated=false"),
            (&spe, "conv_spe-taps=32-gated=false-realisations=16", "conv_spe-gated=false"),
            (&spe, "conv_spe-taps=128", "conv_spe"),
            (&dape, "rotary-randomized8192", "rotary-randomized"),
            (&dape, "dape-base=alibi-hidden=64", "dape-base=alibi-hidden=64"),
            (&dape, "dape-base=alibi", "dape-base=alibi"),
            (&hierarchy, "rotary-randomized2048", "rotary"),
            (&hierarchy, "learned-positions=1500", "learned"),
            (&hierarchy, "kerple_log-decayed-layer", "kerple_log"),
            (&hierarchy, "dape-base=alibi.behind0.5-hidden=64", "dape-base=alibi"),
            (&hierarchy, "dape-hidden=64", "dape"),
            (&kerple, "t5-max_distance=32", "t5"),
            (&kerple, "rotary-base=5-bf16", "rotary-bf16"),
        ] {
            assert_eq!(found(methods, label), [method], "{label}");
        }
        assert!(found(&spe, "kerple_log3").is_empty() && found(&dape, "alibiish").is_empty());
    }
}
