//! What the paper claims, held against the runs.

use super::measure::{CONFIRMED, Finding, Method, Pairs, Place, Ratio, below, ratio};
use super::methods::*;
use super::{che, printed::Printed};
use crate::page::{Cell, Grid, Row};
use crate::paper::Reproduction;
use crate::paper::page::Item;

/// A perplexity this share above another one is still level with it.
const LEVEL: f64 = 0.05;

/// A claim about perplexities.
struct Claim {
    text: &'static str,
    kind: Kind,
}

enum Kind {
    /// The first is below the second at every length.
    Below(Method, Method),
    /// At the longest length it is not above itself at the training length by more than [`LEVEL`].
    Flat(Method),
    /// The same, beside the least length at which the same tokens are scored.
    FlatOnTheSame(Method),
    /// It is above itself there by more than [`LEVEL`].
    Rises(Method),
    /// At the longest length the first is within [`LEVEL`] of the second.
    Near(Method, Method),
}

const CLAIMS: [Claim; 17] = [
    claim("DAPE-Kerple is below Kerple at every length", Kind::Below(DAPE_KERPLE, KERPLE)),
    claim("DAPE-ALiBi is below ALiBi at every length", Kind::Below(DAPE_ALIBI, ALIBI)),
    claim("DAPE-FIRE is below FIRE at every length", Kind::Below(DAPE_FIRE, FIRE)),
    claim("DAPE-Kerple is flat or falls from the training length on", Kind::Flat(DAPE_KERPLE)),
    claim("DAPE-Kerple is flat or falls, over the same tokens", Kind::FlatOnTheSame(DAPE_KERPLE)),
    claim("Kerple rises, over the same tokens", Kind::Rises(KERPLE)),
    claim("DAPE-ALiBi is flat or falls, over the same tokens", Kind::FlatOnTheSame(DAPE_ALIBI)),
    claim("Concat is within 5 % of Concat_Residual at the longest length", Kind::Near(CONCAT, DAPE_KERPLE)),
    claim("Add_Residual is within 5 % of Concat_Residual at the longest length", Kind::Near(ADD_RESIDUAL, DAPE_KERPLE)),
    claim("with 4 hidden units DAPE-ALiBi is below ALiBi at every length", Kind::Below(HIDDEN_4, ALIBI)),
    claim("with 16 hidden units DAPE-ALiBi is below ALiBi at every length", Kind::Below(HIDDEN_16, ALIBI)),
    claim("with 64 hidden units DAPE-ALiBi is below ALiBi at every length", Kind::Below(HIDDEN_64, ALIBI)),
    claim("a network of the bias alone is below the bias", Kind::Below(BIAS_ONLY, KERPLE)),
    claim("DAPE is below a network of the bias alone", Kind::Below(DAPE_KERPLE, BIAS_ONLY)),
    claim("DAPE-Kerple is below Transformer-XL", Kind::Below(DAPE_KERPLE, TRANSFORMER_XL)),
    claim("DAPE-Kerple is below CoPE", Kind::Below(DAPE_KERPLE, COPE)),
    claim("the second version with three keys is below the first", Kind::Below(KERNEL3, DAPE_KERPLE)),
];

const fn claim(text: &'static str, kind: Kind) -> Claim {
    Claim { text, kind }
}

impl Kind {
    fn methods(&self) -> [&Method; 2] {
        match self {
            Kind::Below(own, other) | Kind::Near(own, other) => [own, other],
            Kind::Flat(own) | Kind::FlatOnTheSame(own) | Kind::Rises(own) => [own, own],
        }
    }
}

/// Every claim at every place.
pub(super) fn claims(all: &Reproduction, printed: &Printed) -> Item {
    let mut item = Item::new(
        "claims",
        "Claims of the paper",
        "Verdicts are of paired two-sided t-tests over the common seeds, p < 0.05, not corrected; intervals are of 95 %. Below at every \
         length is confirmed where every length is significantly so, and in part where some are and none is significantly above. \
         Differences are of perplexities, below 0 where the first is better. Flat, rising and within 5 % mean that the interval of the \
         ratio lies so. Over the same tokens: from the least length at which 256 tokens are scored.",
    );
    let places = Place::every(all);
    let mut rows = Vec::new();
    for claim in &CLAIMS {
        let is_planned = |place: &&Place| claim.kind.methods().iter().all(|method| !place.planned(method).is_empty());
        for (at, place) in places.iter().filter(is_planned).enumerate() {
            let found = find(place, &claim.kind);
            item.planned += 1;
            item.complete += usize::from(found.is_some());
            let name = if at == 0 { claim.text } else { "" };
            rows.push(Row { name: name.to_owned(), colour: None, cells: vec![place.title().into(), cell(found)] });
        }
    }
    let head = ["claim", "where", "found"].map(str::to_owned).into();
    item.grids.push(Grid { caption: "Perplexity".to_owned(), head, rows });
    let found = che::claims(all, printed);
    item.planned += found.len();
    item.complete += found.iter().filter(|(_, finding)| finding.is_some()).count();
    let row = |(text, finding): (&'static str, Option<Finding>)| Row {
        name: text.to_owned(),
        colour: None,
        cells: vec![cell(finding)],
    };
    item.grids.push(Grid {
        caption: "Formal languages: pairs are of tasks, learning rates and seeds; differences in percent".to_owned(),
        head: ["claim", "found"].map(str::to_owned).into(),
        rows: found.into_iter().map(row).collect(),
    });
    item
}

fn cell(found: Option<Finding>) -> Cell {
    match found {
        None => Cell::from("\u{2013}".to_owned()),
        Some(Finding { verdict, numbers }) => {
            Cell { note: Some(numbers), best: verdict == CONFIRMED, ..verdict.to_owned().into() }
        }
    }
}

fn find(place: &Place, kind: &Kind) -> Option<Finding> {
    let [own, other] = kind.methods();
    let lengths = place.lengths(own);
    let (train_len, longest) = (place.train_len()?, *lengths.last()?);
    let over_lengths = |from: u64, claimed: Ratio| {
        let found = ratio(&place.pairs((own, longest), (own, from)), claimed)?;
        let numbers = format!("at {longest} and {from}: {}", found.numbers);
        Some(Finding { numbers, ..found })
    };
    match kind {
        Kind::Below(..) => {
            let pairs = |length: &u64| (*length, place.pairs((own, *length), (other, *length)));
            let by_length: Vec<(u64, Pairs)> = lengths.iter().map(pairs).collect();
            below(&by_length)
        }
        Kind::Flat(_) => over_lengths(train_len, Ratio::AtMost(LEVEL)),
        Kind::FlatOnTheSame(_) => over_lengths(place.same_tokens(own)?, Ratio::AtMost(LEVEL)),
        Kind::Rises(_) => over_lengths(place.same_tokens(own)?, Ratio::Above(LEVEL)),
        Kind::Near(..) => {
            let found = ratio(&place.pairs((own, longest), (other, longest)), Ratio::Near(LEVEL))?;
            Some(Finding { numbers: format!("at {longest}: {}", found.numbers), ..found })
        }
    }
}
