//! Decodes the JSON encoding.

use serde_json::Value;
use straightway_core::Result;

use super::{
    Array, DEPTH_MAX, Maker, NumpyField, NumpyType, Plain, PythonName, Sequence, VALUES_MAX, corrupt,
    dtype::RECORDS_DEPTH_MAX,
};

pub(super) fn decode(text: &str) -> Result<Plain> {
    // Counted before any value is made. Commas in strings count too, but such long strings are rare.
    if text.bytes().filter(|byte| *byte == b',').count() > VALUES_MAX {
        return Err(corrupt(format!("it has more than {VALUES_MAX} values")));
    }
    // The parser refuses nesting deeper than 128.
    let value = serde_json::from_str(text).map_err(|e| corrupt(format!("it is not JSON: {e}")))?;
    plain(value, 0)
}

fn plain(value: Value, depth: usize) -> Result<Plain> {
    if depth > DEPTH_MAX {
        return Err(corrupt(format!("it is deeper than {DEPTH_MAX}")));
    }
    match value {
        Value::Null => Ok(Plain::None),
        Value::Bool(value) => Ok(Plain::Bool(value)),
        Value::String(text) => Ok(Plain::Text(text)),
        Value::Number(number) => {
            let refuse = || corrupt(format!("{number} is not a 64-bit integer"));
            number.as_i64().map(Plain::Int).ok_or_else(refuse)
        }
        Value::Array(members) => tagged(members, depth),
        Value::Object(_) => Err(corrupt("a JSON object is not a value")),
    }
}

fn tagged(members: Vec<Value>, depth: usize) -> Result<Plain> {
    let mut members = members.into_iter();
    let Some(Value::String(tag)) = members.next() else {
        return Err(corrupt("a JSON array does not begin with a tag"));
    };
    let sequence = match &*tag {
        "list" => Some(Sequence::List),
        "tuple" => Some(Sequence::Tuple),
        "set" => Some(Sequence::Set),
        "frozenset" => Some(Sequence::FrozenSet),
        _ => None,
    };
    let maker = Maker::of_tag(&tag);
    if sequence.is_none() && maker.is_none() && tag != "dict" {
        return leaf(&tag, &members.collect::<Vec<_>>());
    }
    let parts = members.map(|member| plain(member, depth + 1));
    let parts = parts.collect::<Result<Vec<_>>>()?;
    if let Some(sequence) = sequence {
        return Ok(Plain::Items(sequence, parts));
    }
    match maker {
        Some(maker) => maker.make(parts),
        None => pairs(parts),
    }
}

/// A dictionary of keys and values in turn.
fn pairs(parts: Vec<Plain>) -> Result<Plain> {
    if !parts.len().is_multiple_of(2) {
        return Err(corrupt("a dictionary has a key without a value"));
    }
    let mut parts = parts.into_iter();
    let next = || Some((parts.next()?, parts.next()?));
    Ok(Plain::Pairs(std::iter::from_fn(next).collect()))
}

fn leaf(tag: &str, members: &[Value]) -> Result<Plain> {
    match (tag, members) {
        ("int", [Value::String(digits)]) => Ok(Plain::integer(bytes(digits)?)),
        ("float", [Value::String(digits)]) => {
            let refuse = |_| corrupt(format!("{digits:?} is not a float"));
            digits.parse().map(Plain::Float).map_err(refuse)
        }
        ("bytes", [Value::String(digits)]) => Ok(Plain::Bytes(bytes(digits)?)),
        ("surrogates", [Value::String(digits)]) => Ok(Plain::string(bytes(digits)?)),
        ("name", [Value::String(module), Value::String(name)]) => {
            let refuse = || corrupt(format!("{module:?} has no type {name:?}"));
            PythonName::find(module, name).map(Plain::Name).ok_or_else(refuse)
        }
        ("dtype", [dtype]) => Ok(Plain::Dtype(numpy_type(dtype, 0)?)),
        ("scalar", [dtype, Value::String(digits)]) => Array::scalar(numpy_type(dtype, 0)?, bytes(digits)?).checked(),
        ("array", [dtype, Value::Array(shape), Value::String(digits)]) => {
            Array::new(numpy_type(dtype, 0)?, sides(shape)?, bytes(digits)?).checked()
        }
        _ => Err(corrupt(format!("{tag:?} is not a tag, or has the wrong members"))),
    }
}

