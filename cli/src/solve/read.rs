//! Reading an instance strictly: every error names the path of the offending field.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, IntoDeserializer, MapAccess, Visitor};

use bagualu_sim::text::value as quoted;

use crate::Error;

/// Bytes of the largest instance read. The core's limits are reached far below it.
pub const MAX_INSTANCE_BYTES: u64 = 64 << 20;

/// The bytes of `file`; standard input where it is absent or `-`.
pub fn instance(file: Option<&Path>) -> Result<Vec<u8>, Error> {
    let file = file.filter(|f| f.as_os_str() != "-");
    let name = file.map_or("standard input".into(), |f| f.display().to_string());
    let mut json = Vec::new();
    let read = match file {
        Some(path) => {
            std::fs::File::open(path).and_then(|f| f.take(MAX_INSTANCE_BYTES + 1).read_to_end(&mut json))
        }
        None => std::io::stdin().lock().take(MAX_INSTANCE_BYTES + 1).read_to_end(&mut json),
    };
    match read {
        Err(error) => {
            Err(Error::bad_input(name, format!("cannot be read ({error})"), "give a readable file, or -"))
        }
        Ok(length) if length as u64 > MAX_INSTANCE_BYTES => Err(Error::bad_input(
            name,
            format!("more than {MAX_INSTANCE_BYTES} bytes"),
            "split the instance: each is solved on its own",
        )),
        Ok(_) => Ok(json),
    }
}

/// Parses `json` into `T`.
pub fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, Error> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let Object(value) = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = match error.path().to_string() {
            // What serde_path_to_error prints for the document itself.
            path if path == "." => "instance".to_owned(),
            path => path,
        };
        Error::bad_input(path, error.into_inner().to_string(), "")
    })?;
    reader.end().map_err(|error| Error::bad_input("instance", error.to_string(), "give one JSON object"))?;
    Ok(value)
}

/// A `T` that is written as an object. A derived struct alone would take an array of its fields too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(Object)
            }
        }
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// A `T` that is written as a string. A derived enum alone would take `{"compute": null}` too.
#[derive(Clone, Copy, Debug)]
pub struct Word<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        T::deserialize(word.into_deserializer()).map(Word)
    }
}

/// A number of bytes or nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count(pub u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Count;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from 0 to {}", u64::MAX)
            }
            fn visit_u64<E>(self, value: u64) -> Result<Count, E> {
                Ok(Count(value))
            }
        }
        deserializer.deserialize_u64(Whole)
    }
}

/// For a field that may be absent but not `null`.
pub fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A map that refuses a key given twice, which `serde_json` would silently let win.
#[derive(Debug, Default)]
pub struct UniqueMap<T>(pub BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for UniqueMap<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Keys<T> {
            type Value = UniqueMap<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<UniqueMap<T>, A::Error> {
                let mut map = BTreeMap::new();
                while let Some(key) = entries.next_key::<String>()? {
                    let value = entries.next_value()?;
                    if map.contains_key(&key) {
                        return Err(de::Error::custom(format_args!(
                            "the key {} is given twice",
                            quoted(&key)
                        )));
                    }
                    map.insert(key, value);
                }
                Ok(UniqueMap(map))
            }
        }
        deserializer.deserialize_map(Keys(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Example {
        #[allow(dead_code)]
        bytes: Vec<Count>,
        #[allow(dead_code)]
        #[serde(default)]
        held: UniqueMap<Count>,
        #[allow(dead_code)]
        #[serde(default, deserialize_with = "present")]
        limit: Option<Count>,
    }

    fn refused(json: &str) -> String {
        parse::<Example>(json.as_bytes()).expect_err(json).to_string()
    }

    #[test]
    fn numbers_are_whole_and_fit() {
        parse::<Example>(br#"{"bytes": [0, 18446744073709551615]}"#).expect("u64");
        for bad in ["-1", "1.5", "1.0", "1e3", "18446744073709551616", "\"1\"", "null", "true"] {
            let message = refused(&format!(r#"{{"bytes": [7, {bad}]}}"#));
            assert!(message.starts_with("bytes[1]: invalid "), "{message}");
            assert!(message.contains("a whole number from 0 to 18446744073709551615"), "{message}");
        }
    }

    #[test]
    fn fields_are_known_and_given_once() {
        assert!(refused(r#"{"bytes": [], "byte": 1}"#).contains("unknown field `byte`, expected one of"));
        assert!(refused(r#"{"bytes": [], "bytes": []}"#).contains("duplicate field `bytes`"));
        assert!(refused(r#"{"bytes": [], "held": {"a": 1, "a": 2}}"#).contains("\"a\" is given twice"));
        assert!(refused(r#"{"bytes": [], "limit": null}"#).starts_with("limit: invalid type: null"));
        assert!(refused(r#"{}"#).contains("missing field `bytes`"));
    }

    #[test]
    fn the_document_is_one_object() {
        assert!(refused("").starts_with("instance: EOF"));
        assert!(refused(r#"{"bytes": []} 1"#).contains("trailing characters"));
        assert!(refused("[[]]").starts_with("instance: invalid type: sequence, expected an object"));
        let deep = "[".repeat(100_000);
        assert!(refused(&format!(r#"{{"bytes": {deep}"#)).contains("invalid type"));
    }
}
