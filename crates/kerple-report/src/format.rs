//! Numbers and times as a reader wants them: four digits, no more.

/// Four significant digits, three below 1; scientific from a million on; NaN and infinities by name.
pub fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "inf".into() } else { "\u{2212}inf".into() }
    } else if value != 0.0 && (value.abs() >= 1e6 || value.abs() < 1e-4) {
        minus(format!("{value:.2e}"))
    } else {
        minus(format!("{value:.*}", decimals(value)))
    }
}

/// A deviation with as many decimals as the mean it belongs to has in [`number`].
pub fn deviation(mean: f64, deviation: f64) -> String {
    let decimals = decimals(mean);
    let smallest = 10f64.powi(-(decimals as i32));
    if !deviation.is_finite() || !mean.is_finite() || mean.abs() >= 1e6 || deviation >= 1e6 {
        number(deviation)
    } else if deviation > 0.0 && deviation < 0.5 * smallest {
        format!("<{smallest}")
    } else {
        format!("{deviation:.decimals$}")
    }
}

/// A probability: three decimals, and not 0 unless it is.
pub fn probability(p: f64) -> String {
    if p == 0.0 || p >= 0.001 { format!("{p:.3}") } else { format!("{p:.0e}") }
}

/// Seconds in the largest two units.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        _ if !seconds.is_finite() => number(seconds),
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// A count with thin spaces between groups of three digits.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| group.iter().map(|&b| b as char).collect::<String>());
    groups.collect::<Vec<_>>().join("\u{202f}")
}

/// Text without line ends and other control characters, which would end a row of a table or steer a terminal.
pub fn one_line(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// Decimals that make four digits, at most three of them for what is not far below 1.
fn decimals(value: f64) -> usize {
    let magnitude = if value == 0.0 || !value.is_finite() { 0.0 } else { value.abs().log10().floor() };
    (if magnitude < -1.0 { 2.0 - magnitude } else { (3.0 - magnitude).min(3.0) }).max(0.0) as usize
}

fn minus(text: String) -> String {
    text.replace('-', "\u{2212}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits() {
        let all = [23.914, 3.4017, 5507.4, 22621.0, 3.1e8, 0.01234, f64::NAN, f64::INFINITY, -0.25, 0.0].map(number);
        assert_eq!(
            all,
            ["23.91", "3.402", "5507", "22621", "3.10e8", "0.0123", "NaN", "inf", "\u{2212}0.250", "0.000"]
        );
        assert_eq!(deviation(23.9, 0.62), "0.62");
        assert_eq!(deviation(23.9, 0.004), "<0.01");
        assert_eq!(deviation(23.9, 0.0), "0.00");
        assert_eq!(deviation(f64::NAN, f64::NAN), "NaN");
        assert_eq!([0.0, 0.00004, 0.0312, 1.0].map(probability), ["0.000", "4e-5", "0.031", "1.000"]);
        assert_eq!([3.25, 42.0, 75.0, 7260.0].map(duration), ["3.2 s", "42 s", "1 min 15 s", "2 h 1 min"]);
        assert_eq!(count(162_322_944), "162\u{202f}322\u{202f}944");
    }
}
