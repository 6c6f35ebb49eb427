//! Bytes that do not change during training: weights, gradients, optimizer state, buffers.

use crate::params::Parameters;
use crate::shape::Shape;
use crate::{Fp8, Fp8Recipe, GradientType, ModelError, Parallelism, Precision, assumptions};

/// Static bytes of one rank, by part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StaticBytes {
    /// Parameters in the run's precision.
    pub weights: u64,
    /// FP8 weights of linear layers, as they are and transposed: beside the others, which optimizer and
    /// gathering use, or in their place (`--fp8-param-gather`).
    pub fp8_weights: u64,
    /// The gradient buffer.
    pub gradients: u64,
    /// Gradients of weights that nobody reads. Where linear layers add to the gradient buffer themselves, autograd
    /// gets an empty tensor instead, in the weights' type: Transformer Engine keeps one for each shape of weight from
    /// the first backward on (`get_dummy_wgrad` in its `module/base.py`, since 2.3; experts' since 2.10), and Megatron's
    /// output layer takes its own from there (`tensor_parallel/layers.py`, since 0.14). None on devices with another.
    pub placeholders: u64,
    /// Optimizer state: main parameters (BF16 runs) and Adam's two moments.
    pub optimizer: u64,
    /// Pipeline messages on their way, and what Megatron's own attention keeps room for its scores in.
    pub buffers: u64,
    /// Workspaces of libraries ([`Workspaces`](crate::Workspaces)), where the device's sizes are known.
    pub workspaces: u64,
    /// Host bytes of the optimizer state that is kept there, with the copy of the gradients that it is stepped
    /// with. No part of the device's.
    pub optimizer_host: u64,
}

