//! Norm, attention and residual: the first half of every transformer layer.

use bagualu_core::layer::Group;

use super::builder::{Amount, Builder, Cost, Holds, Spec, fixed};
use super::{mla, qkv};
use crate::Attention;

/// Adds the first half of a layer; returns the residual after it.
pub(super) fn attention(b: &mut Builder<'_>) -> usize {
    let shape = b.shape;
    let input = b.tensor("input", fixed(shape.hidden()), Holds::Input);
    if shape.kind.hidden_dropout || shape.kind.attention_dropout {
        b.tensor("rng_state", fixed(RNG_STATE_BYTES), Holds::Input);
    }
    let normed = norm(b, ["ln1", "ln1_stats", "ln1_out"], input);
    let qkv = match &shape.mla {
        Some(mla) => mla::project(b, mla, normed),
        None => qkv::project(b, normed),
    };
    let context = core_attention(b, &qkv);
    projection(b, context, input)
}

/// Philox states of Megatron's default, data-, model- and expert-parallel generators.
pub(super) const RNG_STATE_BYTES: u128 = 4 * 16;

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

fn core_attention(b: &mut Builder<'_>, qkv: &[usize]) -> usize {
    match b.shape.kind.attention {
        Attention::Flash => flash(b, qkv),
        Attention::Unfused => unfused(b, qkv),
    }
}

/// Bytes of queries, keys and values as the kernel takes them: the unfused one repeats those of a group.
fn kernel_inputs(b: &Builder<'_>) -> Amount {
    let shape = b.shape;
    let columns = match shape.kind.attention {
        Attention::Unfused if shape.heads != shape.groups => 3 * shape.q,
        _ => shape.q + shape.k + shape.v,
    };
    fixed(shape.e * shape.s * columns)
}

/// Saves q, k, v, the output (shared with the projection) and the log-sum-exp of each row and head.
///
/// Under context parallel the rank's keys and values go round a ring: one block of keys and values is
/// saved, whose it is does not matter (Transformer Engine's `AttnFuncWithCPAndKVP2P`). Until the forward
/// ends, the blocks of all steps and the outputs for each of them are there too.
fn flash(b: &mut Builder<'_>, qkv: &[usize]) -> usize {
    let shape = b.shape;
    let context = fixed(shape.e * shape.s * shape.context);
    let lse = fixed(4 * shape.s * shape.heads);
    let block = shape.e * shape.s * (shape.k + shape.v);
    let ring = if shape.cp > 1 { shape.cp } else { 0 };
    let output = b.tensor("attn_out", context, Holds::Activations);
    let stats = b.tensor("attn_lse", lse, Holds::Exact);
    b.op(
        "core_attention",
        Spec {
            reads: qkv,
            makes: &[output, stats],
            saves: &[qkv, &[output, stats]].concat(),
            cost: Cost {
                // A causal mask leaves half of the products of queries and keys, and with values.
                attention: shape.s * shape.seq * (shape.q + shape.context),
                sent: fixed((shape.cp - 1) * block),
                ..Cost::default()
            },
            collective: (shape.cp > 1).then_some(Group::Cp),
            forward_work: fixed(ring * (block + shape.e * shape.s * shape.context)),
            // Gradients of q, k, v and of the output, the row sums, and the residual's gradient; in a
            // ring, two blocks on their way with their gradients.
            backward_work: fixed(shape.hidden() + if ring > 0 { 4 * block } else { 0 })
                + kernel_inputs(b)
                + context
                + lse,
        },
    );
    output
}

/// Saves q, k, v and the probabilities; with dropout its mask and the dropped probabilities too.
fn unfused(b: &mut Builder<'_>, qkv: &[usize]) -> usize {
    let shape = b.shape;
    let products = shape.heads * shape.s * shape.seq;
    let scores = fixed(shape.scores());
    let probabilities = b.tensor("attn_probs", scores, Holds::Activations);
    let output = b.tensor("attn_out", fixed(shape.e * shape.s * shape.context), Holds::Activations);
    // Both products run in full: the mask is added to the scores.
    let product =
        |columns| Cost { attention: 2 * shape.s * shape.seq * columns, memory: scores, ..Cost::default() };
    let backward_work = fixed(shape.hidden()) + kernel_inputs(b) + scores + scores;
    b.op(
        "attention_scores",
        Spec {
            reads: qkv,
            makes: &[probabilities],
            saves: &[qkv, &[probabilities]].concat(),
            cost: product(shape.q),
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
    let inputs = [qkv, &[applied]].concat();
    b.op(
        "core_attention",
        Spec {
            reads: &inputs,
            makes: &[output],
            saves: &inputs,
            cost: product(shape.context),
            // Of the scores only the gradient of the probabilities is there yet.
            backward_work: fixed(shape.hidden()) + kernel_inputs(b) + scores,
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
                gemm: 2 * shape.s * shape.context * shape.h,
                sent: fixed(shape.gather_work()),
                ..Cost::default()
            },
            collective: shape.tp.then_some(Group::Tp),
            forward_work: fixed(shape.hidden() + shape.gather_work()),
            backward_work: fixed(shape.hidden() + shape.gathered() + shape.e * shape.s * shape.context),
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
