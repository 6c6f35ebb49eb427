//! What is decided once, before training: the thresholds R* and S*, the work reserve and the capacity
//! (design §8, `RowThreshold`).

use core::fmt;

use crate::budget::{BudgetError, Unit, floor_peak};
use crate::cost::LayerStorage;
use crate::schedule::{Event, Pipeline};
use crate::stage::{Recompute, StageError, StageModel};

/// The static decisions of a rank. Ranks of a group take the minimum of their thresholds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Provision {
    /// What is recomputed whatever the budget: nothing, or, where local strategies cannot carry the
    /// schedule, everything that needs a collective (static, equal on all ranks).
    pub recompute: Recompute,
    /// R*: the largest rows for which the schedule is feasible with local strategies, on the device and in
    /// the host pool. A layer whose largest rows over the group exceed it is recomputed whole by all.
    pub row_threshold: u32,
    /// S*: above it the group splits the dispatch.
    pub dispatch_threshold: u32,
    /// W at S*.
    pub work_bytes: u64,
    /// D − W: what held tensors may take.
    pub capacity_bytes: u64,
}

/// Loads that the static decisions aim at, in thousandths of the balanced rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aim {
    /// Up to here no dispatch should be split: the paper's largest spike, 2.6.
    pub spike: u32,
    /// Up to here no whole MoE module should be recomputed: the paper's ordinary load, 1.2.
    pub usual: u32,
}

impl Default for Aim {
    fn default() -> Self {
        Self { spike: 2_600, usual: 1_200 }
    }
}

impl Provision {
    /// Finds the thresholds for a rank's schedule.
    ///
    /// S* is the largest rows up to the spike for which R* still reaches the usual load (a split costs
    /// time on spikes only, a low R* always); where no S* gives that, it is the usual load itself. It is
    /// larger where nothing at all would have to be mitigated beyond the spike. `units` is scratch,
    /// indexed as the events are.
    pub fn solve(
        stage: &StageModel<'_>,
        pipeline: &Pipeline,
        events: &[Event],
        aim: Aim,
        units: &mut [Unit],
        storage: &mut LayerStorage,
    ) -> Result<Self, ProvisionError> {
        stage.check()?;
        let mut search = Search { stage, pipeline, events, units, storage };
        let usual = scale(stage.balanced_rows, aim.usual);
        let spike = scale(stage.balanced_rows, aim.spike).max(usual);
        // A dispatch cannot be split below one row.
        let most = largest(spike, |rows| search.runs(rows.max(1)))?;
        let Some(most) = most.map(|rows| rows.max(1)) else {
            return Err(search.infeasible()?);
        };
        let usual = usual.max(1).min(most);
        let kept = largest(u32::MAX, |rows| search.keeps(rows))?.unwrap_or(0);
        if search.threshold(usual)?.is_none() {
            // Local strategies cannot carry the schedule whatever S* is: then a lower one helps nobody.
            return search.settle(kept.max(most));
        }
        // The largest S* in usual..=most whose R* reaches the usual load.
        let reach =
            largest(most - usual, |more| Ok(search.threshold(usual + more)?.is_some_and(|r| r >= usual)))?;
        search.settle(kept.max(usual + reach.unwrap_or(0)))
    }

    /// The floors of the device and of the host budget for a chunk's units: g at R*.
    pub fn floors(
        &self,
        stage: &StageModel<'_>,
        chunk: usize,
        storage: &mut LayerStorage,
    ) -> Result<(u64, u64), StageError> {
        let least = stage.least(chunk, self.row_threshold, self.recompute, storage)?;
        Ok((least.bytes, least.host_bytes))
    }
}

struct Search<'s, 'a> {
    stage: &'s StageModel<'a>,
    pipeline: &'s Pipeline,
    events: &'s [Event],
    units: &'s mut [Unit],
    storage: &'s mut LayerStorage,
}

impl Search<'_, '_> {
    /// Whether full recomputation fits with the work of `rows`.
    fn runs(&mut self, rows: u32) -> Result<bool, ProvisionError> {
        let work = self.stage.work(rows, self.storage)?;
        let Some(capacity) = self.stage.device_bytes.checked_sub(work) else { return Ok(false) };
        self.carries(Recompute::Full, rows, capacity)
    }

    /// Whether everything can be kept if every layer has so many rows.
    fn keeps(&mut self, rows: u32) -> Result<bool, ProvisionError> {
        let full = |search: &mut Self| {
            let work = search.stage.work(rows, search.storage)?;
            let held = search.peak(|stage, chunk, storage| stage.full(chunk, rows, storage))?;
            Ok(held.checked_add(work).is_some_and(|bytes| bytes <= search.stage.device_bytes))
        };
        match full(self) {
            // More than can be counted is more than any device has.
            Err(
                ProvisionError::Stage(StageError::Overflow | StageError::Cost(_))
                | ProvisionError::Budget(BudgetError::Overflow),
            ) => Ok(false),
            answer => answer,
        }
    }