impl StaticBytes {
    /// All parts on the device.
    pub fn total(&self) -> u64 {
        let Self {
            weights,
            fp8_weights,
            gradients,
            placeholders,
            optimizer,
            buffers,
            workspaces,
            optimizer_host: _,
        } = *self;
        [weights, fp8_weights, gradients, placeholders, optimizer, buffers, workspaces]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Static bytes, workspaces aside, of a rank that holds `parameters`, whose linear layers' weights have so many
    /// elements if each shape counts once, whose largest message has so many hidden states, and where Megatron's own
    /// attention keeps so many bytes for scores.
    pub(crate) fn new(
        parameters: &Parameters,
        parallelism: &Parallelism,
        shape: &Shape,
        weights: u128,
        message: u128,
        scores: u128,
    ) -> Result<Self, ModelError> {
        let all = u128::from(parameters.total());
        let linear = if parallelism.fp8.is_some() { parameters.linear() } else { 0 };
        let wide = match parallelism.fp8 {
            Some(Fp8 { parameters: true, .. }) => all.saturating_sub(linear),
            _ => all,
        };
        let gradient = match (parallelism.precision, parallelism.gradients) {
            (Precision::Bf16, GradientType::Bf16) => 2,
            _ => 4,
        };
        let (optimizer, optimizer_host) = optimizer(parameters, parallelism);
        let placeholders = if parallelism.fused_gradients { weights } else { 0 };
        let messages = if parallelism.pp > 1 { u128::from(assumptions::RECEIVE_BUFFERS) } else { 0 };
        let fit = |what, bytes: u128| u64::try_from(bytes).map_err(|_| ModelError::Overflow { what });
        Ok(Self {
            weights: fit("weights", shape.e * wide)?,
            fp8_weights: fit(
                "FP8 weights",
                parallelism.fp8.map_or(0, |fp8| fp8_weights(fp8.recipe, linear)),
            )?,
            gradients: fit("gradients", gradient * all)?,
            placeholders: fit("placeholders of gradients", shape.e.saturating_mul(placeholders))?,
            optimizer: fit("optimizer state", optimizer)?,
            buffers: fit("buffers", messages * message * shape.hidden() + scores)?,
            workspaces: 0,
            optimizer_host: fit("optimizer state on the host", optimizer_host)?,
        })
    }
}

/// Bytes of the gradient of a parameter whose state is on the host, pinned there.
const HOST_GRADIENT: u64 = 4;

/// Optimizer state on the device and on the host.
///
/// What is on the host is stepped there (Megatron's `hybrid_optimizer.py`): FP32 parameters and moments beside
/// an FP32 copy of the gradients. The device keeps none of it: gradients leave, and parameters return, straight
/// from and to their buffers.
fn optimizer(parameters: &Parameters, parallelism: &Parallelism) -> (u128, u128) {
    let state = &parallelism.optimizer;
    let moments = state.first_moment_bytes + state.second_moment_bytes;
    let main = if parallelism.precision == Precision::Bf16 { state.main_bytes } else { 0 };
    // In FP32 the host has a copy of the parameters too.
    let host = state.main_bytes + HOST_GRADIENT + moments;
    // Experts have replicas of their own: only those divide their state.
    let (dp, expert_dp) = match parallelism.distributed_optimizer {
        // Ranks of context parallel hold the same parameters and share in dividing their state.
        true => (parallelism.dp() * parallelism.cp, parallelism.expert_dp()),
        false => (1, 1),
    };
    let experts = u128::from(parameters.experts);
    let rest = u128::from(parameters.total()).saturating_sub(experts);
    let share = |bytes: u64, permille: u32| {
        let of = |count: u128, ranks: u64| {
            (u128::from(bytes) * count * u128::from(permille)).div_ceil(1_000 * u128::from(ranks.max(1)))
        };
        of(rest, dp) + of(experts, expert_dp)
    };
    let on_host = state.host_permille.min(1_000);
    (share(main + moments, 1_000 - on_host), share(host, on_host))
}

/// Each weight once by rows and once by columns, a byte an element, with the recipe's scales (Transformer
/// Engine keeps both from the first micro-batch to the last).
fn fp8_weights(recipe: Fp8Recipe, linear: u128) -> u128 {
    let scales = match recipe {
        Fp8Recipe::Delayed | Fp8Recipe::Tensorwise => 0,
        // FP32, for each 128 × 128 elements.
        Fp8Recipe::Blockwise => 4 * linear.div_ceil(128 * 128),
        Fp8Recipe::Mxfp8 => linear.div_ceil(32),
    };
    2 * (linear + scales)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thousand parameters of linear layers and a hundred others.
    fn bytes(fp8: Option<Fp8>) -> StaticBytes {
        with(Parallelism { fp8, ..Parallelism::default() })
    }

    fn with(parallelism: Parallelism) -> StaticBytes {
        let preset = crate::Preset::named("mixtral-8x7b", None).expect("a preset");
        let shape = Shape::new(&preset.config, &parallelism);
        let parameters = Parameters { attention: 1_000, norms: 100, ..Parameters::default() };
        StaticBytes::new(&parameters, &parallelism, &shape, 300, 1, 0).expect("fits")
    }

    #[test]
    fn fp8_weights_cost_memory_and_save_none() {
        let plain = bytes(None);
        assert_eq!((plain.weights, plain.fp8_weights), (2_200, 0));
        // Beside BF16 weights: as much again. In their place: as much.
        let fp8 = |recipe, parameters| bytes(Some(Fp8 { recipe, parameters }));
        let beside = fp8(Fp8Recipe::Delayed, false);
        assert_eq!((beside.weights, beside.fp8_weights), (2_200, 2_000));
        let alone = fp8(Fp8Recipe::Tensorwise, true);
        assert_eq!((alone.weights, alone.fp8_weights), (200, 2_000));
        assert_eq!(alone.total(), plain.total());
        // Scales: FP32 for a block of 128 × 128, a byte for each 32 elements.
        assert_eq!(fp8(Fp8Recipe::Blockwise, true).fp8_weights, 2 * (1_000 + 4));
        assert_eq!(fp8(Fp8Recipe::Mxfp8, true).fp8_weights, 2 * (1_000 + 32));
    }
    /// In the weights' type, whatever that of the gradient buffer, and none where layers leave adding to others.
    #[test]
    fn placeholders_are_there_where_linear_layers_add_to_the_buffer() {
        let placeholders = |parallelism| with(parallelism).placeholders;
        assert_eq!(placeholders(Parallelism::default()), 600);
        let fp32 = Parallelism { precision: Precision::Fp32, ..Parallelism::default() };
        assert_eq!(placeholders(fp32), 1_200);
        let fp8 = Some(Fp8 { recipe: Fp8Recipe::Tensorwise, parameters: true });
        assert_eq!(placeholders(Parallelism { fp8, ..Parallelism::default() }), 600);
        let apart = Parallelism { fused_gradients: false, ..Parallelism::default() };
        assert_eq!((placeholders(apart.clone()), with(apart).total() + 600), (0, bytes(None).total()));
    }
}
