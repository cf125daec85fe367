//! The `[encoding]` table of a run file.

use super::Method;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
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
#[derive(Clone, Debug, PartialEq)]
pub struct Encoding {
    /// Which method, with its own keys.
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

/// The keys every method shares, as they stand in a run file.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Shared {
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<usize>,
    scale: Scale,
    compat: Compat,
    clamp: Clamp,
}

const SHARED_KEYS: [&str; 4] = ["window", "scale", "compat", "clamp"];

fn parse<T: DeserializeOwned, E: Error>(map: Map<String, Value>) -> Result<T, E> {
    serde_path_to_error::deserialize(Value::Object(map)).map_err(|error| match error.path().iter().next_back() {
        Some(key) => E::custom(format!("`{key}`: {}", error.inner())),
        None => E::custom(error.inner()),
    })
}

impl<'de> Deserialize<'de> for Encoding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (kind, mut own) = match Value::deserialize(deserializer)? {
            Value::String(kind) => (kind, Map::new()),
            Value::Object(mut map) => match map.remove("kind") {
                Some(Value::String(kind)) => (kind, map),
                _ => return Err(D::Error::custom("an encoding needs `kind`, the name of a method")),
            },
            other => return Err(D::Error::custom(format!("expected a name or a table with `kind`, got {other}"))),
        };
        let shared = SHARED_KEYS.iter().filter_map(|key| own.remove_entry(*key)).collect();
        let Shared { window, scale, compat, clamp } = parse(shared)?;
        if window == Some(0) {
            return Err(D::Error::custom("`window`: a window of 0 sees nothing; use at least 1 (the token itself)"));
        }
        let method = parse(Map::from_iter([(kind, Value::Object(own))]))?;
        if compat == Compat::Bf16 && matches!(method, Method::Kernel(_)) {
            return Err(D::Error::custom(
                "`compat`: bf16 is emulated for the original's methods, not for kernel expressions",
            ));
        }
        if let Method::Rotary(config) = &method
            && !(config.pct > 0.0 && config.pct <= 1.0 && config.base > 0.0)
        {
            let message = format!(
                "rotary: `pct` is {}, it must be in (0, 1]; `base` is {}, it must be above 0",
                config.pct, config.base
            );
            return Err(D::Error::custom(message));
        }
        Ok(Encoding { method, window, scale, compat, clamp })
    }
}

impl Serialize for Encoding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = Map::from_iter([("kind".to_owned(), Value::from(self.method.kind()))]);
        let method = serde_json::to_value(&self.method).map_err(serde::ser::Error::custom)?;
        let shared = Shared { window: self.window, scale: self.scale, compat: self.compat, clamp: self.clamp };
        let shared = serde_json::to_value(shared).map_err(serde::ser::Error::custom)?;
        for keys in [&method[self.method.kind()], &shared] {
            map.extend(keys.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
        }
        map.serialize(serializer)
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
