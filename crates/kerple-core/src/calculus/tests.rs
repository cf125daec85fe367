//! Claims about whole expressions: grammar, derivatives, classes.

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::base::BaseKernel;
use super::certificate::{certify, is_cpd};
use super::error::Error;
use super::expr::Expr;
use super::function::Function;
use super::parse::ParseErrorKind;
use super::points::Points;
use super::rules::{KernelClass, ProofRule};
use crate::emulate::Emulate;

mod certificates;

/// A parameter: a number, or learned in one of the three spellings.
fn value(name: &'static str, low: f64, high: f64) -> impl Strategy<Value = String> {
    (0u8..6, low..high).prop_map(move |(kind, x)| match kind {
        0 => name.to_owned(),
        1 => format!("{name} ~ {x}"),
        2 => format!("{name}~U({low},{x})"),
        3 => format!("{name}={x}"),
        _ => format!("{name}= {x:.3}"),
    })
}

/// Text of CPD kernels that are at most 0.
fn negative() -> impl Strategy<Value = String> {
    let (a, b, p) = (|| value("a", 0.05, 2.0), || value("b", 0.05, 2.0), || value("p", 0.05, 2.0));
    let leaf = prop_oneof![
        (a(), p()).prop_map(|(a, p)| format!("power({a}, {p})")),
        (b(), a()).prop_map(|(b, a)| format!("log({a}, {b})")),
        (b(), a(), p()).prop_map(|(b, a, p)| format!("log3({b},{a},{p})")),
        Just("sqdist".to_owned()),
        Just("log".to_owned()),
    ];
    leaf.prop_recursive(3, 8, 3, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(|of| format!("({})", of.join(" + "))),
            (value("s", 0.1, 2.0), inner.clone()).prop_map(|(s, k)| {
                let s = s.rsplit('=').next().unwrap_or(&s).to_owned();
                format!("({s}*{k})")
            }),
            (0.1f64..0.9, inner.clone()).prop_map(|(alpha, k)| format!("(-(-{k})^{alpha})")),
            inner.clone().prop_map(|k| format!("pow({k}, alpha)")),
            inner.clone().prop_map(|k| format!("neglog({k})")),
            inner.prop_map(|k| format!("(-log(1 - {k}))")),
        ]
    })
}

/// Text of PD kernels.
fn positive() -> impl Strategy<Value = String> {
    let (a, c, p) = (|| value("a", 0.05, 1.0), || value("c", 0.05, 2.0), || value("p", 0.05, 2.0));
    let leaf = prop_oneof![
        (c(), a()).prop_map(|(c, a)| format!("gauss({c}, {a})")),
        (c(), a(), p()).prop_map(|(c, a, p)| format!("exp({c}, {a}, {p})")),
        (c(), value("w", 0.05, 3.0)).prop_map(|(c, w)| format!("cos({c}, {w})")),
        (0.1f64..2.0).prop_map(|c| format!("const({c})")),
        negative().prop_map(|k| format!("exp({k})")),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(|of| format!("({})", of.join("*"))),
            prop::collection::vec(inner.clone(), 2..4).prop_map(|of| format!("({})", of.join("+"))),
            (0.1f64..2.0, inner).prop_map(|(s, k)| format!("{s}*{k}")),
        ]
    })
}

/// Text of expressions the rules prove.
pub(super) fn valid() -> impl Strategy<Value = String> {
    prop_oneof![
        2 => negative(),
        1 => positive(),
        1 => (negative(), positive()).prop_map(|(n, p)| format!("{p} + {n}")),
        1 => (negative(), -3.0f64..3.0).prop_map(|(k, c)| format!("{k} + const({c})")),
    ]
}

fn parameters(expr: &Expr, seed: u64) -> Vec<f64> {
    expr.initial(1, &mut ChaCha8Rng::seed_from_u64(seed))
}

