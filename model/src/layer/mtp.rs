//! Multi-token prediction (Megatron's `multi_token_prediction.py`).
//!
//! Each depth is a layer of the type `mtp`, which joins the hidden state before it with the embedding of the
//! next token, a transformer layer of the model's last kind and a `final_norm`; then it has a `head` of its
//! own. Megatron concatenates the last layer's output and that of all depths before the output layer, which
//! saves the copy: that is the input of the heads.

use bagualu_core::layer::Group;

use super::attention::{RNG_STATE_BYTES, norm};
use super::builder::{Builder, Cost, Holds, Spec, fixed};
use super::ends::lookup;

/// Adds the joint of hidden state and embedding: a norm of each, and a projection from 2h to h. Its output is
/// the transformer layer's input and counted there.
pub(super) fn mtp(b: &mut Builder<'_>) {
    let shape = b.shape;
    // The normed output of the depth before, which this norm saves.
    let input = b.tensor("input", fixed(shape.hidden()), Holds::Input);
    // int64 tokens, shifted by one more: a copy of each depth.
    let tokens = b.tensor("tokens", fixed(8 * shape.s), Holds::Input);
    if shape.kind.hidden_dropout {
        b.tensor("rng_state", fixed(RNG_STATE_BYTES), Holds::Input);
    }
    let embedded = b.tensor("embedding_out", fixed(shape.hidden()), Holds::Activations);
    lookup(b, tokens, embedded);
    let embedded = norm(b, ["enorm", "enorm_stats", "enorm_out"], embedded);
    let hidden = norm(b, ["hnorm", "hnorm_stats", "hnorm_out"], input);
    let joined = b.tensor("eh_input", fixed(2 * shape.hidden()), Holds::Activations);
    b.op(
        "eh_concat",
        Spec {
            reads: &[embedded, hidden],
            makes: &[joined],
            cost: Cost { memory: fixed(4 * shape.hidden()), ..Cost::default() },
            // Both norms' outputs; in backward their gradients beside that of the two.
            forward_work: fixed(2 * shape.hidden()),
            backward_work: fixed(4 * shape.hidden()),
            ..Spec::default()
        },
    );
    projection(b, joined);
}

/// The columns of each rank are gathered, and then the tokens scattered again under sequence parallel.
fn projection(b: &mut Builder<'_>, joined: usize) {
    let shape = b.shape;
    let output = b.transient("mtp_hidden", fixed(shape.hidden()));
    // The rank's tokens are a view of all of them, which the transformer layer's input so keeps.
    let others = (shape.t < shape.s)
        .then(|| b.tensor("mtp_hidden_others", fixed(shape.gathered() - shape.hidden()), Holds::Input));
    let makes: Vec<_> = others.into_iter().chain([output]).collect();
    let columns = shape.gathered() / shape.tp_ranks;
    let gathered = if shape.tp { shape.gathered() + columns } else { 0 };
    b.op(
        "eh_proj",
        Spec {
            reads: &[joined],
            makes: &makes,
            saves: &[joined],
            cost: Cost {
                gemm: 2 * shape.s * 2 * shape.h * shape.h / shape.tp_ranks,
                sent: fixed(3 * shape.gather_work()),
                ..Cost::default()
            },
            collective: shape.tp.then_some(Group::Tp),
            forward_work: fixed(shape.hidden() + 2 * shape.gather_work() + gathered),
            // The gathered input and the gradient of it, the output's gradient, the input's gradient.
            backward_work: fixed(
                shape.hidden()
                    + 2 * shape.gather_work()
                    + 2 * shape.gathered()
                    + gathered
                    + 2 * shape.hidden(),
            ),
        },
    );
}

/// Adds the norm behind the last layer or behind a depth, and its share of the concatenation.
pub(super) fn final_norm(b: &mut Builder<'_>) {
    let shape = b.shape;
    let input = b.tensor("input", fixed(shape.hidden()), Holds::Input);
    let normed = norm(b, ["final_norm", "final_norm_stats", "final_norm_out"], input);
    let output = b.transient("output", fixed(shape.hidden()));
    b.op(
        "mtp_concat",
        Spec {
            reads: &[normed],
            makes: &[output],
            cost: Cost { memory: fixed(2 * shape.hidden()), ..Cost::default() },
            forward_work: fixed(2 * shape.hidden()),
            backward_work: fixed(2 * shape.hidden()),
            ..Spec::default()
        },
    );
}
