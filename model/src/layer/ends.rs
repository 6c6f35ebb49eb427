//! The ends of the pipeline: embedding, and final norm with output layer and loss.

use bagualu_core::layer::Group;

use super::attention::norm;
use super::builder::{Builder, Cost, Holds, Spec, fixed};

/// Adds the vocabulary-parallel embedding. Its output is the first layer's input and counted there.
pub(super) fn embedding(b: &mut Builder<'_>) {
    let shape = b.shape;
    // int64 tokens, and positions where they are learned: kept by the data loader's batch either way.
    let tokens = b.tensor("tokens", fixed(2 * 8 * shape.s), Holds::Input);
    let output = b.transient("embedding_out", fixed(shape.hidden()));
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
///
/// The loss works in place on one FP32 copy of the logits, which backward needs: it is kept whatever the
/// strategies, and belongs to the floor.
pub(super) fn output(b: &mut Builder<'_>) {
    let shape = b.shape;
    let input = b.tensor("input", fixed(shape.hidden()), Holds::Input);
    let normed = norm(b, ["final_norm", "final_norm_stats", "final_norm_out"], input);
    let logits_bytes = fixed(shape.e * shape.s * shape.vocab);
    let logits = b.transient("logits", logits_bytes);
    b.op(
        "output",
        Spec {
            reads: &[normed],
            makes: &[logits],
            saves: &[normed],
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
    let softmax = b.tensor("loss_softmax", fixed(4 * shape.s * shape.vocab), Holds::Input);
    // The target's column and mask of each token, and the loss itself.
    let target = b.tensor("loss_target", fixed((8 + 1 + 4) * shape.s), Holds::Input);
    b.op(
        "loss",
        Spec {
            reads: &[logits],
            makes: &[softmax, target],
            saves: &[softmax, target],
            cost: Cost { memory: fixed(3 * 4 * shape.s * shape.vocab), ..Cost::default() },
            collective: shape.tp.then_some(Group::Tp),
            forward_work: logits_bytes,
            // The gradient in the parameters' type, beside the FP32 one made in place.
            backward_work: logits_bytes,
        },
    );
}
