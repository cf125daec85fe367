//! Point sets on which a kernel is examined, from a short text.
//!
//! | text | points |
//! |---|---|
//! | `0..7` | 0, 1, ..., 7: both ends are in |
//! | `0,1,2.5` or `0..3,10,20..22` | these numbers |
//! | `random(n=20, high=100, seed=1)` | uniform on `[0, 100)`; `dim=3` for the cube `[0, 100)^3` |
//! | `grid(4x5)` | the integer points of a 4 by 5 rectangle, in as many dimensions as there are sides |
//!
//! The distance is Euclidean. Repeated points are refused: every statement is about distinct points.

use std::fmt;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Most points in a set: their eigenproblem takes seconds, and grows with the cube of the number.
pub const MAX_POINTS: usize = 1024;

/// Why a text is not a point set.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PointsError {
    /// Not a number.
    #[error("points: `{text}` is not a finite number")]
    NotANumber {
        /// What stands there.
        text: String,
    },
    /// The last point of a range comes before its first.
    #[error("points: the range {first}..{last} is empty; the smaller end comes first")]
    EmptyRange {
        /// First end.
        first: f64,
        /// Last end.
        last: f64,
    },
    /// Steps of 1 from the first end pass by the last.
    #[error("points: the range {first}..{last} does not reach {last} in steps of 1")]
    UnreachedEnd {
        /// First end.
        first: f64,
        /// Last end.
        last: f64,
    },
    /// More points than the eigenproblem should have.
    #[error("points: {count} points exceed the limit of {limit}; time grows with the cube of the number")]
    TooMany {
        /// Number asked for.
        count: f64,
        /// Largest number.
        limit: usize,
    },
    /// No points.
    #[error("points: none were given, at least one is needed")]
    None,
    /// A point that is there twice.
    #[error("points: {point} is given twice; points must differ")]
    Repeated {
        /// The point.
        point: String,
    },
    /// A keyword that is none.
    #[error("points: unknown key `{key}`, use one of {expected}")]
    UnknownKey {
        /// The keyword.
        key: String,
        /// The keywords there are.
        expected: &'static str,
    },
    /// A keyword that is given twice.
    #[error("points: `{key}` is given twice, as {first} and as {second}")]
    RepeatedKey {
        /// The keyword.
        key: String,
        /// Its first value.
        first: String,
        /// Its second value.
        second: String,
    },
    /// A keyword that is needed.
    #[error("points: `random` needs `{key}`")]
    MissingKey {
        /// The keyword.
        key: &'static str,
    },
    /// A keyword's value out of its limits.
    #[error("points: `{key}` is {value}, expected {expected}")]
    BadValue {
        /// The keyword.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is accepted.
        expected: &'static str,
    },
}

/// Distinct points in Euclidean space.
#[derive(Clone, Debug, PartialEq)]
pub struct Points {
    spec: String,
    dim: usize,
    coordinates: Vec<f64>,
}

impl Points {
    /// Reads a point set; see the [module](self).
    ///
    /// # Errors
    /// What is wrong with the text.
    ///
    /// ```
    /// use kerple_core::calculus::points::Points;
    /// assert_eq!(Points::parse("0..7")?.len(), 8);
    /// assert_eq!(Points::parse("grid(2x2)")?.distance(0, 3), 2f64.sqrt());
    /// # Ok::<(), kerple_core::calculus::points::PointsError>(())
    /// ```
    pub fn parse(spec: &str) -> Result<Points, PointsError> {
        let printable = printable(spec);
        let spec = printable.trim();
        let inside = |name: &str| spec.strip_prefix(name)?.trim_start().strip_prefix('(')?.strip_suffix(')');
        let (dim, coordinates) = if let Some(body) = inside("random") {
            random(body)?
        } else if let Some(body) = inside("grid") {
            grid(body)?
        } else {
            (1, list(spec)?)
        };
        Points::new(spec, dim, coordinates)
    }

    /// Points on a line.
    ///
    /// # Errors
    /// When there are none, too many, a repeated one, or one that is not finite.
    pub fn line(x: &[f64]) -> Result<Points, PointsError> {
        let spec: Vec<_> = x.iter().map(f64::to_string).collect();
        Points::new(&spec.join(","), 1, x.to_vec())
    }

