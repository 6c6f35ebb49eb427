//! Queries, keys and values of grouped-query attention: one linear layer, then norm and rotation
//! (`megatron/core/transformer/attention.py`).
//!
//! The fused output is split by views, so whoever saves one part keeps all of it. Where several ranks share a
//! group of heads it is gathered over all ranks first, and the views keep that.

use bagualu_core::layer::Group;

use super::builder::{Builder, Cost, Holds, Spec, fixed};
use crate::{Attention, Rotary};

/// Adds the projection of `input`; returns the storages that core attention saves.
pub(super) fn project(b: &mut Builder<'_>, input: usize) -> Vec<usize> {
    let shape = b.shape;
    let copied = shape.kind.qk_norm || shape.kind.rotary != Rotary::None;
    let grouped = shape.heads != shape.groups;
    match shape.kind.attention {
        // The kernel takes contiguous tensors: values are copied out of the fused output too.
        Attention::Flash if shape.kind.qk_norm => {
            let linear = linear(b, "qkv_linear", input, false);
            separate(b, linear, &[("qkv", shape.q + shape.k + shape.v)])
        }
        Attention::Flash => vec![linear(b, "qkv", input, true)],
        Attention::Unfused if grouped => {
            let linear = linear(b, "qkv_linear", input, false);
            let parts = [("query", shape.q), ("key", shape.k)];
            let parts = separate(b, linear, &parts[..if copied { 2 } else { 1 }]);
            vec![parts[0], expand(b, parts.get(1).copied(), linear)]
        }
        Attention::Unfused if copied => {
            let linear = linear(b, "qkv_linear", input, false);
            let query_key = separate(b, linear, &[("query_key", shape.q + shape.k)]);
            [vec![linear], query_key].concat()
        }
        Attention::Unfused => vec![linear(b, "qkv", input, false)],
    }
}

/// The linear layer, with the rotation where that is folded into it. Under sequence parallel its input is
/// gathered, in backward once more.
fn linear(b: &mut Builder<'_>, name: &'static str, input: usize, rotate: bool) -> usize {
    let shape = b.shape;
    // With the rotation folded in, the kernel's copies are what stays.
    let columns = if rotate { shape.q + shape.k + shape.v } else { shape.qkv };
    let bytes = fixed(shape.e * shape.s * columns);
    let gathered = shape.qkv_gathered();
    let output = b.tensor(name, bytes, Holds::Activations);
    let tables = if rotate { tables(b, "rotary_tables", 2) } else { None };
    let makes: Vec<_> = tables.into_iter().chain([output]).collect();
    b.op(
        "qkv",
        Spec {
            reads: &[input],
            makes: &makes,
            saves: &[&makes[..makes.len() - 1], &[input]].concat(),
            cost: Cost {
                gemm: 2 * shape.s * shape.h * shape.qkv_part,
                sent: fixed(shape.gather_work() + gathered),
                ..Cost::default()
            },
            collective: shape.tp.then_some(Group::Tp),
            // Rotary embedding and the split copy the fused output once.
            forward_work: fixed(shape.gather_work() + gathered) + bytes,
            backward_work: fixed(shape.hidden() + shape.gather_work() + shape.gathered() + gathered) + bytes,
        },
    );
    output
}

/// Parts of the fused output `(name, columns)` as tensors of their own: normalised, rotated, or copied
/// since the heads of a group do not lie at one distance.
fn separate(b: &mut Builder<'_>, linear: usize, parts: &[(&'static str, u128)]) -> Vec<usize> {
    let shape = b.shape;
    let size = |columns| fixed(shape.e * shape.s * columns);
    let bytes = size(parts.iter().map(|part| part.1).sum());
    let outputs: Vec<_> =
        parts.iter().map(|&(name, columns)| b.tensor(name, size(columns), Holds::Activations)).collect();
    let mut saves = Vec::new();
    if shape.kind.qk_norm {
        let rows = shape.s * (shape.heads + shape.groups);
        saves.push(b.tensor("qk_stats", fixed(4 * shape.norm_stats * rows), Holds::Exact));
        if shape.heads != shape.groups {
            // The queries' norm takes them contiguous; the keys' norm reads the fused output.
            saves.push(b.tensor("query_linear", size(shape.q), Holds::Activations));
        }
    }
    saves.extend(tables(b, "rotary_tables", 2));
    let makes = [&saves[..], &outputs].concat();
    if shape.kind.qk_norm {
        saves.push(linear);
    }
    b.op(
        if shape.kind.qk_norm { "qk_norm" } else { "split_heads" },
        Spec {
            reads: &[linear],
            makes: &makes,
            saves: &saves,
            cost: Cost { memory: bytes + bytes, ..Cost::default() },
            backward_work: fixed(shape.hidden()) + bytes + bytes,
            ..Spec::default()
        },
    );
    outputs
}

/// The unfused kernel repeats keys and values for the heads of their group.
fn expand(b: &mut Builder<'_>, key: Option<usize>, linear: usize) -> usize {
    let shape = b.shape;
    let bytes = fixed(2 * shape.e * shape.s * shape.q);
    let reads: Vec<_> = key.into_iter().chain([linear]).collect();
    let expanded = b.tensor("key_value_expanded", bytes, Holds::Activations);
    b.op(
        "expand_groups",
        Spec {
            reads: &reads,
            makes: &[expanded],
            cost: Cost { memory: bytes + bytes, ..Cost::default() },
            backward_work: fixed(shape.hidden()) + bytes,
            ..Spec::default()
        },
    );
    expanded
}

/// The cosines and sines of `sides` (queries, keys), saved where several kernels rotate: one row a
/// position, shared by heads and sequences.
pub(super) fn tables(b: &mut Builder<'_>, name: &'static str, sides: u128) -> Option<usize> {
    let shape = b.shape;
    let bytes = fixed(sides * 2 * shape.e * (shape.seq / shape.cp) * shape.rotary_dim);
    (shape.kind.rotary == Rotary::Unfused).then(|| b.tensor(name, bytes, Holds::Exact))
}
