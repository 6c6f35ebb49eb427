//! A model on its ranks: layer types, stages, micro-batches.

use std::ops::Range;

use bagualu_core::cost::CostError;
use bagualu_core::schedule::Pipeline;

use crate::device::MatrixProducts;
use crate::params::{Parameters, Share};
use crate::shape::{Rates, Shape};
use crate::{
    Attention, Device, LayerType, Libraries, ModelConfig, ModelError, Parallelism, StageLayout, StaticBytes,
};

/// One layer of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerRef {
    /// Index into [`Model::types`].
    pub layer_type: usize,
    /// Number of the transformer layer in the whole model, from 0, those of multi-token prediction behind the
    /// others; none for what is no transformer layer.
    pub number: Option<u32>,
}

/// What one pipeline rank runs and holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stage {
    /// The pipeline rank.
    pub rank: u32,
    /// Layers of each model chunk, in program order; one chunk without interleaving.
    pub chunks: Vec<Vec<LayerRef>>,
    /// Parameters by part.
    pub parameters: Parameters,
    /// Static bytes by part.
    pub static_bytes: StaticBytes,
}

/// A model distributed over devices: every pipeline rank's layers, tables and static bytes.
#[derive(Clone, Debug)]
pub struct Model {
    /// The shape it was built from.
    pub config: ModelConfig,
    /// The distribution it was built for.
    pub parallelism: Parallelism,
    /// The device it was built for.
    pub device: Device,
    /// Kinds of layers.
    pub types: Vec<LayerType>,
    /// The pipeline ranks.
    pub stages: Vec<Stage>,
    /// Micro-batches of an iteration.
    pub micro_batches: u32,
    /// T: tokens of a micro-batch that a rank routes.
    pub tokens: u32,
    /// N when all experts receive equally many rows: T·k·ETP, or less with a capacity; 0 for a dense model.
    pub balanced_rows: u32,
    /// Rows that a rank's experts receive if all tokens of the group go to them: EP times as many, or what
    /// their capacity lets through. Equal to the balanced rows where experts are padded to it.
    pub most_rows: u32,
    /// The most rows that padding adds to those that a rank's experts receive; part of [`Self::most_rows`], not of
    /// [`Self::balanced_rows`].
    pub padding_rows: u32,
    /// The most rows of one expert, where it has a capacity.
    pub expert_capacity: Option<u32>,
}

impl Model {
    /// Distributes `config`; every rule between shape and distribution is checked here.
    pub fn new(config: &ModelConfig, parallelism: &Parallelism, device: &Device) -> Result<Self, ModelError> {
        parallelism.check(config)?;
        let shape = Shape::new(config, parallelism);
        let rates = Rates::new(device, parallelism);
        let mut kinds = Kinds { shape: &shape, rates: &rates, types: Vec::new() };
        let layouts = parallelism.stage_layouts(config)?;
        let stages = (0..parallelism.pp)
            .map(|rank| {
                let mut stage = stage(rank, config, parallelism, device, &layouts, &mut kinds)?;
                let products = products(&stage.chunks, &kinds.types, config, parallelism.libraries);
                stage.static_bytes.workspaces = device.workspaces.bytes(products);
                Ok(stage)
            })
            .collect::<Result<_, ModelError>>()?;
        let (balanced_rows, most_rows) = match &shape.moe {
            Some(moe) => moe.rows()?,
            None => (0, 0),
        };
        let padding = shape.moe.as_ref().map_or(0, |moe| moe.padding_rows());
        let capacity = shape.moe.as_ref().filter(|moe| moe.capacity.is_some());
        let types = kinds.types;
        let counted = |what, n: u128| u32::try_from(n).map_err(|_| ModelError::Overflow { what });
        let expert_capacity =
            capacity.map(|moe| counted("rows of an expert", moe.most_of_expert())).transpose()?;
        Ok(Self {
            config: config.clone(),
            parallelism: parallelism.clone(),
            device: device.clone(),
            types,
            stages,
            micro_batches: counted("micro-batches", parallelism.micro_batches().into())?,
            tokens: counted("tokens of a micro-batch", shape.t)?,
            balanced_rows,
            most_rows,
            padding_rows: counted("rows of padding", padding)?,
            expert_capacity,
        })
    }

    /// Device bytes left for activations on `stage`: memory − margin − static, 0 if nothing is left. The
    /// work W has still to be taken off.
    pub fn room(&self, stage: &Stage) -> u64 {
        let device = self.device.memory_bytes.saturating_sub(self.device.margin_bytes);
        device.saturating_sub(stage.static_bytes.total())
    }

    /// Host bytes left for offloaded activations: the device's share less the optimizer state kept there.
    pub fn host_room(&self, stage: &Stage) -> u64 {
        self.device.host_bytes.saturating_sub(stage.static_bytes.optimizer_host)
    }

    /// The pipeline as `rank` runs it.
    pub fn pipeline(&self, rank: u32) -> Pipeline {
        Pipeline {
            chunks: self.parallelism.chunks,
            group_size: self.parallelism.group_size,
            overlap: self.parallelism.overlap_ep,
            ..Pipeline::new(self.parallelism.pp, rank, self.micro_batches)
        }
    }

    /// Time of the operators of `stage` in an iteration, forward and backward, ns: its layers with experts at `rows`.
    pub fn compute_ns(&self, stage: &Stage, rows: u32) -> Result<u64, CostError> {
        let mut sum = 0u64;
        for layer in stage.chunks.iter().flatten() {
            let layer = &self.types[layer.layer_type];
            let rows = if layer.routed { rows } else { 0 };
            let (forward, backward) = layer.model().times(rows)?;
            sum = sum.saturating_add(forward).saturating_add(backward);
        }
        Ok(sum.saturating_mul(self.micro_batches.into()))
    }