    fn new(spec: &str, dim: usize, coordinates: Vec<f64>) -> Result<Points, PointsError> {
        let count = coordinates.len() / dim;
        limit(count as f64)?;
        if count == 0 {
            return Err(PointsError::None);
        }
        if let Some(x) = coordinates.iter().find(|x| !x.is_finite()) {
            return Err(PointsError::NotANumber { text: x.to_string() });
        }
        let mut sorted: Vec<&[f64]> = coordinates.chunks(dim).collect();
        sorted.sort_by(|a, b| a.partial_cmp(b).expect("coordinates are finite"));
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let point: Vec<_> = pair[0].iter().map(f64::to_string).collect();
            return Err(PointsError::Repeated { point: point.join(",") });
        }
        Ok(Points { spec: spec.to_owned(), dim, coordinates })
    }

    /// Number of points.
    pub fn len(&self) -> usize {
        self.coordinates.len() / self.dim
    }

    /// Never: a point set has at least one point.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Number of coordinates of a point.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Coordinates of point `i`.
    pub fn point(&self, i: usize) -> &[f64] {
        &self.coordinates[i * self.dim..(i + 1) * self.dim]
    }

    /// Euclidean distance between two points; exact on a line.
    pub fn distance(&self, i: usize, j: usize) -> f64 {
        match (self.point(i), self.point(j)) {
            ([x], [y]) => (x - y).abs(),
            (x, y) => x.iter().zip(y).map(|(x, y)| (x - y) * (x - y)).sum::<f64>().sqrt(),
        }
    }
}

/// The text the set was read from.
impl fmt::Display for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.spec.len() > 60 { write!(f, "{} points", self.len()) } else { f.write_str(&self.spec) }
    }
}

fn limit(count: f64) -> Result<(), PointsError> {
    if count <= MAX_POINTS as f64 { Ok(()) } else { Err(PointsError::TooMany { count, limit: MAX_POINTS }) }
}

/// The text with blanks in the place of tabs and ends of lines; what else steers a terminal is written out, as no number has it.
fn printable(text: &str) -> String {
    let written = |c: char| match c {
        blank if blank.is_whitespace() => " ".to_owned(),
        control if control.is_control() => control.escape_default().collect(),
        letter => letter.to_string(),
    };
    text.chars().map(written).collect()
}

fn number(text: &str) -> Result<f64, PointsError> {
    let parsed = text.trim().parse::<f64>().ok().filter(|x| x.is_finite());
    parsed.ok_or_else(|| PointsError::NotANumber { text: text.trim().to_owned() })
}

fn list(spec: &str) -> Result<Vec<f64>, PointsError> {
    if spec.is_empty() {
        return Err(PointsError::None);
    }
    let mut points = Vec::new();
    for item in spec.split(',') {
        let Some((first, last)) = item.split_once("..") else {
            points.push(number(item)?);
            continue;
        };
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return Err(PointsError::EmptyRange { first, last });
        }
        let steps = (last - first).round();
        limit(points.len() as f64 + steps + 1.0)?;
        // 4.1 - 1.1 is not 3
        if (last - first - steps).abs() > 1e-9 {
            return Err(PointsError::UnreachedEnd { first, last });
        }
        points.extend((0..=steps as usize).map(|i| first + i as f64));
    }
    Ok(points)
}

fn grid(body: &str) -> Result<(usize, Vec<f64>), PointsError> {
    let side = |text: &str| {
        let side = text.trim().parse::<usize>().ok().filter(|side| *side > 0);
        side.ok_or_else(|| PointsError::BadValue {
            key: "grid",
            value: text.trim().to_owned(),
            expected: "edges of at least 1, as in grid(4x5)",
        })
    };
    let sides = body.split('x').map(side).collect::<Result<Vec<_>, _>>()?;
    let count: f64 = sides.iter().map(|side| *side as f64).product();
    limit(count)?;
    let coordinates = (0..count as usize).flat_map(|index| {
        let mut rest = index;
        let point: Vec<f64> = sides
            .iter()
            .map(|side| {
                let x = rest % side;
                rest /= side;
                x as f64
            })
            .collect();
        point
    });
    let coordinates = coordinates.collect();
    Ok((sides.len(), coordinates))
}

