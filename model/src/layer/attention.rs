//! Norm, attention and residual: the first half of every transformer layer.

use bagualu_core::layer::Group;

use super::builder::{Amount, Builder, Cost, Holds, Spec, fixed};
use crate::Attention;

/// Adds the first half of a layer; returns the residual after it.
pub(super) fn attention(b: &mut Builder<'_>) -> usize {
    let shape = b.shape;
    let input = b.tensor("input", fixed(shape.hidden()), Holds::Input);
    if shape.kind.hidden_dropout || shape.kind.attention_dropout {
        b.tensor("rng_state", fixed(RNG_STATE_BYTES), Holds::Input);
    }
    let normed = norm(b, ["ln1", "ln1_stats", "ln1_out"], input);
    let qkv = qkv(b, normed);
    let context = core_attention(b, qkv);
    projection(b, context, input)
}

/// Philox states of Megatron's default, data-, model- and expert-parallel generators.
const RNG_STATE_BYTES: u128 = 4 * 16;

/// Adds a norm `[operator, statistics, output]` of `input`; returns its output.
pub(super) fn norm(b: &mut Builder<'_>, names: [&'static str; 3], input: usize) -> usize {
    let shape = b.shape;
    let stats = b.tensor(names[1], fixed(4 * shape.norm_stats * shape.t), Holds::Exact);
    let output = b.tensor(names[2], fixed(shape.hidden()), Holds::Activations);
    b.op(
        names[0],
        Spec {
            reads: &[input],
            makes: &[stats, output],
            saves: &[input, stats],
            cost: Cost { memory: fixed(2 * shape.hidden()), ..Cost::default() },
            // The gradients of output, input and residual.
            backward_work: fixed(3 * shape.hidden()),
            ..Spec::default()
        },
    );
    output
}

/// Queries, keys and values. Under sequence parallel the input is gathered, in backward once more.
fn qkv(b: &mut Builder<'_>, input: usize) -> usize {
    let shape = b.shape;
    let columns = shape.q + 2 * shape.kv;
    let bytes = fixed(shape.e * shape.s * columns);
    let qkv = b.tensor("qkv", kept_qkv(b), Holds::Activations);
    // The norm of queries and keys saves its input, which is part of the fused output's storage.
    let linear = shape.kind.qk_norm.then(|| b.tensor("qkv_linear", bytes, Holds::Activations));
    b.op(
        "qkv",
        Spec {
            reads: &[input],
            makes: &[linear.unwrap_or(qkv)],
            saves: &[input],
            cost: Cost {
                gemm: 2 * shape.s * shape.h * columns,
                sent: fixed(shape.gather_work()),
                ..Cost::default()
            },
            collective: shape.tp.then_some(Group::Tp),
            // Rotary embedding and the split copy the fused output once.
            forward_work: fixed(shape.gather_work()) + bytes,
            backward_work: fixed(shape.hidden() + shape.gather_work() + shape.gathered()) + bytes,
        },
    );
    if let Some(linear) = linear {
        let stats = b.tensor("qk_stats", fixed(4 * shape.norm_stats * shape.s * qk_heads(b)), Holds::Exact);
        b.op(
            "qk_norm",
            Spec {
                reads: &[linear],
                makes: &[qkv, stats],
                saves: &[linear, stats],
                cost: Cost { memory: bytes + bytes, ..Cost::default() },
                backward_work: fixed(shape.hidden()) + bytes + bytes,
                ..Spec::default()
            },
        );
    }
    qkv
}

/// Heads of queries and keys on this rank.
fn qk_heads(b: &Builder<'_>) -> u128 {
    let shape = b.shape;
    shape.heads + shape.heads * shape.kv / shape.q.max(1)
}

/// Bytes of q, k and v as core attention saves them: the unfused kernel expands the groups first.
fn kept_qkv(b: &Builder<'_>) -> Amount {
    let shape = b.shape;
    let columns = match shape.kind.attention {
        Attention::Flash => shape.q + 2 * shape.kv,
        Attention::Unfused => 3 * shape.q,
    };
    fixed(shape.e * shape.s * columns)
}

fn core_attention(b: &mut Builder<'_>, qkv: usize) -> usize {
    match b.shape.kind.attention {
        Attention::Flash => flash(b, qkv),
        Attention::Unfused => unfused(b, qkv),
    }
}

