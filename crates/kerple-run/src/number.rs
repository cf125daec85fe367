//! Floats that survive JSON: a loss that became NaN or infinite is a result and is written as `"NaN"`, `"inf"` or `"-inf"`.
//!
//! JSON has no such numbers. serde_json writes `null` for them, which would turn a diverged run
//! into a missing one. Use as `#[serde(with = "kerple_run::number")]` on `f64` and on options,
//! vectors and maps of it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, DeserializeOwned, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value built from floats, and its form in a file.
pub trait JsonFloats: Sized {
    /// The same structure with every float replaced by a [`JsonFloat`].
    type Wire: Serialize + DeserializeOwned;
    /// The value as it goes to a file.
    fn to_wire(&self) -> Self::Wire;
    /// The value as it comes from one.
    fn from_wire(wire: Self::Wire) -> Self;
}

/// For `#[serde(with)]`.
///
/// # Errors
/// The serializer's.
pub fn serialize<T: JsonFloats, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    value.to_wire().serialize(serializer)
}

/// For `#[serde(with)]`.
///
/// # Errors
/// A value that is neither a number nor the name of one.
pub fn deserialize<'de, T: JsonFloats, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::Wire::deserialize(deserializer).map(T::from_wire)
}

/// A float in a file: a number where the format has it, else its name.
#[derive(Serialize)]
#[serde(untagged)]
pub enum JsonFloat {
    /// A number of JSON.
    Finite(f64),
    /// What JSON has no number for.
    Named(NonFinite),
}

/// The floats that JSON has no number for.
#[derive(Serialize)]
pub enum NonFinite {
    /// `"NaN"`.
    NaN,
    /// `"inf"`.
    #[serde(rename = "inf")]
    Infinity,
    /// `"-inf"`.
    #[serde(rename = "-inf")]
    NegativeInfinity,
}

// By hand: the error of an untagged enum names neither the value nor what is allowed.
impl<'de> Deserialize<'de> for JsonFloat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonFloat, D::Error> {
        deserializer.deserialize_any(JsonFloatVisitor)
    }
}

struct JsonFloatVisitor;

impl Visitor<'_> for JsonFloatVisitor {
    type Value = JsonFloat;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(r#"a number, or "NaN", "inf" or "-inf""#)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<JsonFloat, E> {
        Ok(JsonFloat::Finite(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<JsonFloat, E> {
        Ok(JsonFloat::Finite(value as f64))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<JsonFloat, E> {
        Ok(JsonFloat::Finite(value as f64))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<JsonFloat, E> {
        match value {
            "NaN" => Ok(JsonFloat::Named(NonFinite::NaN)),
            "inf" => Ok(JsonFloat::Named(NonFinite::Infinity)),
            "-inf" => Ok(JsonFloat::Named(NonFinite::NegativeInfinity)),
            other => Err(E::invalid_value(Unexpected::Str(other), &self)),
        }
    }
}

impl JsonFloats for f64 {
    type Wire = JsonFloat;

    fn to_wire(&self) -> JsonFloat {
        match *self {
            x if x.is_finite() => JsonFloat::Finite(x),
            f64::INFINITY => JsonFloat::Named(NonFinite::Infinity),
            f64::NEG_INFINITY => JsonFloat::Named(NonFinite::NegativeInfinity),
            _ => JsonFloat::Named(NonFinite::NaN),
        }
    }

    fn from_wire(wire: JsonFloat) -> f64 {
        match wire {
            JsonFloat::Finite(x) => x,
            JsonFloat::Named(NonFinite::NaN) => f64::NAN,
            JsonFloat::Named(NonFinite::Infinity) => f64::INFINITY,
            JsonFloat::Named(NonFinite::NegativeInfinity) => f64::NEG_INFINITY,
        }
    }
}

impl<T: JsonFloats> JsonFloats for Option<T> {
    type Wire = Option<T::Wire>;

    fn to_wire(&self) -> Self::Wire {
        self.as_ref().map(T::to_wire)
    }

    fn from_wire(wire: Self::Wire) -> Self {
        wire.map(T::from_wire)
    }
}

impl<T: JsonFloats> JsonFloats for Vec<T> {
    type Wire = Vec<T::Wire>;

    fn to_wire(&self) -> Self::Wire {
        self.iter().map(T::to_wire).collect()
    }

    fn from_wire(wire: Self::Wire) -> Self {
        wire.into_iter().map(T::from_wire).collect()
    }
}

impl<T: JsonFloats> JsonFloats for BTreeMap<String, T> {
    type Wire = BTreeMap<String, T::Wire>;

    fn to_wire(&self) -> Self::Wire {
        self.iter().map(|(name, value)| (name.clone(), value.to_wire())).collect()
    }

    fn from_wire(wire: Self::Wire) -> Self {
        wire.into_iter().map(|(name, wire)| (name, T::from_wire(wire))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct RowOfFloats {
        #[serde(with = "super")]
        one: f64,
        #[serde(with = "super")]
        many: Vec<Option<f64>>,
    }

    #[test]
    fn every_float_comes_back() {
        let many = vec![Some(f64::INFINITY), None, Some(f64::NEG_INFINITY), Some(0.1 + 0.2), Some(f64::MIN_POSITIVE)];
        let text = serde_json::to_string(&RowOfFloats { one: f64::NAN, many: many.clone() }).unwrap();
        assert_eq!(text, r#"{"one":"NaN","many":["inf",null,"-inf",0.30000000000000004,2.2250738585072014e-308]}"#);
        let back: RowOfFloats = serde_json::from_str(&text).unwrap();
        assert!(back.one.is_nan());
        assert_eq!(back.many, many);
    }

    #[test]
    fn a_missing_number_is_not_nan() {
        assert!(serde_json::from_str::<RowOfFloats>(r#"{"one":null,"many":[]}"#).is_err());
        assert!(serde_json::from_str::<RowOfFloats>(r#"{"one":"nought","many":[]}"#).is_err());
    }

    #[test]
    fn a_refused_value_is_named_with_what_is_allowed() {
        let allowed = r#"expected a number, or "NaN", "inf" or "-inf""#;
        for (value, named) in [("\"20.5\"", "string \"20.5\""), ("null", "null"), ("\"Infinity\"", "\"Infinity\"")] {
            let Err(error) = serde_json::from_str::<RowOfFloats>(&format!(r#"{{"one":{value},"many":[]}}"#)) else {
                panic!("{value} is not a number")
            };
            let error = error.to_string();
            assert!(error.contains(named) && error.contains(allowed), "{error}");
        }
        assert_eq!(
            serde_json::from_str::<RowOfFloats>(r#"{"one":-2,"many":[18446744073709551615]}"#).unwrap().one,
            -2.0
        );
    }
}
