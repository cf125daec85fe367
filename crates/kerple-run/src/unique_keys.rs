//! JSON whose objects have each key once. Of two, [`Value`] keeps the last without a word.

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// Characters of a key that a refusal shows.
const LONGEST_SHOWN: usize = 60;

/// The value of a text.
///
/// # Errors
/// Text that is not JSON; a key that occurs twice in an object.
pub fn parse(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str::<UniqueKeys>(text).map(|UniqueKeys(value)| value)
}

/// A value whose objects have each key once.
pub(crate) struct UniqueKeys(pub(crate) Value);

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueKeysVisitor)
    }
}

struct UniqueKeysVisitor;

impl<'de> Visitor<'de> for UniqueKeysVisitor {
    type Value = UniqueKeys;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys(Value::Null))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys(value.into()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys(value.into()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<UniqueKeys, A::Error> {
        let mut values = Vec::new();
        while let Some(UniqueKeys(value)) = all.next_element()? {
            values.push(value);
        }
        Ok(UniqueKeys(values.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<UniqueKeys, A::Error> {
        let mut map = Map::new();
        while let Some(key) = all.next_key::<String>()? {
            if map.contains_key(&key) {
                let shown: String = key.chars().take(LONGEST_SHOWN).collect();
                return Err(de::Error::custom(format!("the key `{shown}` occurs twice")));
            }
            let UniqueKeys(value) = all.next_value()?;
            map.insert(key, value);
        }
        Ok(UniqueKeys(map.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_repeated_key_is_refused_wherever_it_is() {
        let text = r#"{"a":[{"b":1.5,"c":null}],"b":{"a":"x"}}"#;
        assert_eq!(parse(text).unwrap(), serde_json::from_str::<serde_json::Value>(text).unwrap());
        for text in [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"\u0061":2}}]"#] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("the key `a` occurs twice at line 1"), "{error}");
        }
    }
}
