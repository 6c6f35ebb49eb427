//! The storage that a controller takes from its caller.

use bagualu_core::budget::Unit;
use bagualu_core::controller::{ChunkPlan, ControllerStorage, Kind, LayerRecord};
use bagualu_core::cost::LayerStorage;
use bagualu_core::ledger::Entry;
use bagualu_core::mitigate::{ChooseScratch, FrontPoint, FrontScratch};
use bagualu_core::plan_cache::{CacheSlot, SelectionKey};
use bagualu_core::planner::{FrontSlot, PlannerStorage};
use bagualu_core::stage::StageModel;

/// What the controller keeps its state in.
pub(super) struct Buffers {
    device_units: Vec<Unit>,
    host_units: Vec<Unit>,
    entries: Vec<Entry>,
    records: Vec<LayerRecord>,
    kinds: Vec<Kind>,
    plans: Vec<CacheSlot<SelectionKey, ChunkPlan>>,
    fronts: Vec<FrontSlot>,
    points: Vec<FrontPoint>,
    front: Box<FrontScratch>,
    choose: Box<ChooseScratch>,
    layer: Box<LayerStorage>,
}

/// Fronts kept per device, and points of each.
const FRONTS: usize = 64;
const POINTS: usize = 512;
/// Plans kept per device.
const PLANS: usize = 256;

impl Buffers {
    pub fn new(units: usize, stage: &StageModel<'_>) -> Self {
        let longest = stage.chunks.iter().map(|layers| layers.len()).max().unwrap_or(0);
        Self {
            device_units: vec![Unit::default(); units],
            host_units: vec![Unit::default(); units],
            entries: vec![Entry::default(); units],
            records: vec![LayerRecord::default(); units * longest],
            kinds: vec![Kind::default(); stage.types.len()],
            plans: vec![CacheSlot::default(); PLANS],
            fronts: vec![FrontSlot::default(); FRONTS],
            points: vec![FrontPoint::default(); FRONTS * POINTS],
            front: Box::default(),
            choose: Box::default(),
            layer: Box::default(),
        }
    }

    pub fn storage(&mut self) -> ControllerStorage<'_> {
        ControllerStorage {
            device_units: &mut self.device_units,
            host_units: &mut self.host_units,
            entries: &mut self.entries,
            records: &mut self.records,
            kinds: &mut self.kinds,
            plans: &mut self.plans,
            planner: PlannerStorage {
                fronts: &mut self.fronts,
                points: &mut self.points,
                front: &mut self.front,
                choose: &mut self.choose,
                layer: &mut self.layer,
            },
        }
    }
}
