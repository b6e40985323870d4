//! The general parser of a header's JSON. It streams: no tree of values is built, and a value over a limit is refused
//! before the next byte is parsed.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserializer as _,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use straightway_core::Extent;

use super::{Count, Header, NAME_BYTES_MAX, TENSORS_MAX};
use crate::{Dtype, RANK_MAX, Shape, Tensor, TensorName, tensor::quoted};

/// The key of the writer's metadata.
pub(super) const METADATA: &str = "__metadata__";

/// Parses the tensors and the metadata. Extents are relative to the start of the data.
pub(super) fn parse(text: &str, count: &Count) -> serde_json::Result<Header> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let header = reader.deserialize_map(HeaderVisitor { count })?;
    reader.end()?;
    Ok(header)
}

struct HeaderVisitor<'a> {
    count: &'a Count,
}

impl<'de> Visitor<'de> for HeaderVisitor<'_> {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header::default();
        let mut has_metadata = false;
        let name = || Text {
            what: "the name of a tensor",
            make: |name: &str| {
                if name.len() <= NAME_BYTES_MAX {
                    return Ok(TensorName::from(name));
                }
                let name = quoted(name);
                Err(format!("the name {name} is longer than {NAME_BYTES_MAX} bytes"))
            },
        };
        while let Some(name) = map.next_key_seed(name())? {
            if &*name == METADATA {
                if std::mem::replace(&mut has_metadata, true) {
                    return Err(A::Error::custom("`__metadata__` is there twice"));
                }
                header.metadata = map.next_value_seed(Metadata)?;
                continue;
            }
            if !self.count.admit(1) {
                let message = format!("the model has more than {TENSORS_MAX} tensors");
                return Err(A::Error::custom(message));
            }
            let entry = map.next_value_seed(Entry).map_err(|e| {
                // serde_json finds the line and column in the message again.
                A::Error::custom(format!("tensor {}: {e}", quoted(&name)))
            })?;
            header.tensors.push(Tensor {
                name,
                dtype: entry.dtype,
                shape: entry.shape,
                file: 0,
                extent: entry.extent,
            });
        }
        Ok(header)
    }
}

/// A string (borrowed if it has no escapes) that `make` converts.
struct Text<F> {
    /// The description of the expected string, for errors.
    what: &'static str,
    make: F,
}

impl<'de, T, F: FnOnce(&str) -> Result<T, String>> DeserializeSeed<'de> for Text<F> {
    type Value = T;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<T, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> Result<T, String>> Visitor<'_> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        (self.make)(text).map_err(E::custom)
    }
}

/// Strings by name.
struct Metadata;

impl<'de> DeserializeSeed<'de> for Metadata {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Metadata {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`__metadata__` as a map of strings")
    }

    // Some writers write null for empty metadata.
    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metadata = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map
                .next_value::<String>()
                .map_err(|e| A::Error::custom(format!("metadata {}: {e}", quoted(&key))))?;
            if metadata.contains_key(&key) {
                let message = format!("metadata {} is there twice", quoted(&key));
                return Err(A::Error::custom(message));
            }
            metadata.insert(key, value);
        }
        Ok(metadata)
    }
}

/// The value of a tensor's name: its dtype, shape and offsets.
struct Entry;

struct Description {
    dtype: Dtype,
    shape: Shape,
    extent: Extent,
}

enum Field {
    Dtype,
    Shape,
    Offsets,
    Other,
}

impl<'de> DeserializeSeed<'de> for Entry {
    type Value = Description;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Description, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entry {
    type Value = Description;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map with `dtype`, `shape` and `data_offsets`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Description, A::Error> {
        let (mut dtype, mut shape, mut extent) = (None, None, None);
        let once = |is_again: bool, field| {
            if is_again {
                return Err(A::Error::custom(format!("`{field}` is there twice")));
            }
            Ok(())
        };
        let field = || Text {
            what: "`dtype`, `shape` or `data_offsets`",
            make: |name: &str| {
                Ok(match name {
                    "dtype" => Field::Dtype,
                    "shape" => Field::Shape,
                    "data_offsets" => Field::Offsets,
                    _ => Field::Other,
                })
            },
        };
        while let Some(field) = map.next_key_seed(field())? {
            match field {
                Field::Dtype => {
                    once(dtype.is_some(), "dtype")?;
                    dtype = Some(map.next_value_seed(Text {
                        what: "the name of a dtype",
                        make: |name: &str| {
                            let unknown = || format!("dtype {} is not known", quoted(name));
                            Dtype::named(name).ok_or_else(unknown)
                        },
                    })?);
                }
                Field::Shape => {
                    once(shape.is_some(), "shape")?;
                    shape = Some(map.next_value_seed(Lengths)?);
                }
                Field::Offsets => {
                    once(extent.is_some(), "data_offsets")?;
                    let (start, end) = map.next_value::<(u64, u64)>()?;
                    if end < start {
                        let message = format!("`data_offsets` [{start}, {end}] go backwards");
                        return Err(A::Error::custom(message));
                    }
                    extent = Some(Extent::between(start, end));
                }
                // The reference implementation ignores unknown fields, and so does this parser.
                Field::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Description {
            dtype: dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
            shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
            extent: extent.ok_or_else(|| A::Error::missing_field("data_offsets"))?,
        })
    }
}

/// A shape.
struct Lengths;

impl<'de> DeserializeSeed<'de> for Lengths {
    type Value = Shape;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Shape, D::Error> {
        reader.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Lengths {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of lengths")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut lengths: A) -> Result<Shape, A::Error> {
        let mut shape = Shape::default();
        while let Some(length) = lengths.next_element()? {
            if shape.len() == RANK_MAX {
                let message = format!("`shape` has more than {RANK_MAX} dimensions");
                return Err(A::Error::custom(message));
            }
            shape.push(length);
        }
        Ok(shape)
    }
}
