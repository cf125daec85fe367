//! Where searches start: a fixed grid, no chance.

use crate::family::{Family, SearchedParameter};
use kerple_core::calculus::parameter::Role;
use std::f64::consts::PI;

/// Most starts of one family.
const MOST: usize = 512;

/// Starts for every searched parameter together, `[S][P]`; `furthest` is the largest distance.
pub(crate) fn starts(family: &Family, furthest: f64) -> Vec<Vec<f64>> {
    let mut found = vec![Vec::new()];
    let mut lists: Vec<Vec<f64>> = family.searched.iter().map(|of| values(family, of, furthest)).collect();
    // with three or four parameters the ends and the middle of each list
    while lists.iter().map(Vec::len).product::<usize>() > MOST {
        lists
            .iter_mut()
            .filter(|list| list.len() > 3)
            .for_each(|list| *list = vec![list[0], list[list.len() / 2], list[list.len() - 1]]);
        if lists.iter().all(|list| list.len() <= 3) {
            break;
        }
    }
    for list in &lists {
        found = found.iter().flat_map(|start| list.iter().map(|x| [&start[..], &[*x]].concat())).collect();
    }
    for start in &mut found {
        rates_to_factors(family, start);
    }
    if let [first, second] = &family.members[..]
        && first.expr == second.expr
    {
        found.retain(|start| start.first() > start.last()); // the other half is the same, with members exchanged
    }
    found
}

/// Values of one parameter.
fn values(family: &Family, of: &SearchedParameter, furthest: f64) -> Vec<f64> {
    let reach = furthest.max(f64::MIN_POSITIVE);
    let list = match of.role {
        Role::Rate => {
            let is_logarithm = family.members.iter().any(|member| member.expr.to_string().contains("log"));
            let far: &[f64] = if is_logarithm { &[10.0, 100.0] } else { &[] };
            [&[0.3 / reach, 3.0 / reach, 30.0 / reach, 0.1, 0.5, 2.0][..], far].concat()
        }
        Role::Exponent => vec![0.3, 0.7, 1.0, 1.5],
        Role::Fraction => vec![0.2, 0.5, 0.8],
        Role::Frequency => {
            let waves = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0].map(|waves| PI * waves / reach);
            [&waves[..], &[0.2, 0.5, 1.0, 2.0]].concat()
        }
        Role::Amplitude | Role::Level => vec![0.1, 1.0, 10.0],
    };
    let mut list: Vec<f64> = list.into_iter().map(|x| x.clamp(of.low, of.high)).collect();
    list.sort_by(f64::total_cmp);
    list.dedup();
    list
}

/// In `a d^p`, the start is `a = rate^p`: the rate then says at which distance the kernel bends, whatever the exponent.
pub(crate) fn rates_to_factors(family: &Family, start: &mut [f64]) {
    for member in &family.members {
        let role = |of: &(usize, usize)| family.searched[of.1].role;
        let exponent =
            member.searched.iter().find(|of| role(of) == Role::Exponent).map(|(_, parameter)| start[*parameter]);
        let power = exponent.unwrap_or(if member.expr.to_string().contains("gauss") { 2.0 } else { 1.0 });
        for (_, parameter) in member.searched.iter().filter(|of| role(of) == Role::Rate) {
            let of = &family.searched[*parameter];
            start[*parameter] = start[*parameter].powf(power).clamp(of.low, of.high);
        }
    }
}

/// Numbers of at most `count` values whose furthest distances lie evenly on a logarithmic scale.
pub(crate) fn log_spaced(furthest: &[f64], count: usize) -> Vec<usize> {
    let n = furthest.len();
    if n <= count {
        return (0..n).collect();
    }
    let scale = |d: f64| (1.0 + d).ln();
    let (first, last) = (scale(furthest[0]), scale(furthest[n - 1]));
    let mut kept = Vec::with_capacity(count);
    let mut next = 0;
    for step in 0..count {
        let wanted = first + (last - first) * step as f64 / (count - 1) as f64;
        while next + 1 < n && scale(furthest[next]) < wanted {
            next += 1;
        }
        if kept.last() != Some(&next) {
            kept.push(next);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_in_the_box_and_few() {
        for (family, count) in Family::named().iter().zip([1, 1, 4, 8, 32, 24, 6, 6, 24, 15, 8, 60]) {
            let found = starts(family, 255.0);
            assert_eq!(found.len(), count, "{}", family.name);
            for start in found {
                assert_eq!(start.len(), family.searched.len());
                assert!(start.iter().zip(&family.searched).all(|(x, of)| (of.low..=of.high).contains(x)));
            }
        }
        let large = Family::read("log3(b, a, p) + exp(c, a, p)", false).unwrap();
        assert!(starts(&large, 255.0).len() <= MOST);
    }

    #[test]
    fn distances_are_spaced_by_their_logarithm() {
        let d: Vec<f64> = (0..1024).map(f64::from).collect();
        let kept = log_spaced(&d, 64);
        assert!(kept.len() > 40 && kept.len() <= 64 && kept[0] == 0 && kept.last() == Some(&1023));
        assert!(kept.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(log_spaced(&d[..20], 64).len(), 20);
    }
}
