//! Part of a tensor: a range of indices along each dimension.
//!
//! Tensors are stored in row-major order, so a rectangle is a list of runs of elements: one run if only the outermost
//! dimension is cut, many if an inner one is. Tensor-parallel ranks use rectangles, and so do checkpoints that are read
//! by another number of ranks.

use straightway_core::{Error, ErrorKind, Result};

use super::{Shape, tensor::quoted};

/// Along each dimension, `lengths` indices from `offsets` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rectangle {
    offsets: Shape,
    lengths: Shape,
}

impl Rectangle {
    /// All of a tensor of this shape.
    pub fn whole(shape: &Shape) -> Self {
        Self {
            offsets: shape.iter().map(|_| 0).collect(),
            lengths: shape.clone(),
        }
    }

    /// A part of a tensor of this shape. Errors call the tensor `name`.
    pub fn new(name: &str, shape: &Shape, offsets: Shape, lengths: Shape) -> Result<Self> {
        let refuse = |why: String| {
            let target = format!("tensor {}", quoted(name));
            Err(Error::new(ErrorKind::Invalid, "take part of", target, why))
        };
        let rank = shape.len();
        if (offsets.len(), lengths.len()) != (rank, rank) {
            return refuse(format!(
                "it has {rank} dimensions, and the part {} and {}",
                offsets.len(),
                lengths.len()
            ));
        }
        for (dim, ((offset, length), all)) in offsets.iter().zip(&*lengths).zip(&**shape).enumerate() {
            if offset.checked_add(*length).is_none_or(|end| end > *all) {
                return refuse(format!(
                    "{length} from {offset} on do not fit into the {all} of dimension {dim}"
                ));
            }
        }
        Ok(Self { offsets, lengths })
    }

    /// The rectangle cut along one dimension to `length` indices from `offset` on, counted from its start. Errors call
    /// the tensor `name`.
    pub fn cut(&self, name: &str, dim: usize, offset: u64, length: u64) -> Result<Self> {
        let refuse = |why: String| {
            let target = format!("tensor {}", quoted(name));
            Err(Error::new(ErrorKind::Invalid, "slice", target, why))
        };
        let Some(all) = self.lengths.get(dim) else {
            let rank = self.lengths.len();
            return refuse(format!("it has {rank} dimensions, and none is {dim}"));
        };
        if offset.checked_add(length).is_none_or(|end| end > *all) {
            return refuse(format!(
                "{offset}..{} is not inside the {all} of dimension {dim}",
                offset.saturating_add(length)
            ));
        }
        let replaced = |shape: &Shape, value: u64| {
            let put = |(number, old): (usize, &u64)| if number == dim { value } else { *old };
            shape.iter().enumerate().map(put).collect()
        };
        Ok(Self {
            offsets: replaced(&self.offsets, self.offsets[dim] + offset),
            lengths: replaced(&self.lengths, length),
        })
    }

    /// Its first index along each dimension.
    pub fn offsets(&self) -> &Shape {
        &self.offsets
    }

    /// Its length along each dimension: the shape of its elements.
    pub fn lengths(&self) -> &Shape {
        &self.lengths
    }

    /// The number of its elements.
    pub fn elements(&self) -> u64 {
        self.lengths
            .elements()
            .expect("it is part of a tensor, whose elements are counted")
    }

    /// The intersection with another rectangle of the same tensor; `None` if it is empty.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        assert_eq!(self.offsets.len(), other.offsets.len(), "of one tensor");
        let mut shared = Self {
            offsets: Shape::default(),
            lengths: Shape::default(),
        };
        for dim in 0..self.offsets.len() {
            let start = self.offsets[dim].max(other.offsets[dim]);
            let end = |r: &Self| r.offsets[dim] + r.lengths[dim];
            let length = end(self).min(end(other)).checked_sub(start)?;
            if length == 0 {
                return None;
            }
            shared.offsets.push(start);
            shared.lengths.push(length);
        }
        Some(shared)
    }

    /// The rectangle relative to the start of `outer`, which contains it.
    #[must_use]
    pub fn within(&self, outer: &Self) -> Self {
        let offsets = self.offsets.iter().zip(&*outer.offsets).map(|(own, o)| own - o);
        Self {
            offsets: offsets.collect(),
            lengths: self.lengths.clone(),
        }
    }

    /// Its runs in a tensor of this shape, in order: the first element of each, counted over the whole tensor, and its
    /// number of elements. Adjacent runs are merged.
    pub fn runs(&self, shape: &Shape) -> Runs {
        // The other dimensions of a tensor without elements may be so long that their product overflows.
        if self.elements() == 0 {
            return Runs::default();
        }
        let rank = shape.len();
        // Counts dimensions from the innermost outwards while they are taken whole. Their elements are contiguous, and
        // so is a range along the next dimension.
        let whole = (0..rank).rev().take_while(|d| self.lengths[*d] == shape[*d]).count();
        let outer = rank.saturating_sub(whole + 1);
        let inside: u64 = shape[outer.min(rank)..].iter().skip(1).product();
        let run = self.lengths.get(outer).map_or(1, |length| length * inside);
        let mut strides = vec![1; rank];
        for dim in (1..rank).rev() {
            strides[dim - 1] = strides[dim] * shape[dim];
        }
        let count = self.lengths[..outer].iter().product();
        let first = self.offsets.iter().zip(&strides).map(|(o, s)| o * s).sum();
        Runs {
            lengths: self.lengths[..outer].to_vec(),
            strides: strides[..outer].to_vec(),
            odometer: vec![0; outer],
            next: first,
            run,
            left: count,
        }
    }
}

