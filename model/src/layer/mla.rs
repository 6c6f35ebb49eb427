//! Queries, keys and values of multi-latent attention: projections down to latents, their norms, and up
//! to heads (`megatron/core/transformer/multi_latent_attention.py`).
//!
//! The projections down are whole on every tensor-parallel rank and run on its own tokens. The key's
//! rotary part is a few columns of the second latent and becomes a copy for each head.

use bagualu_core::layer::Group;

use super::builder::{Builder, Cost, Holds, Spec, fixed};
use super::qkv::tables;
use crate::shape::MlaShape;

/// Adds the projections of `input`; returns the storages that core attention saves.
pub(super) fn project(b: &mut Builder<'_>, mla: &MlaShape, input: usize) -> Vec<usize> {
    let shape = b.shape;
    let q_latent = (mla.q_latent > 0).then(|| down(b, ["q_down", "q_latent"], input, mla.q_latent));
    let kv_latent = down(b, ["kv_down", "kv_latent"], input, mla.kv_latent + mla.rope);
    let rope = gather_rope(b, mla, kv_latent);
    let q_normed =
        q_latent.map(|latent| norm(b, ["q_norm", "q_norm_stats", "q_norm_out"], latent, mla.q_latent));
    let normed = norm(b, ["kv_norm", "kv_norm_stats", "kv_norm_out"], kv_latent, mla.kv_latent);
    let query = match q_normed {
        Some(latent) => up(b, QUERY, &[latent], [mla.q_latent, shape.q], shape.q),
        None => up(b, QUERY_DIRECT, &[input], [shape.h, shape.q], shape.q),
    };
    // The projection makes the keys without their rotary part.
    let weight = [mla.kv_latent, mla.k_up + shape.v];
    let key_value = up(b, KEY_VALUE, &[normed, rope], weight, shape.k + shape.v);
    vec![query, key_value]
}

/// A projection to a latent, on the rank's own tokens.
fn down(b: &mut Builder<'_>, names: [&'static str; 2], input: usize, columns: u128) -> usize {
    let shape = b.shape;
    let bytes = fixed(shape.e * shape.t * columns);
    let latent = b.tensor(names[1], bytes, Holds::Activations);
    b.op(
        names[0],
        Spec {
            reads: &[input],
            makes: &[latent],
            saves: &[input],
            cost: Cost { gemm: 2 * shape.t * shape.h * columns, ..Cost::default() },
            backward_work: fixed(2 * shape.hidden()) + bytes,
            ..Spec::default()
        },
    );
    latent
}

/// The key's rotary part of all tokens, gathered under sequence parallel; without it, the latent that holds it.
fn gather_rope(b: &mut Builder<'_>, mla: &MlaShape, latent: usize) -> usize {
    let shape = b.shape;
    if shape.t == shape.s {
        return latent;
    }
    let bytes = fixed(shape.e * shape.s * mla.rope);
    let rope = b.transient("key_rope", bytes);
    b.op(
        "key_rope_gather",
        Spec {
            reads: &[latent],
            makes: &[rope],
            cost: Cost { sent: bytes, ..Cost::default() },
            collective: Some(Group::Tp),
            forward_work: bytes,
            backward_work: fixed(shape.hidden()) + bytes,
            ..Spec::default()
        },
    );
    rope
}

/// The norm `[operator, statistics, output]` of a latent (`--qk-layernorm`); without it, the latent.
fn norm(b: &mut Builder<'_>, names: [&'static str; 3], latent: usize, columns: u128) -> usize {
    let shape = b.shape;
    if !shape.kind.qk_norm {
        return latent;
    }
    let bytes = fixed(shape.e * shape.t * columns);
    let stats = b.tensor(names[1], fixed(4 * shape.norm_stats * shape.t), Holds::Exact);
    let output = b.tensor(names[2], bytes, Holds::Activations);
    b.op(
        names[0],
        Spec {
            reads: &[latent],
            makes: &[stats, output],
            saves: &[latent, stats],
            cost: Cost { memory: bytes + bytes, ..Cost::default() },
            backward_work: fixed(shape.hidden()) + bytes + bytes,
            ..Spec::default()
        },
    );
    output
}

/// Names of a projection to heads: operator, output, rotary tables.
struct Names {
    op: &'static str,
    output: &'static str,
    tables: &'static str,
}

const QUERY_DIRECT: Names = Names { op: "q_proj", output: "query", tables: "query_tables" };
const QUERY: Names = Names { op: "q_up", output: "query", tables: "query_tables" };
const KEY_VALUE: Names = Names { op: "kv_up", output: "key_value", tables: "key_tables" };

/// A projection of `inputs[0]` by `weight` (rows and columns) to `columns` of the rank's heads, rotated. Under sequence parallel its inputs are
/// gathered, the first in backward once more.
fn up(b: &mut Builder<'_>, names: Names, inputs: &[usize], weight: [u128; 2], columns: u128) -> usize {
    let shape = b.shape;
    let bytes = fixed(shape.e * shape.s * columns);
    let gathered = if shape.tp { shape.e * shape.s * weight[0] } else { 0 };
    let output = b.tensor(names.output, bytes, Holds::Activations);
    let tables = tables(b, names.tables, 1);
    let makes: Vec<_> = tables.into_iter().chain([output]).collect();
    b.op(
        names.op,
        Spec {
            reads: inputs,
            makes: &makes,
            saves: &[&makes[..makes.len() - 1], &inputs[..1]].concat(),
            cost: Cost {
                gemm: 2 * shape.s * weight[0] * weight[1],
                sent: fixed(gathered),
                ..Cost::default()
            },
            collective: shape.tp.then_some(Group::Tp),
            // Rotation and concatenation copy the output once.
            forward_work: fixed(gathered) + bytes,
            backward_work: fixed(shape.hidden() + 2 * gathered) + bytes,
        },
    );
    output
}
