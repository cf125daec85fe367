//! Rotary parameters, as transformers 5 and 4 write them.

use super::config::Keys;
use kerple::encoding::scaling::{Dynamic, Llama3, Ramp, Scaling, Stretch, Yarn};
use kerple::encoding::{Encoding, Method, rotary};
use kerple_lm::{Error, Result};
use serde_json::Value;

/// What a family has where its configuration is silent.
pub struct Family<'a> {
    /// Base of the rates.
    pub base: f64,
    /// Share of a head's features that rotates.
    pub share: f64,
    /// Top-level names of the two.
    pub keys: [&'a str; 2],
    /// Whether the share counts; otherwise all features rotate.
    pub partial: bool,
    /// Features of a head.
    pub head_dim: usize,
    /// Longest sequence, `max_position_embeddings`.
    pub longest: usize,
}

/// Keys of the table that this reader knows, of any kind of scaling.
const KNOWN: &[&str] = &[
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "low_freq_factor",
    "high_freq_factor",
];

/// No positions.
pub fn none() -> Encoding {
    Encoding::from(Method::named("none").expect("the method is in the list"))
}

/// The encoding of a configuration: `rope_scaling` where it says something, else `rope_parameters`; the base and the share from
/// the top level where the table has none.
///
/// # Errors
/// A kind of scaling that is not known, and keys out of range, by name and value.
pub fn read(keys: &Keys, family: &Family) -> Result<Encoding> {
    let filled = |key: &str| keys.value(key).is_some_and(|value| value.as_object().is_none_or(|map| !map.is_empty()));
    let table = if filled("rope_scaling") { keys.table("rope_scaling")? } else { keys.table("rope_parameters")? };
    let number = |key: &str| match &table {
        Some(table) => table.optional_number(key),
        None => Ok(None),
    };
    if let Some(table) = &table {
        for name in table.names() {
            let value = table.raw(name).unwrap_or(&Value::Null);
            if !KNOWN.contains(&name.as_str()) && !value.is_null() {
                return Err(table.refuse(name, value, "rotary parameters of this kind cannot be imported"));
            }
        }
    }
    let top = |own: &str, usual: &str| Ok::<_, Error>(keys.optional_number(own)?.or(keys.optional_number(usual)?));
    // the table goes before the old keys beside it
    let top = [top(family.keys[0], "rope_theta")?, top(family.keys[1], "partial_rotary_factor")?];
    let base = number("rope_theta")?.or(top[0]).unwrap_or(family.base);
    let own_share = number("partial_rotary_factor")?.or(top[1]);
    let kind = match &table {
        Some(table) => table.word("rope_type", table.word("type", "default")?)?,
        None => "default",
    };
    let at = table.as_ref().unwrap_or(keys);
    if !family.partial && kind != "default" && own_share.is_some_and(|share| share != 1.0) {
        let share = Value::from(own_share.unwrap_or(1.0));
        return Err(at.refuse(
            "partial_rotary_factor",
            &share,
            "this family rotates all features where rates are scaled",
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
    Ok(Encoding::from(Method::Rotary(rotary::Config { pct: 1.0, width, base, scaling })))
}

fn scaling(table: &Keys, top: &Keys, kind: &str, family: &Family) -> Result<Option<Scaling>> {
    let longest = family.longest as f64;
    let original = match top.optional_count("original_max_position_embeddings")? {
        Some(original) => original,
        None => table.optional_count("original_max_position_embeddings")?.unwrap_or(family.longest),
    };
    let factor = || match table.optional_number("factor")? {
        Some(factor) => Ok(factor),
        None => Err(table.refuse("factor", &Value::Null, &format!("rotary rates of kind {kind} need it"))),
    };
    let original_len = Some(original);
    Ok(Some(match kind {
        "default" => return Ok(None),
        "linear" => Scaling::Linear(Stretch { factor: Some(factor()?), original_len: None }),
        "dynamic" => Scaling::Dynamic(Dynamic { factor: factor()?, original_len: Some(family.longest) }),
        "llama3" => {
            let number = |key: &str| match table.optional_number(key)? {
                Some(number) => Ok(number),
                None => Err(table.refuse(key, &Value::Null, "rotary rates of kind llama3 need it")),
            };
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            Scaling::Llama3(Llama3 { factor: factor()?, low_freq_factor: low, high_freq_factor: high, original_len })
        }
        "yarn" => {
            let factor = table.optional_number("factor")?.unwrap_or(longest / original as f64);
            Scaling::Yarn(Yarn {
                factor: Some(factor),
                original_len,
                beta_fast: table.optional_number("beta_fast")?.unwrap_or(32.0),
                beta_slow: table.optional_number("beta_slow")?.unwrap_or(1.0),
                ramp: Ramp::Index,
                attention_factor: attention_factor(table, factor)?,
                truncate: table.flag("truncate", true)?,
            })
        }
        other => {
            let value = Value::from(other);
            return Err(table.refuse("rope_type", &value, "there are default, linear, dynamic, llama3 and yarn"));
        }
    }))
}

/// What YaRN multiplies cosines and sines by, where it is not the usual `0.1 ln s + 1`.
fn attention_factor(table: &Keys, factor: f64) -> Result<Option<f64>> {
    if let Some(given) = table.optional_number("attention_factor")? {
        return Ok(Some(given));
    }
    let growth = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    let [own, all] = [table.number("mscale", 0.0)?, table.number("mscale_all_dim", 0.0)?];
    Ok((own != 0.0 && all != 0.0).then(|| growth(own) / growth(all)))
}
