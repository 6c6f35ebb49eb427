//! The load of a replay in the two senses that memory has for it.
//!
//! Experts' ranks meet at every gate, so a gate's load is that of its fullest rank: the maximum over ranks is taken
//! first, and only then averaged. It sizes work, which is there for one layer at a time. What is kept is the sum
//! over all layers of the micro-batches in flight, where a rank that is full at one gate may be empty at the next.

use bagualu_core::schedule::Event;

use crate::job::Job;
use crate::load::{Gate, Load};

/// Loads of some iterations, in thousandths of the balanced rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadSummary {
    /// Of the fullest rank of each gate, averaged over all gates; rounded to the nearest.
    pub average_permille: u64,
    /// Of the fullest rank of any gate, rounded up.
    pub worst_permille: u64,
    /// The most rows that the layers in flight on a device have received together, over the most that they
    /// would have with balanced routing, rounded up: of the device where that is largest.
    pub in_flight_permille: u64,
}

impl LoadSummary {
    /// The loads of the first `iterations`.
    pub fn new(job: &Job<'_>, load: &dyn Load, iterations: u32) -> Self {
        let balanced = u128::from(job.shape().balanced_rows());
        let layers: Vec<u32> = job.routed_layers().collect();
        let (mut sum, mut gates, mut worst) = (0u128, 0u128, 0u32);
        let mut in_flight = 0;
        for iteration in 0..iterations {
            let table = Table::new(job, load, iteration, &layers);
            for fullest in table.rows.chunks(table.ranks).filter_map(|rows| rows.iter().max()) {
                sum += u128::from(*fullest);
                gates += 1;
                worst = worst.max(*fullest);
            }
            for stage in 0..job.stages() {
                in_flight = in_flight.max(table.in_flight_permille(job, stage));
            }
        }
        let whole = (gates * balanced).max(1);
        Self {
            average_permille: saturate((sum * 1_000 + whole / 2) / whole),
            worst_permille: saturate((u128::from(worst) * 1_000).div_ceil(balanced.max(1))),
            in_flight_permille: in_flight,
        }
    }
}

/// The rows of every gate of an iteration.
struct Table {
    ranks: usize,
    /// Places of the layers by their numbers.
    places: Vec<usize>,
    layers: usize,
    rows: Vec<u32>,
}

impl Table {
    fn new(job: &Job<'_>, load: &dyn Load, iteration: u32, layers: &[u32]) -> Self {
        let ranks = job.shape().ranks() as usize;
        let mut places = vec![0; job.shape().layers() as usize];
        for (place, &layer) in layers.iter().enumerate() {
            if let Some(slot) = places.get_mut(layer as usize) {
                *slot = place;
            }
        }
        let mut rows = vec![0; layers.len() * job.shape().micro_batches() as usize * ranks];
        let gates = (0..job.shape().micro_batches())
            .flat_map(|micro_batch| layers.iter().map(move |&layer| Gate { iteration, micro_batch, layer }));
        for (gate, rows) in gates.zip(rows.chunks_mut(ranks)) {
            load.rows(gate, rows);
        }
        Self { ranks, places, layers: layers.len(), rows }
    }

    /// Rows of all ranks at a gate.
    fn gate(&self, micro_batch: u32, layer: u32) -> &[u32] {
        let place = self.places.get(layer as usize).copied().unwrap_or(0);
        let first = (micro_batch as usize * self.layers + place) * self.ranks;
        self.rows.get(first..first + self.ranks).unwrap_or(&[])
    }

    fn in_flight_permille(&self, job: &Job<'_>, stage: usize) -> u64 {
        let mut now = vec![0u64; self.ranks];
        let (mut most, mut layers, mut most_layers) = (0, 0u64, 0u64);
        for event in &job.rank(stage).events {
            let (Event::Forward(unit) | Event::Backward(unit)) = *event;
            let forward = matches!(event, Event::Forward(_));
            let (micro_batch, chunk) = job.unit(stage, unit);
            let routed = chunk.iter().filter(|layer| job.types()[layer.layer_type].routed);
            for number in routed.filter_map(|layer| layer.number) {
                for (now, &rows) in now.iter_mut().zip(self.gate(micro_batch, number)) {
                    *now = if forward { *now + u64::from(rows) } else { now.saturating_sub(rows.into()) };
                }
                layers = if forward { layers + 1 } else { layers.saturating_sub(1) };
            }
            most = now.iter().copied().fold(most, u64::max);
            most_layers = most_layers.max(layers);
        }
        let balanced = u128::from(most_layers) * u128::from(job.shape().balanced_rows());
        if balanced == 0 { 0 } else { saturate((u128::from(most) * 1_000).div_ceil(balanced)) }
    }
}

fn saturate(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use bagualu_model::{Device, Model, Preset};

    use super::*;
    use crate::load::Shape;

    /// In every gate one rank has twice the balanced rows: always the first, or each in turn.
    struct Hot {
        shape: Shape,
        turns: bool,
    }

    impl Load for Hot {
        fn shape(&self) -> &Shape {
            &self.shape
        }

        fn rows(&self, gate: Gate, rows: &mut [u32]) {
            let balanced = self.shape.balanced_rows();
            let ranks = rows.len() as u32;
            let hot = if self.turns { (gate.micro_batch + gate.layer) % ranks } else { 0 };
            rows.fill(balanced - balanced / (ranks - 1));
            rows[hot as usize] = 2 * balanced;
        }
    }

    fn model() -> Model {
        let preset = Preset::named("mixtral-8x7b", None).expect("a preset");
        let device = Device::named("h100-80g").expect("a device");
        Model::new(&preset.config, &preset.parallelism, &device).expect("a model")
    }

    #[test]
    fn the_fullest_rank_is_taken_first_and_averaged_then() {
        let model = model();
        let job = Job::new(&model).expect("a job");
        let summary = |turns| LoadSummary::new(&job, &Hot { shape: *job.shape(), turns }, 2);
        // Averaged first, every rank would have about a load of 1.
        let turning = summary(true);
        assert_eq!((turning.average_permille, turning.worst_permille), (2_000, 2_000));
        assert_eq!(summary(false).average_permille, 2_000);
    }

    #[test]
    fn what_is_kept_follows_the_sum_over_the_layers_in_flight() {
        let model = model();
        let job = Job::new(&model).expect("a job");
        let summary =
            |turns| LoadSummary::new(&job, &Hot { shape: *job.shape(), turns }, 1).in_flight_permille;
        // A rank that is always full holds twice as much; where all take turns hardly anybody holds more.
        assert_eq!(summary(false), 2_000);
        assert!((1_000..1_200).contains(&summary(true)), "{}", summary(true));
    }
}