    /// Rows at a load given in thousandths of the balanced rows, rounded up, and all that padding may add; no
    /// more than there are, and always the capacity where experts are padded to it.
    pub fn rows_at(&self, load_permille: u32) -> u32 {
        let capacity = self.config.moe.as_ref().and_then(|moe| moe.capacity);
        if capacity.is_some_and(|capacity| capacity.pad) {
            return self.most_rows;
        }
        let rows = (u64::from(self.balanced_rows) * u64::from(load_permille)).div_ceil(1_000);
        self.padded(rows.min(self.most_rows.into()) as u32)
    }

    /// Rows that experts run on where they receive so many: nothing is padded for experts without rows.
    pub fn padded(&self, received: u32) -> u32 {
        match received {
            0 => 0,
            received => received.saturating_add(self.padding_rows).min(self.most_rows),
        }
    }
}

/// The kinds of layers met so far.
struct Kinds<'a> {
    shape: &'a Shape,
    rates: &'a Rates,
    types: Vec<LayerType>,
}

impl Kinds<'_> {
    /// Index of the type called `name`, made where it is met first.
    fn index(
        &mut self,
        name: &str,
        make: fn(&Shape, &Rates) -> Result<LayerType, ModelError>,
    ) -> Result<usize, ModelError> {
        if let Some(index) = self.types.iter().position(|t| t.name == name) {
            return Ok(index);
        }
        self.types.push(make(self.shape, self.rates)?);
        Ok(self.types.len() - 1)
    }

    /// The layers of a virtual stage.
    fn chunk(
        &mut self,
        config: &ModelConfig,
        layout: &StageLayout,
        numbers: Range<u32>,
    ) -> Result<Vec<LayerRef>, ModelError> {
        let mut layers = Vec::new();
        if layout.embedding {
            layers.push(self.part("embedding", LayerType::embedding)?);
        }
        let last = numbers.contains(&(config.layers - 1));
        for number in numbers {
            layers.push(self.transformer(config, number)?);
        }
        if config.mtp_layers == 0 {
            if layout.loss {
                layers.push(self.part("output", LayerType::output)?);
            }
            return Ok(layers);
        }
        if last {
            layers.push(self.part("final_norm", LayerType::final_norm)?);
        }
        for depth in 0..layout.mtp {
            layers.push(self.part("mtp", LayerType::mtp)?);
            layers.push(self.transformer(config, config.layers + depth)?);
            layers.push(self.part("final_norm", LayerType::final_norm)?);
        }
        if layout.loss {
            for _ in 0..=config.mtp_layers {
                layers.push(self.part("head", LayerType::head)?);
            }
        }
        Ok(layers)
    }

    fn transformer(&mut self, config: &ModelConfig, number: u32) -> Result<LayerRef, ModelError> {
        let layer_type = match config.is_moe(number) {
            true => self.index("moe", LayerType::moe)?,
            false => self.index("dense", LayerType::dense)?,
        };
        Ok(LayerRef { layer_type, number: Some(number) })
    }

    /// A layer that is no transformer layer.
    fn part(
        &mut self,
        name: &str,
        make: fn(&Shape, &Rates) -> Result<LayerType, ModelError>,
    ) -> Result<LayerRef, ModelError> {
        Ok(LayerRef { layer_type: self.index(name, make)?, number: None })
    }
}

/// Pipeline rank `rank`: its chunk c holds virtual stage c·PP + rank, as in Megatron.
fn stage(
    rank: u32,
    config: &ModelConfig,
    parallelism: &Parallelism,
    device: &Device,
    layouts: &[StageLayout],
    kinds: &mut Kinds<'_>,
) -> Result<Stage, ModelError> {
    let shape = kinds.shape;
    let mut share = Share::default();
    let mut chunks = Vec::new();
    let mut next = 0;
    // Behind multi-token prediction on a stage of its own, the hidden states of all depths are sent together.
    let (mut sent, mut message) = (1, 1);
    for (stage, layout) in (0u32..).zip(layouts) {
        let numbers = next..next + layout.layers;
        next = numbers.end;
        let received = sent;
        sent += u128::from(layout.mtp);
        if stage % parallelism.pp != rank {
            continue;
        }
        message = message.max(if layout.loss { received } else { sent });
        share.add(config, layout, numbers.clone());
        chunks.push(kinds.chunk(config, layout, numbers)?);
    }
    let parameters = Parameters::new(config, shape, &share)?;
    let weights = if device.transformer_engine { share.weights(config, shape) } else { 0 };
    let layers = chunks.iter().flatten().any(|layer| layer.number.is_some());
    // Megatron's `dot_product_attention.py` multiplies into a buffer that stays.
    let keeps_scores =
        layers && !parallelism.libraries.transformer_engine && config.attention == Attention::Unfused;
    let scores = if keeps_scores { shape.scores() } else { 0 };
    let static_bytes = StaticBytes::new(&parameters, parallelism, shape, weights, message, scores)?;
    Ok(Stage { rank, chunks, parameters, static_bytes })
}

/// Who runs the matrix products of a rank with these layers.
fn products(
    chunks: &[Vec<LayerRef>],
    types: &[LayerType],
    config: &ModelConfig,
    libraries: Libraries,
) -> MatrixProducts {
    let any = |is: &dyn Fn(&LayerRef, &LayerType) -> bool| {
        chunks.iter().flatten().any(|layer| is(layer, &types[layer.layer_type]))
    };
    let output = any(&|_, kind| matches!(kind.name, "output" | "head"));
    let dense = any(&|layer, kind| layer.number.is_some() && !kind.routed);
    let experts = any(&|_, kind| kind.routed);
    MatrixProducts::new(config, libraries, output, dense, experts)
}