fn random(body: &str) -> Result<(usize, Vec<f64>), PointsError> {
    const KEYS: &str = "`n`, `high`, `seed`, `dim`";
    let (mut n, mut high, mut seed, mut dim) = (None, 100.0, 0u64, 1usize);
    let whole = |key: &'static str, text: &str, expected: &'static str| {
        let parsed = text.parse::<u64>();
        parsed.map_err(|_| PointsError::BadValue { key, value: text.to_owned(), expected })
    };
    let mut given: Vec<(&str, &str)> = Vec::new();
    for item in body.split(',') {
        let (key, value) = item.split_once('=').map_or((item.trim(), ""), |(key, value)| (key.trim(), value.trim()));
        if let Some((_, first)) = given.iter().find(|(earlier, _)| *earlier == key) {
            let [key, first, second] = [key, first, value].map(str::to_owned);
            return Err(PointsError::RepeatedKey { key, first, second });
        }
        given.push((key, value));
        match key {
            "n" => n = Some(whole("n", value, "a number of points")?),
            "seed" => seed = whole("seed", value, "a whole number")?,
            "dim" => dim = whole("dim", value, "1 to 16")? as usize,
            "high" => high = number(value)?,
            _ => return Err(PointsError::UnknownKey { key: key.to_owned(), expected: KEYS }),
        }
    }
    let n = n.ok_or(PointsError::MissingKey { key: "n" })?;
    limit(n as f64)?;
    if !(1..=16).contains(&dim) {
        return Err(PointsError::BadValue { key: "dim", value: dim.to_string(), expected: "1 to 16" });
    }
    if high <= 0.0 {
        return Err(PointsError::BadValue { key: "high", value: high.to_string(), expected: "a positive number" });
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    Ok((dim, (0..n as usize * dim).map(|_| high * rng.random::<f64>()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(spec: &str) -> Vec<f64> {
        Points::parse(spec).unwrap().coordinates
    }

    #[test]
    fn every_form_is_read() {
        assert_eq!(line("0..3"), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(line(" -1 , 2.5,0..1 "), [-1.0, 2.5, 0.0, 1.0]);
        assert_eq!(line("5"), [5.0]);
        assert_eq!(line("1.1..4.1").len(), 4, "the last end is in, whatever rounding makes of their difference");
        let grid = Points::parse("grid(2x3)").unwrap();
        assert_eq!((grid.len(), grid.dim(), grid.point(5)), (6, 2, &[1.0, 2.0][..]));
        assert_eq!(Points::parse("grid( 3 )").unwrap().coordinates, [0.0, 1.0, 2.0]);
        let random = Points::parse("random(n=20, high=10, seed=1)").unwrap();
        assert!(random.len() == 20 && random.coordinates.iter().all(|x| (0.0..10.0).contains(x)));
        assert_eq!(random.coordinates, Points::parse("random(seed=1,n=20,high=10)").unwrap().coordinates);
        assert_ne!(random.coordinates, line("random(n=20, high=10, seed=2)"));
        assert_eq!(Points::parse("random(n=5, dim=3)").unwrap().dim(), 3);
    }

    #[test]
    fn mistakes_are_named() {
        let cases = [
            ("", "none were given"),
            ("7..0", "range 7..0 is empty"),
            ("0..2.5", "the range 0..2.5 does not reach 2.5 in steps of 1"),
            ("0..1e9", "1000000001 points exceed the limit of 1024"),
            ("0,1,x", "`x` is not a finite number"),
            ("0,1,", "`` is not a finite number"),
            ("0..2,1", "1 is given twice"),
            ("random(n=2,size=3)", "unknown key `size`, use one of `n`, `high`, `seed`, `dim`"),
            ("random(n=2,n=3)", "`n` is given twice, as 2 and as 3"),
            ("random(n=2, seed=1, seed = 1)", "`seed` is given twice"),
            ("random(high=2)", "needs `n`"),
            ("random(n=2,high=-1)", "expected a positive number"),
            ("random(n=2,dim=0)", "expected 1 to 16"),
            ("grid(4x0)", "edges of at least 1"),
            ("grid(4000x5000000)", "the limit of 1024"),
            ("random(n=0)", "none were given"),
        ];
        for (spec, message) in cases {
            let error = Points::parse(spec).unwrap_err().to_string();
            assert!(error.contains(message), "{spec}: {error}");
        }
    }
}
