//! A controller with all that it borrows in one object: layer types, schedule and storage.

use bagualu_core::budget::Unit;
use bagualu_core::controller::{Controller, Settings};
use bagualu_core::cost::{LayerModel, LayerStorage, OpModel, Rooflines, TensorModel};
use bagualu_core::provision::{Aim, Provision};
use bagualu_core::schedule::{Event, Pipeline};
use bagualu_core::set::Set;
use bagualu_core::stage::StageModel;
use bagualu_model::{Buffers, LayerRef, LayerType, Memory, Model};
use self_cell::{MutBorrow, self_cell};

use super::schedule::events_of;
use crate::status::{Failure, bagualu_status};

/// Most layers of all units together: the bound of the model reader.
const MOST_LAYER_RUNS: usize = 1 << 22;
/// Most points of all fronts that a controller remembers.
const MOST_POINTS: usize = 1 << 22;
/// Most plans that it remembers.
const MOST_PLANS: usize = 1 << 16;

/// A pipeline rank as it was described.
pub(crate) struct Description {
    pub types: Vec<LayerTable>,
    pub chunks: Vec<Vec<u16>>,
    pub rooflines: Rooflines,
    pub balanced_rows: u32,
    pub device_bytes: u64,
    pub host_bytes: u64,
    pub fused: bool,
    pub pipeline: Pipeline,
    pub events: Vec<Event>,
}

/// An owned layer type.
pub(crate) struct LayerTable {
    pub tensors: Vec<TensorModel>,
    pub ops: Vec<OpModel>,
    pub moe: Set,
    pub experts: Set,
    pub routed: bool,
}

/// What a controller is made with beside the rank.
#[derive(Clone, Copy)]
pub(crate) struct Choices {
    pub settings: Settings,
    pub aim: Aim,
    pub memory: Memory,
    /// The group's provision; `None`: the rank's own.
    pub provision: Option<Provision>,
}

self_cell!(
    /// A controller and what it borrows.
    pub(crate) struct Planned {
        owner: Storage,
        #[covariant]
        dependent: Controller,
    }
);

/// What a controller borrows.
pub(crate) struct Storage {
    tables: Tables,
    buffers: MutBorrow<Buffers>,
    provision: Provision,
    settings: Settings,
}

self_cell!(
    /// A description, and the core's views of it.
    struct Tables {
        owner: Description,
        #[covariant]
        dependent: Views,
    }
);

struct Views<'a> {
    types: Vec<LayerModel<'a>>,
    chunks: Vec<&'a [u16]>,
}

impl Planned {
    /// A controller of its own.
    pub(crate) fn make(description: Description, choices: Choices) -> Result<Self, Failure> {
        Self::try_new(Storage::new(description, choices)?, Storage::controller)
    }

    /// The controller, to be read.
    pub(crate) fn controller(&self) -> &Controller<'_> {
        self.borrow_dependent()
    }

    /// Calls `body` with the controller.
    #[inline]
    pub(crate) fn step<R>(&mut self, body: impl FnOnce(&mut Controller<'_>) -> R) -> R {
        self.with_dependent_mut(|_, controller| body(controller))
    }

    /// The rank as it was described.
    pub(crate) fn description(&self) -> &Description {
        self.borrow_owner().description()
    }
}

impl Storage {
    /// Solves the provision where none is given.
    pub(crate) fn new(description: Description, choices: Choices) -> Result<Self, Failure> {
        let units = description.check(choices.memory)?;
        let tables = Tables::new(description, |description| Views {
            types: description.types.iter().map(LayerTable::model).collect(),
            chunks: description.chunks.iter().map(Vec::as_slice).collect(),
        });
        let provision = match choices.provision {
            Some(provision) => provision,
            None => tables.provision(choices.aim, units)?,
        };
        let buffers = MutBorrow::new(Buffers::remembering(&tables.stage(), units, choices.memory));
        Ok(Self { tables, buffers, provision, settings: choices.settings })
    }

