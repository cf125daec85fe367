//! How the logits of a row become its weights: softmax, stick-breaking or softpick.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Added to the denominator of softpick, relative to the largest exponential of the row.
pub const SOFTPICK_EPS: f64 = 1e-8;

/// What turns the logits `z` of a query into the weights of its values.
///
/// ```text
/// softmax          p[j] = exp(z[j]) / sum exp z
/// stick-breaking   p[j] = sigmoid(z[j]) times the product over keys n from j + 1 to i of (1 - sigmoid(z[n]))
/// softpick         p[j] = relu(exp(z[j]) - 1) / (sum |exp z - 1| + eps exp(max z))
/// ```
///
/// Sums and products are over the visible keys. Only softmax ignores what is added to all logits of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Normalizer {
    /// Weights are positive and sum to 1.
    #[default]
    Softmax,
    /// Every key, from the query to the left, takes a share of what the keys before it have left (Tan et al. 2024,
    /// arXiv:2410.17980). For a causal attention mask.
    StickBreaking(StickBreaking),
    /// Weights may be 0 and need not sum to 1 (Zuhri et al. 2025, arXiv:2504.20966).
    Softpick,
}

/// The choices in stick-breaking attention. The default is that of the authors' models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StickBreaking {
    /// Whether a query attends to its own key.
    pub attend_current: bool,
    /// Whether the query's own value gets what all keys have left, the remainder: then weights sum to 1.
    pub remainder: bool,
}

impl Default for StickBreaking {
    fn default() -> Self {
        StickBreaking { attend_current: false, remainder: true }
    }
}

/// The form of a table, with its `kind` among the keys.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum TaggedNormalizer {
    Softmax(NoKeys),
    StickBreaking(StickBreaking),
    Softpick(NoKeys),
}

/// Refuses every key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoKeys {}

impl Normalizer {
    /// Names of the kinds.
    pub const KINDS: [&str; 3] = ["softmax", "stick_breaking", "softpick"];

    /// The name of its kind.
    pub fn kind(self) -> &'static str {
        match self {
            Normalizer::Softmax => Self::KINDS[0],
            Normalizer::StickBreaking(_) => Self::KINDS[1],
            Normalizer::Softpick => Self::KINDS[2],
        }
    }

    /// Whether it is softmax.
    pub fn is_softmax(&self) -> bool {
        *self == Normalizer::Softmax
    }

    /// The choices of stick-breaking attention.
    pub fn stick_breaking(self) -> Option<StickBreaking> {
        if let Normalizer::StickBreaking(choices) = self { Some(choices) } else { None }
    }

    /// Whether a query attends to its own key.
    pub fn attends_to_own(self) -> bool {
        self.stick_breaking().is_none_or(|choices| choices.attend_current)
    }
}

impl<'de> Deserialize<'de> for Normalizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = match Value::deserialize(deserializer)? {
            Value::String(kind) => serde_json::json!({ "kind": kind }),
            table => table,
        };
        let kinds = || Self::KINDS.map(|kind| format!("`{kind}`")).join(", ");
        let Some(kind) = value["kind"].as_str() else {
            return Err(D::Error::custom(format!("expected a name or a table with `kind`, one of {}", kinds())));
        };
        if !Self::KINDS.contains(&kind) {
            return Err(D::Error::custom(format!("unknown normalizer `{kind}`, expected one of {}", kinds())));
        }
        Ok(match serde_json::from_value(value).map_err(D::Error::custom)? {
            TaggedNormalizer::Softmax(NoKeys {}) => Normalizer::Softmax,
            TaggedNormalizer::StickBreaking(choices) => Normalizer::StickBreaking(choices),
            TaggedNormalizer::Softpick(NoKeys {}) => Normalizer::Softpick,
        })
    }
}

/// A name where every key has its default.
impl Serialize for Normalizer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.stick_breaking().filter(|choices| *choices != StickBreaking::default()) {
            Some(choices) => TaggedNormalizer::StickBreaking(choices).serialize(serializer),
            None => self.kind().serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_name_is_a_table_of_defaults() {
        let read = |value: Value| serde_json::from_value::<Normalizer>(value);
        for kind in Normalizer::KINDS {
            let named = read(json!(kind)).unwrap();
            assert_eq!((named, named.kind()), (read(json!({ "kind": kind })).unwrap(), kind));
            assert_eq!(serde_json::to_value(named).unwrap(), json!(kind));
        }
        let own = json!({ "kind": "stick_breaking", "attend_current": true, "remainder": false });
        let choices = StickBreaking { attend_current: true, remainder: false };
        assert_eq!(read(own.clone()).unwrap(), Normalizer::StickBreaking(choices));
        assert_eq!(serde_json::to_value(Normalizer::StickBreaking(choices)).unwrap(), own);
    }

    #[test]
    fn unknown_names_and_keys_are_refused() {
        for (value, says) in [
            (json!("sparsemax"), "unknown normalizer `sparsemax`"),
            (json!(1), "expected a name or a table with `kind`"),
            (json!({ "remainder": true }), "expected a name or a table with `kind`"),
            (json!({ "kind": "softpick", "remainder": true }), "unknown field `remainder`"),
            (json!({ "kind": "stick_breaking", "rest": true }), "unknown field `rest`"),
        ] {
            let error = serde_json::from_value::<Normalizer>(value).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
