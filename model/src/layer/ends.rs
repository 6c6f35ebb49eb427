//! The ends of the pipeline: embedding, and final norm with output layer and loss.

use bagualu_core::layer::Group;

use super::attention::norm;
use super::builder::{Builder, Cost, Holds, Spec, fixed};
use crate::Loss;

/// Adds the vocabulary-parallel embedding. Its output is the first layer's input and counted there.
pub(super) fn embedding(b: &mut Builder<'_>) {
    let shape = b.shape;
    // int64 tokens, and positions where they are learned: kept by the data loader's batch either way.
    let tokens = b.tensor("tokens", fixed(2 * 8 * shape.s), Holds::Input);
    let output = b.transient("embedding_out", fixed(shape.hidden()));
    lookup(b, tokens, output);
}

/// Adds the lookup of `tokens`, which makes `output`.
pub(super) fn lookup(b: &mut Builder<'_>, tokens: usize, output: usize) {
    let shape = b.shape;
    let mask =
        shape.kind.hidden_dropout.then(|| b.tensor("embedding_mask", fixed(shape.t * shape.h), Holds::Exact));
    let makes: Vec<_> = mask.into_iter().chain([output]).collect();
    b.op(
        "embedding",
        Spec {
            reads: &[tokens],
            makes: &makes,
            saves: &makes[..makes.len() - 1],
            cost: Cost {
                memory: fixed(2 * shape.gathered()),
                sent: fixed(shape.gather_work()),
                ..Cost::default()
            },
            collective: shape.tp.then_some(Group::Tp),
            forward_work: fixed(shape.hidden() + shape.gathered()),
            backward_work: fixed(shape.hidden() + shape.gathered()),
        },
    );
}

/// Adds final norm, vocabulary-parallel output layer and loss.
pub(super) fn output(b: &mut Builder<'_>) {
    let input = b.tensor("input", fixed(b.shape.hidden()), Holds::Input);
    let normed = norm(b, ["final_norm", "final_norm_stats", "final_norm_out"], input);
    logits_and_loss(b, normed);
}

/// Adds output layer and loss on their own: those of the model and of each depth of multi-token prediction.
pub(super) fn head(b: &mut Builder<'_>) {
    let input = b.tensor("input", fixed(b.shape.hidden()), Holds::Input);
    logits_and_loss(b, input);
}

fn logits_and_loss(b: &mut Builder<'_>, input: usize) {
    let shape = b.shape;
    let logits_bytes = fixed(shape.e * shape.s * shape.vocab);
    let logits = b.transient("logits", logits_bytes);
    b.op(
        "output",
        Spec {
            reads: &[input],
            makes: &[logits],
            saves: &[input],
            cost: Cost {
                gemm: 2 * shape.s * shape.h * shape.vocab,
                sent: fixed(shape.gather_work()),
                ..Cost::default()
            },
            collective: shape.tp.then_some(Group::Tp),
            forward_work: logits_bytes + fixed(shape.gather_work()),
            backward_work: logits_bytes + fixed(shape.gather_work() + shape.gathered()),
        },
    );
    match shape.kind.loss {
        Loss::Unfused => softmax_loss(b, logits, UNFUSED_PASSES, 0),
        Loss::Native => softmax_loss(b, logits, NATIVE_PASSES, 4 * shape.s * shape.vocab),
        Loss::TransformerEngine => in_place_loss(b, logits),
    }
}

/// Passes over the FP32 logits that the loss's kernels are priced at.
const UNFUSED_PASSES: u128 = 3;
/// The same for Megatron's fused kernels, of which the first takes the maximum, the second the exponentials and
/// their sum.
const NATIVE_PASSES: u128 = 2;

/// The loss of Megatron's `cross_entropy.py`, and of `fused_cross_entropy.py`, which has fewer kernels.
///
/// Both work in place on one FP32 copy of the logits, which backward needs: it is kept whatever the
/// strategies, and belongs to the floor. The backward of the fused one is compiled, and there what subtracts the
/// target's element writes to a copy (`copied` bytes) of it.
fn softmax_loss(b: &mut Builder<'_>, logits: usize, passes: u128, copied: u128) {
    let shape = b.shape;
    let logits_bytes = fixed(shape.e * shape.s * shape.vocab);
    let softmax = b.tensor("loss_softmax", fixed(4 * shape.s * shape.vocab), Holds::Input);
    // The target's column and mask of each token, and the loss itself.
    let target = b.tensor("loss_target", fixed((8 + 1 + 4) * shape.s), Holds::Input);
    b.op(
        "loss",
        Spec {
            reads: &[logits],
            makes: &[softmax, target],
            saves: &[softmax, target],
            cost: Cost { memory: fixed(passes * 4 * shape.s * shape.vocab), ..Cost::default() },
            collective: shape.tp.then_some(Group::Tp),
            forward_work: logits_bytes,
            // The gradient in the parameters' type, beside the FP32 one made in place.
            backward_work: logits_bytes + fixed(copied),
        },
    );
}

/// Transformer Engine's loss writes the gradient over the logits in forward: nothing else is kept but the loss,
/// and backward only scales it.
fn in_place_loss(b: &mut Builder<'_>, logits: usize) {
    let shape = b.shape;
    let logits_bytes = fixed(shape.e * shape.s * shape.vocab);
    let gradient = b.tensor("loss_gradient", logits_bytes, Holds::Input);
    let loss = b.tensor("loss", fixed(4 * shape.s), Holds::Input);
    b.op(
        "loss",
        Spec {
            reads: &[logits],
            makes: &[gradient, loss],
            saves: &[gradient, loss],
            // Read for the sums of exponentials, read and written for the gradient.
            cost: Cost { memory: logits_bytes + logits_bytes + logits_bytes, ..Cost::default() },
            collective: shape.tp.then_some(Group::Tp),
            ..Spec::default()
        },
    );
}
