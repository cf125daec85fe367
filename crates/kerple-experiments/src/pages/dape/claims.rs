//! The claims of the paper, tested with the runs.
//!
//! The last tokens of each text are scored, the same at every length but the shortest. A method
//! that uses nothing beyond its training length is therefore level over them, and flatness needs no
//! baseline.

use super::measure::{Method, Place};
use super::methods::*;
use super::{che, printed::Printed};
use crate::pages::Folder;
use crate::pages::page::Item;
use crate::pages::verdict::{
    AFTER_RUNS, AtLength, EFFECT, FLAT, Finding, OURS, RULE, Side, Unit, change, differences, judge,
};
use kerple_report::page::{Grid, Row};

/// A claim about perplexities.
struct Claim {
    text: &'static str,
    kind: Kind,
}

enum Kind {
    /// The first is below the second at every length.
    Below(Method, Method),
    /// The first is below the second by its change over the same tokens to the longest length.
    Gains(Method, Method),
    /// Over the same tokens it is not above itself at the longest length by more than [`FLAT`].
    Flat(Method),
    /// It is above itself there by more than [`FLAT`].
    Rises(Method),
    /// At the longest length the first is within [`FLAT`] of the second.
    Near(Method, Method),
}

const CLAIMS: [Claim; 19] = [
    claim("DAPE-Kerple is below Kerple at every length", Kind::Below(DAPE_KERPLE, KERPLE)),
    claim("by change: DAPE-Kerple gains on Kerple to the longest length", Kind::Gains(DAPE_KERPLE, KERPLE)),
    claim("DAPE-ALiBi is below ALiBi at every length", Kind::Below(DAPE_ALIBI, ALIBI)),
    claim("by change: DAPE-ALiBi gains on ALiBi to the longest length", Kind::Gains(DAPE_ALIBI, ALIBI)),
    claim("DAPE-FIRE is below FIRE at every length", Kind::Below(DAPE_FIRE, FIRE)),
    claim("by change: DAPE-FIRE gains on FIRE to the longest length", Kind::Gains(DAPE_FIRE, FIRE)),
    claim("DAPE-Kerple is flat or falls, over the same tokens", Kind::Flat(DAPE_KERPLE)),
    claim("Kerple rises, over the same tokens", Kind::Rises(KERPLE)),
    claim("DAPE-ALiBi is flat or falls, over the same tokens", Kind::Flat(DAPE_ALIBI)),
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
            Kind::Below(own, other) | Kind::Gains(own, other) | Kind::Near(own, other) => [own, other],
            Kind::Flat(own) | Kind::Rises(own) => [own, own],
        }
    }
}

/// Every claim at every place.
pub(super) fn claims(all: &Folder, printed: &Printed) -> Item {
    let text = format!(
        "{RULE} {AFTER_RUNS} Differences are of log-perplexity and are shown as the ratio of perplexities that they mean. The margin \
         between two methods is 1 %; 5 % is the least growth that is not flat and the least distance that is not near. The paper compares \
         levels; comparisons by change are not the paper's. Over the same tokens: from the least length at which 256 tokens are scored."
    );
    let mut item = Item::new("claims", "Claims of the paper", &text);
    let places = Place::every(all);
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    for claim in &CLAIMS {
        let is_planned = |place: &&Place| claim.kind.methods().iter().all(|method| !place.planned(method).is_empty());
        for (at, place) in places.iter().filter(is_planned).enumerate() {
            let found = find(place, &claim.kind);
            item.planned += 1;
            item.complete += usize::from(found.is_some());
            findings.extend(found.clone());
            let whose = if matches!(claim.kind, Kind::Gains(..)) { OURS } else { "" };
            rows.push(Row {
                name: if at == 0 { format!("{whose}{}", claim.text) } else { String::new() },
                colour: None,
                cells: vec![place.title().into(), Finding::cell(found)],
            });
        }
    }
    let head = ["claim", "where", "found"].map(str::to_owned).into();
    item.grids.push(Grid { caption: "Perplexity".to_owned(), head, rows });
    let found = che::claims(all, printed);
    item.planned += found.len();
    item.complete += found.iter().filter(|(_, finding)| finding.is_some()).count();
    findings.extend(found.iter().filter_map(|(_, finding)| finding.clone()));
    item.count(findings.iter());
    let row = |(text, finding): (&'static str, Option<Finding>)| Row {
        name: text.to_owned(),
        colour: None,
        cells: vec![Finding::cell(finding)],
    };
    item.grids.push(Grid {
        caption: che::ABOUT_CLAIMS.to_owned(),
        head: ["claim", "found"].map(str::to_owned).into(),
        rows: found.into_iter().map(row).collect(),
    });
    item
}

fn find(place: &Place, kind: &Kind) -> Option<Finding> {
    let [own, other] = kind.methods();
    let lengths = place.lengths(own);
    let longest = *lengths.last()?;
    let level = |length: u64| differences(&place.losses(own, length), &place.losses(other, length));
    let same = place.same_tokens(own)?;
    let changes = |method: &Method| change(&place.losses(method, longest), &place.losses(method, same));
    let at = |length: u64, found: Vec<f64>| -> AtLength { (format!("at {length}"), found) };
    let over = |found: Vec<f64>| vec![(format!("from {same} to {longest}"), found)];
    let (side, by_length) = match kind {
        Kind::Below(..) => (Side::Below(-EFFECT), lengths.iter().map(|length| at(*length, level(*length))).collect()),
        Kind::Gains(..) => (Side::Below(-EFFECT), over(differences(&changes(own), &changes(other)))),
        Kind::Flat(_) => (Side::Below(FLAT), over(changes(own).into_values().collect())),
        Kind::Rises(_) => (Side::Above(FLAT), over(changes(own).into_values().collect())),
        Kind::Near(..) => (Side::Within(FLAT), vec![at(longest, level(longest))]),
    };
    Some(judge(side, Unit::Times, &by_length)?.beside_programs(&place.runs(own), &place.runs(other)))
}