    /// The controller, once.
    pub(crate) fn controller(&self) -> Result<Controller<'_>, Failure> {
        let Description { pipeline, events, .. } = self.description();
        let (stage, storage) = (self.stage(), self.buffers.borrow_mut().storage());
        Ok(Controller::new(stage, *pipeline, events, self.provision, self.settings, storage)?)
    }

    /// The rank as the core takes it.
    pub(crate) fn stage(&self) -> StageModel<'_> {
        self.tables.stage()
    }

    /// The rank as it was described.
    pub(crate) fn description(&self) -> &Description {
        self.tables.borrow_owner()
    }
}

impl Tables {
    fn stage(&self) -> StageModel<'_> {
        let (description, views) = (self.borrow_owner(), self.borrow_dependent());
        StageModel {
            types: &views.types,
            chunks: &views.chunks,
            rooflines: description.rooflines,
            balanced_rows: description.balanced_rows,
            device_bytes: description.device_bytes,
            host_bytes: description.host_bytes,
            fused: description.fused,
        }
    }

    fn provision(&self, aim: Aim, units: usize) -> Result<Provision, Failure> {
        let Description { pipeline, events, .. } = self.borrow_owner();
        let mut units = vec![Unit::default(); units];
        let mut storage = Box::<LayerStorage>::default();
        Ok(Provision::solve(&self.stage(), pipeline, events, aim, &mut units, &mut storage)?)
    }
}

impl Description {
    /// Pipeline rank `rank` of a model.
    pub(crate) fn of_model(model: &Model, rank: u32, fused: bool) -> Result<Self, Failure> {
        let stages = &model.stages;
        let stage = stages.get(rank as usize);
        let stage = stage.ok_or_else(|| Failure::index("rank", rank as usize, stages.len()))?;
        let pipeline = model.pipeline(rank);
        let kind = |layer: &LayerRef| layer.layer_type as u16;
        Ok(Self {
            types: model.types.iter().map(LayerTable::of_model).collect(),
            chunks: stage.chunks.iter().map(|layers| layers.iter().map(kind).collect()).collect(),
            rooflines: model.device.rooflines(),
            // A dense model has no rows: any number does.
            balanced_rows: model.rows_at(1_000).max(1),
            device_bytes: model.room(stage),
            host_bytes: model.host_room(stage),
            fused,
            events: events_of(&pipeline)?,
            pipeline,
        })
    }

    /// Bounds the saved tensors of all units together.
    pub(crate) fn check_tensors(&self) -> Result<(), Failure> {
        let longest = self.chunks.iter().map(Vec::len).max().unwrap_or(0);
        let widest = self.types.iter().map(|kind| kind.tensors.len().max(kind.ops.len())).max().unwrap_or(0);
        let count = (self.events.len() / 2).saturating_mul(longest).saturating_mul(widest);
        if count <= MOST_LAYER_RUNS {
            return Ok(());
        }
        let message =
            format!("units times layers times tensors: {count}; at most {MOST_LAYER_RUNS} are kept");
        Err(Failure::new(bagualu_status::Count, message))
    }

    /// Bounds what will be allocated; gives the number of units.
    fn check(&self, memory: Memory) -> Result<usize, Failure> {
        let units = self.events.len() / 2;
        let longest = self.chunks.iter().map(Vec::len).max().unwrap_or(0);
        let counts = [
            ("units times layers", units.saturating_mul(longest), MOST_LAYER_RUNS),
            ("fronts times points", memory.fronts.saturating_mul(memory.points), MOST_POINTS),
            ("fronts", memory.fronts, MOST_POINTS),
            ("plans", memory.plans, MOST_PLANS),
        ];
        match counts.into_iter().find(|&(_, count, most)| count > most) {
            None => Ok(units),
            Some((what, count, most)) => {
                let message = format!("{what}: {count}; at most {most} are kept");
                Err(Failure::new(bagualu_status::Count, message))
            }
        }
    }
}

impl LayerTable {
    fn of_model(layer: &LayerType) -> Self {
        let (tensors, ops) = (layer.tensors.clone(), layer.ops.clone());
        Self { tensors, ops, moe: layer.moe, experts: layer.experts, routed: layer.routed }
    }

    fn model(&self) -> LayerModel<'_> {
        let Self { tensors, ops, moe, experts, routed } = self;
        LayerModel { tensors, ops, moe: *moe, experts: *experts, routed: *routed }
    }
}
