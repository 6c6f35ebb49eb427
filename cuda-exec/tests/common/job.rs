//! What a run is to be like, and what it did.

use bagualu_exec::rank::Counts;

/// What a run is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// D, bytes.
    pub device_bytes: u64,
    pub host_bytes: u64,
    pub iterations: u64,
    pub seed: u64,
    /// Model chunks.
    pub chunks: u32,
    /// Whether a forward and the backward after it run layer by layer beside each other.
    pub fused: bool,
    /// Whether the planner sets work memory aside for both of these at once.
    pub work_for_both: bool,
    /// Whether the plan is the controller's; else everything is kept and nobody is asked.
    pub controlled: bool,
    /// Whether operators run and tensors are checked; else there is only memory and copies.
    pub operators: bool,
    /// Whether all copies under way have ended before each forward; else some have, as it happens.
    pub drained: bool,
    /// Whether casts are cheap; else none is offered.
    pub casts: bool,
    /// The hook that fails, counted from 0; the iteration is abandoned and the next one begins.
    pub failing_hook: Option<u64>,
    /// By how many bytes each forward is said to hold more than planned.
    pub measured_above: u64,
    /// Whether each backward is also driven out of order, which must be refused and change nothing.
    pub misused: bool,
}

impl Job {
    /// An ordinary one.
    pub const fn new(device_bytes: u64) -> Self {
        Self {
            device_bytes,
            host_bytes: 600_000,
            iterations: 4,
            seed: 1,
            chunks: 1,
            fused: false,
            work_for_both: true,
            controlled: true,
            operators: true,
            drained: false,
            casts: false,
            failing_hook: None,
            measured_above: 0,
            misused: false,
        }
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub counts: Counts,
    pub checked: u64,
    pub wrong: u64,
    pub split: u64,
    pub in_row_chunks: u64,
    pub hooks: u64,
    pub abandoned: u64,
    /// Recoveries that waited for the forward beside them.
    pub behind_forward: u64,
    /// Steps of a forward that waited for the backward beside it.
    pub behind_backward: u64,
    pub high_water: u64,
}

impl Outcome {
    pub fn plus(self, other: Self) -> Self {
        let (a, b) = (self.counts, other.counts);
        let counts = Counts {
            replanned: a.replanned + b.replanned,
            waits: a.waits + b.waits,
            early: a.early + b.early,
            corrections: a.corrections + b.corrections,
            offloaded_bytes: a.offloaded_bytes + b.offloaded_bytes,
            offloaded: a.offloaded + b.offloaded,
            recomputed: a.recomputed + b.recomputed,
            quantized: a.quantized + b.quantized,
        };
        Self {
            counts,
            checked: self.checked + other.checked,
            wrong: self.wrong + other.wrong,
            split: self.split + other.split,
            in_row_chunks: self.in_row_chunks + other.in_row_chunks,
            hooks: self.hooks + other.hooks,
            abandoned: self.abandoned + other.abandoned,
            behind_forward: self.behind_forward + other.behind_forward,
            behind_backward: self.behind_backward + other.behind_backward,
            high_water: self.high_water.max(other.high_water),
        }
    }
}
