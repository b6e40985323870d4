//! Portions: byte ranges of an object that are read whole and checked before any byte is delivered.
//!
//! A chunk of a checkpoint is a portion. The caller sets its bounds, since its checksum covers exactly those bytes. It
//! may be compressed, and its content may be delivered to several places in several regions.

use super::{Chunk, Plan};
use crate::{
    error::{Error, ErrorKind, Result},
    extent::{Extent, up},
    object::Object,
    route::{Reason, Route},
    survey::{Alignment, Survey},
};

/// A byte range of an object that is read whole and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    /// The index of the object.
    pub object: u32,
    /// The range of the stored bytes.
    pub extent: Extent,
    /// The length of its image, which is the decompressed content. Without compression it equals the stored length.
    pub image_bytes: u64,
    /// The number of image bytes that are wanted, which the receipt counts.
    pub wanted_bytes: u64,
    /// The number of its deliveries. The deliveries of all portions are in one list, in the order of the portions.
    pub deliveries: u32,
}

/// Bytes of a portion's image, and their target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The offset in the image.
    pub from: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The index of the target region.
    pub region: u32,
    /// The offset in the region.
    pub at: u64,
}

/// The portions of a plan, each with the index of its first delivery.
#[derive(Clone, Debug, Default)]
pub(super) struct Portions {
    list: Vec<(Portion, usize)>,
    deliveries: Vec<Delivery>,
    slot_bytes: u64,
}

impl Plan {
    /// Plans portions in their order, with a survey for each object and the length of each region.
    ///
    /// A portion is read through the page cache if all of it is there, and around it otherwise. A portion that reaches
    /// past the end of its object is planned too: its read finds the end, and the error belongs to that portion alone.
    pub fn of_portions(
        objects: &[Object],
        surveys: &[Survey],
        portions: Vec<Portion>,
        deliveries: Vec<Delivery>,
        region_bytes: &[u64],
    ) -> Result<Self> {
        assert_eq!(surveys.len(), objects.len(), "one survey for each object");
        let mut planned = Portions {
            list: Vec::with_capacity(portions.len()),
            deliveries,
            slot_bytes: 0,
        };
        let mut chunks = Vec::with_capacity(portions.len());
        let (mut next, mut bytes) = (0, 0);
        for portion in portions {
            let (Some(object), Some(survey)) = (
                objects.get(portion.object as usize),
                surveys.get(portion.object as usize),
            ) else {
                let message = format!("there are only {}", objects.len());
                let target = portion.object;
                return Err(Error::new(ErrorKind::Invalid, "find object", target, message));
            };
            let own = planned.deliveries.get(next..next + portion.deliveries as usize);
            check(object, &portion, own, region_bytes)?;
            let number = u32::try_from(chunks.len()).expect("portions are listed in memory");
            let chunk = chunk(object, survey, &portion, number);
            planned.slot_bytes = planned.slot_bytes.max(chunk.extent.bytes).max(portion.image_bytes);
            chunks.push(chunk);
            planned.list.push((portion, next));
            next += portion.deliveries as usize;
            bytes += portion.wanted_bytes;
        }
        planned.slot_bytes = up(planned.slot_bytes, Alignment::PAGE_BYTES);
        Ok(Self {
            chunks,
            pieces: Vec::new(),
            drive_chunks: 0,
            portions: planned,
            bytes,
        })
    }

    /// The chunks of portions, one for each. Empty in a plan without portions.
    pub fn checked(&self) -> &[Chunk] {
        &self.chunks[..self.portions.list.len()]
    }

    /// The index of a chunk's portion, and the portion.
    pub fn portion(&self, chunk: &Chunk) -> (usize, &Portion) {
        let number = chunk.first_piece as usize;
        (number, &self.portions.list[number].0)
    }

    /// The deliveries of a chunk's portion.
    pub fn deliveries(&self, chunk: &Chunk) -> &[Delivery] {
        let (portion, first) = &self.portions.list[chunk.first_piece as usize];
        &self.portions.deliveries[*first..first + portion.deliveries as usize]
    }

    /// The slot length that reading and decompressing the portions needs.
    pub fn slot_bytes(&self) -> u64 {
        self.portions.slot_bytes
    }
}

