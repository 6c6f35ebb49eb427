//! The mapping of a trace to a model: layers, experts, top-k and micro-batches.
//!
//! - Layers: transformer layer l of L takes traced layer ⌊l · L_t ÷ L⌋ of L_t.
//! - Experts: the counts are a density over [0, 1), constant over each traced expert's equal part; a model
//!   expert takes the density's mass over its own part. Fewer experts fold neighbours together, more
//!   spread one over several. With `groups` the traced experts are first folded into that many groups:
//!   the imbalance is then that of an expert-parallel group of so many ranks, whatever the model's.
//! - Top-k and tokens: the masses are scaled to the T·k·etp·ep rows of the model's group, by largest
//!   remainder, so that the sum is exact. Only proportions of the trace count, not its own k.
//! - Placement: contiguous blocks of experts per rank, as Megatron's.
//! - Micro-batches: a running sequence goes on where the last iteration ended, and starts again at its
//!   end; with iterations of its own, iteration i is i mod their number and micro-batch m is m mod its
//!   micro-batches.
//!
//! Whole numbers throughout.

use super::Trace;
use crate::load::{Gate, Load, Shape};

/// A trace mapped to an expert-parallel group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapped {
    shape: Shape,
    traced_layers: usize,
    starts: Vec<usize>,
    continuous: bool,
    micro_batches: usize,
    /// By traced micro-batch, traced layer and rank.
    rows: Vec<u32>,
}

impl Trace {
    /// Maps the trace to `shape` (see [`mapping`](self)), through `groups` groups of traced experts if given.
    pub fn onto(&self, shape: Shape, groups: Option<u32>) -> Mapped {
        let ranks = shape.ranks() as usize;
        let mut rows = vec![0; self.micro_batches() * self.layers * ranks];
        let mut places = rows.chunks_mut(ranks);
        for micro_batch in 0..self.micro_batches() {
            for layer in 0..self.layers {
                let counts = self.counts(micro_batch, layer);
                let mut density: Vec<u128> = counts.iter().map(|&c| u128::from(c)).collect();
                if let Some(groups) = groups {
                    density = resample(&density, groups.clamp(1, shape.experts()) as usize);
                }
                if let Some(place) = places.next() {
                    shape.place(&resample(&density, shape.experts() as usize), place);
                }
            }
        }
        Mapped {
            shape,
            traced_layers: self.layers,
            starts: self.starts.clone(),
            continuous: self.continuous,
            micro_batches: self.micro_batches(),
            rows,
        }
    }
}

impl Mapped {
    fn record(&self, gate: Gate) -> usize {
        if self.continuous {
            let place = u64::from(gate.iteration) * u64::from(self.shape.micro_batches());
            return ((place + u64::from(gate.micro_batch)) % self.micro_batches as u64) as usize;
        }
        let iteration = gate.iteration as usize % self.starts.len();
        let start = self.starts[iteration];
        let end = self.starts.get(iteration + 1).copied().unwrap_or(self.micro_batches);
        start + gate.micro_batch as usize % (end - start)
    }
}

impl Load for Mapped {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn rows(&self, gate: Gate, rows: &mut [u32]) {
        let layers = u64::from(self.shape.layers());
        let layer = u64::from(gate.layer).min(layers - 1) * self.traced_layers as u64 / layers;
        let ranks = self.shape.ranks() as usize;
        let first = (self.record(gate) * self.traced_layers + layer as usize) * ranks;
        rows.copy_from_slice(&self.rows[first..first + ranks]);
    }
}

/// The mass of a density with `weights` on equal parts, over `to` equal parts; scaled by `to`.
fn resample(weights: &[u128], to: usize) -> Vec<u128> {
    // On an axis of from · to units, old part i is [i·to, (i+1)·to) and new part j is [j·from, (j+1)·from).
    let from = weights.len();
    let mass = |new: usize| {
        let (start, end) = (new * from, (new + 1) * from);
        (start / to..end.div_ceil(to))
            .map(|old| {
                let overlap = end.min((old + 1) * to) - start.max(old * to);
                weights[old] * overlap as u128
            })
            .sum()
    };
    (0..to).map(mass).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_fold_and_spread() {
        assert_eq!(resample(&[4, 2, 6, 0], 2), [12, 12]);
        assert_eq!(resample(&[4, 2], 4), [8, 8, 4, 4]);
        assert_eq!(resample(&[3, 5, 1], 3), [9, 15, 3]);
        // Two thirds of the first and one third of each half.
        assert_eq!(resample(&[6, 6, 0], 2), [18, 6]);
    }
}
