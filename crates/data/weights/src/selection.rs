//! A selection of a model: whole tensors or parts of them, as extents of its files.
//!
//! Only selected bytes are read. A selection is made for one model and checked against it: each part lies inside its
//! tensor and begins and ends on whole bytes.

use straightway_core::{Error, ErrorKind, Extent, Result};

use super::{
    Filter, Filters, Model, Rectangle, Shape, Slice, Tensor,
    tensor::{quoted, whole_bytes},
};

/// The maximum number of runs of a selection. Each is a move of some dozen bytes; 16 million take half a gigabyte. A
/// thin cut of an inner dimension makes one run per row.
pub const RUNS_MAX: u64 = 1 << 24;

/// A selected tensor, or part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The number of the tensor in the model.
    pub tensor: u32,
    /// The selected part; `None` for the whole tensor.
    pub part: Option<Box<Rectangle>>,
}

/// The selected tensors and parts of a model, in file order.
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

    /// The tensors that `filters` match, cut by `slices`.
    ///
    /// A name that no tensor has is an error, in filters and in slices, and so are filters that match nothing.
    pub fn new(model: &Model, filters: &Filters, slices: &[Slice]) -> Result<Self> {
        let path = model.path.display();
        let exact = slices.iter().filter_map(|slice| match &slice.filter {
            Some(Filter::Name(name)) => Some(name.as_str()),
            _ => None,
        });
        if let Some(missing) = filters.names().chain(exact).find(|name| model.number(name).is_none()) {
            let target = format!("tensor {}", quoted(missing));
            return Err(
                Error::new(ErrorKind::NotFound, "find", target, format!("{path} has none"))
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
            let message = "no tensor matches the filters";
            return Err(Error::new(ErrorKind::NotFound, "select from", path, message)
                .with_hint("`straightway inspect` lists the tensors"));
        }
        Self::of(model, picks)
    }

    /// A selection of these picks, given in any order. They are sorted into file order.
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
                Error::new(ErrorKind::Invalid, "select from", model.path.display(), message)
                    .with_hint("cut along an outer dimension, or select fewer tensors"),
            );
        }
        Ok(Self { picks, bytes })
    }

    /// The selected tensors and parts.
    pub fn picks(&self) -> &[Pick] {
        &self.picks
    }

    /// The size of the selection in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Pick {
    /// The tensor that it selects.
    pub fn of<'a>(&self, model: &'a Model) -> &'a Tensor {
        &model.tensors[self.tensor as usize]
    }

    /// The shape of the selected part of `tensor`.
    pub fn shape<'a>(&'a self, tensor: &'a Tensor) -> &'a Shape {
        self.part.as_ref().map_or(&tensor.shape, |part| part.lengths())
    }

    /// The size of the selected part of `tensor` in bytes.
    pub fn bytes(&self, tensor: &Tensor) -> u64 {
        let part = |part: &Rectangle| whole_bytes(part.elements(), tensor.dtype);
        let bytes = self.part.as_deref().map(part);
        bytes.map_or(tensor.extent.bytes, |b| b.expect("a selection has only whole bytes"))
    }

    /// The extents of the selected part of `tensor` in its file, in order.
    pub fn extents(&self, tensor: &Tensor) -> impl Iterator<Item = Extent> {
        let part = self.part.as_ref().map(|part| part.runs(&tensor.shape));
        let whole = part.is_none().then_some(tensor.extent);
        let (start, bits) = (tensor.extent.offset, tensor.dtype.bits());
        let runs = part.into_iter().flatten();
        let extent = move |(at, elements)| Extent::new(start + at * bits / 8, elements * bits / 8);
        whole.into_iter().chain(runs.map(extent))
    }

    /// The number of bytes and runs of the selected part of `tensor`. Runs that begin or end inside a byte are an
    /// error.
    fn measure(&self, tensor: &Tensor) -> Result<(u64, u64)> {
        let Some(part) = &self.part else {
            return Ok((tensor.extent.bytes, 1));
        };
        // Checked again, because the caller may have made the part for another tensor.
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
                return Err(Error::new(ErrorKind::Invalid, "slice", target, message)
                    .with_hint("cut where whole bytes end, or take the tensor whole"));
            }
        }
        let bytes = whole_bytes(part.elements(), tensor.dtype);
        Ok((bytes.unwrap_or(0), count))
    }
}

/// The part of a tensor that is left after all slices that apply to it; `None` if that is the whole tensor.
fn part_of(tensor: &Tensor, slices: &[Slice]) -> Result<Option<Rectangle>> {
    let concerns = |slice: &&Slice| slice.filter.as_ref().is_none_or(|f| f.matches(&tensor.name));
    let mut part = Rectangle::whole(&tensor.shape);
    for slice in slices.iter().filter(concerns) {
        part = slice.cut(tensor, part)?;
    }
    Ok((*part.lengths() != tensor.shape).then_some(part))
}
