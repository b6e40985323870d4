//! What is to be saved: parts of tensors, and where their bytes are.

use straightway_core::{Error, Kind, Result};

use crate::weights::{Dtype, Holding, Rectangle, Shape, quoted, whole_bytes};

/// Part of a tensor in this rank's memory.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    /// What the tensor is called, on all ranks alike.
    pub name: &'a str,
    /// What its elements are.
    pub dtype: Dtype,
    /// Its shape over all ranks.
    pub shape: Shape,
    /// Which part of it this is.
    pub rectangle: Rectangle,
    /// Whether it is no tensor but somebody's bytes.
    pub opaque: bool,
    /// Where its bytes are, and no others; rows follow each other. On a GPU, what computes them must
    /// be done: the copy waits for no stream of the caller's.
    pub memory: Holding<'a>,
}

impl<'a> Source<'a> {
    /// All of a tensor, in the program's own memory.
    pub fn whole(name: &'a str, dtype: Dtype, shape: Shape, bytes: &'a [u8]) -> Self {
        Self {
            name,
            dtype,
            rectangle: Rectangle::whole(&shape),
            shape,
            opaque: false,
            memory: Holding::Host(bytes),
        }
    }

    /// Bytes that are no tensor: pickled or JSON state.
    pub fn opaque(name: &'a str, bytes: &'a [u8]) -> Self {
        let shape = Shape::from(&[bytes.len() as u64][..]);
        Self {
            opaque: true,
            ..Self::whole(name, Dtype::U8, shape, bytes)
        }
    }

    /// How many bytes it has, if it holds together.
    pub(crate) fn bytes(&self) -> Result<u64> {
        let refuse = |why: String| {
            let target = format!("tensor {}", quoted(self.name));
            Err(Error::new(Kind::Invalid, "save", target, why))
        };
        // The rectangle may have been made for another tensor.
        let (start, lengths) = (self.rectangle.offsets(), self.rectangle.lengths());
        Rectangle::new(self.name, &self.shape, start.clone(), lengths.clone())?;
        let elements = self.rectangle.elements();
        let Some(bytes) = whole_bytes(elements, self.dtype) else {
            let dtype = self.dtype;
            return refuse(format!(
                "{elements} elements of {dtype} do not end on a whole byte"
            ));
        };
        let held = self.memory.bytes() as u64;
        if held != bytes {
            return refuse(format!(
                "{held} bytes are given, and a part of {lengths} of {} takes {bytes}",
                self.dtype
            ));
        }
        Ok(bytes)
    }
}