    /// R* with the work of `most` rows reserved.
    fn threshold(&mut self, most: u32) -> Result<Option<u32>, ProvisionError> {
        let work = self.stage.work(most, self.storage)?;
        let Some(capacity) = self.stage.device_bytes.checked_sub(work) else { return Ok(None) };
        largest(most, |rows| self.carries(Recompute::Local, rows, capacity))
    }

    fn settle(&mut self, most: u32) -> Result<Provision, ProvisionError> {
        let work_bytes = self.stage.work(most, self.storage)?;
        let local = self.threshold(most)?;
        Ok(Provision {
            recompute: if local.is_some() { Recompute::Local } else { Recompute::Full },
            row_threshold: local.unwrap_or(most),
            dispatch_threshold: most,
            work_bytes,
            capacity_bytes: self.stage.device_bytes - work_bytes,
        })
    }

    /// Whether the schedule is feasible with g(`rows`), on the device and in the host pool.
    fn carries(&mut self, recompute: Recompute, rows: u32, capacity: u64) -> Result<bool, ProvisionError> {
        let (device, host) = self.peaks(recompute, rows)?;
        Ok(device <= capacity && host <= self.stage.host_bytes)
    }

    /// Peaks of g(`rows`) over the schedule, on the device and in the host pool.
    fn peaks(&mut self, recompute: Recompute, rows: u32) -> Result<(u64, u64), ProvisionError> {
        let device =
            self.peak(|stage, chunk, storage| Ok(stage.least(chunk, rows, recompute, storage)?.bytes))?;
        let host =
            self.peak(|stage, chunk, storage| Ok(stage.least(chunk, rows, recompute, storage)?.host_bytes))?;
        Ok((device, host))
    }

    /// The largest sum over the schedule if each chunk's units hold `held`.
    fn peak(
        &mut self,
        held: impl Fn(&StageModel<'_>, usize, &mut LayerStorage) -> Result<u64, StageError>,
    ) -> Result<u64, ProvisionError> {
        for chunk in 0..self.stage.chunks.len() {
            let bytes = held(self.stage, chunk, self.storage)?;
            for micro_batch in 0..self.pipeline.micro_batches {
                let unit = self.pipeline.unit(micro_batch, chunk as u32) as usize;
                *self.units.get_mut(unit).ok_or(ProvisionError::UnitsTooShort { unit })? = Unit::new(bytes);
            }
        }
        Ok(floor_peak(self.events, self.units)?)
    }

    fn infeasible(&mut self) -> Result<ProvisionError, ProvisionError> {
        let (floor, host) = self.peaks(Recompute::Full, 0)?;
        let work = self.stage.work(1, self.storage)?;
        let available = self.stage.device_bytes;
        let part = if host > self.stage.host_bytes {
            let (needed, available) = (host, self.stage.host_bytes);
            return Ok(ProvisionError::Infeasible { part: Part::Host, needed, available });
        } else if floor > available {
            Part::Floor
        } else {
            Part::Work
        };
        let needed = floor.checked_add(work).ok_or(StageError::Overflow)?;
        Ok(ProvisionError::Infeasible { part, needed, available })
    }
}

/// The largest value in 0..=`most` for which `holds`, which must hold for all smaller ones.
fn largest(
    most: u32,
    mut holds: impl FnMut(u32) -> Result<bool, ProvisionError>,
) -> Result<Option<u32>, ProvisionError> {
    if holds(most)? {
        return Ok(Some(most));
    }
    if most == 0 || !holds(0)? {
        return Ok(None);
    }
    let (mut low, mut high) = (0, most);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle)? { low = middle } else { high = middle }
    }
    Ok(Some(low))
}

fn scale(rows: u32, thousandths: u32) -> u32 {
    let scaled = (u64::from(rows) * u64::from(thousandths)).div_ceil(1_000);
    u32::try_from(scaled).unwrap_or(u32::MAX)
}

/// What does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The floors: what full recomputation holds.
    Floor,
    /// The floors fit, but not with what operators need while they run.
    Work,
    /// The host pool.
    Host,
}

/// Why a rank cannot be provisioned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProvisionError {
    /// Even full recomputation does not fit.
    Infeasible {
        /// What does not fit.
        part: Part,
        /// Bytes needed.
        needed: u64,
        /// Bytes there are.
        available: u64,
    },
    /// The scratch units do not cover the schedule.
    UnitsTooShort {
        /// The first unit without storage.
        unit: usize,
    },
    /// The stage is refused.
    Stage(StageError),
    /// The schedule is refused.
    Budget(BudgetError),
}

impl From<StageError> for ProvisionError {
    fn from(error: StageError) -> Self {
        Self::Stage(error)
    }
}

impl From<BudgetError> for ProvisionError {
    fn from(error: BudgetError) -> Self {
        Self::Budget(error)
    }
}

impl fmt::Display for ProvisionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infeasible { part, needed, available } => {
                let part = match part {
                    Part::Floor => "what full recomputation holds does",
                    Part::Work => "what operators need while they run does",
                    Part::Host => "what must be offloaded does",
                };
                write!(f, "{part} not fit: {needed} bytes needed, {available} available")
            }
            Self::UnitsTooShort { unit } => write!(f, "no storage was given for unit {unit}"),
            Self::Stage(error) => error.fmt(f),
            Self::Budget(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ProvisionError {}
