//! A bearer with its number beside it. The bearer's fields are read as they come, and not out of a map, in which the last of two of one
//! name would be all that is left.

use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::spec::BearerSpec;

/// What a line says.
pub(super) struct Numbered {
    pub(super) number: Option<Value>,
    pub(super) spec: BearerSpec,
}

impl<'de> Deserialize<'de> for Numbered {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Numbered, D::Error> {
        from.deserialize_map(Line)
    }
}

struct Line;

impl<'de> Visitor<'de> for Line {
    type Value = Numbered;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a bearer, with its number or without")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Numbered, A::Error> {
        let mut number = None;
        let rest = Rest {
            fields,
            number: &mut number,
        };
        let spec = BearerSpec::deserialize(MapAccessDeserializer::new(rest))?;
        Ok(Numbered { number, spec })
    }
}

/// All fields but the number, which is put by.
struct Rest<'a, A> {
    fields: A,
    number: &'a mut Option<Value>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Rest<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        while let Some(name) = self.fields.next_key::<String>()? {
            if name != "id" {
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
            if self.number.is_some() {
                return Err(A::Error::duplicate_field("id"));
            }
            *self.number = Some(self.fields.next_value()?);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.fields.next_value_seed(seed)
    }
}
