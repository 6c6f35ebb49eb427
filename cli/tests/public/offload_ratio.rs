//! Offloading the same share α of every micro-batch's activations, as Megatron-Kwai does
//! (`megatron/core/pipeline_parallel/offload.py` and `schedules.py` of its tag atc24ae-1.0.0).
//!
//! The copy of a forward's activations runs beside the next event, the copy back beside the event before the backward. So the newest
//! unit and the one under backward are whole on the device; of the others a share α is gone. Two buffers of one unit's share take
//! turns for what comes back: during a forward both are there beside the units, during a backward one of them holds what the unit
//! would hold itself.

use bagualu_core::curve::{OpCost, follow, layer_costs};
use bagualu_core::layer::LayerPlan;
use bagualu_core::limits::MAX_OPS;
use bagualu_core::schedule::{Event, Pipeline};
use bagualu_core::set::Set;
use bagualu_model::{LayerType, Model};

/// Bytes below which a tensor is not copied.
const SMALLEST: u64 = 1 << 20;

/// The first pipeline rank under one setting of recomputation.
pub struct Offloading {
    types: Vec<LayerType>,
    chunks: Vec<Vec<usize>>,
    events: Vec<Event>,
    pipeline: Pipeline,
    fixed: u64,
}

impl Offloading {
    /// The first rank of `model`. Tensors named in `views` take no bytes of their own.
    pub fn new(model: &Model, views: &[&str]) -> Self {
        let mut types = model.types.clone();
        for layer in &mut types {
            for view in views.iter().filter_map(|name| layer.tensor(name)).collect::<Vec<_>>() {
                layer.tensors[view].bytes = Default::default();
            }
        }
        let stage = &model.stages[0];
        let pipeline =
            Pipeline::new(model.parallelism.pp, 0, model.micro_batches).interleaved(model.parallelism.chunks);
        let units = pipeline.units().expect("units") as usize;
        let mut events = vec![Event::Forward(0); 2 * units];
        pipeline.events(&mut events).expect("a schedule");
        let chunks =
            stage.chunks.iter().map(|layers| layers.iter().map(|layer| layer.layer_type).collect()).collect();
        Self { types, chunks, events, pipeline, fixed: stage.static_bytes.total() }
    }

    /// The peak where `permille` of what is kept is offloaded, and `recompute` names what is not kept at all.
    pub fn peak(&self, permille: u64, recompute: &[&str]) -> u64 {
        let chunks: Vec<_> = self.chunks.iter().map(|layers| self.costs(layers, recompute)).collect();
        // Every chunk has equally many transformer layers; embedding and output keep nothing that is offloaded.
        let share =
            (self.kept(&self.chunks[1], recompute) * permille).div_ceil(1_000).next_multiple_of(SMALLEST);
        let (mut in_flight, mut at, mut most) = (0u64, usize::MAX, 0);
        let costs = |event| {
            let (unit, side) = match event {
                Event::Forward(unit) => (unit, 0),
                Event::Backward(unit) => (unit, 1),
            };
            chunks[self.pipeline.parts(unit).1 as usize][side].as_slice()
        };
        follow(&self.events, costs, |event, point| {
            let forward = matches!(self.events[event], Event::Forward(_));
            if event != at {
                in_flight -= u64::from(at != usize::MAX && matches!(self.events[at], Event::Backward(_)));
                in_flight += u64::from(forward);
                at = event;
            }
            let gone = share * in_flight.saturating_sub(2);
            let buffers = share * if forward { 2 } else { 1 };
            most = most.max(point.bytes.saturating_sub(gone) + buffers);
        })
        .expect("a curve");
        self.fixed + most
    }

    fn costs(&self, layers: &[usize], recompute: &[&str]) -> [Vec<OpCost>; 2] {
        let [mut forward, mut backward] = [Vec::new(), Vec::new()];
        for &kind in layers {
            let layer = &self.types[kind];
            let dropped = recompute.iter().filter_map(|name| layer.tensor(name)).collect();
            let plan = LayerPlan { recompute: dropped, ..LayerPlan::KEEP };
            let [mut first, mut second] = [[OpCost::default(); MAX_OPS]; 2];
            let count = layer_costs(&layer.model(), 0, &plan, &mut first, &mut second).expect("costs");
            forward.extend_from_slice(&first[..count]);
            backward.splice(0..0, second[..count].iter().copied());
        }
        [forward, backward]
    }

    /// Bytes of a unit's tensors that are large enough to be copied.
    fn kept(&self, layers: &[usize], recompute: &[&str]) -> u64 {
        let of = |&kind: &usize| {
            let layer = &self.types[kind];
            let saved = layer.ops.iter().fold(Set::EMPTY, |all, op| all | op.saves);
            let kept = saved.iter().filter(|&tensor| !recompute.contains(&layer.tensor_names[tensor]));
            kept.map(|tensor| layer.tensors[tensor].bytes.fixed)
                .filter(|&bytes| bytes >= SMALLEST)
                .sum::<u64>()
        };
        layers.iter().map(of).sum()
    }
}
