//! Parameters of attention: grouped-query and multi-latent.

use super::norm_width;
use crate::ModelConfig;
use crate::shape::{MlaShape, Shape};

/// Projections of one layer on this rank.
pub(super) fn projections(config: &ModelConfig, shape: &Shape) -> u128 {
    let output = shape.h * shape.context + u128::from(config.bias) * shape.h;
    let inputs = match &shape.mla {
        Some(mla) => latent(mla, shape),
        None => {
            let columns = shape.qkv_part;
            shape.h * columns + u128::from(config.bias || config.qkv_bias) * columns
        }
    };
    inputs + output
}

/// Multi-latent attention: the projections down are whole on every rank, those up are split by heads.
/// None of them has a bias.
fn latent(mla: &MlaShape, shape: &Shape) -> u128 {
    let query = match mla.q_latent {
        0 => shape.h * shape.q,
        columns => columns * (shape.h + shape.q),
    };
    query + shape.h * (mla.kv_latent + mla.rope) + mla.kv_latent * (mla.k_up + shape.v)
}

/// Norms of queries and keys, or of their latents, of one layer.
pub(super) fn norms(config: &ModelConfig, shape: &Shape) -> u128 {
    let width = match &shape.mla {
        Some(mla) => mla.q_latent + mla.kv_latent,
        None => 2 * u128::from(config.head_dim),
    };
    if config.qk_norm { width * norm_width(config) } else { 0 }
}
