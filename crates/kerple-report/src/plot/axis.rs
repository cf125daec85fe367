//! Scales and where their ticks go.

/// How values map to lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisScale {
    /// Equal differences, equal lengths.
    Linear,
    /// Equal ratios, equal lengths.
    Log,
    /// Equal ratios of 1 + value, equal lengths: nearly linear near 0, which it can show, and logarithmic far from it.
    LogOnePlus,
}

/// A labelled position on an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// The value.
    pub at: f64,
    /// What is written there.
    pub text: String,
}

/// One axis of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Quantity and unit.
    pub label: String,
    /// How values map to lengths.
    pub scale: AxisScale,
    /// Value at the left or bottom.
    pub low: f64,
    /// Value at the right or top.
    pub high: f64,
    /// Labelled values, increasing.
    pub ticks: Vec<Tick>,
}

impl Axis {
    /// Equal steps from `low` to `high`, widened to a round range where it is empty.
    pub fn linear(label: impl Into<String>, low: f64, high: f64) -> Axis {
        // half a unit is nothing beside 1e17
        let half = (4.0 * f64::EPSILON * low.abs()).max(0.5);
        let (low, high) = if high > low { (low, high) } else { (low - half, low + half) };
        Axis { label: label.into(), scale: AxisScale::Linear, low, high, ticks: linear_ticks(low, high) }
    }

    /// Equal ratios from `low` to `high`, both positive.
    ///
    /// # Panics
    /// If `low` is not positive.
    pub fn log(label: impl Into<String>, low: f64, high: f64) -> Axis {
        assert!(low > 0.0, "low: expected a positive end of a logarithmic axis, got {low}");
        let (low, high) = if high > low { (low, high) } else { (low / 2.0, low * 2.0) };
        Axis { label: label.into(), scale: AxisScale::Log, low, high, ticks: log_ticks(low, high) }
    }

    /// Equal ratios of 1 + value, from `low` to `high`, both at least 0.
    ///
    /// # Panics
    /// If `low` is negative.
    pub fn log_one_plus(label: impl Into<String>, low: f64, high: f64) -> Axis {
        assert!(low >= 0.0, "low: expected an end of the axis at or above 0, got {low}");
        let high = if high > low { high } else { 2.0 * low + 1.0 };
        let powers = (0..=308).map(|power| 10f64.powi(power)).take_while(|&at| at <= high);
        let ticks = std::iter::once(0.0).chain(powers).filter(|&at| at >= low);
        let ticks = ticks.map(|at| Tick { at, text: compact(at) }).collect();
        Axis { label: label.into(), scale: AxisScale::LogOnePlus, low, high, ticks }
    }

    /// A logarithmic axis whose ticks are exactly the given sequence lengths.
    pub fn lengths(label: impl Into<String>, lengths: &[u64]) -> Axis {
        let ends = lengths.iter().fold((f64::INFINITY, 1.0), |(low, high): (f64, f64), &length| {
            (low.min(length.max(1) as f64), high.max(length as f64))
        });
        let mut axis = Axis::log(label, ends.0.min(ends.1), ends.1);
        axis.ticks = lengths.iter().map(|&length| Tick { at: length as f64, text: length.to_string() }).collect();
        axis
    }

    /// Where a value lies between the ends, 0 to 1 inside; not finite for what the scale cannot show.
    pub fn fraction(&self, value: f64) -> f64 {
        match self.scale {
            AxisScale::Linear => (value - self.low) / (self.high - self.low),
            AxisScale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
            AxisScale::LogOnePlus => (value.ln_1p() - self.low.ln_1p()) / (self.high.ln_1p() - self.low.ln_1p()),
        }
    }
}

/// No float is below ten to minus this, nor above ten to this.
const SMALLEST_POWER: f64 = 324.0;

/// Multiples of 1, 2 or 5 times a power of ten, about five of them.
fn linear_ticks(low: f64, high: f64) -> Vec<Tick> {
    let rough = (high - low) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|&step| step >= rough * 0.999).unwrap_or(rough);
    if !(step > 0.0 && step.is_finite()) {
        // a range at the ends of what floats can be has no round numbers
        return Vec::new();
    }
    let decimals = (-step.log10().floor()).clamp(0.0, SMALLEST_POWER) as usize;
    let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
    (first..=last)
        .map(|multiple| multiple as f64 * step)
        .map(|at| Tick {
            at,
            text: if at.abs() >= 1e4 { compact(at) } else { format!("{at:.decimals$}").replace('-', "\u{2212}") },
        })
        .collect()
}

