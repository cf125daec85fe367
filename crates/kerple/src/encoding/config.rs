//! The `[encoding]` table of a run file.

use super::Method;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Where a distance table enters relative to the `1/sqrt(D)` scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// `q.k / sqrt(D) + b(d)`: what the released models do.
    #[default]
    After,
    /// `(q.k + b(d)) / sqrt(D)`: Eq. 1 of the KERPLE paper, literally.
    Inside,
}

/// Precision of positions and tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compat {
    /// Made in f64, cast once.
    #[default]
    Exact,
    /// Positions, parameters and every intermediate rounded to bf16, as in the original's training runs.
    Bf16,
}

/// When out-of-range kernel parameters are clamped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Clamp {
    /// Stored values are projected into their range after each update.
    #[default]
    Projected,
    /// Stored values are free, only the copy that attention uses is clamped: the original under mixed precision.
    WorkingCopy,
}

/// A positional method with the choices every method shares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Encoding {
    /// Which method, with its own keys.
    #[serde(flatten)]
    pub method: Method,
    /// Attention sees only this many positions, itself included; `None` sees all.
    pub window: Option<usize>,
    /// Where the table enters.
    pub scale: Scale,
    /// Precision of positions.
    pub compat: Compat,
    /// When parameters are clamped.
    pub clamp: Clamp,
}

impl From<Method> for Encoding {
    fn from(method: Method) -> Self {
        Encoding { method, window: None, scale: Scale::After, compat: Compat::Exact, clamp: Clamp::Projected }
    }
}

fn take<T: serde::de::DeserializeOwned + Default, E: Error>(map: &mut Map<String, Value>, key: &str) -> Result<T, E> {
    match map.remove(key) {
        None => Ok(T::default()),
        Some(value) => serde_json::from_value(value).map_err(|error| E::custom(format!("`{key}`: {error}"))),
    }
}

impl<'de> Deserialize<'de> for Encoding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut map = match Value::deserialize(deserializer)? {
            Value::String(kind) => Map::from_iter([("kind".to_owned(), Value::String(kind))]),
            Value::Object(map) => map,
            other => return Err(D::Error::custom(format!("expected a name or a table with `kind`, got {other}"))),
        };
        let encoding = Encoding {
            window: take(&mut map, "window")?,
            scale: take(&mut map, "scale")?,
            compat: take(&mut map, "compat")?,
            clamp: take(&mut map, "clamp")?,
            method: serde_json::from_value(Value::Object(map)).map_err(D::Error::custom)?,
        };
        if encoding.window == Some(0) {
            return Err(D::Error::custom("`window`: a window of 0 sees nothing; use at least 1 (the token itself)"));
        }
        Ok(encoding)
    }
}

impl Encoding {
    /// Short name for tables and folders: the kind, and what differs from the defaults.
    pub fn label(&self) -> String {
        let mut label = self.method.kind().to_owned();
        if let Some(window) = self.window {
            label += &format!("-window{window}");
        }
        if self.scale == Scale::Inside {
            label += "-inside";
        }
        if self.compat == Compat::Bf16 {
            label += "-bf16";
        }
        if self.clamp == Clamp::WorkingCopy {
            label += "-working_copy";
        }
        label
    }
}
