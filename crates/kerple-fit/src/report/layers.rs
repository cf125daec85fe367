//! Fits of the heads of a layer together: one expression, and the keys of a run file that start from it.

use super::{CurveFits, CurveVerdict, RankedFamily};
use crate::family::Family;
use crate::rank::FitOptions;
use kerple_core::calculus::expr::LearnedStart;
use kerple_core::calculus::parameter::{FLOOR, KernelParameter};
use kerple_report::statistics::median;
use serde::Serialize;
use std::fmt;

/// The fits of a layer's heads.
#[derive(Clone, Debug, Serialize)]
pub struct LayerFit {
    /// The layer, or all layers that share its curves.
    pub layers: Vec<usize>,
    /// The family of all heads that a kernel describes: that with the least sum of the criterion. Where heads may have
    /// different families, the one of which each head's is a special case. `None` where there is none.
    pub family: Option<String>,
    /// How many curves it is fitted to, and how many have it among those not distinguished.
    pub heads: (usize, usize),
    /// How many curves no kernel describes, or are constant.
    pub without_kernel: usize,
    /// Families of the heads, where heads may have different ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<HeadGroup>,
    /// Keys of a run file that start from the fit; `None` without a family.
    pub warm_start: Option<String>,
    /// Fitted values of its parameters, a row for each of those curves in the order of the expression.
    pub values: Vec<Vec<f64>>,
    /// What training does with parts of it.
    pub note: Option<String>,
}

/// Heads with one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeadGroup {
    /// Name of the family.
    pub family: String,
    /// The heads.
    pub heads: Vec<usize>,
}

/// A family for the curves of a layer, with the values of its parameters.
struct LayerFamily<'a> {
    family: &'a Family,
    /// For each curve its values in the order of the expression; none where no kernel describes it.
    rows: Vec<Option<Vec<f64>>>,
    groups: Vec<HeadGroup>,
}

/// The fits of each layer of a source.
pub(crate) fn layers(curves: &[CurveFits], sharing: &[Vec<usize>], options: &FitOptions) -> Vec<LayerFit> {
    let mut numbers: Vec<usize> = curves.iter().filter_map(|curve| curve.place).map(|(layer, _)| layer).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let depth = depth(numbers.len(), sharing);
    let of = |layer| {
        let set = sharing.iter().find(|set| set.first() == Some(&layer));
        let layers = set.cloned().unwrap_or_else(|| vec![layer]);
        let is_model = layers.len() == depth;
        layer_fit(layers, is_model, curves, options)
    };
    numbers.into_iter().map(of).collect()
}

/// How many layers a source has: those that share tables, with a curve or without, or else those with curves.
fn depth(with_curves: usize, sharing: &[Vec<usize>]) -> usize {
    if sharing.is_empty() { with_curves } else { sharing.iter().map(Vec::len).sum() }
}

/// The model's own encoding as keys of a run file, where those of the layers leave it none: training refuses an encoding
/// with learned values that no layer has.
pub(crate) fn model_encoding(layers: &[LayerFit], sharing: &[Vec<usize>]) -> Option<&'static str> {
    let started = layers.iter().filter(|layer| layer.warm_start.is_some());
    let covered: usize = started.map(|layer| layer.layers.len()).sum();
    (layers.len() > 1 && covered == depth(layers.len(), sharing)).then_some("[encoding]\nkind = \"none\"")
}