/// Powers of ten, with 2 and 5 times them in a short range, or round steps in one that holds few of those.
fn log_ticks(low: f64, high: f64) -> Vec<Tick> {
    let decades = (high / low).log10();
    let multiples: &[f64] = if decades <= 3.2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let every = (decades / 8.0).ceil().max(1.0) as i32;
    let power = |value: f64| value.log10().clamp(-SMALLEST_POWER, SMALLEST_POWER);
    let (first, last) = (power(low).floor() as i32, power(high).ceil() as i32);
    let inside = |at: &f64| *at >= low * (1.0 - 1e-9) && *at <= high * (1.0 + 1e-9);
    let ticks: Vec<Tick> = (first..=last)
        .filter(|power| power.rem_euclid(every) == 0)
        .flat_map(|power| multiples.iter().map(move |multiple| multiple * 10f64.powi(power)))
        .filter(inside)
        .map(|at| Tick { at, text: compact(at) })
        .collect();
    if ticks.len() >= 3 { ticks } else { linear_ticks(low, high) }
}

/// A round number in few characters: 500, 20k, 1M, 1e9, 0.05.
fn compact(value: f64) -> String {
    let size = value.abs();
    if size >= 1e9 || (size > 0.0 && size < 1e-3) {
        format!("{value:.0e}")
    } else if size >= 1e6 {
        format!("{}M", value / 1e6)
    } else if size >= 1e4 {
        format!("{}k", value / 1e3)
    } else {
        // Two digits after the leading one remove what binary fractions add.
        format!("{}", (value * 1e6).round() / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| tick.text.as_str()).collect()
    }

    #[test]
    fn ends_of_any_size_have_few_ticks() {
        for low in [0.0, 5e-324, 1e-300, 0.5, 1e17, -1.3e17, 1e300, f64::MAX, -f64::MAX] {
            for high in [low, low.next_up(), 2.0 * low, f64::MAX, f64::INFINITY] {
                let axis = Axis::linear("", low, high);
                assert!(axis.ticks.len() < 20 && axis.low < axis.high, "{low} to {high}: {axis:?}");
                if low > 0.0 {
                    assert!(Axis::log("", low, high).ticks.len() < 20, "{low} to {high}");
                }
            }
        }
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(texts(&Axis::linear("", -10.0, 0.5)), ["\u{2212}10", "\u{2212}5", "0"]);
        assert_eq!(texts(&Axis::linear("", 0.0, 0.3)), ["0.0", "0.1", "0.2", "0.3"]);
        assert_eq!(texts(&Axis::log("", 18.0, 1200.0)), ["20", "50", "100", "200", "500", "1000"]);
        assert_eq!(texts(&Axis::log("", 20.0, 3e7)), ["100", "1000", "10k", "100k", "1M", "10M"]);
        assert_eq!(texts(&Axis::log("", 21.0, 24.0)), ["21", "22", "23", "24"]);
        assert_eq!(texts(&Axis::lengths("", &[512, 1024])), ["512", "1024"]);
        assert_eq!(texts(&Axis::log_one_plus("", 0.0, 20000.0)), ["0", "1", "10", "100", "1000", "10k"]);
        assert_eq!(texts(&Axis::log_one_plus("", 0.0, 0.0)), ["0", "1"]);
    }

    #[test]
    fn empty_ranges_are_widened() {
        for axis in
            [Axis::linear("", 3.0, 3.0), Axis::log("", 3.0, 3.0), Axis::lengths("", &[64]), Axis::lengths("", &[])]
        {
            assert!(axis.high > axis.low && axis.fraction(axis.low) == 0.0, "{axis:?}");
        }
    }

    proptest! {
        #[test]
        fn ticks_lie_inside_and_are_few(low in 1e-4..1e6f64, ratio in 1.001..1e7f64) {
            let (one, other) = (Axis::linear("", low, low * ratio), Axis::log("", low, low * ratio));
            for axis in [one, other, Axis::log_one_plus("", 0.0, low * ratio + 1.0)] {
                prop_assert!((2..=15).contains(&axis.ticks.len()), "{:?}", axis);
                for tick in &axis.ticks {
                    prop_assert!((-1e-6..=1.0 + 1e-6).contains(&axis.fraction(tick.at)), "{:?}", tick);
                }
            }
        }
    }
}