proptest! {
    #[test]
    fn printing_and_parsing_are_inverse(text in valid()) {
        let expr = Expr::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let printed = expr.to_string();
        let again = Expr::parse(&printed).unwrap_or_else(|e| panic!("{e}"));
        prop_assert_eq!(&again, &expr, "{}", printed);
        let json = serde_json::to_string(&expr).unwrap();
        prop_assert_eq!(serde_json::from_str::<Expr>(&json).unwrap(), expr);
    }

    #[test]
    fn unproven_text_prints_and_parses_back(text in valid(), s in -3.0f64..3.0, other in valid()) {
        prop_assume!(s != 0.0);
        let text = format!("{s}*({text})*{other} - {other}");
        let expr = Expr::parse_unproven(&text).unwrap_or_else(|e| panic!("{e}"));
        let printed = expr.to_string();
        prop_assert_eq!(Expr::parse_unproven(&printed).unwrap_or_else(|e| panic!("{e}")), expr, "{}", printed);
    }

    #[test]
    fn no_text_panics(text in "[a-z0-9 +*()^,=~.-]{0,40}") {
        for expr in [Expr::parse(&text), Expr::parse_unproven(&text)] {
            match expr {
                Ok(expr) => prop_assert!(expr.at(&parameters(&expr, 0), 1.0).is_finite()),
                Err(error) => prop_assert!(error.to_string().contains('^')),
            }
        }
    }

    #[test]
    fn gradient_matches_central_differences(text in valid(), d in prop_oneof![Just(0u32), 1u32..5, 0u32..3000], seed: u64) {
        let expr = Expr::parse(&text).unwrap();
        let at = parameters(&expr, seed);
        // the error of a difference over a wave grows with the square of the distance
        let d = f64::from(if text.contains("cos") { d % 100 } else { d });
        let mut gradient = vec![f64::NAN; at.len()];
        let value = expr.gradient(&at, d, &mut gradient);
        prop_assert_eq!(value, expr.at(&at, d));
        for i in 0..at.len() {
            let step = 1e-6 * at[i];
            let moved = |by: f64| {
                let mut moved = at.clone();
                moved[i] += by;
                expr.at(&moved, d)
            };
            let numeric = (moved(step) - moved(-step)) / (2.0 * step);
            // truncation is of relative size step^2; rounding is eps * |terms| / step, with terms up to about d^2
            let scale = value.abs() + 10.0;
            let tolerance = 1e-6 * numeric.abs() + 2e-9 * scale / at[i];
            prop_assert!((gradient[i] - numeric).abs() <= tolerance, "{expr} {at:?} d={d} {i}: {} {numeric}", gradient[i]);
        }
    }

    #[test]
    fn frozen_values_give_the_same_kernel(text in valid(), d in 0u32..100, seed: u64) {
        let expr = Expr::parse(&text).unwrap();
        let at = parameters(&expr, seed);
        let frozen = expr.with_values(&at);
        prop_assert!(frozen.parameters().is_empty());
        prop_assert_eq!(frozen.at(&[], f64::from(d)), expr.at(&at, f64::from(d)));
        prop_assert!(Expr::parse(&frozen.to_string()).is_ok());
    }

    #[test]
    fn proven_kernels_stay_in_their_bounds_and_never_rise(text in valid(), seed: u64) {
        let expr = Expr::parse(&text).unwrap();
        let derivation = expr.derivation();
        let at = parameters(&expr, seed);
        let (first, mut last) = (expr.at(&at, 0.0), f64::INFINITY);
        prop_assert_eq!(expr.is_monotone(), !text.contains("cos"));
        for d in 0..200 {
            let value = expr.at(&at, f64::from(d));
            let room = 1e-12 * (1.0 + value.abs()); // rounding of sums
            prop_assert!(value >= derivation.low - room && value <= derivation.high + room);
            prop_assert!(value <= last + room || !expr.is_monotone());
            prop_assert!(value <= first + room, "no kernel is above its value at 0");
            last = value;
        }
    }
}

