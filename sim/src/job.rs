//! One pipeline to replay: all pipeline ranks × one expert-parallel group.

use core::fmt;

use bagualu_core::cost::LayerModel;
use bagualu_core::schedule::{Event, Pipeline, ScheduleError};
use bagualu_core::stage::StageModel;
use bagualu_model::{LayerRef, Model};

use crate::load::{Capacity, Shape, ShapeError};

/// A model and what of it every replay needs.
#[derive(Debug)]
pub struct Job<'m> {
    model: &'m Model,
    types: Vec<LayerModel<'m>>,
    ranks: Vec<Rank>,
    shape: Shape,
}

/// One pipeline rank.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    pub pipeline: Pipeline,
    pub kinds: Vec<Vec<u16>>,
    pub device_bytes: u64,
    pub host_bytes: u64,
    pub events: Vec<Event>,
}

impl<'m> Job<'m> {
    /// Prepares `model`.
    pub fn new(model: &'m Model) -> Result<Self, JobError> {
        let Some(moe) = &model.config.moe else { return Err(JobError::NoExperts) };
        let parallelism = &model.parallelism;
        let size = |name, n: u64| u32::try_from(n).map_err(|_| JobError::TooLarge { name, value: n });
        let mut shape = Shape::new(
            size("expert-parallel size", parallelism.ep)?,
            size("experts", moe.experts)?,
            model.config.layers + model.config.mtp_layers,
            model.micro_batches,
            size("balanced rows", u64::from(model.tokens) * moe.top_k * parallelism.etp)?,
        )?;
        if let (Some(capacity), Some(expert_rows)) = (moe.capacity, model.expert_capacity) {
            shape = shape.with_capacity(Capacity { expert_rows, pad: capacity.pad });
        }
        let ranks = model.stages.iter().map(|stage| {
            let pipeline = Pipeline {
                chunks: parallelism.chunks,
                group_size: parallelism.group_size,
                overlap: parallelism.overlap_ep,
                ..Pipeline::new(parallelism.pp, stage.rank, model.micro_batches)
            };
            let mut events = vec![Event::Forward(0); 2 * pipeline.units()? as usize];
            pipeline.events(&mut events)?;
            let kind = |layer: &LayerRef| {
                u16::try_from(layer.layer_type)
                    .map_err(|_| JobError::TooLarge { name: "layer types", value: layer.layer_type as u64 })
            };
            let kinds = stage
                .chunks
                .iter()
                .map(|layers| layers.iter().map(kind).collect())
                .collect::<Result<_, _>>()?;
            Ok(Rank {
                pipeline,
                kinds,
                device_bytes: model.room(stage),
                host_bytes: model.host_room(stage),
                events,
            })
        });
        let ranks = ranks.collect::<Result<_, JobError>>()?;
        Ok(Self { model, types: model.types.iter().map(|t| t.model()).collect(), ranks, shape })
    }

    /// The model.
    pub fn model(&self) -> &'m Model {
        self.model
    }

    /// The expert-parallel group, for a load to be made for.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Pipeline ranks.
    pub fn stages(&self) -> usize {
        self.ranks.len()
    }

    /// D of a pipeline rank: device bytes less static bytes and margin.
    pub fn device_bytes(&self, stage: usize) -> u64 {
        self.ranks[stage].device_bytes
    }

    /// Micro-batch, model chunk and layer of a place in a pipeline rank's log.
    pub fn locate(&self, stage: usize, unit: u32, layer: u16) -> (u32, u32, Option<LayerRef>) {
        let (micro_batch, chunk) = self.ranks[stage].pipeline.parts(unit);
        let layers = self.model.stages[stage].chunks.get(chunk as usize);
        (micro_batch, chunk, layers.and_then(|layers| layers.get(layer as usize)).copied())
    }

    /// Transformer layers with a router, over all pipeline ranks.
    pub fn routed_layers(&self) -> impl Iterator<Item = u32> {
        let layers = self.model.stages.iter().flat_map(|stage| stage.chunks.iter().flatten());
        layers.filter(|layer| self.types[layer.layer_type].routed).filter_map(|layer| layer.number)
    }

    /// The micro-batch of a unit of a pipeline rank, and the layers of its chunk.
    pub(crate) fn unit(&self, stage: usize, unit: u32) -> (u32, &[LayerRef]) {
        let (micro_batch, chunk) = self.ranks[stage].pipeline.parts(unit);
        (micro_batch, &self.model.stages[stage].chunks[chunk as usize])
    }

    pub(crate) fn rank(&self, stage: usize) -> &Rank {
        &self.ranks[stage]
    }

    pub(crate) fn types(&self) -> &[LayerModel<'m>] {
        &self.types
    }

    /// Calls `body` with the core's view of a pipeline rank.
    pub(crate) fn with_stage<T>(&self, stage: usize, body: impl FnOnce(&StageModel<'_>) -> T) -> T {
        let rank = &self.ranks[stage];
        let chunks: Vec<&[u16]> = rank.kinds.iter().map(Vec::as_slice).collect();
        body(&StageModel {
            types: &self.types,
            chunks: &chunks,
            rooflines: self.model.device.rooflines(),
            balanced_rows: self.model.rows_at(1_000),
            device_bytes: rank.device_bytes,
            host_bytes: rank.host_bytes,
            fused: self.model.parallelism.overlap_ep,
        })
    }
}

/// Why a model cannot be replayed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum JobError {
    /// It has no experts, so no load.
    NoExperts,
    /// A size does not fit.
    TooLarge {
        /// Which.
        name: &'static str,
        /// The size.
        value: u64,
    },
    /// The expert-parallel group is refused.
    Shape(ShapeError),
    /// The schedule is refused.
    Schedule(ScheduleError),
}

impl From<ShapeError> for JobError {
    fn from(error: ShapeError) -> Self {
        Self::Shape(error)
    }
}

impl From<ScheduleError> for JobError {
    fn from(error: ScheduleError) -> Self {
        Self::Schedule(error)
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoExperts => write!(f, "the model has no experts; a replay needs a MoE model"),
            Self::TooLarge { name, value } => write!(f, "{name}: {value}; at most 2^32 − 1 is replayed"),
            Self::Shape(error) => error.fmt(f),
            Self::Schedule(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for JobError {}
