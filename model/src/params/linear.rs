//! Shapes of the weights of linear layers, as one rank holds them.

use std::collections::BTreeSet;

use super::Share;
use crate::ModelConfig;
use crate::shape::{MlaShape, MoeShape, Shape};

/// Rows and columns of a weight.
type Weight = (u128, u128);

impl Share {
    /// Elements of the weights of all linear layers that run here, of each shape one.
    pub fn weights(&self, config: &ModelConfig, shape: &Shape) -> u128 {
        let mut weights = BTreeSet::new();
        for &number in &self.layers {
            weights.extend(attention(shape));
            match (&shape.moe, config.is_moe(number)) {
                (Some(moe), true) => weights.extend(experts(shape, moe)),
                _ => weights.extend(mlp(shape.h, shape.ffn, shape)),
            }
        }
        if self.mtp > 0 {
            weights.insert((shape.h / shape.tp_ranks, 2 * shape.h));
        }
        if self.loss {
            weights.insert((shape.vocab, shape.h));
        }
        weights.into_iter().map(elements).fold(0, u128::saturating_add)
    }
}

fn elements((rows, columns): Weight) -> u128 {
    rows.saturating_mul(columns)
}

/// Those of attention: to queries, keys and values, and the output's.
fn attention(shape: &Shape) -> Vec<Weight> {
    let mut weights = match &shape.mla {
        Some(mla) => latent(mla, shape),
        None => vec![(shape.qkv_part, shape.h)],
    };
    weights.push((shape.h, shape.context));
    weights
}

/// Multi-latent attention: down to the latents, and up from them.
fn latent(mla: &MlaShape, shape: &Shape) -> Vec<Weight> {
    let mut weights = match mla.q_latent {
        0 => vec![(shape.q, shape.h)],
        columns => vec![(columns, shape.h), (shape.q, columns)],
    };
    weights.push((mla.kv_latent + mla.rope, shape.h));
    weights.push((mla.k_up + shape.v, mla.kv_latent));
    weights
}

/// Those of an MLP from and to `width` columns with `f` hidden columns.
fn mlp(width: u128, f: u128, shape: &Shape) -> [Weight; 2] {
    [(shape.glu * f, width), (width, f)]
}

/// Those of one routed expert, of the shared one, and to and from the latent that experts run on.
fn experts(shape: &Shape, moe: &MoeShape) -> Vec<Weight> {
    let mut weights = mlp(moe.width, moe.f, shape).to_vec();
    if moe.shared > 0 {
        weights.extend(mlp(shape.h, moe.shared, shape));
    }
    if moe.width != shape.h {
        weights.extend([(moe.width, shape.h), (shape.h, moe.width)]);
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Parameters;
    use crate::{MODELS, Parallelism, Preset, StageLayout};

    fn sum(weights: impl IntoIterator<Item = Weight>) -> u64 {
        weights.into_iter().map(elements).sum::<u128>() as u64
    }

    /// A layer's shapes are all of its parameters that are neither norms nor biases, routers or gates.
    #[test]
    fn shapes_are_those_of_the_parameters() {
        for name in MODELS {
            let Preset { mut config, parallelism } = Preset::named(name, None).expect("a preset");
            (config.bias, config.qkv_bias) = (false, false);
            let whole = Parallelism::default();
            for parallelism in [&parallelism, &whole] {
                let shape = Shape::new(&config, parallelism);
                let stage = StageLayout {
                    embedding: false,
                    layers: config.layers,
                    mtp: config.mtp_layers,
                    loss: true,
                };
                let mut share = Share::default();
                share.add(&config, &stage, 0..config.layers);
                let of = Parameters::new(&config, &shape, &share).expect("parameters");
                let layers = share.layers.len() as u64;
                let moe_layers = share.layers.iter().filter(|&&layer| config.is_moe(layer)).count() as u64;
                assert_eq!(of.attention, layers * sum(attention(&shape)), "{name}");
                assert_eq!(
                    of.dense_mlp,
                    (layers - moe_layers) * sum(mlp(shape.h, shape.ffn, &shape)),
                    "{name}"
                );
                let Some(moe) = &shape.moe else { continue };
                let routed = sum(mlp(moe.width, moe.f, &shape));
                assert_eq!(of.experts, moe_layers * moe.local as u64 * routed, "{name}");
                let gate = if moe.shared_gate { shape.h as u64 } else { 0 };
                let others = (of.shared_expert + of.latent) / moe_layers - gate;
                assert_eq!(sum(experts(&shape, moe)) - routed, others, "{name}");
            }
        }
    }

    /// DeepSeek-V3, whole: layers of both kinds, a projection of multi-token prediction, the output layer.
    #[test]
    fn each_shape_counts_once() {
        let config = Preset::named("deepseek-v3", None).expect("a preset").config;
        let shape = Shape::new(&config, &Parallelism::default());
        let stage = |layers, mtp, loss| StageLayout { embedding: false, layers, mtp, loss };
        let weights = |numbers: std::ops::Range<u32>, mtp, loss| {
            let mut share = Share::default();
            share.add(&config, &stage(numbers.end - numbers.start, mtp, loss), numbers);
            share.weights(&config, &shape)
        };
        let h = 7_168;
        let attention = 1_536 * h + 24_576 * 1_536 + 576 * h + 32_768 * 512 + h * 16_384;
        let dense = 3 * h * 18_432;
        // The shared expert has the routed ones' shape.
        let expert = 3 * h * 2_048;
        assert_eq!(weights(0..1, 0, false), attention + dense);
        assert_eq!(weights(0..2, 0, false), attention + dense);
        assert_eq!(weights(10..14, 0, false), attention + expert);
        assert_eq!(weights(2..4, 0, false), attention + dense + expert);
        assert_eq!(weights(60..61, 1, true), attention + expert + 2 * h * h + 129_280 * h);
    }
}
