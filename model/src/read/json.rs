//! A JSON object whose keys stand in the order of the file and none twice.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

/// Largest number of keys.
const MAX_KEYS: usize = 1_024;

/// Keys with their values.
#[derive(Debug, Default)]
pub(super) struct Object(pub Vec<(String, Value)>);

impl Object {
    /// The value of `key`; `null` says no more than a key that is not there.
    pub fn value(&self, key: &str) -> Option<&Value> {
        let value = self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value);
        value.filter(|value| !value.is_null())
    }

    /// Whether `key` is there, `null` or not.
    pub fn contains(&self, key: &str) -> bool {
        self.0.iter().any(|(name, _)| name == key)
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Keys)
    }
}

struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut object = Object::default();
        while let Some((key, value)) = map.next_entry::<String, Value>()? {
            if object.0.iter().any(|(name, _)| *name == key) {
                return Err(A::Error::custom(format_args!("key {key:?} is given twice")));
            }
            if object.0.len() == MAX_KEYS {
                return Err(A::Error::custom(format_args!("more than {MAX_KEYS} keys")));
            }
            object.0.push((key, value));
        }
        Ok(object)
    }
}
