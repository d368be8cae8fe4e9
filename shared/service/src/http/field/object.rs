//! Objects that are objects.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A value that is read from a JSON object only: serde reads a struct from an array too, by position, and that would mean
/// something else once a member is added.
///
/// # Errors
/// It is none, or does not fit `T`.
pub fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|Object(value)| value)
}

/// A list of them.
///
/// # Errors
/// As [`object`].
pub fn objects<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let list = Vec::<Object<T>>::deserialize(deserializer)?;
    Ok(list.into_iter().map(|Object(value)| value).collect())
}

struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_no_list_of_its_members() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Outer {
            #[serde(deserialize_with = "object")]
            one: Inner,
            #[serde(deserialize_with = "objects")]
            many: Vec<Inner>,
        }
        #[derive(Debug, PartialEq, Deserialize)]
        struct Inner {
            a: u8,
        }
        let read = |text: &str| serde_json::from_str::<Outer>(text);
        let both = Outer { one: Inner { a: 1 }, many: vec![Inner { a: 2 }] };
        assert_eq!(read(r#"{"one":{"a":1},"many":[{"a":2}]}"#).expect("reads"), both);
        for wrong in
            [r#"{"one":[1],"many":[]}"#, r#"{"one":{"a":1},"many":[[2]]}"#, r#"{"one":null,"many":[]}"#]
        {
            assert!(read(wrong).is_err_and(|error| error.to_string().contains("a JSON object")), "{wrong}");
        }
    }
}