#[test]
fn named_variants_equal_base_functions_to_the_bit() {
    let cases: [(&str, BaseKernel, &[f64]); 6] = [
        ("power(a, p)", BaseKernel::Power, &[0.7, 1.3]),
        ("log3(b, a, p)", BaseKernel::Log, &[0.7, 0.4, 1.3]),
        ("exp(1, a, p)", BaseKernel::Exp, &[0.4, 1.3]),
        ("exp(c, a, p)", BaseKernel::Exp, &[0.7, 0.4, 1.3]),
        ("log(b, a)", BaseKernel::Log, &[0.7, 0.4]),
        ("gauss(c, a)", BaseKernel::Exp, &[0.7, 0.4]),
    ];
    for (text, base, values) in cases {
        let full = match text {
            "exp(1, a, p)" => vec![1.0, values[0], values[1]],
            "log(b, a)" => vec![values[0], values[1], 1.0],
            "gauss(c, a)" => vec![values[0], values[1], 2.0],
            _ => values.to_vec(),
        };
        let first = usize::from(text == "exp(1, a, p)");
        let expr = Expr::parse(text).unwrap();
        let mut gradient = vec![0.0; values.len()];
        for d in (0..5000).map(f64::from) {
            let jet = base.at(&full, d);
            assert_eq!(expr.gradient(values, d, &mut gradient), jet.value, "{text}");
            assert_eq!(gradient, jet.gradient[first..first + values.len()], "{text}");
        }
    }
}

#[test]
fn special_cases_reduce_to_simpler_kernels() {
    let table = |text: &str, values: &[f64]| Expr::parse(text).unwrap().table(values, 1, 600);
    assert_eq!(table("log3(b, a, p)", &[0.7, 0.4, 1.0]), table("log(b, a)", &[0.7, 0.4]));
    assert_eq!(table("exp(c, a, 2)", &[0.7, 0.4]), table("gauss(c, a)", &[0.7, 0.4]));
    assert_eq!(table("power(1, 2)", &[]), table("sqdist", &[]));
    let alibi: Vec<f64> = (0..600).map(|d| -0.25 * f64::from(d)).collect();
    assert_eq!(table("power(a, 1)", &[0.25]), alibi);
    let close = |a: Vec<f64>, b: Vec<f64>| {
        // two roundings of a power: a few units in the last place
        a.iter().zip(&b).for_each(|(a, b)| assert!((a - b).abs() <= 1e-14 * b.abs(), "{a} {b}"));
    };
    close(table("-(-sqdist)^0.75", &[]), table("power(1, 1.5)", &[]));
    close(table("-log(1 - 0.4*power(1, 1.3))", &[]), table("log3(1, 0.4, 1.3)", &[]));
    close(table("exp(0.4*power(1, 1.3))", &[]), table("exp(1, 0.4, 1.3)", &[]));
}

#[test]
fn tables_are_prefixes_of_longer_ones_and_every_parameter_matters() {
    let expr = Expr::parse("log(b, a) + s*power(a, p) - (-log3)^alpha + exp(-log(1 - power))").unwrap();
    let names: Vec<_> = expr.parameters().into_iter().map(|p| p.name).collect();
    assert_eq!(
        names,
        "log.b log.a s power.a power.p log3.b log3.a log3.p alpha power2.a power2.p".split(' ').collect::<Vec<_>>()
    );
    let (heads, len) = (3, 40);
    let values = expr.initial(heads, &mut ChaCha8Rng::seed_from_u64(5));
    let table = expr.table(&values, heads, len);
    let longer = expr.table(&values, heads, 4 * len);
    for head in 0..heads {
        assert_eq!(table[head * len..(head + 1) * len], longer[head * 4 * len..][..len]);
    }
    for i in 0..values.len() {
        let mut moved = values.clone();
        moved[i] *= 0.9;
        let changed = expr.table(&moved, heads, len);
        let head = i / names.len();
        assert_ne!(
            changed[head * len..(head + 1) * len],
            table[head * len..(head + 1) * len],
            "{}",
            names[i % names.len()]
        );
    }
}

