//! Display names of encodings and training variants: labels and variants are folder names.

use super::description::PageDescription;
use super::reader::ReproductionFolder;
use std::collections::BTreeMap;

/// An encoding in words, by its label; the label itself where it is of no known kind.
fn encoding(page: &PageDescription, label: &str) -> String {
    let mut parts = label.split('-');
    let kind = parts.next().unwrap_or_default();
    let Some(name) = page.kinds.get(kind) else { return label.to_owned() };
    let key = |key: &str| match key.split_once('=') {
        _ if page.shared_keys.iter().any(|shared| shared == key) => None,
        Some(("realisations", count)) => Some(format!(", {count} draws")),
        Some(("kernel", count)) => Some(format!(", {count} keys")),
        Some((name, value)) => Some(format!(", {} {value}", name.replace('_', " "))),
        None if key == "frozen" => Some(", frozen noise".to_owned()),
        None if key == "decayed" => Some(", kernel decayed".to_owned()),
        None => match key.strip_prefix("reach").filter(|reach| !reach.is_empty()) {
            Some(reach) => Some(format!(", reach {reach}")),
            None => Some(format!(", {key}")),
        },
    };
    parts.filter_map(key).fold(name.clone(), |name, key| name + &key)
}

/// The names of all encodings of a folder by their labels. Where two would have the same name, both are called by their labels.
pub(super) fn encodings<'a>(all: &'a ReproductionFolder, page: &PageDescription) -> BTreeMap<&'a str, String> {
    let names: BTreeMap<&str, String> =
        all.manifest.runs.iter().map(|run| (run.label.as_str(), encoding(page, &run.label))).collect();
    let is_alone = |name: &str| names.values().filter(|other| *other == name).count() == 1;
    let of = |(label, name): (&&'a str, &String)| if is_alone(name) { name.clone() } else { (*label).to_owned() };
    names.iter().map(|(label, name)| (*label, of((label, name)))).collect()
}

/// What runs of a variant are called after the name of their text; nothing for the usual runs of most experiments.
pub(super) fn variant<'a>(page: &'a PageDescription, experiment: &str, variant: &'a str) -> &'a str {
    let known = page.variants.get(experiment).and_then(|names| names.get(variant));
    known.map_or(variant, String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_named_in_words() {
        let page = PageDescription::of("decay").unwrap();
        for (label, name) in [
            ("t5-max_distance=32", "T5"),
            ("conv_spe-frozen-noise=shared-realisations=32-taps=32", "ConvSPE, frozen noise, 32 draws"),
            ("sine_spe-gating=jax-realisations=32-waves=10-layer", "SineSPE, 32 draws"),
            ("kerple_log-decayed-layer", "log, kernel decayed"),
            ("kerple_log-reach128", "log, reach 128"),
            ("dape-kernel=3", "DAPE, 3 keys"),
            ("kernel-bias=log", "kernel-bias=log"),
        ] {
            assert_eq!(encoding(&page, label), name);
        }
        assert_eq!(
            (variant(&page, "budget", "times4_low"), variant(&page, "kerple", "twice")),
            ("2400 updates at 1e-3", "twice")
        );
    }
}
