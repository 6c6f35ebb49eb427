//! Parameter counts: of a rank by part, and of the whole model.

mod attention;
mod linear;

use std::ops::Range;

use crate::shape::{MoeShape, Shape, padded_vocab};
use crate::{ModelConfig, ModelError, Norm, StageLayout};

/// Parameters that one rank holds, by part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Parameters {
    /// Token and position embedding.
    pub embedding: u64,
    /// Attention projections.
    pub attention: u64,
    /// Norms, of queries and keys too.
    pub norms: u64,
    /// Routers.
    pub router: u64,
    /// Projections to and from a latent that experts run on.
    pub latent: u64,
    /// Routed experts.
    pub experts: u64,
    /// Shared experts and their gates.
    pub shared_expert: u64,
    /// Dense MLPs.
    pub dense_mlp: u64,
    /// Output layer.
    pub output: u64,
    /// Projections that join hidden states and embeddings for multi-token prediction.
    pub mtp: u64,
}

/// Parameters of a whole model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParameterCount {
    /// All parameters, the vocabulary not padded.
    pub total: u64,
    /// Those that one token meets: k of the routed experts.
    pub active: u64,
}

impl Parameters {
    /// All parts.
    pub fn total(&self) -> u64 {
        [
            self.embedding,
            self.attention,
            self.norms,
            self.router,
            self.latent,
            self.experts,
            self.shared_expert,
            self.dense_mlp,
            self.output,
            self.mtp,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }
}

impl Parameters {
    /// Those of linear layers that may run in FP8: neither embedding nor output layer, router or norms.
    pub(crate) fn linear(&self) -> u128 {
        [self.attention, self.latent, self.experts, self.shared_expert, self.dense_mlp, self.mtp]
            .into_iter()
            .map(u128::from)
            .sum()
    }
}

/// What a rank holds of the model, over all its chunks.
#[derive(Default)]
pub(crate) struct Share {
    /// Numbers of its transformer layers, those of multi-token prediction included.
    pub layers: Vec<u32>,
    /// Copies of the embedding.
    pub embeddings: u128,
    /// Output layers with weights of their own or a copy of the embedding's.
    pub outputs: u128,
    /// Norms that belong to no transformer layer.
    pub norms: u128,
    /// Layers of multi-token prediction, whose transformer layers are among the others.
    pub mtp: u128,
    /// Whether the output layer runs here, with whatever weights.
    pub loss: bool,
}

impl Share {
    /// Adds a virtual stage with transformer layers `numbers`.
    pub fn add(&mut self, config: &ModelConfig, stage: &StageLayout, numbers: Range<u32>) {
        let last = numbers.contains(&(config.layers - 1));
        self.layers.extend(numbers);
        // Multi-token prediction looks tokens up where it is.
        self.embeddings += u128::from(stage.embedding || stage.mtp > 0);
        // Where both are on one stage, tied weights are the same tensor.
        self.outputs += u128::from(stage.loss && !(stage.embedding && config.tied_embeddings));
        // With multi-token prediction the final norm is behind the last layer, wherever that is.
        let with_layer = config.mtp_layers > 0;
        self.norms += u128::from(if with_layer { last } else { stage.loss });
        self.layers.extend(config.layers..config.layers + stage.mtp);
        self.mtp += u128::from(stage.mtp);
        self.loss |= stage.loss;
        self.norms += 3 * u128::from(stage.mtp);
    }
}

impl Parameters {
    /// Parameters of a rank.
    pub(crate) fn new(config: &ModelConfig, shape: &Shape, share: &Share) -> Result<Self, ModelError> {
        let layers = share.layers.len() as u128;
        let moe_layers = share.layers.iter().filter(|&&l| config.is_moe(l)).count() as u128;
        let bias = u128::from(config.bias);
        let norm = shape.h * norm_width(config);
        let qk_norm = attention::norms(config, shape);
        let attention = attention::projections(config, shape);
        let vocab = shape.vocab * shape.h;
        let positions = u128::from(config.position_rows) * shape.h;
        let (router, latent, experts, shared) = match &shape.moe {
            None => (0, 0, 0, 0),
            Some(moe) => (
                // Megatron's router has a bias where its linear layers have one (`moe/router.py`).
                (shape.h + bias) * moe.experts,
                latent(shape, moe, bias),
                moe.local * mlp(shape, moe.width, moe.f, bias),
                if moe.shared > 0 {
                    mlp(shape, shape.h, moe.shared, bias) + u128::from(moe.shared_gate) * shape.h
                } else {
                    0
                },
            ),
        };
        let fit = |n: u128| u64::try_from(n).map_err(|_| ModelError::Overflow { what: "parameters" });
        Ok(Self {
            embedding: fit(share.embeddings * (vocab + positions))?,
            attention: fit(layers * attention)?,
            norms: fit(layers * (2 * norm + qk_norm) + share.norms * norm)?,
            router: fit(moe_layers * router)?,
            latent: fit(moe_layers * latent)?,
            experts: fit(moe_layers * experts)?,
            shared_expert: fit(moe_layers * shared)?,
            dense_mlp: fit((layers - moe_layers) * mlp(shape, shape.h, shape.ffn, bias))?,
            output: fit(share.outputs * vocab)?,
            mtp: fit(share.mtp * 2 * shape.h * shape.h / shape.tp_ranks)?,
        })
    }
}

/// Parameters of an MLP from and to `width` columns with `f` hidden columns on this rank.
fn mlp(shape: &Shape, width: u128, f: u128, bias: u128) -> u128 {
    width * f * (shape.glu + 1) + bias * (shape.glu * f + width)
}

/// Parameters of the projections to and from the latent that experts run on, whole on every rank.
fn latent(shape: &Shape, moe: &MoeShape, bias: u128) -> u128 {
    if moe.width == shape.h { 0 } else { 2 * shape.h * moe.width + bias * (moe.width + shape.h) }
}

fn norm_width(config: &ModelConfig) -> u128 {
    match config.norm {
        Norm::RmsNorm => 1,
        Norm::LayerNorm => 2,
    }
}

impl ModelConfig {
    /// Parameters of the whole model, and those that one token meets.
    pub fn parameters(&self) -> Result<ParameterCount, ModelError> {
        let whole = crate::Parallelism::default();
        whole.check(self)?;
        let shape = Shape::new(self, &whole);
        let stage = StageLayout { embedding: true, layers: self.layers, mtp: self.mtp_layers, loss: true };
        let mut share = Share::default();
        share.add(self, &stage, 0..self.layers);
        let all = Parameters::new(self, &shape, &share)?;
        let padding = padded_vocab(self, 1) - u128::from(self.vocab);
        let copies = if self.tied_embeddings { 1 } else { 2 };
        // The padding is below 128 rows of h ≤ 2²⁸, twice.
        let padding = (padding * shape.h * copies) as u64;
        let total = all.total() - padding;
        let idle = match &self.moe {
            None => 0,
            Some(moe) => all.experts / moe.experts * (moe.experts - moe.top_k),
        };
        Ok(ParameterCount { total, active: total - idle })
    }
}