/// Returns an error unless a portion's deliveries exist and lie inside its image and their regions.
fn check(object: &Object, portion: &Portion, deliveries: Option<&[Delivery]>, region_bytes: &[u64]) -> Result<()> {
    let within = |offset: u64, bytes: u64, room: u64| offset.checked_add(bytes).is_some_and(|end| end <= room);
    let fits = |delivery: &Delivery| {
        let room = region_bytes.get(delivery.region as usize).copied();
        let lands = room.is_some_and(|room| within(delivery.at, delivery.bytes, room));
        delivery.bytes > 0 && lands && within(delivery.from, delivery.bytes, portion.image_bytes)
    };
    let is_stored = !portion.extent.is_empty() && portion.extent.offset < u64::MAX / 2;
    if is_stored && deliveries.is_some_and(|deliveries| deliveries.iter().all(fits)) {
        return Ok(());
    }
    let message = "a delivery is outside the portion or its target region";
    Err(Error::new(ErrorKind::Invalid, "place bytes of", &object.name, message))
}

fn chunk(object: &Object, survey: &Survey, portion: &Portion, number: u32) -> Chunk {
    let pages = portion.extent.superset(Alignment::PAGE_BYTES);
    let (route, reason, extent) = match survey.usable() {
        Err(reason) => (Route::Buffered, reason, portion.extent),
        Ok(_) if portion.extent.end() > object.bytes => (Route::Buffered, Reason::RaggedEdge, portion.extent),
        Ok(_) if survey.first_run(pages, Alignment::PAGE_BYTES) == (pages, true) => {
            (Route::Buffered, Reason::Resident, portion.extent)
        }
        Ok(alignment) => {
            let blocks = portion.extent.superset(alignment.block_bytes());
            let reason = survey.socket.unwrap_or(Reason::Checked);
            (Route::Staged, reason, blocks)
        }
    };
    Chunk {
        object: portion.object,
        route,
        reason,
        onward: None,
        extent,
        first_piece: number,
        pieces: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIGNMENT: Alignment = Alignment {
        object_bytes: 8192,
        memory_bytes: 4,
    };

    fn portion(offset: u64, bytes: u64, deliveries: u32) -> Portion {
        Portion {
            object: 0,
            extent: Extent::new(offset, bytes),
            image_bytes: bytes,
            wanted_bytes: 7,
            deliveries,
        }
    }

    fn plan(survey: Survey, portions: Vec<Portion>, deliveries: Vec<Delivery>) -> Result<Plan> {
        let object = Object::new("o", 100_000);
        Plan::of_portions(&[object], &[survey], portions, deliveries, &[50, 60])
    }

    const DELIVERY: Delivery = Delivery {
        from: 3,
        bytes: 5,
        region: 1,
        at: 55,
    };

    #[test]
    fn a_portion_is_read_in_whole_blocks_from_the_drive_and_as_it_is_from_the_page_cache() {
        let resident = vec![Extent::between(40_960, 65_536)];
        let survey = Survey {
            resident,
            ..Survey::direct(ALIGNMENT)
        };
        let portions = vec![portion(9000, 100, 1), portion(50_000, 1000, 0), portion(99_999, 9, 1)];
        let plan = plan(survey, portions, vec![DELIVERY; 2]).unwrap();
        let [drive, cached, past_end] = plan.checked() else {
            panic!("three")
        };
        assert_eq!((drive.route, drive.extent), (Route::Staged, Extent::new(8192, 8192)));
        assert_eq!(
            (cached.reason, cached.extent),
            (Reason::Resident, Extent::new(50_000, 1000))
        );
        assert_eq!(past_end.reason, Reason::RaggedEdge);
        assert_eq!(plan.portion(past_end).0, 2);
        assert_eq!(plan.deliveries(drive), [DELIVERY]);
        assert!(plan.deliveries(cached).is_empty());
        assert_eq!((plan.bytes(), plan.slot_bytes()), (21, 8192));
        assert!(plan.drive().is_empty() && plan.cached().is_empty());
    }

    #[test]
    fn deliveries_outside_the_image_the_region_or_the_list_are_refused() {
        let wrong = [
            Delivery { from: 96, ..DELIVERY },
            Delivery {
                from: u64::MAX,
                ..DELIVERY
            },
            Delivery { region: 2, ..DELIVERY },
            Delivery { at: 56, ..DELIVERY },
            Delivery { bytes: 0, ..DELIVERY },
        ];
        for delivery in wrong {
            assert!(plan(Survey::default(), vec![portion(0, 100, 1)], vec![delivery]).is_err());
        }
        assert!(plan(Survey::default(), vec![portion(0, 100, 2)], vec![DELIVERY]).is_err());
        assert!(plan(Survey::default(), vec![portion(0, 0, 0)], vec![]).is_err());
    }
}
