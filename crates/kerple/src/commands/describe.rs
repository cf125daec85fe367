//! `kerple describe [ENCODING]`

use super::write_file;
use crate::args::{DescribeArgs, PICTURE_HEADS, PICTURE_LENGTH};
use crate::command_error::{CommandError, CommandResult};
use crate::encodings;
use crate::output::{print_json, result, resultln};
use kerple_core::attention::linear::NEAR;
use kerple_core::calculus::exponentials::{Amplitude, ErrorBudget, SumTolerance};
use kerple_core::encoding::{Encoding, EncodingParameter, Geometry, InLinear, METHODS, Method, ParameterInit};
use kerple_report::plot::{Plot, over_distances};

/// Most initial values of a parameter that are shown.
const SHOWN_STARTS: usize = 8;
/// Largest table that is drawn or printed.
const MOST_VALUES: usize = 1 << 24;
/// What lists the keys of a run file.
const CONFIG: &str = "config";

/// Lists all encodings, or shows one.
pub fn run(args: &DescribeArgs) -> CommandResult {
    refuse_ignored(args)?;
    match args.encoding.as_deref() {
        None => list(args.json),
        Some(CONFIG) => result(format_args!("{}", kerple_lm::config::REFERENCE)),
        Some(kind) => {
            return one(args, &encodings::with_keys(kind)?);
        }
    }
    Ok(())
}

/// Refuses options that the list of encodings, or that of keys, would ignore.
fn refuse_ignored(args: &DescribeArgs) -> CommandResult {
    let of_keys = args.encoding.as_deref() == Some(CONFIG);
    let sizes = [("--heads", args.heads), ("--length", args.length)];
    if let Some((option, value)) = sizes.into_iter().find_map(|(option, value)| Some((option, value?)))
        && (of_keys || args.encoding.is_none())
    {
        return Err(CommandError::misuse(
            format!("{option} {value}: only the picture of an encoding has this size"),
            format!("name the encoding: `kerple describe alibi {option} {value}`"),
        ));
    }
    if let Some(path) = args.svg.as_ref().filter(|_| of_keys || args.encoding.is_none()) {
        let path = path.display();
        return Err(CommandError::misuse(
            format!("--svg {path}: only the picture of an encoding can be written"),
            format!("name the encoding: `kerple describe alibi --svg {path}`"),
        ));
    }
    if of_keys && args.json {
        let message = format!("--json: `kerple describe {CONFIG}` prints a run file, which is TOML");
        return Err(CommandError::misuse(message, "leave out --json"));
    }
    Ok(())
}

/// An `[encoding]` table, alone in a run file.
#[derive(serde::Serialize)]
struct Described<'a> {
    encoding: &'a Encoding,
}

fn list(json: bool) {
    for method in METHODS.iter().filter_map(|kind| Method::named(kind)) {
        let about = method.description();
        if json {
            print_json(&serde_json::json!({ "kind": method.kind(), "description": about }));
        } else {
            resultln!("{:<22} {:<24} {}", method.kind(), about.name, about.formula);
        }
    }
    if !json {
        resultln!("\n`kerple describe NAME` shows one; `kerple describe config` lists the keys of a run file.");
    }
}