/// The fit of layers that share their curves; `is_model` where these are all layers.
fn layer_fit(layers: Vec<usize>, is_model: bool, curves: &[CurveFits], options: &FitOptions) -> LayerFit {
    let layer = layers[0];
    let own: Vec<(usize, &CurveFits)> = curves
        .iter()
        .filter_map(|curve| Some((curve.place?, curve)))
        .filter(|((of, _), _)| *of == layer)
        .map(|((_, head), curve)| (head, curve))
        .collect();
    let described: Vec<(usize, &CurveFits)> =
        own.iter().copied().filter(|(_, curve)| curve.verdict == CurveVerdict::Kernel).collect();
    let found = match options.per_head {
        true => common_family(&own, options),
        false => least_sum(&own, options),
    };
    let mut fit = LayerFit {
        layers,
        family: None,
        heads: (described.len(), 0),
        without_kernel: own.len() - described.len(),
        groups: Vec::new(),
        warm_start: None,
        values: Vec::new(),
        note: None,
    };
    let LayerFamily { family, rows, groups } = match found {
        Ok(found) => found,
        Err(groups) => {
            fit.note = (!groups.is_empty()).then(|| {
                "a run has one expression for all heads of a layer, and none has all of these as special cases that \
                 training keeps; without --per-head, heads have one"
                    .to_owned()
            });
            return LayerFit { groups, ..fit };
        }
    };
    let is_near = |(_, curve): &&(usize, &CurveFits)| {
        options.per_head || curve.families[..curve.not_told_apart].iter().any(|fit| fit.family == family.name)
    };
    let by_head: Vec<(usize, Option<Vec<f64>>)> = own.iter().map(|(head, _)| *head).zip(rows).collect();
    let (bias, start, note) = warm_start(family, &by_head);
    let start = start.map_or_else(String::new, |start| format!(", start = {start}"));
    let unproven = if family.expr.class().is_cpd() { "" } else { ", unproven = true" };
    let keys = format!("encoding = {{ kind = \"kernel\", bias = \"{bias}\"{start}{unproven} }}");
    LayerFit {
        family: Some(family.name.clone()),
        heads: (described.len(), described.iter().filter(is_near).count()),
        groups,
        warm_start: Some(match is_model {
            true => keys,
            false => format!("[model.layers.layer_{layer}]\nat = {:?}\n{keys}", fit.layers),
        }),
        values: by_head.into_iter().filter_map(|(_, row)| row).collect(),
        note,
        ..fit
    }
}

/// The family with the least sum of the criterion over the curves that a kernel describes.
fn least_sum<'a>(own: &[(usize, &CurveFits)], options: &'a FitOptions) -> Result<LayerFamily<'a>, Vec<HeadGroup>> {
    let fit = |curve: &CurveFits, family: &Family| {
        let is_described = curve.verdict == CurveVerdict::Kernel;
        curve.families.iter().find(|fit| is_described && fit.family == family.name).cloned()
    };
    let sum = |family: &Family| -> f64 {
        own.iter().filter_map(|(_, curve)| fit(curve, family)).map(|fit| fit.difference).sum()
    };
    let is_empty = own.iter().all(|(_, curve)| curve.verdict != CurveVerdict::Kernel);
    let best = options.families.iter().filter(|_| !is_empty).min_by(|x, y| sum(x).total_cmp(&sum(y)));
    let family = best.ok_or_else(Vec::new)?;
    let rows = own.iter().map(|(_, curve)| fit(curve, family).map(|fit| values(family, &fit))).collect();
    Ok(LayerFamily { family, rows, groups: Vec::new() })
}

/// The family of which every curve has a special case among the families that are not distinguished from its best; otherwise
/// the best families of the heads.
///
/// A sum with an amplitude of 0 is no special case of a family here, as training keeps amplitudes at or above [`FLOOR`].
fn common_family<'a>(own: &[(usize, &CurveFits)], options: &'a FitOptions) -> Result<LayerFamily<'a>, Vec<HeadGroup>> {
    let described = || own.iter().filter(|(_, curve)| curve.verdict == CurveVerdict::Kernel);
    let mut best: Option<(f64, LayerFamily)> = None;
    for family in &options.families {
        let special = |curve: &CurveFits| {
            let near = curve.families[..curve.not_told_apart].iter();
            near.filter_map(|fit| Some((fit, as_special_case(family, fit, options)?)))
                .min_by(|(x, _), (y, _)| x.difference.total_cmp(&y.difference))
                .map(|(fit, row)| (fit.family.clone(), fit.difference, row))
        };
        let found: Option<Vec<_>> = described().map(|(head, curve)| Some((*head, special(curve)?))).collect();
        let Some(found) = found.filter(|found| !found.is_empty()) else { continue };
        let sum: f64 = found.iter().map(|(_, (_, difference, _))| difference).sum();
        if best.as_ref().is_some_and(|(least, _)| *least <= sum) {
            continue;
        }
        let groups = groups(found.iter().map(|(head, (family, ..))| (family.as_str(), *head)));
        let mut left = found.into_iter().map(|(_, (_, _, row))| row);
        let row = |(_, curve): &(usize, &CurveFits)| {
            if curve.verdict == CurveVerdict::Kernel { left.next() } else { None }
        };
        let rows = own.iter().map(row).collect();
        best = Some((sum, LayerFamily { family, rows, groups }));
    }
    best.map(|(_, found)| found)
        .ok_or_else(|| groups(described().map(|(head, curve)| (curve.families[0].family.as_str(), *head))))
}