/// The runs of a rectangle.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    lengths: Vec<u64>,
    strides: Vec<u64>,
    odometer: Vec<u64>,
    next: u64,
    run: u64,
    left: u64,
}

impl Runs {
    /// The number of runs left.
    pub fn left(&self) -> u64 {
        self.left
    }
}

impl Iterator for Runs {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        self.left = self.left.checked_sub(1)?;
        let run = (self.next, self.run);
        for dim in (0..self.odometer.len()).rev() {
            self.odometer[dim] += 1;
            self.next += self.strides[dim];
            if self.odometer[dim] < self.lengths[dim] {
                break;
            }
            self.next -= self.strides[dim] * self.lengths[dim];
            self.odometer[dim] = 0;
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A shape and a part of it.
    fn parts() -> impl Strategy<Value = (Shape, Rectangle)> {
        let dim = (0_u64..6)
            .prop_flat_map(|len| (0..=len).prop_flat_map(move |start| (Just(len), Just(start), 0..=len - start)));
        prop::collection::vec(dim, 0..5).prop_map(|dims| {
            let shape: Shape = dims.iter().map(|d| d.0).collect();
            let offsets = dims.iter().map(|d| d.1).collect();
            let lengths = dims.iter().map(|d| d.2).collect();
            let part = Rectangle::new("t", &shape, offsets, lengths).unwrap();
            (shape, part)
        })
    }

    /// Every element of the rectangle, found by checking the indices of each element of the tensor.
    fn walk(shape: &Shape, part: &Rectangle) -> Vec<u64> {
        let is_inside = |element: &u64| {
            let mut rest = *element;
            (0..shape.len()).rev().all(|dim| {
                let index = rest % shape[dim];
                rest /= shape[dim];
                let start = part.offsets()[dim];
                (start..start + part.lengths()[dim]).contains(&index)
            })
        };
        (0..shape.elements().unwrap()).filter(is_inside).collect()
    }

    proptest! {
        #[test]
        fn the_runs_are_the_elements_of_a_naive_walk_and_never_touch((shape, part) in parts()) {
            let runs: Vec<_> = part.runs(&shape).collect();
            let elements: Vec<_> = runs.iter().flat_map(|(start, n)| *start..start + n).collect();
            prop_assert_eq!(elements, walk(&shape, &part));
            prop_assert_eq!(part.runs(&shape).left(), runs.len() as u64);
            prop_assert!(runs.iter().all(|(_, n)| *n > 0));
            prop_assert!(runs.windows(2).all(|w| w[0].0 + w[0].1 < w[1].0));
        }

        #[test]
        fn an_intersection_has_the_elements_that_both_have(
            (shape, a, b) in parts().prop_flat_map(|(shape, a)| {
                let dims: Vec<_> = shape.iter().map(|len| {
                    let len = *len;
                    (0..=len).prop_flat_map(move |start| (Just(start), 0..=len - start))
                }).collect();
                (Just(shape), Just(a), dims)
            }).prop_map(|(shape, a, b)| {
                let offsets = b.iter().map(|d| d.0).collect();
                let lengths = b.iter().map(|d| d.1).collect();
                let b = Rectangle::new("t", &shape, offsets, lengths).unwrap();
                (shape, a, b)
            })
        ) {
            let left = walk(&shape, &a);
            let both: Vec<_> = walk(&shape, &b).into_iter().filter(|e| left.contains(e)).collect();
            let shared = a.intersection(&b).map(|s| walk(&shape, &s)).unwrap_or_default();
            prop_assert_eq!(shared, both);
        }
    }

    #[test]
    fn a_part_outside_its_tensor_is_refused_by_name() {
        let shape = Shape::from(&[4_u64, 8][..]);
        let part = |o: [u64; 2], l: [u64; 2]| Rectangle::new("wq", &shape, Shape::from(&o[..]), Shape::from(&l[..]));
        assert!(part([0, 8], [4, 0]).is_ok());
        let error = part([3, 0], [2, 8]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot take part of tensor \"wq\": 2 from 3 on do not fit into the 4 of dimension 0"
        );
        assert!(part([u64::MAX, 0], [2, 8]).is_err());
        let whole = Rectangle::whole(&shape);
        assert!(whole.cut("wq", 2, 0, 1).is_err());
        assert!(whole.cut("wq", 1, 7, 2).is_err());
        assert_eq!(whole.cut("wq", 0, 1, 2).unwrap(), part([1, 0], [2, 8]).unwrap());
    }
}
