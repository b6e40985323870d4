//! A transfer: a list of moves in one direction.
//!
//! A transfer is checked when it is made. The transfer planner and the lanes rely on three facts: every
//! extent lies inside its object, every byte of the other side is in bounds, and no byte is written twice.
//! Because of the last, its chunks can run in any order on many lanes.

use crate::{
    error::{Error, ErrorKind, Result},
    extent::Extent,
    object::Object,
    route::Leg,
};

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From objects into the region.
    In,
    /// From the region into objects.
    Out,
    /// From objects to other objects, through the ring.
    Across,
}

impl Direction {
    /// The leg of a one-leg transfer; for `Across`, the read leg.
    pub fn leg(self) -> Leg {
        match self {
            Self::Out => Leg::Write,
            Self::In | Self::Across => Leg::Read,
        }
    }
}

/// An extent of an object, and its offset on the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The index of the object in the transfer.
    pub object: u32,
    /// The bytes of the object.
    pub extent: Extent,
    /// The offset in the region. For `Across`, the offset in the target object, which equals `extent.offset`.
    pub at: u64,
}

impl From<Extent> for Move {
    /// Bytes of object 0, at offset 0 of the other side.
    fn from(extent: Extent) -> Self {
        Self {
            object: 0,
            extent,
            at: 0,
        }
    }
}

/// A checked list of moves between objects and one region (for `Across`, other objects).
#[derive(Clone, Debug)]
pub struct Transfer {
    direction: Direction,
    objects: Vec<Object>,
    moves: Vec<Move>,
    bytes: u64,
}

impl Transfer {
    /// Checks the moves against the objects and the region's length and makes them a transfer.
    ///
    /// Empty moves are dropped. For `Across`, `region_bytes` is ignored: each target object is as long
    /// as its source.
    pub fn new(direction: Direction, objects: Vec<Object>, mut moves: Vec<Move>, region_bytes: u64) -> Result<Self> {
        moves.retain(|m| !m.extent.is_empty());
        let mut bytes = 0_u64;
        for m in &moves {
            check_bounds(direction, &objects, m, region_bytes)?;
            bytes += m.extent.bytes;
        }
        let transfer = Self {
            direction,
            objects,
            moves,
            bytes,
        };
        transfer.check_written_once()?;
        Ok(transfer)
    }

    /// All bytes of each object, one object after the other in the region.
    pub fn whole(direction: Direction, objects: Vec<Object>) -> Result<Self> {
        let mut at = 0;
        let moves = (0..).zip(&objects).map(|(object, o)| {
            let extent = Extent::new(0, o.bytes);
            let start = if direction == Direction::Across { 0 } else { at };
            at += o.bytes;
            Move {
                object,
                extent,
                at: start,
            }
        });
        let moves = moves.collect();
        Self::new(direction, objects, moves, at)
    }

    /// The direction of the transfer.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The objects that the moves refer to.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// The moves in the order given, without empty ones.
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// The total number of bytes moved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn check_written_once(&self) -> Result<()> {
        let written = |m: &Move| match self.direction {
            Direction::In => (0, Extent::new(m.at, m.extent.bytes)),
            Direction::Out => (m.object, m.extent),
            Direction::Across => (m.object, Extent::new(m.at, m.extent.bytes)),
        };
        let is_before = |a: &(u32, Extent), b: &(u32, Extent)| a.0 < b.0 || (a.0 == b.0 && a.1.end() <= b.1.offset);
        // Most callers list moves in the order of the written side. Only other lists are sorted.
        if self
            .moves
            .iter()
            .is_sorted_by(|a, b| is_before(&written(a), &written(b)))
        {
            return Ok(());
        }
        let mut all: Vec<_> = self.moves.iter().map(written).collect();
        all.sort_unstable_by_key(|(object, e)| (*object, e.offset));
        match all.windows(2).find(|pair| !is_before(&pair[0], &pair[1])) {
            None => Ok(()),
            Some(pair) => Err(Error::new(
                ErrorKind::Invalid,
                "move into",
                self.written_name(pair[0].0),
                format!("byte {} would be written twice", pair[1].1.offset),
            )),
        }
    }

    fn written_name(&self, object: u32) -> &str {
        match self.direction {
            Direction::In => "the region",
            Direction::Out | Direction::Across => &self.objects[object as usize].name,
        }
    }
}

fn check_bounds(direction: Direction, objects: &[Object], m: &Move, region_bytes: u64) -> Result<()> {
    let Some(object) = objects.get(m.object as usize) else {
        let message = format!("there are only {}", objects.len());
        return Err(Error::new(ErrorKind::Invalid, "find object", m.object, message));
    };
    let fits = |offset: u64, room: u64| offset.checked_add(m.extent.bytes).is_some_and(|end| end <= room);
    if !fits(m.extent.offset, object.bytes) {
        let message = format!(
            "{} bytes at offset {} do not fit into its {} bytes",
            m.extent.bytes, m.extent.offset, object.bytes
        );
        return Err(Error::new(ErrorKind::Invalid, "move bytes of", &object.name, message));
    }
    if direction == Direction::Across && m.at != m.extent.offset {
        let message = format!(
            "its byte {} would be copied to offset {}, but a copy keeps offsets",
            m.extent.offset, m.at
        );
        return Err(Error::new(ErrorKind::Invalid, "copy", &object.name, message));
    }
    let room = if direction == Direction::Across {
        object.bytes
    } else {
        region_bytes
    };
    if !fits(m.at, room) {
        let message = format!(
            "{} bytes at offset {} do not fit into the region's {room} bytes",
            m.extent.bytes, m.at
        );
        return Err(Error::new(ErrorKind::Invalid, "place bytes of", &object.name, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Vec<Object> {
        vec![Object::new("a", 100)]
    }

    fn mv(offset: u64, bytes: u64, at: u64) -> Move {
        Move {
            object: 0,
            extent: Extent::new(offset, bytes),
            at,
        }
    }

    #[test]
    fn moves_out_of_bounds_are_refused_with_the_object_name() {
        let error = Transfer::new(Direction::In, object(), vec![mv(90, 20, 0)], 50).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot move bytes of a: 20 bytes at offset 90 do not fit into its 100 bytes"
        );
        assert!(Transfer::new(Direction::In, object(), vec![mv(0, 20, 40)], 50).is_err());
        assert!(Transfer::new(Direction::In, object(), vec![mv(u64::MAX, 2, 0)], 50).is_err());
        assert!(Transfer::new(Direction::In, object(), vec![mv(0, 2, u64::MAX)], 50).is_err());
        assert!(Transfer::new(Direction::Across, object(), vec![mv(0, 2, 1)], 50).is_err());
        let unknown = Move {
            object: 1,
            ..mv(0, 1, 0)
        };
        assert!(Transfer::new(Direction::In, object(), vec![unknown], 50).is_err());
    }

    #[test]
    fn reading_a_byte_twice_is_fine_and_writing_it_twice_is_not() {
        let twice_read = vec![mv(0, 10, 10), mv(5, 10, 0)];
        assert!(Transfer::new(Direction::In, object(), twice_read.clone(), 50).is_ok());
        let error = Transfer::new(Direction::Out, object(), twice_read, 50).unwrap_err();
        assert_eq!(error.to_string(), "cannot move into a: byte 5 would be written twice");
        assert!(Transfer::new(Direction::In, object(), vec![mv(0, 9, 8), mv(9, 9, 0)], 50).is_err());
    }
}
