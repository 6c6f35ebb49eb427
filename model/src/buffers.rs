//! Heap storage for a core controller, sized for one rank.

use bagualu_core::budget::Unit;
use bagualu_core::controller::{ChunkPlan, ControllerStorage, Kind, LayerRecord};
use bagualu_core::cost::LayerStorage;
use bagualu_core::ledger::Entry;
use bagualu_core::mitigate::{ChooseScratch, FrontPoint, FrontScratch};
use bagualu_core::plan_cache::{CacheSlot, SelectionKey};
use bagualu_core::planner::{FrontSlot, PlannerStorage};
use bagualu_core::stage::StageModel;

/// How much a controller remembers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Fronts: at least two for each layer type.
    pub fronts: usize,
    /// Points of each front.
    pub points: usize,
    /// Plans.
    pub plans: usize,
}

impl Default for Memory {
    /// Some tens of row counts for each layer type, and the plans of an iteration of 64 micro-batches of 8
    /// layers: about 9 MiB.
    fn default() -> Self {
        Self { fronts: 64, points: 1_024, plans: 1_024 }
    }
}

/// What a controller keeps its state in.
#[derive(Debug)]
pub struct Buffers {
    device_units: Vec<Unit>,
    host_units: Vec<Unit>,
    entries: Vec<Entry>,
    records: Vec<LayerRecord>,
    kinds: Vec<Kind>,
    fronts: Vec<FrontSlot>,
    points: Vec<FrontPoint>,
    front: Box<FrontScratch>,
    choose: Box<ChooseScratch>,
    layer: Box<LayerStorage>,
    plans: Vec<CacheSlot<SelectionKey, ChunkPlan>>,
}

impl Buffers {
    /// Enough for `stage` in an iteration of `units` (micro-batch, chunk) pairs.
    pub fn new(stage: &StageModel<'_>, units: usize) -> Self {
        Self::remembering(stage, units, Memory::default())
    }

    /// The same with as much memory as asked for.
    pub fn remembering(stage: &StageModel<'_>, units: usize, memory: Memory) -> Self {
        let longest = stage.chunks.iter().map(|layers| layers.len()).max().unwrap_or(0);
        Self {
            device_units: vec![Unit::default(); units],
            host_units: vec![Unit::default(); units],
            entries: vec![Entry::default(); units],
            records: vec![LayerRecord::default(); units * longest],
            kinds: vec![Kind::default(); stage.types.len()],
            fronts: vec![FrontSlot::default(); memory.fronts],
            points: vec![FrontPoint::default(); memory.fronts * memory.points],
            front: Box::default(),
            choose: Box::default(),
            layer: Box::default(),
            plans: vec![CacheSlot::default(); memory.plans],
        }
    }

    /// Scratch for [`Provision::solve`](bagualu_core::provision::Provision::solve): units and a layer.
    pub fn scratch(&mut self) -> (&mut [Unit], &mut LayerStorage) {
        (&mut self.device_units, &mut self.layer)
    }

    /// The storage of one controller.
    pub fn storage(&mut self) -> ControllerStorage<'_> {
        ControllerStorage {
            device_units: &mut self.device_units,
            host_units: &mut self.host_units,
            entries: &mut self.entries,
            records: &mut self.records,
            kinds: &mut self.kinds,
            planner: PlannerStorage {
                fronts: &mut self.fronts,
                points: &mut self.points,
                front: &mut self.front,
                choose: &mut self.choose,
                layer: &mut self.layer,
            },
            plans: &mut self.plans,
        }
    }
}
