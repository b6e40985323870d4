//! The source of a save: a part of a tensor, and its memory.

use straightway_core::{Error, ErrorKind, Result};

use straightway_weights::{Dtype, Holding, Rectangle, Shape, quoted, whole_bytes};

/// A part of a tensor in this rank's memory.
#[derive(Clone, Debug)]
pub struct SaveSource<'a> {
    /// The name of the tensor, the same on all ranks.
    pub name: &'a str,
    /// What the caller knows the tensor by, if that is more than its name. Ranks that give one name to tensors with
    /// different identities are refused. It is not stored in the checkpoint.
    pub identity: Option<&'a str>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape over all ranks.
    pub shape: Shape,
    /// The part that this is.
    pub rectangle: Rectangle,
    /// Whether it is not a tensor but opaque bytes.
    pub opaque: bool,
    /// The memory of exactly its bytes, in row-major order. On a GPU, the kernels that compute them must be finished:
    /// the copy does not wait for any stream of the caller.
    pub memory: Holding<'a>,
}

impl<'a> SaveSource<'a> {
    /// A whole tensor in the caller's memory.
    pub fn whole(name: &'a str, dtype: Dtype, shape: Shape, bytes: &'a [u8]) -> Self {
        Self {
            name,
            identity: None,
            dtype,
            rectangle: Rectangle::whole(&shape),
            shape,
            opaque: false,
            memory: Holding::Host(bytes),
        }
    }

    /// Bytes that are not a tensor: pickled or JSON state.
    pub fn opaque(name: &'a str, bytes: &'a [u8]) -> Self {
        let shape = Shape::from(&[bytes.len() as u64][..]);
        Self {
            opaque: true,
            ..Self::whole(name, Dtype::U8, shape, bytes)
        }
    }

    /// Its size in bytes. An error if its fields are inconsistent.
    pub(crate) fn bytes(&self) -> Result<u64> {
        let refuse = |why: String| {
            let target = format!("tensor {}", quoted(self.name));
            Err(Error::new(ErrorKind::Invalid, "save", target, why))
        };
        // The rectangle may have been made for another tensor.
        let (start, lengths) = (self.rectangle.offsets(), self.rectangle.lengths());
        Rectangle::new(self.name, &self.shape, start.clone(), lengths.clone())?;
        let elements = self.rectangle.elements();
        let Some(bytes) = whole_bytes(elements, self.dtype) else {
            let dtype = self.dtype;
            return refuse(format!("{elements} elements of {dtype} do not end on a whole byte"));
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