/// The keys of a kind that not every encoding has. A written encoding leaves out absent ones, so the names come from the error
/// about an unknown key, which lists all.
fn own_keys(kind: &str) -> Vec<String> {
    let unknown = serde_json::json!({ kind: { "": null } });
    let error = serde_json::from_value::<Method>(unknown).err().map(|error| error.to_string()).unwrap_or_default();
    let names = error.split_once("expected ").map_or("", |(_, names)| names);
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn initial(parameter: &EncodingParameter) -> String {
    let start = match &parameter.init {
        ParameterInit::Constant(value) => format!("{value}"),
        ParameterInit::Uniform([low, high]) => format!("U[{low}, {high})"),
        ParameterInit::Normal { std: 0.0 } => "0".to_owned(),
        ParameterInit::Normal { std } => format!("N(0, {std:.4}^2)"),
        ParameterInit::Around { mean, std } => format!("N({mean}, {std:.4}^2)"),
        ParameterInit::Gains { .. } => "2 N(0, 1) / sqrt(norm)".to_owned(),
        ParameterInit::Gates { spans: [first, last] } => format!("-ln(expm1(1/T)), T from {first} to {last}"),
        ParameterInit::StepIdentity { std, .. } => format!("N(0, {std:.3}^2), plus a step identity"),
        ParameterInit::PerHead(starts) => {
            let shown: Vec<String> = starts.iter().take(SHOWN_STARTS).map(f64::to_string).collect();
            let more = if starts.len() > SHOWN_STARTS { ", .." } else { "" };
            format!("{}{more} by head", shown.join(", "))
        }
    };
    let range = match (parameter.low.is_finite(), parameter.high.is_finite()) {
        (true, true) => format!(", kept in [{}, {}]", parameter.low, parameter.high),
        (true, false) => format!(", kept at or above {}", parameter.low),
        _ => String::new(),
    };
    format!("{:<10} {:?}, initialised as {start}{range}", parameter.name, parameter.shape)
}

/// What linear attention makes of it.
fn in_linear(encoding: &Encoding, geometry: &Geometry) -> String {
    let demand = ErrorBudget { horizon: 1 << 20, tolerance: SumTolerance::Thousandth, amplitude: Amplitude::Four };
    match encoding.in_linear() {
        None => "does not support it".to_owned(),
        Some(InLinear::AsItIs) => "supports it unchanged".to_owned(),
        Some(InLinear::Gates) => "decays products by its gates, in decoders".to_owned(),
        Some(InLinear::Code) => "supports it as a code of queries and keys; softmax attention does not".to_owned(),
        Some(InLinear::Decay) => match encoding.decay(geometry, &encoding.initial(geometry, 0), &demand) {
            Some(fading) if fading.weight_jacobian.is_some() => {
                let (terms, tolerance, horizon) = (fading.terms, demand.tolerance.value(), demand.horizon);
                let floor = if fading.floor > 0.0 { format!(" or of {}", fading.floor) } else { String::new() };
                let met = fading.near.len() / geometry.heads;
                if terms == 0 {
                    return format!(
                        "takes it as an exact window of {met} positions, within {tolerance} of exp(b){floor}"
                    );
                }
                let window = if met > NEAR { format!("{met} positions as they are and ") } else { String::new() };
                format!(
                    "takes it as {window}{terms} decaying exponentials, within {tolerance} of exp(b){floor} up to {horizon} tokens"
                )
            }
            _ => "takes it as one decaying exponential, exactly".to_owned(),
        },
    }
}

/// A plot of the encoding's table with parameters as they start.
fn picture(encoding: &Encoding, heads: usize, distances: usize) -> Option<Plot> {
    let geometry = Geometry::new(heads, 64, distances);
    let table = encoding.table(&geometry, &encoding.initial(&geometry, 0), distances);
    let (rows, what) = match (&table.bias, &table.weight) {
        (Some(bias), _) => (bias, "bias b(d)"),
        (None, Some(weight)) => (weight, "weight w(d)"),
        (None, None) => return None,
    };
    let points = |row: &[f64]| row.iter().enumerate().map(|(d, value)| (d as f64, *value)).collect();
    let curves = rows.chunks(distances).enumerate().map(|(head, row)| (format!("head {head}"), points(row)));
    let title = format!("{} as it starts, {what} by distance d", encoding.method.kind());
    Some(over_distances(title, what, false, curves))
}

/// Refuses an option of the picture that the encoding does not have.
fn no_picture(encoding: &Encoding, option: &str) -> CommandError {
    let drawn = METHODS
        .iter()
        .filter(|kind| Method::named(kind).is_some_and(|method| picture(&Encoding::from(method), 1, 2).is_some()));
    CommandError::misuse(
        format!("{option}: {} has no distance table to draw", encoding.method.kind()),
        format!("encodings with a picture: {}", drawn.copied().collect::<Vec<_>>().join(", ")),
    )
}

fn one(args: &DescribeArgs, encoding: &Encoding) -> CommandResult {
    let (heads, length) = (args.heads.unwrap_or(PICTURE_HEADS), args.length.unwrap_or(PICTURE_LENGTH));
    if length < 2 {
        return Err(CommandError::misuse(
            format!("--length {length} is out of range, it must be at least 2"),
            format!("give at least 2 distances, e.g. --length {PICTURE_LENGTH}"),
        ));
    }
    if heads.saturating_mul(length) > MOST_VALUES {
        return Err(CommandError::misuse(
            format!("{heads} heads times {length} distances exceed the limit of {MOST_VALUES} values"),
            "lower --heads or --length",
        ));
    }
    let (about, own_keys) = (encoding.method.description(), own_keys(encoding.method.kind()));
    let geometry = Geometry::new(heads, 64, 512);
    encoding.check(&geometry).map_err(|refusal| CommandError::misuse(refusal.to_string(), &refusal.hint))?;
    let parameters = encoding.parameters(&geometry);
    let plot = picture(encoding, heads, length);
    // without a picture, parameters may have a value per head
    let has_heads = parameters != encoding.parameters(&Geometry::new(heads + 1, 64, 512));
    match (&plot, &args.svg, args.length, args.heads) {
        (Some(plot), Some(path), ..) => write_file(path, &plot.file())?,
        (None, Some(path), ..) => return Err(no_picture(encoding, &format!("--svg {}", path.display()))),
        (None, None, Some(length), _) => return Err(no_picture(encoding, &format!("--length {length}"))),
        (None, None, None, Some(heads)) if !has_heads => {
            return Err(no_picture(encoding, &format!("--heads {heads}")));
        }
        _ => {}
    }
    if args.json {
        let table = encoding.table(&geometry, &encoding.initial(&geometry, 0), length);
        print_json(&serde_json::json!({
            "kind": encoding.method.kind(), "description": about, "parameters": parameters, "config": encoding,
            "keys": own_keys, "heads": heads, "length": length, "bias": table.bias, "weight": table.weight,
            "linear": in_linear(encoding, &geometry), "certificate": encoding.certificate(),
        }));
        return Ok(());
    }
    resultln!("{} ({})\n", about.name, encoding.method.kind());
    resultln!("  formula   {}", about.formula);
    resultln!("            d = i - j, s = q.k / sqrt(D)");
    for (what, kernel) in ["bias", "weight"].into_iter().zip(encoding.method.positional().kernels()) {
        if let Some(kernel) = kernel {
            resultln!("  {what:<9} {kernel}    (an expression for `kerple kernel`)");
        }
    }
    if let Some(window) = encoding.window {
        let sink_tokens = match encoding.sink_tokens {
            Some(1) => " and to the first token".to_owned(),
            Some(count) => format!(" and to the first {count} tokens"),
            None => String::new(),
        };
        let positions =
            if window == 1 { "its own position".to_owned() } else { format!("the last {window} positions") };
        resultln!("  window    a query attends to {positions}{sink_tokens}");
    }
    if let Some(reach) = encoding.reach {
        resultln!("  reach     the bias is 0 for keys at distance {reach} and beyond");
    }
    if let Some(cap) = encoding.distance_cap {
        resultln!("  cap       keys further away than {cap} tokens are treated as if they were {cap} away");
    }
    if let Some(certificate) = encoding.certificate() {
        match certificate.strip_prefix("not proven: ") {
            Some(why) => resultln!("  unproven  {why}"),
            None => resultln!("  proven    {certificate}"),
        }
    }
    resultln!("  enters    {}", about.enters);
    resultln!("  learned   {}", about.learned);
    resultln!("  beyond    {}", about.beyond);
    resultln!("  linear    {}", in_linear(encoding, &geometry));
    resultln!("  source    {}", about.source);
    resultln!("  keys      {}", if own_keys.is_empty() { "none of its own".to_owned() } else { own_keys.join(", ") });
    for parameter in &parameters {
        resultln!("  {}", initial(parameter));
    }
    // with its name, which tables within it begin with
    let keys = toml::to_string(&Described { encoding }).unwrap_or_default();
    resultln!("\n{keys}");
    if let Some(plot) = &plot {
        resultln!("{}", plot.text(100, 20));
    }
    Ok(())
}
