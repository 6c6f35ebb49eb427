//! Runs the iteration and watches one unit of it.

use bagualu_core::provision::Provision;

use crate::plan::iteration::{Carried, Decided, Step, Watch, carry_watched};
use crate::plan::rank::{Rank, Shortage};

/// Which unit is asked for.
pub struct Request {
    /// Its chunk.
    pub chunk: u32,
    /// Its micro-batch; none for the one in whose forward or backward the device is fullest.
    pub micro_batch: Option<u32>,
    /// Rows of each routed layer.
    pub rows: u32,
    /// The peak of the iteration if everything is kept.
    pub unmitigated_bytes: u64,
}

/// One unit of an iteration.
pub struct Observed {
    pub provision: Provision,
    pub micro_batch: u32,
    pub chunk: u32,
    /// Whether it is the one in whose forward or backward the device is fullest.
    pub at_peak: bool,
    /// The most bytes on the device while it ran, and whether that was in its forward.
    pub fullest: Fullest,
    /// What was decided for its layers.
    pub layers: Vec<Decided>,
}

/// When a unit's own operators meet the most bytes on the device.
#[derive(Clone, Copy, Default)]
pub struct Fullest {
    pub bytes: u64,
    pub in_forward: bool,
}

impl Fullest {
    fn see(&mut self, step: &Step<'_>) {
        if step.device_bytes > self.bytes {
            *self = Self { bytes: step.device_bytes, in_forward: step.decided.is_some() };
        }
    }
}

/// Runs the iteration once to find the fullest unit where none is given, and once to watch it: what is
/// decided does not depend on who watches.
pub fn observe(
    rank: &Rank<'_>,
    provision: &Provision,
    request: &Request,
) -> Result<Result<Observed, Shortage>, String> {
    let micro_batch = match request.micro_batch {
        Some(micro_batch) => micro_batch,
        None => match fullest(rank, provision, request)? {
            Ok(micro_batch) => micro_batch,
            Err(shortage) => return Ok(Err(shortage)),
        },
    };
    let unit = rank.pipeline.unit(micro_batch, request.chunk);
    let mut observed = Observed {
        provision: *provision,
        micro_batch,
        chunk: request.chunk,
        at_peak: request.micro_batch.is_none(),
        fullest: Fullest::default(),
        layers: Vec::new(),
    };
    let mut watch = |step: &Step<'_>| {
        if step.unit == unit {
            observed.fullest.see(step);
            observed.layers.extend(step.decided);
        }
    };
    Ok(match run(rank, provision, request.rows, &mut watch)? {
        Ok(carried) => {
            if carried.keeps_all() {
                // As the plan's peak.
                observed.fullest.bytes = observed.fullest.bytes.min(request.unmitigated_bytes);
            }
            Ok(observed)
        }
        Err(shortage) => Err(shortage),
    })
}

/// The micro-batch in whose forward or backward of the chunk the device is fullest; of equal ones the first.
fn fullest(
    rank: &Rank<'_>,
    provision: &Provision,
    request: &Request,
) -> Result<Result<u32, Shortage>, String> {
    let mut best = (0, 0);
    let mut watch = |step: &Step<'_>| {
        let (micro_batch, chunk) = rank.pipeline.parts(step.unit);
        if chunk == request.chunk && step.device_bytes > best.1 {
            best = (micro_batch, step.device_bytes);
        }
    };
    let ran = run(rank, provision, request.rows, &mut watch)?;
    Ok(ran.map(|_| best.0))
}

fn run(
    rank: &Rank<'_>,
    provision: &Provision,
    rows: u32,
    watch: &mut Watch<'_>,
) -> Result<Result<Carried, Shortage>, String> {
    carry_watched(rank, provision, rows, Some(watch))
}