/// Values of a family's parameters at which it is a fit of it, or of a special case of it that training can start from.
fn as_special_case(family: &Family, fit: &RankedFamily, options: &FitOptions) -> Option<Vec<f64>> {
    if fit.family == family.name {
        return Some(values(family, fit));
    }
    let special = options.families.iter().find(|other| other.name == fit.family)?;
    let fitted = |name: &String| fit.parameters[name][0];
    let cases = family.nested.iter().filter(|(name, _)| *name == special.name);
    cases.filter(|_| special.amplitudes.len() == family.amplitudes.len()).find_map(|(_, at)| {
        let amplitudes: Vec<f64> = special.amplitudes.iter().map(fitted).collect::<Option<_>>()?;
        let mut own = special.searched.iter().map(|parameter| fitted(&parameter.name));
        let searched = at.iter().map(|value| value.or_else(|| own.next().flatten())).collect::<Option<Vec<f64>>>()?;
        let roles = family.searched.iter().map(|parameter| parameter.role.limits());
        let is_kept =
            |((value, (low, high)), x): ((&Option<f64>, (f64, f64)), &f64)| value.is_none() || (low..=high).contains(x);
        at.iter().zip(roles).zip(&searched).all(is_kept).then(|| family.values(&amplitudes, &searched))
    })
}

/// Heads by family, in the order of their first heads.
fn groups<'a>(heads: impl Iterator<Item = (&'a str, usize)>) -> Vec<HeadGroup> {
    let mut found: Vec<HeadGroup> = Vec::new();
    for (family, head) in heads {
        match found.iter_mut().find(|group| group.family == family) {
            // a head that has a curve for each direction counts once
            Some(group) if group.heads.contains(&head) => {}
            Some(group) => group.heads.push(head),
            None => found.push(HeadGroup { family: family.to_owned(), heads: vec![head] }),
        }
    }
    found
}

/// Fitted values in the order of the expression; a constant is 0, as the level stands for it.
fn values(family: &Family, fit: &RankedFamily) -> Vec<f64> {
    let value = |name: &Option<String>| name.as_ref().and_then(|name| fit.parameters[name][0]).unwrap_or(0.0);
    family.parameter_names().iter().map(value).collect()
}

