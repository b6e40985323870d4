//! What of a model is wanted: tensors, whole or in part, as extents of its files.
//!
//! What is not selected is not read. A selection is made for one model and checked against it: each
//! part lies inside its tensor and begins and ends on whole bytes.

use straightway_core::{Error, Extent, Kind, Result};

use super::{
    Filters, Model, Rectangle, Shape, Slice, Tensor,
    tensor::{quoted, whole_bytes},
};

/// Runs that a selection may have: each is a move of some dozen bytes, and 16 million take half a
/// gigabyte. An inner dimension of a large tensor cut thin makes one for every row.
pub const RUNS_MAX: u64 = 1 << 24;

/// A tensor that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Which of the model's tensors.
    pub tensor: u32,
    /// Which part of it; all where there is none.
    pub part: Option<Box<Rectangle>>,
}

/// What of a model is wanted, in the order in which it lies in its files.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    picks: Vec<Pick>,
    bytes: u64,
}

impl Selection {
    /// Every tensor, whole.
    pub fn all(model: &Model) -> Self {
        let whole = |(tensor, _)| Pick { tensor, part: None };
        Self {
            picks: (0..).zip(&model.tensors).map(whole).collect(),
            bytes: model.bytes(),
        }
    }

    /// The tensors that `filters` want, cut by `slices`.
    ///
    /// A name that no tensor has is an error, and so is wanting nothing at all.
    pub fn new(model: &Model, filters: &Filters, slices: &[Slice]) -> Result<Self> {
        let path = model.path.display();
        if let Some(missing) = filters.names().find(|name| model.number(name).is_none()) {
            let target = format!("tensor {}", quoted(missing));
            return Err(
                Error::new(Kind::NotFound, "find", target, format!("{path} has none"))
                    .with_hint("`straightway inspect` lists the tensors"),
            );
        }
        let mut picks = Vec::new();
        for (number, tensor) in (0..).zip(&model.tensors) {
            if filters.matches(&tensor.name) {
                let part = part_of(tensor, slices)?;
                picks.push(Pick {
                    tensor: number,
                    part: part.map(Box::new),
                });
            }
        }
        if picks.is_empty() && !filters.is_empty() {
            let message = "no tensor has a name that the filters want";
            return Err(Error::new(Kind::NotFound, "select from", path, message)
                .with_hint("`straightway inspect` lists the tensors"));
        }
        Self::of(model, picks)
    }

    /// These tensors and parts, in whatever order; the selection has them in that of the files.
    pub fn of(model: &Model, mut picks: Vec<Pick>) -> Result<Self> {
        picks.sort_by_key(|pick| pick.tensor);
        let (mut bytes, mut runs) = (0_u64, 0_u64);
        for pick in &picks {
            let tensor = pick.of(model);
            let (pick_bytes, pick_runs) = pick.measure(tensor)?;
            bytes = bytes.saturating_add(pick_bytes);
            runs = runs.saturating_add(pick_runs);
        }
        if runs > RUNS_MAX {
            let message = format!("its parts are {runs} runs of bytes, and {RUNS_MAX} is the most");
            return Err(
                Error::new(Kind::Invalid, "select from", model.path.display(), message)
                    .with_hint("cut along an outer dimension, or select fewer tensors"),
            );
        }
        Ok(Self { picks, bytes })
    }

    /// The tensors that are wanted.
    pub fn picks(&self) -> &[Pick] {
        &self.picks
    }

    /// How many bytes that is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Pick {
    /// The tensor that it is about.
    pub fn of<'a>(&self, model: &'a Model) -> &'a Tensor {
        &model.tensors[self.tensor as usize]
    }

    /// The shape of what is wanted of `tensor`.
    pub fn shape<'a>(&'a self, tensor: &'a Tensor) -> &'a Shape {
        self.part
            .as_ref()
            .map_or(&tensor.shape, |part| part.lengths())
    }

    /// How many bytes are wanted of `tensor`.
    pub fn bytes(&self, tensor: &Tensor) -> u64 {
        let part = |part: &Rectangle| whole_bytes(part.elements(), tensor.dtype);
        let bytes = self.part.as_deref().map(part);
        bytes.map_or(tensor.extent.bytes, |b| {
            b.expect("a selection has only whole bytes")
        })
    }

    /// Where the bytes of what is wanted of `tensor` are in its file, in order.
    pub fn extents(&self, tensor: &Tensor) -> impl Iterator<Item = Extent> {
        let part = self.part.as_ref().map(|part| part.runs(&tensor.shape));
        let whole = part.is_none().then_some(tensor.extent);
        let (start, bits) = (tensor.extent.offset, tensor.dtype.bits());
        let runs = part.into_iter().flatten();
        let extent = move |(at, elements)| Extent::new(start + at * bits / 8, elements * bits / 8);
        whole.into_iter().chain(runs.map(extent))
    }

    /// How many bytes and runs are wanted of `tensor`. Runs that begin or end inside a byte are
    /// refused.
    fn measure(&self, tensor: &Tensor) -> Result<(u64, u64)> {
        let Some(part) = &self.part else {
            return Ok((tensor.extent.bytes, 1));
        };
        // Checked again where the part came from elsewhere: its tensor may be another.
        let (offsets, lengths) = (part.offsets().clone(), part.lengths().clone());
        Rectangle::new(&tensor.name, &tensor.shape, offsets, lengths)?;
        let runs = part.runs(&tensor.shape);
        let count = runs.left();
        if tensor.dtype.bits() < 8 && count <= RUNS_MAX {
            let splits = |elements| whole_bytes(elements, tensor.dtype).is_none();
            if runs
                .into_iter()
                .any(|(start, elements)| splits(start) || splits(elements))
            {
                let target = format!("tensor {}", quoted(&tensor.name));
                let message = format!("a part of {} begins or ends inside a byte", tensor.dtype);
                return Err(Error::new(Kind::Invalid, "slice", target, message)
                    .with_hint("cut where whole bytes end, or take the tensor whole"));
            }
        }
        let bytes = whole_bytes(part.elements(), tensor.dtype);
        Ok((bytes.unwrap_or(0), count))
    }
}

/// What is left of a tensor after all slices that are about it; `None` where that is all of it.
fn part_of(tensor: &Tensor, slices: &[Slice]) -> Result<Option<Rectangle>> {
    let concerns = |slice: &&Slice| {
        slice
            .filter
            .as_ref()
            .is_none_or(|f| f.matches(&tensor.name))
    };
    let mut part = Rectangle::whole(&tensor.shape);
    for slice in slices.iter().filter(concerns) {
        part = slice.cut(tensor, part)?;
    }
    Ok((*part.lengths() != tensor.shape).then_some(part))
}