/// Derivatives in each parameter, `[P][L]`.
fn slopes(expr: &Expr, values: &[f64], len: usize, emulate: Emulate) -> Vec<Vec<f64>> {
    let mut rows = vec![Vec::new(); values.len()];
    expr.each_gradient(values, len, emulate, |gradient| {
        rows.iter_mut().zip(gradient).for_each(|(row, slope)| row.push(*slope));
    });
    rows
}

#[test]
fn slopes_match_central_differences() {
    let expr = Expr::parse("log(b, a) + 0.5*gauss(c, a)").unwrap();
    let len = 9;
    let values = expr.initial(1, &mut ChaCha8Rng::seed_from_u64(9));
    let slopes = slopes(&expr, &values, len, Emulate::Exact);
    for (i, slopes) in slopes.iter().enumerate() {
        let step = 1e-6;
        let [mut up, mut down] = [values.clone(), values.clone()];
        up[i] += step;
        down[i] -= step;
        let [up, down] = [up, down].map(|values| expr.row(&values, len, Emulate::Exact));
        for ((slope, up), down) in slopes.iter().zip(up).zip(down) {
            // truncation 1e-12, rounding 1e-16 * 10 / 1e-6
            assert!((slope - (up - down) / (2.0 * step)).abs() < 1e-8);
        }
    }
}

#[test]
fn low_precision_is_a_staircase_for_values_and_slopes() {
    for text in ["log(b, a)", "0.3*power(a, p) - (-log)^0.7", "exp(log(b, a))*gauss + 2", "-log(1 - power)"] {
        let expr = Expr::parse(text).unwrap();
        let values = expr.initial(1, &mut ChaCha8Rng::seed_from_u64(3));
        let row = expr.row(&values, 300, Emulate::Bf16);
        assert_eq!(row[257], row[256], "{text}"); // bf16 has no 257
        assert!(row.iter().all(|value| Emulate::Bf16.round(*value) == *value), "{text}");
        let exact = expr.row(&values, 300, Emulate::Exact);
        // eight binary digits a step, and a few steps; differences of large terms lose more
        assert!(row.iter().zip(&exact).all(|(low, high)| (low - high).abs() < 0.1 * high.abs().max(1.0)), "{text}");
        let rounded: Vec<f64> = values.iter().map(|value| Emulate::Bf16.round(*value)).collect();
        for (low, high) in
            slopes(&expr, &values, 300, Emulate::Bf16).iter().zip(slopes(&expr, &rounded, 300, Emulate::Exact))
        {
            assert_eq!((low[257], low[258]), (high[256], high[258]), "{text}");
        }
    }
}

#[test]
fn classes_follow_the_facts() {
    let pd = |strict| KernelClass::PositiveDefinite { strict };
    let cpd = |strict| KernelClass::ConditionallyPositiveDefinite { strict };
    let cases = [
        ("sqdist", cpd(false)),
        ("power(1, 2)", cpd(false)),
        ("power(1, 1.9)", cpd(true)),
        ("power(a, p)", cpd(false)),
        ("power(a, 1)", cpd(true)),
        ("log", cpd(true)),
        ("log3", cpd(true)),
        ("gauss(1, 1)", pd(true)),
        ("exp", pd(true)),
        ("2", pd(false)),
        ("-2", cpd(false)),
        ("sqdist + sqdist", cpd(false)),
        ("sqdist + log", cpd(true)),
        ("gauss + 2", pd(true)),
        ("gauss - 2", cpd(true)),
        ("-(-sqdist)^0.5", cpd(true)),
        ("pow(sqdist - 1, alpha)", cpd(true)),
        ("-(-const(-2))^0.5", cpd(false)),
        ("-log(1 - sqdist)", cpd(true)),
        ("exp(sqdist)", pd(true)),
        ("exp(3)", pd(false)),
        ("gauss*const(2)", pd(true)),
        ("gauss*const(0)", pd(false)),
        ("0.1*exp(log)*gauss", pd(true)),
        ("cos", pd(false)),
        ("exp(c, a, 1)*cos(1, w)", pd(true)),
        ("cos + log", cpd(true)),
        ("exp(cos(1, 0.5))", pd(false)),
        ("pow(cos(1, 0.5) - 1, 0.5)", cpd(false)),
    ];
    for (text, class) in cases {
        let expr = Expr::parse(text).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(expr.class(), class, "{text}\n{}", expr.derivation());
    }
}

