//! Our generator: paths as chains of line segments in the plane, then pixels.

use crate::random::TaskRng;
use std::f64::consts::{FRAC_PI_2, PI, TAU};

/// Directions a dash may take, evenly spaced from a random one on.
const DIRECTIONS: usize = 36;
/// Points a pixel and axis that are looked at to draw it.
const FINE: usize = 4;
/// Grey value of dashes: the published contrast of 0.75.
const DASH: f64 = 0.75 * 255.0;
/// Times a misleading path is tried again.
const RETRIES: usize = 4;

/// Sizes of what is drawn, in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathfinderStyle {
    size: usize,
    dashes: usize,
    /// Length of a dash.
    length: f64,
    thickness: f64,
    /// Half the gap between two dashes, and the clearance of paths.
    margin: f64,
    padding: f64,
    /// From the beginning of one path to that of the other.
    apart: f64,
    radius: f64,
    /// How straight paths are: `c` of the turning weights.
    continuity: f64,
    /// Dashes of all misleading paths together.
    misleading: usize,
}

impl PathfinderStyle {
    /// The published settings for this many pixels a side, if there are any.
    pub(super) fn of(size: usize, dashes: usize) -> Option<PathfinderStyle> {
        let style = PathfinderStyle {
            size,
            dashes,
            length: 2.0,
            thickness: 0.5,
            margin: 1.0,
            padding: 1.0,
            apart: 7.0,
            radius: 1.5,
            continuity: 1.0,
            misleading: 20,
        };
        Some(match size {
            32 => style,
            64 => PathfinderStyle {
                length: 5.0,
                thickness: 1.0,
                apart: 12.0,
                radius: 2.5,
                continuity: 1.8,
                misleading: 22,
                // longer dashes of 14 to a path would not fit otherwise
                ..style
            },
            128 => PathfinderStyle {
                length: 5.0,
                thickness: 1.5,
                margin: 2.0,
                apart: 20.0,
                radius: 3.0,
                continuity: 1.8,
                misleading: 35,
                ..style
            },
            _ => return None,
        })
    }

    /// From the middle of a gap to the far end of the next dash.
    fn step(&self) -> f64 {
        self.length + self.margin
    }

    fn is_inside(&self, [x, y]: PixelPoint) -> bool {
        let inside = self.padding..=self.size as f64 - self.padding;
        inside.contains(&x) && inside.contains(&y)
    }
}

type PixelPoint = [f64; 2];

/// A dash, from where the path comes to where it goes.
#[derive(Clone, Copy, Debug)]
struct Dash {
    from: PixelPoint,
    to: PixelPoint,
}

/// A growing path: its dashes, where the next gap has its middle, and the direction.
#[derive(Clone, Debug)]
struct DashPath {
    dashes: Vec<Dash>,
    pivot: PixelPoint,
    direction: f64,
}

fn ahead([x, y]: PixelPoint, direction: f64, distance: f64) -> PixelPoint {
    [x + distance * direction.cos(), y + distance * direction.sin()]
}

/// The image, row by row; `joined` says whether the circles mark both ends of one path.
pub(super) fn image(style: &PathfinderStyle, joined: bool, random: &mut TaskRng) -> Vec<u8> {
    // paths that run into a corner are begun anew, until two are as long as they must be
    let chains = loop {
        if let Some(chains) = two_paths(style, random) {
            break chains;
        }
    };
    let marked = random.below(2);
    let ends = if joined { marked } else { 1 - marked };
    let [origin, terminal] = [chains[marked].dashes[0].from, chains[ends].dashes[style.dashes - 1].to];
    let mut dashes: Vec<Dash> = chains.iter().flat_map(|chain| chain.dashes.iter().copied()).collect();
    let short = style.dashes / 3;
    for _ in 0..style.misleading / short {
        let found = (0..=RETRIES).find_map(|_| path(style, short, &dashes, random));
        dashes.extend(found.into_iter().flat_map(|chain| chain.dashes));
    }
    render(style, &dashes, [origin, terminal])
}