/// Saves q, k, v, the output (shared with the projection) and the log-sum-exp of each row and head.
fn flash(b: &mut Builder<'_>, qkv: usize) -> usize {
    let shape = b.shape;
    let context = fixed(shape.e * shape.s * shape.q);
    let lse = fixed(4 * shape.s * shape.heads);
    let output = b.tensor("attn_out", context, Holds::Activations);
    let stats = b.tensor("attn_lse", lse, Holds::Exact);
    b.op(
        "core_attention",
        Spec {
            reads: &[qkv],
            makes: &[output, stats],
            saves: &[qkv, output, stats],
            // A causal mask leaves half of the products: 4·S·s·q / 2.
            cost: Cost { attention: 2 * shape.s * shape.seq * shape.q, ..Cost::default() },
            // Gradients of q, k, v and of the output, the row sums, and the residual's gradient.
            backward_work: fixed(shape.hidden()) + kept_qkv(b) + context + lse,
            ..Spec::default()
        },
    );
    output
}

/// Saves q, k, v and the probabilities; with dropout its mask and the dropped probabilities too.
fn unfused(b: &mut Builder<'_>, qkv: usize) -> usize {
    let shape = b.shape;
    let products = shape.heads * shape.s * shape.seq;
    let scores = fixed(shape.e * products);
    let probabilities = b.tensor("attn_probs", scores, Holds::Activations);
    let output = b.tensor("attn_out", fixed(shape.e * shape.s * shape.q), Holds::Activations);
    // Both products run in full: the mask is added to the scores.
    let half = Cost { attention: 2 * shape.s * shape.seq * shape.q, memory: scores, ..Cost::default() };
    let backward_work = fixed(shape.hidden()) + kept_qkv(b) + scores + scores;
    b.op(
        "attention_scores",
        Spec {
            reads: &[qkv],
            makes: &[probabilities],
            saves: &[qkv, probabilities],
            cost: half,
            forward_work: scores,
            backward_work,
            ..Spec::default()
        },
    );
    let applied = if shape.kind.attention_dropout {
        let mask = b.tensor("attn_probs_mask", fixed(products), Holds::Exact);
        let dropped = b.tensor("attn_probs_dropped", scores, Holds::Activations);
        b.op(
            "attention_dropout",
            Spec {
                reads: &[probabilities],
                makes: &[mask, dropped],
                saves: &[mask],
                cost: Cost { memory: scores + scores, ..Cost::default() },
                backward_work,
                ..Spec::default()
            },
        );
        dropped
    } else {
        probabilities
    };
    b.op(
        "core_attention",
        Spec {
            reads: &[qkv, applied],
            makes: &[output],
            saves: &[qkv, applied],
            cost: half,
            backward_work,
            ..Spec::default()
        },
    );
    output
}

/// Output projection and residual addition. Under sequence parallel the output is scattered.
fn projection(b: &mut Builder<'_>, context: usize, input: usize) -> usize {
    let shape = b.shape;
    let output = b.transient("proj_out", fixed(shape.hidden()));
    b.op(
        "proj",
        Spec {
            reads: &[context],
            makes: &[output],
            saves: &[context],
            cost: Cost {
                gemm: 2 * shape.s * shape.q * shape.h,
                sent: fixed(shape.gather_work()),
                ..Cost::default()
            },
            collective: shape.tp.then_some(Group::Tp),
            forward_work: fixed(shape.hidden() + shape.gather_work()),
            backward_work: fixed(shape.hidden() + shape.gathered() + shape.e * shape.s * shape.q),
        },
    );
    let residual = b.tensor("attn_residual", fixed(shape.hidden()), Holds::Activations);
    add(b, ["attn_add", "attn_mask"], &[output, input], Some(residual));
    residual
}

/// Adds dropout and residual addition `[operator, mask]`; `output` is left out where the next layer counts it.
pub(super) fn add(b: &mut Builder<'_>, names: [&'static str; 2], inputs: &[usize], output: Option<usize>) {
    let shape = b.shape;
    let output = output.unwrap_or_else(|| b.transient("output", fixed(shape.hidden())));
    // One byte an element, whatever the precision.
    let mask = shape.kind.hidden_dropout.then(|| b.tensor(names[1], fixed(shape.t * shape.h), Holds::Exact));
    let makes: Vec<_> = mask.into_iter().chain([output]).collect();
    b.op(
        names[0],
        Spec {
            reads: inputs,
            makes: &makes,
            saves: &makes[..makes.len() - 1],
            cost: Cost { memory: fixed(3 * shape.hidden()), ..Cost::default() },
            forward_work: fixed(shape.hidden()),
            backward_work: fixed(2 * shape.hidden()),
            ..Spec::default()
        },
    );
}
