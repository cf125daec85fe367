//! Rotary parameters, as transformers 5 and 4 write them.

use super::config::{ConfigKeys, SizeLimit};
use super::short::short;
use kerple_core::encoding::scaling::{DynamicNtk, Llama3, RopeScaling, RopeStretch, Yarn, YarnRamp};
use kerple_core::encoding::{Encoding, Method, rotary};
use kerple_lm::{Error, Result};
use serde_json::Value;

/// The defaults of a family.
pub struct RopeDefaults<'a> {
    /// Base of the rates.
    pub base: f64,
    /// Share of the features per head that rotates.
    pub share: f64,
    /// The two keys at the top level. Other usual names are not read there.
    pub keys: [&'a str; 2],
    /// Whether the share counts; otherwise all features rotate.
    pub partial: bool,
    /// Features per head.
    pub head_dim: usize,
    /// Longest sequence, `max_position_embeddings`.
    pub longest: usize,
}

/// What transformers 5.23 reads of each kind of scaling besides its name, the base and the share.
fn read_by(kind: &str) -> &'static [&'static str] {
    match kind {
        "linear" | "dynamic" => &["factor"],
        "llama3" => &["factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"],
        "yarn" => &[
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
        _ => &[],
    }
}

/// Names of the base and the share in the table, and beside it in most families.
const USUAL: [&str; 2] = ["rope_theta", "partial_rotary_factor"];

/// Names of a kind of scaling in the table, the newer one first.
const KIND: [&str; 2] = ["rope_type", "type"];

/// Whether some kind of scaling reads a key.
fn is_read_by_some(name: &str) -> bool {
    ["linear", "dynamic", "llama3", "yarn"].into_iter().any(|kind| read_by(kind).contains(&name))
}

/// No positions.
pub fn none() -> Encoding {
    Encoding::from(Method::named("none").expect("the method is in the list"))
}

/// The encoding of a configuration: from `rope_scaling` where it is filled, else from
/// `rope_parameters`; the base and the share come from the top level where the table has none. All
/// of it follows transformers 5.23. Contradictions and keys that are not read are noted.
///
/// # Errors
/// An unknown kind of scaling, and keys out of range, by name and value.
pub fn read(keys: &ConfigKeys, family: &RopeDefaults) -> Result<Encoding> {
    let filled = |key: &str| keys.value(key).is_some_and(|value| value.as_object().is_none_or(|map| !map.is_empty()));
    let [scaled, table] = ["rope_scaling", "rope_parameters"].map(|key| filled(key).then_some(key));
    if let (Some(scaled), Some(table)) = (scaled, table) {
        remark_on_tables(keys, scaled, table, family);
    }
    let table = keys.table(scaled.or(table).unwrap_or("rope_parameters"))?;
    let number = |key: &str| match &table {
        Some(table) => table.optional_number(key),
        None => Ok(None),
    };
    if let Some(table) = &table {
        for name in table.names() {
            let value = table.raw(name).unwrap_or(&Value::Null);
            let is_known = [KIND, USUAL].concat().contains(&name.as_str()) || is_read_by_some(name);
            if !is_known && !value.is_null() {
                return Err(table.refuse(name, value, "this rotary parameter cannot be imported"));
            }
            if value.is_null() && (name == USUAL[0] || family.partial && name == USUAL[1]) {
                return Err(table.refuse(
                    name,
                    value,
                    "transformers cannot compute with null; give a number, or leave out the key",
                ));
            }
        }
    }
    let at = table.as_ref().unwrap_or(keys);
    let [base, own_share] = [0, 1].map(|which| {
        // the table goes before the keys beside it
        let (inner, outer) = (number(USUAL[which])?, keys.optional_number(family.keys[which])?);
        remark_on_two(keys, at, (USUAL[which], inner), (family.keys[which], outer));
        Ok::<_, Error>(inner.or(outer))
    });
    let (base, own_share) = (base?.unwrap_or(family.base), own_share?);
    let kind = kind(keys, table.as_ref())?;
    remark_on_unread(keys, table.as_ref(), kind, family);
    if !family.partial && kind != "default" && own_share.is_some_and(|share| share != 1.0) {
        let share = Value::from(own_share.unwrap_or(1.0));
        return Err(at.refuse(
            "partial_rotary_factor",
            &share,
            "this family rotates all features when the rates are scaled",
        ));
    }
    let share = if family.partial { own_share.unwrap_or(family.share) } else { 1.0 };
    if !(0.0..=1.0).contains(&share) {
        return Err(at.refuse("partial_rotary_factor", &Value::from(share), "it must be between 0 and 1"));
    }
    let width = (family.head_dim as f64 * share) as usize;
    if width == 0 {
        return Ok(none());
    }
    let scaling = scaling(at, keys, kind, family)?;
    let width = (width != family.head_dim).then_some(width);
    Ok(Encoding::from(Method::Rotary(rotary::RotaryConfig { width, base, scaling, ..Default::default() })))
}

/// The kind of scaling.
fn kind<'a>(keys: &ConfigKeys, table: Option<&ConfigKeys<'a>>) -> Result<&'a str> {
    let Some(table) = table else { return Ok("default") };
    let old = table.word("type", "default")?;
    let kind = table.word("rope_type", old)?;
    if table.value("type").is_some() && kind != old {
        let names = KIND.map(|key| table.name(key));
        keys.remark(format!("{} is {}, but {} is {}: using the former", names[0], short(kind), names[1], short(old)));
    }
    Ok(kind)
}