/// An expression, initial values of each head where they differ, and what training does not take as fitted. `own` has the
/// head and the fitted values of each curve.
///
/// Training keeps amplitudes, rates, exponents and frequencies at or above [`FLOOR`]: where the median of the heads is
/// smaller, it is written as a number, which is not learned.
fn warm_start(family: &Family, own: &[(usize, Option<Vec<f64>>)]) -> (String, Option<String>, Option<String>) {
    let parameters = family.expr.parameters();
    let names = family.parameter_names();
    let medians: Vec<f64> = (0..parameters.len())
        .map(|i| {
            let column: Vec<f64> = own.iter().filter_map(|(_, row)| Some(row.as_ref()?[i])).collect();
            rounded(median(&column))
        })
        .collect();
    let is_learned = |i: usize| is_kept(&parameters[i], medians[i]);
    let learned: Vec<usize> = (0..parameters.len()).filter(|i| is_learned(*i)).collect();
    let heads = own.iter().map(|(head, _)| head + 1).max().unwrap_or(0);
    let (mut rows, mut moved, mut without) = (Vec::with_capacity(heads), Vec::new(), Vec::new());
    for head in 0..heads {
        // of two directions the first, that of keys before the query
        let row = own.iter().filter(|(of, _)| *of == head).find_map(|(_, row)| row.as_ref());
        let Some(row) = row else {
            without.push(head);
            rows.push(learned.iter().map(|i| medians[*i]).collect::<Vec<f64>>());
            continue;
        };
        if learned.iter().any(|i| !is_kept(&parameters[*i], rounded(row[*i]))) {
            moved.push(head);
        }
        rows.push(learned.iter().map(|i| rounded(row[*i]).clamp(parameters[*i].low, parameters[*i].high)).collect());
    }
    let is_one = rows.windows(2).all(|pair| pair[0] == pair[1]);
    let start = |i: usize| match learned.iter().position(|of| *of == i) {
        None => LearnedStart::Number(medians[i]),
        Some(at) if is_one => LearnedStart::At(rows[0][at]),
        Some(_) => LearnedStart::Unwritten,
    };
    let expression = family.expr.with_starts(&(0..parameters.len()).map(start).collect::<Vec<LearnedStart>>());
    let frozen: Vec<String> = (0..parameters.len())
        .filter(|i| !is_learned(*i) && names[*i].is_some())
        .map(|i| format!("{} = {}", parameters[i].name, medians[i]))
        .collect();
    let mut notes = Vec::new();
    if !frozen.is_empty() {
        let of_heads = if heads > 1 { ", the median of the heads," } else { "" };
        notes.push(format!(
            "training keeps learned values at or above {FLOOR}, so {}{of_heads} is written as a number and is not learned",
            frozen.join(", ")
        ));
    }
    if !moved.is_empty() {
        notes.push(format!("{} at the nearest values that training keeps, at or above {FLOOR}", starting(&moved)));
    }
    if !without.is_empty() {
        notes.push(format!(
            "{} at the median of the others, as no kernel describes {}",
            starting(&without),
            if without.len() == 1 { "it" } else { "them" }
        ));
    }
    if own.len() > heads && !is_one {
        notes.push("heads start at their fits to keys before the query".to_owned());
    }
    (expression, (!is_one).then(|| format!("{rows:?}")), (!notes.is_empty()).then(|| notes.join("; ")))
}

fn is_kept(parameter: &KernelParameter, value: f64) -> bool {
    (parameter.low..=parameter.high).contains(&value)
}

/// `head 2 starts`, or `heads 2, 3 start`.
fn starting(heads: &[usize]) -> String {
    let numbers: Vec<String> = heads.iter().map(usize::to_string).collect();
    match heads {
        [one] => format!("head {one} starts"),
        _ => format!("heads {} start", numbers.join(", ")),
    }
}

/// Eight digits: the error is below the rounding of a parameter in single precision.
fn rounded(value: f64) -> f64 {
    format!("{value:.7e}").parse().unwrap_or(value)
}

impl LayerFit {
    /// `layer 3`, or `layers 0, 1, 2` that share their curves.
    pub fn name(&self) -> String {
        let numbers: Vec<String> = self.layers.iter().map(usize::to_string).collect();
        format!("layer{} {}", if numbers.len() == 1 { "" } else { "s" }, numbers.join(", "))
    }

    /// The family of all heads, with those of the heads where they differ.
    pub fn expression(&self) -> String {
        match (&self.family, self.groups.len()) {
            (Some(family), 0 | 1) => family.clone(),
            (Some(family), _) => format!("{family} ({})", self.families()),
            (None, 0) => "no kernel".to_owned(),
            (None, _) => self.families(),
        }
    }

    /// `log: heads 0, 2; exp: head 1`
    fn families(&self) -> String {
        let group = |HeadGroup { family, heads }: &HeadGroup| {
            let numbers: Vec<String> = heads.iter().map(usize::to_string).collect();
            format!("{family}: head{} {}", if heads.len() == 1 { "" } else { "s" }, numbers.join(", "))
        };
        self.groups.iter().map(group).collect::<Vec<String>>().join("; ")
    }
}

/// A line.
impl fmt::Display for LayerFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (heads, near) = self.heads;
        write!(f, "{:<12} {:<10}", self.name(), self.expression())?;
        if self.family.is_some() {
            write!(f, " {near} of {heads} heads")?;
        }
        if self.without_kernel > 0 {
            write!(f, ", {} without a kernel", self.without_kernel)?;
        }
        match &self.note {
            Some(note) => write!(f, "  ({note})"),
            None => Ok(()),
        }
    }
}