fn two_paths(style: &PathfinderStyle, random: &mut TaskRng) -> Option<[DashPath; 2]> {
    // as far inside as the paths begin apart, where there is as much room
    let room = style.size as f64 - 4.0 * style.apart;
    let place = |random: &mut TaskRng| 2.0 * style.apart + room.max(0.0) * random.unit();
    let first = [place(random), place(random)];
    let second = ahead(first, TAU * random.unit(), style.apart);
    let mut chains = [begin(style, first, &[], random)?, begin(style, second, &[], random)?];
    let [one, other] = &chains;
    if distance(one.dashes[0], other.dashes[0]) < clearance(style) {
        return None;
    }
    for _ in 1..style.dashes {
        for at in 0..2 {
            let others = chains[1 - at].dashes.clone();
            extend(style, &mut chains[at], &others, random)?;
        }
    }
    Some(chains)
}

/// A path of some dashes that keeps clear of others.
fn path(style: &PathfinderStyle, dashes: usize, others: &[Dash], random: &mut TaskRng) -> Option<DashPath> {
    let place = [random.unit() * style.size as f64, random.unit() * style.size as f64];
    let mut chain = begin(style, place, others, random)?;
    (1..dashes).try_for_each(|_| extend(style, &mut chain, others, random))?;
    Some(chain)
}

/// A path of one dash.
fn begin(style: &PathfinderStyle, from: PixelPoint, others: &[Dash], random: &mut TaskRng) -> Option<DashPath> {
    let direction = TAU * random.unit();
    let dash = Dash { from, to: ahead(from, direction, style.length) };
    let pivot = ahead(dash.to, direction, style.margin);
    (is_free(style, dash, others)).then(|| DashPath { dashes: vec![dash], pivot, direction })
}

/// Adds a dash; `None` when there is room in no direction.
fn extend(style: &PathfinderStyle, chain: &mut DashPath, others: &[Dash], random: &mut TaskRng) -> Option<()> {
    let phase = random.unit();
    let candidates = (0..DIRECTIONS).filter_map(|number| {
        let direction = TAU * (number as f64 + phase) / DIRECTIONS as f64;
        let turned = (direction - chain.direction + PI).rem_euclid(TAU) - PI;
        let weight = (style.continuity * turned.abs()).min(FRAC_PI_2).cos().powi(2);
        let to = ahead(chain.pivot, direction, style.step());
        let dash = Dash { from: ahead(chain.pivot, direction, style.margin), to };
        let before = &chain.dashes[..chain.dashes.len() - 1];
        (weight > 1e-9 && is_free(style, dash, others) && is_free(style, dash, before))
            .then_some((weight, direction, dash))
    });
    let candidates: Vec<(f64, f64, Dash)> = candidates.collect();
    let mut left = random.unit() * candidates.iter().map(|(weight, ..)| weight).sum::<f64>();
    let chosen = candidates.iter().find(|(weight, ..)| {
        left -= weight;
        left < 0.0
    });
    let (_, direction, dash) = chosen.or(candidates.last())?;
    chain.dashes.push(*dash);
    (chain.pivot, chain.direction) = (ahead(dash.to, *direction, style.margin), *direction);
    Some(())
}

/// From the middle of one dash to that of another beside it.
fn clearance(style: &PathfinderStyle) -> f64 {
    style.margin + style.thickness
}

fn is_free(style: &PathfinderStyle, dash: Dash, others: &[Dash]) -> bool {
    let far = |other: &Dash| distance(dash, *other) >= clearance(style);
    style.is_inside(dash.from) && style.is_inside(dash.to) && others.iter().all(far)
}

/// Between two line segments.
fn distance(one: Dash, other: Dash) -> f64 {
    let side =
        |a: PixelPoint, b: PixelPoint, c: PixelPoint| (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]);
    let parts =
        |line: Dash, points: Dash| side(line.from, line.to, points.from) * side(line.from, line.to, points.to) < 0.0;
    if parts(one, other) && parts(other, one) {
        return 0.0;
    }
    let ends = [(one.from, other), (one.to, other), (other.from, one), (other.to, one)];
    ends.into_iter().map(|(point, dash)| to_dash(point, dash)).fold(f64::INFINITY, f64::min)
}

/// From a point to a line segment.
fn to_dash([x, y]: PixelPoint, Dash { from, to }: Dash) -> f64 {
    let along = [to[0] - from[0], to[1] - from[1]];
    let square = along[0] * along[0] + along[1] * along[1];
    let share = (((x - from[0]) * along[0] + (y - from[1]) * along[1]) / square).clamp(0.0, 1.0);
    (x - from[0] - share * along[0]).hypot(y - from[1] - share * along[1])
}