/// Says which of two tables is taken, where the other one says something else.
fn remark_on_tables(keys: &ConfigKeys, taken: &str, other: &str, family: &RopeDefaults) {
    let beside = |name: &str| {
        let at = USUAL.iter().position(|usual| *usual == name)?;
        keys.value(family.keys[at])
    };
    let said = |name: &str| {
        let own = keys.value(taken).and_then(|table| table.get(name));
        own.or_else(|| (name == "rope_type").then(|| keys.value(taken)?.get("type")).flatten()).or_else(|| beside(name))
    };
    let others = keys.value(other).and_then(Value::as_object).into_iter().flatten();
    let lost = others.filter(|(name, value)| !value.is_null() && said(name) != Some(value));
    let lost: Vec<String> =
        lost.map(|(name, value)| format!("{} = {}", short(name), short(&value.to_string()))).collect();
    if !lost.is_empty() {
        let lost = lost.join(", ");
        keys.remark(format!("using {taken} and nothing of {other}, as transformers does; ignored: {lost}"));
    }
}

/// Says which of two places is taken, where they say different numbers.
fn remark_on_two(
    keys: &ConfigKeys,
    table: &ConfigKeys,
    (inner, taken): (&str, Option<f64>),
    (outer, other): (&str, Option<f64>),
) {
    if let (Some(taken), Some(other)) = (taken, other)
        && taken != other
    {
        let inner = table.name(inner);
        keys.remark(format!("{inner} is {taken}, but {outer} is {other}: using {inner}, as transformers does"));
    }
}

/// Names what is said of rotation and read by nobody.
fn remark_on_unread(keys: &ConfigKeys, table: Option<&ConfigKeys>, kind: &str, family: &RopeDefaults) {
    let mut unread = Vec::new();
    for (usual, own) in USUAL.into_iter().zip(family.keys) {
        if let Some(value) = keys.value(usual).filter(|_| usual != own) {
            unread.push(format!("{usual} = {} (this family reads {own})", short(&value.to_string())));
        }
    }
    if !family.partial && kind == "default" {
        unread.extend(keys.value(USUAL[1]).map(|_| keys.name(USUAL[1])));
        unread.extend(table.and_then(|table| table.value(USUAL[1]).map(|_| table.name(USUAL[1]))));
    }
    let read = read_by(kind);
    let others = |name: &&String| is_read_by_some(name) && !read.contains(&name.as_str());
    if let Some(table) = table {
        let odd = table.names().filter(others).filter(|name| table.value(name).is_some());
        unread.extend(odd.map(|name| format!("{} (unused with rope_type {})", table.name(name), short(kind))));
    }
    if !unread.is_empty() {
        keys.remark(format!("ignored, as in transformers: {}", unread.join(", ")));
    }
}

/// Positions that the model was trained at before its rates were scaled: what stands at the top goes before the table.
fn original(table: &ConfigKeys, top: &ConfigKeys, kind: &str, family: &RopeDefaults) -> Result<usize> {
    const KEY: &str = "original_max_position_embeddings";
    let [outer, inner] =
        [top, table].map(|keys| keys.value(KEY).map(|_| keys.size(&[KEY], 1, SizeLimit::Length)).transpose());
    let (outer, inner) = (outer?, inner?);
    if let (Some(outer), Some(inner)) = (outer, inner)
        && outer != inner
        && read_by(kind).contains(&KEY)
    {
        let name = table.name(KEY);
        top.remark(format!("{KEY} is {outer}, but {name} is {inner}: using the former, as transformers does"));
    }
    Ok(outer.or(inner).unwrap_or(family.longest))
}

fn scaling(table: &ConfigKeys, top: &ConfigKeys, kind: &str, family: &RopeDefaults) -> Result<Option<RopeScaling>> {
    let longest = family.longest as f64;
    let original = original(table, top, kind, family)?;
    let factor = || match table.optional_number("factor")? {
        Some(factor) => Ok(factor),
        None => Err(table.refuse("factor", &Value::Null, &format!("rope_type {kind} needs it"))),
    };
    let original_len = Some(original);
    Ok(Some(match kind {
        "default" => return Ok(None),
        "linear" => RopeScaling::Linear(RopeStretch { factor: Some(factor()?), original_len: None }),
        "dynamic" => RopeScaling::Dynamic(DynamicNtk { factor: factor()?, original_len: Some(family.longest) }),
        "llama3" => {
            let number = |key: &str| match table.optional_number(key)? {
                Some(number) => Ok(number),
                None => Err(table.refuse(key, &Value::Null, "rope_type llama3 needs it")),
            };
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            RopeScaling::Llama3(Llama3 {
                factor: factor()?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_len,
            })
        }
        "yarn" => {
            let factor = table.optional_number("factor")?.unwrap_or(longest / original as f64);
            RopeScaling::Yarn(Yarn {
                factor: Some(factor),
                original_len,
                beta_fast: table.optional_number("beta_fast")?.unwrap_or(32.0),
                beta_slow: table.optional_number("beta_slow")?.unwrap_or(1.0),
                ramp: YarnRamp::Index,
                attention_factor: attention_factor(table, factor)?,
                truncate: table.flag("truncate", true)?,
            })
        }
        other => {
            let value = Value::from(other);
            return Err(table.refuse("rope_type", &value, "use default, linear, dynamic, llama3 or yarn"));
        }
    }))
}

/// What YaRN multiplies cosines and sines by, where it is not the usual `0.1 ln s + 1`.
fn attention_factor(table: &ConfigKeys, factor: f64) -> Result<Option<f64>> {
    if let Some(given) = table.optional_number("attention_factor")? {
        return Ok(Some(given));
    }
    let growth = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    let [own, all] = [table.number("mscale", 0.0)?, table.number("mscale_all_dim", 0.0)?];
    Ok((own != 0.0 && all != 0.0).then(|| growth(own) / growth(all)))
}
