//! The schedule of a pipeline rank.

use bagualu_core::schedule::{Event, Pipeline, ScheduleError};

use crate::arguments::{Room, config, out, room, versioned};
use crate::boundary::boundary;
use crate::status::{Failure, bagualu_status};

/// Units of the longest schedule: every step of a budget looks at the rest of it.
pub(crate) const MOST_UNITS: usize = 1 << 18;

/// A pipeline rank's place and work in one iteration, under Megatron's schedules.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_pipeline {
    /// sizeof(bagualu_pipeline), set by the caller.
    pub struct_size: usize,
    /// Pipeline ranks.
    pub ranks: u32,
    /// This rank, from 0.
    pub rank: u32,
    /// Micro-batches of an iteration.
    pub micro_batches: u32,
    /// Model chunks of a rank; 0 and 1: no interleaving.
    pub chunks: u32,
    /// Micro-batches that pass one chunk before the next one's turn; 0: as many as ranks.
    pub group_size: u32,
    /// 1 if expert-parallel communication overlaps, else 0.
    pub overlap: u32,
}

versioned!(bagualu_pipeline);

/// A forward or a backward of one unit: of one (micro-batch, model chunk).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bagualu_event {
    /// The unit: chunk · micro-batches + micro-batch.
    pub unit: u32,
    /// 0: its forward, 1: its backward.
    pub backward: u32,
}

/// Writes the schedule's events, 2 · micro-batches · chunks of them, in order.
///
/// `count`, which must not be NULL, always receives their number if the pipeline is right; if `capacity` is smaller,
/// nothing else is written and the status is `BAGUALU_STATUS_BUFFER_TOO_SMALL`.
///
/// Thread-safe.
///
/// # Safety
/// - `pipeline` is NULL or a struct with its `struct_size` set; `events` is NULL or has room for `capacity`;
///   `count` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_pipeline_events(
    pipeline: *const bagualu_pipeline,
    events: *mut bagualu_event,
    capacity: usize,
    count: *mut usize,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (pipeline, to, count) = unsafe {
            let to = room(events, capacity, "events")?;
            (config(pipeline, "pipeline")?, to, out(count, "count")?)
        };
        let found = events_of(&pipeline.checked()?)?;
        count.set(found.len());
        write_events(&found, to)
    })
}

/// Writes events into a caller's array.
pub(crate) fn write_events(events: &[Event], to: Room<bagualu_event>) -> Result<(), Failure> {
    if to.count() < events.len() {
        return Err(Failure::buffer("events", events.len(), to.count()));
    }
    to.write(events.iter().map(|&event| event.into()));
    Ok(())
}

/// The events of a pipeline.
pub(crate) fn events_of(pipeline: &Pipeline) -> Result<Vec<Event>, Failure> {
    let units = pipeline.units()? as usize;
    if units > MOST_UNITS {
        let message = format!("{units} micro-batches times chunks; at most {MOST_UNITS} are scheduled");
        return Err(Failure::new(bagualu_status::Count, message));
    }
    let mut events = vec![Event::Forward(0); 2 * units];
    pipeline.events(&mut events)?;
    Ok(events)
}

impl bagualu_pipeline {
    pub(crate) fn checked(&self) -> Result<Pipeline, Failure> {
        let overlap = match self.overlap {
            0 => false,
            1 => true,
            other => return Err(Failure::value("overlap", other, "give 0 or 1")),
        };
        let chunks = self.chunks.max(1);
        let group_size = if self.group_size == 0 { self.ranks } else { self.group_size };
        let pipeline = Pipeline {
            ranks: self.ranks,
            rank: self.rank,
            micro_batches: self.micro_batches,
            chunks,
            group_size,
            overlap,
        };
        pipeline.units().map(|_| pipeline).map_err(|error: ScheduleError| error.into())
    }
}

impl From<Event> for bagualu_event {
    fn from(event: Event) -> Self {
        match event {
            Event::Forward(unit) => Self { unit, backward: 0 },
            Event::Backward(unit) => Self { unit, backward: 1 },
        }
    }
}

impl TryFrom<&bagualu_event> for Event {
    type Error = Failure;

    fn try_from(event: &bagualu_event) -> Result<Self, Failure> {
        match event.backward {
            0 => Ok(Self::Forward(event.unit)),
            1 => Ok(Self::Backward(event.unit)),
            other => Err(Failure::value("backward", other, "give 0 for a forward, 1 for a backward")),
        }
    }
}