#[test]
fn what_no_rule_proves_is_refused_with_the_reason_and_still_examinable() {
    let cases = [
        ("power(1, 2.5)", 10, "Corollary 1"),
        ("power(-1, 1)", 7, "Fact 2"),
        ("power(1,1)*power(1,1)", 1, "a product needs positive definite members"),
        ("log + -1*power", 7, "Fact 2"),
        ("log - power(1, 1)", 5, "Fact 2"),
        ("neglog(const(0.5))", 1, "Fact 3 asks for k <= 0"),
        ("-(-log)^1.5", 9, "Fact 3"),
    ];
    for (text, column, reason) in cases {
        let error = Expr::parse(text).unwrap_err();
        assert_eq!(error.column, column, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        let derivation = Expr::parse_unproven(text).unwrap_or_else(|e| panic!("{e}")).derivation();
        assert!(derivation.obstacle().unwrap().because.contains(reason), "{derivation}");
    }
}

#[test]
fn errors_point_at_the_character() {
    let cases = [
        ("", 1, "expected a kernel"),
        ("powr(1, 2)", 1, "unknown function `powr`"),
        ("powr", 1, "unknown function `powr`"),
        ("power(1)", 1, "needs `p`"),
        ("power(1, 2, 3)", 13, "takes 2 arguments"),
        ("power(1, q)", 10, "no parameter `q`; it has `a`, `p`"),
        ("power(1, a=2)", 10, "`a` is given twice"),
        ("power(1, p=2", 13, "expected `,` or `)`, found the end"),
        ("power(1, 1) log", 13, "expected `+` or `-` or `*` or the end"),
        ("power(1, 1)^2", 12, "`-(-k)^alpha`"),
        ("(power(1, 1))^2", 14, "`-(-k)^alpha`"),
        ("-(power(1, 1))^2", 3, "`-(-k)^alpha`"),
        ("power(1, 1) + §", 15, "found `§`"),
        ("power(1, p~3)", 12, "outside (0, 2]"),
        ("power(1, p~U(3,4))", 12, "meets the range"),
        ("1.2.3", 1, "found `1.2.3`"),
        ("power(1e400, 1)", 7, "`1e400` is out of range, the largest number is 1.79769"),
        ("log(1 - log)", 7, "with its sign: `-log(1 - k)`"),
        ("pow(gauss, 0.5)", 1, "only where k <= 0"),
        ("neglog(const(2))", 1, "only where k < 1"),
        ("cos(1, -0.5)", 8, "outside (0, inf)"),
    ];
    for (text, column, message) in cases {
        let error = Expr::parse(text).unwrap_err();
        assert_eq!(error.column, column, "{text}: {error}");
        assert!(error.to_string().contains(message), "{error}");
    }
    assert_eq!(
        Expr::parse("power(1, 2.5)").unwrap_err().to_string().lines().skip(1).collect::<Vec<_>>(),
        ["    power(1, 2.5)", "             ^^^"]
    );
    let nested = format!("{}log{}", "(".repeat(1000), ")".repeat(1000));
    for deep in [nested, format!("{}log", "-".repeat(4000)), format!("{}log", "2*".repeat(2000))] {
        assert!(matches!(Expr::parse_unproven(&deep).unwrap_err().kind, ParseErrorKind::TooLarge { limit: 64, .. }));
    }
    let long = vec!["log"; 2000].join("+");
    assert!(matches!(Expr::parse(&long).unwrap_err().kind, ParseErrorKind::TooLarge { limit: 4096, .. }));
    // what is written of an expression can be read again
    for (text, limit) in [
        (format!("{}log(1, 1){}", "neglog(".repeat(40), ")".repeat(40)), 64),
        (["log(1e-300, 1)"; 14].join(" + "), 4096),
    ] {
        let error = Expr::parse(&text).unwrap_err();
        assert!(matches!(error.kind, ParseErrorKind::TooLarge { limit: of, .. } if of == limit), "{error}");
        assert!(error.to_string().contains("of its canonical form"), "{error}");
    }
    assert!(matches!(Expr::parse_unproven("power(1, 0)").unwrap_err().kind, ParseErrorKind::OutOfRange { .. }));
}

#[test]
fn learned_parameters_have_the_ranges_and_starts_of_the_released_models() {
    let rows = |text: &str| -> Vec<(String, f64, f64, String)> {
        let parameters = Expr::parse(text).unwrap().parameters();
        parameters.into_iter().map(|p| (p.name, p.low, p.high, p.init.to_string())).collect()
    };
    let row = |name: &str, high: f64, init: &str| (name.to_owned(), 0.01, high, init.to_owned());
    let open = f64::INFINITY;
    assert_eq!(rows("log(b, a)"), [row("b", open, "U(0, 2)"), row("a", open, "U(0, 1)")]);
    assert_eq!(rows("power"), [row("a", open, "U(0, 1)"), row("p", 2.0, "U(0, 2)")]);
    assert_eq!(rows("power(a~0.5, 1)"), [row("a", open, "0.5")]);
    assert_eq!(rows("-(-sqdist)^alpha"), [row("alpha", 0.99, "U(0, 1)")]);
}

#[test]
fn every_rule_and_function_is_reachable() {
    let text = "sqdist + power + log + log3 + gauss*exp*cos + 1 - 2*(-log)^0.5 - log(1 - log) + exp(log) + neglog(log)";
    let mut seen = Vec::new();
    fn walk(of: &super::rules::Derivation, seen: &mut Vec<ProofRule>) {
        seen.push(of.rule);
        of.premises.iter().for_each(|premise| walk(premise, seen));
    }
    // `- 2*(-log)^0.5` is no form of Fact 3: the multiple goes in front of the whole
    assert!(Expr::parse(text).is_err());
    let expr = Expr::parse(&text.replace("- 2*(-log)^0.5", "+ 2*(-(-log)^0.5)")).unwrap_or_else(|e| panic!("{e}"));
    walk(&expr.derivation(), &mut seen);
    assert!(ProofRule::ALL.iter().all(|rule| seen.contains(rule)), "{}", expr.derivation());
    assert!(Function::ALL.iter().all(|function| expr.to_string().contains(function.name())));
}

#[test]
fn a_constant_hides_no_negative_direction() {
    let points = Points::parse("0..7").unwrap();
    for text in ["power(1, 2.5)", "3e9 + power(1, 2.5)"] {
        let expr = Expr::parse_unproven(text).unwrap();
        let found = certify(&expr, &points).unwrap();
        assert!(!found.is_pd && !found.is_cpd && !is_cpd(&expr, &points).unwrap(), "{text}");
    }
    let found = certify(&Expr::parse("3e9 + power(1, 1)").unwrap(), &points).unwrap();
    assert!(found.is_pd && found.is_cpd && found.is_strictly_cpd);
    for text in ["power(1e307, 1)", "1e308 + log(1, 1)"] {
        let found = certify(&Expr::parse(text).unwrap(), &points);
        assert!(matches!(found, Err(Error::NotFinite { .. })), "{text}");
    }
}
