//! Display names of encodings and training variants: labels and variants are folder names.

use super::Folder;
use std::collections::BTreeMap;

/// Kinds of encodings.
const KINDS: [(&str, &str); 12] = [
    ("alibi", "ALiBi"),
    ("conv_spe", "ConvSPE"),
    ("dape", "DAPE"),
    ("kerple_log", "log"),
    ("kerple_power", "power"),
    ("learned", "learned positions"),
    ("none", "no positions"),
    ("rotary", "rotary"),
    ("sine_spe", "SineSPE"),
    ("sinusoidal", "sinusoidal"),
    ("t5", "T5"),
    ("transformer_xl", "Transformer-XL"),
];

/// Keys that are the same for all encodings of a kind in an experiment, and so tell nothing apart.
const SHARED: [&str; 9] = [
    "layer",
    "noise=shared",
    "taps=32",
    "gating=jax",
    "waves=10",
    "max_distance=32",
    "hidden=64",
    "behind=0.5",
    "base=kerple_log",
];

/// An encoding in words, by its label; the label itself where it is of no known kind.
fn encoding(label: &str) -> String {
    let mut parts = label.split('-');
    let kind = parts.next().unwrap_or_default();
    let Some((_, name)) = KINDS.iter().find(|(known, _)| *known == kind) else { return label.to_owned() };
    let key = |key: &str| match key.split_once('=') {
        _ if SHARED.contains(&key) => None,
        Some(("realisations", count)) => Some(format!(", {count} draws")),
        Some(("kernel", count)) => Some(format!(", {count} keys")),
        Some((name, value)) => Some(format!(", {} {value}", name.replace('_', " "))),
        None if key == "frozen" => Some(", frozen noise".to_owned()),
        None if key == "decayed" => Some(", kernel decayed".to_owned()),
        None => Some(format!(", {key}")),
    };
    parts.filter_map(key).fold((*name).to_owned(), |name, key| name + &key)
}

/// The names of all encodings of a folder by their labels. Where two would be called the same, both are called by their labels.
pub(super) fn encodings(all: &Folder) -> BTreeMap<&str, String> {
    let names: BTreeMap<&str, String> =
        all.manifest.runs.iter().map(|run| (run.label.as_str(), encoding(&run.label))).collect();
    let is_alone = |name: &str| names.values().filter(|other| *other == name).count() == 1;
    let of = |(label, name): (&&'_ str, &String)| if is_alone(name) { name.clone() } else { (*label).to_owned() };
    names.iter().map(|(label, name)| (*label, of((label, name)))).collect()
}

/// Variants of the questions of this project: how their runs are trained.
const VARIANTS: [(&str, &str, &str); 19] = [
    ("arena", "", "softmax features"),
    ("arena", "relu", "ReLU features"),
    ("budget", "", "600 updates at 3e-3"),
    ("budget", "low", "600 updates at 1e-3"),
    ("budget", "high", "600 updates at 1e-2"),
    ("budget", "times4", "2400 updates at 3e-3"),
    ("budget", "times4_low", "2400 updates at 1e-3"),
    ("budget", "times4_high", "2400 updates at 1e-2"),
    ("budget", "times16", "9600 updates at 3e-3"),
    ("budget", "times16_low", "9600 updates at 1e-3"),
    ("decay", "", "no decay"),
    ("decay", "paper_sum", "the paper's sum of decay"),
    ("decay", "as_found", "decay of 0.1"),
    ("decay", "longer_without", "four times the updates, no decay"),
    ("decay", "longer", "four times the updates, the paper's sum of decay"),
    ("draws", "longer", "four times the updates"),
    ("induction", "", "two layers"),
    ("induction", "one", "one layer"),
    ("induction", "four", "four layers"),
];

/// What runs of a variant are called behind the name of their text; nothing for the usual runs of most experiments.
pub(super) fn variant<'a>(paper: &str, variant: &'a str) -> &'a str {
    let known = VARIANTS.iter().find(|(of, name, _)| (*of, *name) == (paper, variant));
    known.map_or(variant, |(.., words)| words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_said_in_words() {
        for (label, name) in [
            ("t5-max_distance=32", "T5"),
            ("conv_spe-frozen-noise=shared-realisations=32-taps=32", "ConvSPE, frozen noise, 32 draws"),
            ("sine_spe-gating=jax-realisations=32-waves=10-layer", "SineSPE, 32 draws"),
            ("kerple_log-decayed-layer", "log, kernel decayed"),
            ("dape-kernel=3", "DAPE, 3 keys"),
            ("kernel-bias=log", "kernel-bias=log"),
        ] {
            assert_eq!(encoding(label), name);
        }
        assert_eq!((variant("budget", "times4_low"), variant("kerple", "twice")), ("2400 updates at 1e-3", "twice"));
    }
}