/// Pixels are the mean of finer points; circles are white and lie above dashes.
fn render(style: &PathfinderStyle, dashes: &[Dash], circles: [PixelPoint; 2]) -> Vec<u8> {
    let mut image = vec![0u8; style.size * style.size];
    // thinner lines than a fine point would be broken
    let half = (0.5 * style.thickness).max(0.5 / FINE as f64);
    for (at, pixel) in image.iter_mut().enumerate() {
        let corner = [(at % style.size) as f64, (at / style.size) as f64];
        let near: Vec<&Dash> =
            dashes.iter().filter(|dash| to_dash([corner[0] + 0.5, corner[1] + 0.5], **dash) < half + 1.0).collect();
        let value = |point: PixelPoint| {
            let circle = circles.iter().any(|[x, y]| (point[0] - x).hypot(point[1] - y) <= style.radius);
            let dash = near.iter().any(|dash| to_dash(point, **dash) <= half);
            if circle { 255.0 } else { f64::from(u8::from(dash)) * DASH }
        };
        let fine = |number: usize| (number as f64 + 0.5) / FINE as f64;
        let points = (0..FINE * FINE).map(|point| [corner[0] + fine(point % FINE), corner[1] + fine(point / FINE)]);
        *pixel = (points.map(value).sum::<f64>() / (FINE * FINE) as f64).round() as u8;
    }
    image
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::StreamPurpose;

    fn drawn(size: usize, dashes: usize, joined: bool, index: u64) -> Vec<u8> {
        image(
            &PathfinderStyle::of(size, dashes).unwrap(),
            joined,
            &mut TaskRng::new(StreamPurpose::Pathfinder, [1, 0, index]),
        )
    }

    #[test]
    fn paths_keep_clear_of_each_other() {
        for (size, dashes) in [(32, 6), (32, 14), (64, 9), (128, 14)] {
            let style = PathfinderStyle::of(size, dashes).unwrap();
            let mut random = TaskRng::new(StreamPurpose::Pathfinder, [2, 0, size as u64]);
            let chains = std::iter::from_fn(|| Some(two_paths(&style, &mut random))).take(20_000).flatten();
            let chains: Vec<[DashPath; 2]> = chains.take(3).collect();
            assert_eq!(chains.len(), 3, "{size} {dashes}: paths are found");
            for [one, other] in chains {
                assert_eq!((one.dashes.len(), other.dashes.len()), (dashes, dashes));
                for (at, dash) in one.dashes.iter().enumerate() {
                    let own = one.dashes[..at.saturating_sub(1)].iter();
                    assert!(own.chain(&other.dashes).all(|near| distance(*dash, *near) >= clearance(&style)));
                    assert!(style.is_inside(dash.from) && style.is_inside(dash.to));
                    let length = (dash.to[0] - dash.from[0]).hypot(dash.to[1] - dash.from[1]);
                    assert!((length - style.length).abs() < 1e-9);
                }
            }
        }
    }

    #[test]
    fn images_have_two_circles_and_differ() {
        for index in 0..6 {
            let [joined, apart] = [true, false].map(|joined| drawn(32, 14, joined, index));
            assert_ne!(joined, apart);
            assert_eq!(joined, drawn(32, 14, true, index));
            // two circles of radius 1.5 have an area of 14 pixels, about half of them whole
            let white = joined.iter().filter(|value| **value == 255).count();
            assert!((4..=16).contains(&white), "{white} white pixels");
            let dark = joined.iter().filter(|value| **value == 0).count();
            assert!((300..950).contains(&dark), "{dark} of 1024 pixels are black");
        }
    }

    #[test]
    fn distances_between_segments() {
        let dash = |from: PixelPoint, to: PixelPoint| Dash { from, to };
        let across = dash([0.0, 0.0], [2.0, 0.0]);
        assert_eq!(distance(across, dash([1.0, -1.0], [1.0, 1.0])), 0.0);
        assert_eq!(distance(across, dash([3.0, 1.0], [3.0, -1.0])), 1.0);
        assert_eq!(distance(across, dash([0.0, 2.0], [2.0, 2.0])), 2.0);
    }
}
