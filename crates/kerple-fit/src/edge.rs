//! Where families coincide: what a fit at an end of its box, or with an amplitude of 0, really is.

use crate::family::Family;

/// Whether a searched parameter is at an end of its box.
pub(crate) fn at_edge(family: &Family, searched: &[f64]) -> Vec<bool> {
    let is_at = |x: f64, end: f64| (x / end).ln().abs() < 1e-6;
    searched.iter().zip(&family.searched).map(|(x, of)| is_at(*x, of.low) || is_at(*x, of.high)).collect()
}

/// The simpler kernel that a named family's fit coincides with over distances up to `furthest`, if any.
pub(crate) fn coincides(
    family: &Family,
    amplitudes: &[f64],
    searched: &[f64],
    furthest: f64,
    has_zero: bool,
) -> Option<String> {
    let edges = at_edge(family, searched);
    let is_one = |x: f64| (x - 1.0).abs() < 1e-6;
    let text = match (family.name.as_str(), amplitudes, searched) {
        ("const", ..) => return None,
        (_, amplitudes, _) if !amplitudes.is_empty() && amplitudes.iter().all(|c| *c == 0.0) => {
            "is `const`: its amplitude is 0"
        }
        ("stretched", _, [a, p]) if a * furthest.powf(*p) < 0.01 || (edges[0] && *a < 1e-3) => {
            "on the edge: is `power`, as c grows and a falls together"
        }
        ("stretched", _, [_, p]) if is_one(*p) => "is `exp`: p is 1",
        ("log3", _, [a, p]) if a * furthest.powf(*p) < 0.01 => "on the edge: is `power`, only b*a and p are known",
        ("log3", _, [_, p]) if is_one(*p) => "is `log`: p is 1",
        ("power", _, [_]) if edges[0] => "on the edge: is `log` at large distances, as p falls to 0",
        ("power", _, [p]) if is_one(*p) => "is `linear`: p is 1",
        ("log", _, [a]) if a * furthest < 0.01 => "on the edge: is `linear`, only b*a is known",
        ("log", _, [a]) if *a > 10.0 && !has_zero => {
            "a is not known: where every d is far above 1/a, the level takes b ln a, and distance 0 is absent"
        }
        ("log", _, [_]) if edges[0] => {
            "on the edge: a is known from distances 0 and 1 alone, as the level takes b ln a"
        }
        ("two_exp", &[first, second], _) if first == 0.0 || second == 0.0 => "is `exp`: one amplitude is 0",
        ("two_exp", _, [a, a2]) if (a / a2).ln().abs() < 1e-3 => "is `exp`: both rates are equal",
        ("log_linear", [_, slope], _) if *slope == 0.0 => "is `log`: the slope is 0",
        ("log_linear", [b, _], _) if *b == 0.0 => "is `linear`: b is 0",
        ("damped_cos", _, [_, w]) if w * furthest < 1.0 => "is `exp`: less than a sixth of a wave in all distances",
        _ if edges.contains(&true) => "a parameter is at an end of its box",
        _ => return None,
    };
    Some(text.to_owned())
}