fn numpy_type(value: &Value, depth: usize) -> Result<NumpyType> {
    let refuse = || corrupt("a dtype has an unknown form");
    if depth > RECORDS_DEPTH_MAX {
        return Err(corrupt("records lie too deep in each other"));
    }
    let members = match value {
        Value::String(code) => return NumpyType::basic(code),
        Value::Array(members) => &members[..],
        _ => return Err(refuse()),
    };
    match members {
        [Value::String(tag), Value::String(name)] if tag == "ml" => NumpyType::extension(name),
        [Value::String(tag), dtype, shape @ ..] if tag == "rows" => {
            NumpyType::rows(numpy_type(dtype, depth + 1)?, sides(shape)?)
        }
        [Value::String(tag), item_bytes, fields @ ..] if tag == "fields" => {
            let field = |field: &Value| match field.as_array().map(Vec::as_slice) {
                Some([Value::String(name), dtype, offset, title @ ..]) => Ok(NumpyField {
                    name: name.clone(),
                    dtype: numpy_type(dtype, depth + 1)?,
                    offset: offset.as_u64().ok_or_else(refuse)?,
                    title: match title {
                        [] => None,
                        [Value::String(title)] => Some(title.clone()),
                        _ => return Err(refuse()),
                    },
                }),
                _ => Err(refuse()),
            };
            let fields = fields.iter().map(field).collect::<Result<_>>()?;
            NumpyType::fields(item_bytes.as_u64().ok_or_else(refuse)?, fields)
        }
        _ => Err(refuse()),
    }
}

fn sides(shape: &[Value]) -> Result<Vec<u64>> {
    let refuse = || corrupt("a shape has a length that is not a number");
    shape.iter().map(|side| side.as_u64().ok_or_else(refuse)).collect()
}

/// Decodes hexadecimal digits.
fn bytes(digits: &str) -> Result<Vec<u8>> {
    let refuse = || corrupt("bytes are not written in hexadecimal digits");
    let digit = |d: u8| (d as char).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|two| pair(two).ok_or_else(refuse)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_are_written() {
        let read = |text| decode(text).unwrap();
        assert_eq!(
            read("[\"int\",\"00000000000000000001\"]"),
            Plain::Long(vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
        );
        assert_eq!(read("[\"float\",\"0.1\"]"), Plain::Float(0.1));
        assert_eq!(
            read("[\"dict\",1,[\"set\",null,true],\"é\",[\"bytes\",\"00fF\"]]"),
            Plain::Pairs(vec![
                (
                    Plain::Int(1),
                    Plain::Items(Sequence::Set, vec![Plain::None, Plain::Bool(true)])
                ),
                (Plain::Text("é".to_owned()), Plain::Bytes(vec![0, 255])),
            ])
        );
        assert_eq!(
            read("[\"date\",2026,1,2]"),
            Plain::Object(Maker::Date, vec![Plain::Int(2026), Plain::Int(1), Plain::Int(2)])
        );
        let Plain::Array(array) =
            read(r#"["array",["fields",5,["a","|b1",0],["b",["rows","<i2",2],1]],[2],"01000000000100000000"]"#)
        else {
            panic!("it is an array");
        };
        assert_eq!((array.dtype.item_bytes(), &array.shape[..]), (5, &[2][..]));
        let Plain::Dtype(NumpyType::Fields(_, fields)) =
            read(r#"["dtype",["fields",2,["a","|b1",0,"A"],["b","|b1",1]]]"#)
        else {
            panic!("it is a record");
        };
        assert_eq!(
            (fields[0].title.as_deref(), fields[1].title.as_deref()),
            (Some("A"), None)
        );
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "[",
            "{}",
            "1.5",
            "1e999",
            "18446744073709551615",
            "[]",
            "[1]",
            "[\"list\"",
            "[\"nothing\"]",
            "[\"int\"]",
            "[\"int\",\"0\"]",
            "[\"int\",\"0g\"]",
            "[\"float\",\"one\"]",
            "[\"dict\",1]",
            "[\"name\",\"os\",\"system\"]",
            "[\"name\",\"builtins\",\"eval\"]",
            "[\"date\",1]",
            "[\"date\",\"a\",1,1]",
            "[\"range\",0,1,0]",
            "[\"deque\",[\"list\"],-1]",
            "[\"Fraction\",1,0]",
            "[\"dtype\",\"O8\"]",
            "[\"array\",\"<f8\",[2],\"00\"]",
            "[\"array\",\"|V0\",[99999999999],\"\"]",
            "[\"array\",\"<f8\",[-1],\"\"]",
            "[\"scalar\",\"|b1\",\"02\"]",
            "[\"dtype\",[\"fields\",1,[\"a\",\"|b1\",0,null]]]",
            "[\"dtype\",[\"fields\",1,[\"a\",\"|b1\",0,\"A\",\"B\"]]]",
            "[\"torch.device\",\"cuda;\"]",
            "[\"UUID\",\"zz\"]",
        ] {
            assert!(decode(text).is_err(), "{text}");
        }
        for depth in [DEPTH_MAX + 2, 120, 1 << 20] {
            let text = format!("{}0{}", "[\"list\",".repeat(depth), "]".repeat(depth));
            assert!(decode(&text).is_err(), "{depth}");
        }
    }
}
