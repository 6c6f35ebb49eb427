//! Router, dispatch, experts, combine and shared expert: the second half of a MoE layer.
//!
//! N is the rows that this rank's experts receive, after the gather over expert tensor parallel. The
//! router's probabilities are folded into the activation, so fc2's output and what combine moves are
//! saved by nobody.

use bagualu_core::layer::Group;

use super::attention::{add, norm};
use super::builder::{Amount, Builder, Cost, Holds, Spec, fixed, rows};
use super::mlp::{Names, factors, mlp};
use crate::shape::{MoeShape, Shape};
use crate::{PermuteIndices, Precision, RouterInput};

/// Adds norm, shared expert, routed experts and residual; without experts in the shape, nothing.
pub(super) fn experts(b: &mut Builder<'_>, residual: usize) {
    let shape = b.shape;
    let Some(moe) = &shape.moe else { return };
    let normed = norm(b, ["ln2", "ln2_stats", "ln2_out"], residual);
    // Megatron runs the shared expert first, so its output is there while the experts run.
    let shared = (moe.shared > 0).then(|| shared_expert(b, moe, normed));
    let part = Part { shape, moe, standing: if shared.is_some() { shape.hidden() } else { 0 } };
    let map = part.router(b, normed);
    let routed = part.latent_down(b, normed);
    let (indices, permuted) = part.permute(b, routed, map);
    let (input, probabilities) = part.dispatch(b, permuted);
    let output = part.grouped_mlp(b, input, probabilities);
    let output = part.combine(b, output, indices);
    let output = part.latent_up(b, output);
    let inputs: Vec<_> = [output, residual].into_iter().chain(shared).collect();
    add(b, ["mlp_add", "mlp_mask"], &inputs, None);
}

fn shared_expert(b: &mut Builder<'_>, moe: &MoeShape, input: usize) -> usize {
    let names = Names {
        fc1: "shared_fc1",
        fc1_out: "shared_fc1_out",
        act: "shared_act",
        factors: ["shared_act_gate", "shared_act_linear"],
        act_out: "shared_act_out",
        fc2: "shared_fc2",
        output: "shared_out",
        output_saved: moe.shared_gate,
    };
    let output = mlp(b, names, input, moe.shared);
    if moe.shared_gate { gate(b, input, output) } else { output }
}

/// Weights the shared expert's output by a sigmoid of the tokens, a factor that is saved beside it.
fn gate(b: &mut Builder<'_>, input: usize, output: usize) -> usize {
    let shape = b.shape;
    let hidden = fixed(shape.hidden());
    let score = b.tensor("shared_gate_score", fixed(shape.e * shape.t), Holds::Exact);
    let gated = b.transient("shared_gated", hidden);
    b.op(
        "shared_gate",
        Spec {
            reads: &[input, output],
            makes: &[score, gated],
            saves: &[input, output, score],
            cost: Cost { memory: hidden + hidden + hidden, ..Cost::default() },
            forward_work: hidden,
            backward_work: hidden + hidden + hidden,
            ..Spec::default()
        },
    );
    gated
}

/// The routed part of the layer.
struct Part<'a> {
    shape: &'a Shape,
    moe: &'a MoeShape,
    /// Bytes that stand beside every operator of the part: the shared expert's output.
    standing: u128,
}

impl Part<'_> {
    /// Work beside what stands anyway.
    fn forward(&self, work: Amount) -> Amount {
        fixed(self.standing) + work
    }

    /// Work beside the gradient of the residual.
    fn backward(&self, work: Amount) -> Amount {
        fixed(self.shape.hidden()) + work
    }

    /// Bytes of the rank's own tokens, one copy for each of their k experts.
    fn copies(&self) -> Amount {
        fixed(self.shape.e * self.moe.sent() * self.moe.width)
    }

    /// Bytes of the received rows, before the gather over expert tensor parallel.
    fn received(&self) -> Amount {
        rows((self.shape.e * self.moe.width).div_ceil(self.moe.etp))
    }

    /// Bytes of the rows that the experts run on.
    fn gathered(&self) -> Amount {
        rows(self.shape.e * self.moe.width)
    }

    /// Gate and top-k; returns the routing map.
    fn router(&self, b: &mut Builder<'_>, normed: usize) -> usize {
        let (shape, moe) = (self.shape, self.moe);
        let table = shape.t * moe.experts;
        let saved = match moe.router_input {
            RouterInput::Shared => normed,
            RouterInput::Fp32Copy => fp32_copy(b, normed),
        };
        let scores = b.tensor("router_scores", fixed(4 * table), Holds::Exact);
        // int64 index, FP32 probability and their gradient's index: (8 + 4 + 8)·T·k.
        let top_k = b.tensor("top_k", fixed(20 * moe.routed), Holds::Input);
        let map = b.tensor("routing_map", fixed(table), Holds::Input);
        b.op(
            "router",
            Spec {
                reads: &[saved],
                makes: &[scores, top_k, map],
                saves: &[saved, scores],
                cost: Cost {
                    gemm: 2 * shape.t * shape.h * moe.experts,
                    memory: fixed(16 * table),
                    ..Cost::default()
                },
                // FP32 input, logits and the table of probabilities.
                forward_work: self.forward(fixed(4 * shape.t * shape.h + 8 * table)),
                backward_work: self.backward(fixed(4 * shape.t * shape.h + shape.hidden() + 8 * table)),
                ..Spec::default()
            },
        );
        map
    }

    /// The projection to the latent that experts run on (`--moe-latent-size`); without it, the input.
    fn latent_down(&self, b: &mut Builder<'_>, normed: usize) -> usize {
        if self.moe.width == self.shape.h {
            return normed;
        }
        let latent = b.transient("latent", self.latent());
        self.latent_projection(b, "latent_down", normed, latent);
        latent
    }

    /// The projection back from the latent.
    fn latent_up(&self, b: &mut Builder<'_>, output: usize) -> usize {
        if self.moe.width == self.shape.h {
            return output;
        }
        let up = b.transient("latent_up_out", fixed(self.shape.hidden()));
        self.latent_projection(b, "latent_up", output, up);
        up
    }

    fn latent_projection(&self, b: &mut Builder<'_>, name: &'static str, input: usize, output: usize) {
        let both = fixed(self.shape.hidden()) + self.latent();
        b.op(
            name,
            Spec {
                reads: &[input],
                makes: &[output],
                saves: &[input],
                cost: Cost { gemm: 2 * self.shape.t * self.shape.h * self.moe.width, ..Cost::default() },
                forward_work: self.forward(both),
                backward_work: self.backward(both),
                ..Spec::default()
            },
        );
    }

    /// Bytes of the rank's own tokens in the width of the experts' rows.
    fn latent(&self) -> Amount {
        fixed(self.shape.e * self.shape.t * self.moe.width)
    }

    /// Sorts the copies of the rank's tokens by expert; returns the indices and the copies.
    fn permute(&self, b: &mut Builder<'_>, normed: usize, map: usize) -> (usize, usize) {
        let (shape, moe) = (self.shape, self.moe);
        let pinned = match moe.permute_indices {
            // Padded, the slice is copied.
            _ if moe.pads() => 0,
            PermuteIndices::Sliced => 0,
            PermuteIndices::PinsArgsort => 8 * shape.t * moe.experts,
        };
        let indices = b.tensor("permute_indices", fixed(8 * moe.sent() + pinned), Holds::Exact);
        b.op(
            "permute_map",
            Spec {
                reads: &[map],
                makes: &[indices],
                cost: Cost { memory: fixed(16 * shape.t * moe.experts), ..Cost::default() },
                forward_work: self.forward(fixed(8 * shape.t * moe.experts)),
                ..Spec::default()
            },
        );
        let permuted = b.transient("permuted", self.copies());
        b.op(
            "permute",
            Spec {
                reads: &[normed, indices],
                makes: &[permuted],
                saves: &[indices],
                cost: Cost { memory: self.copies() + self.copies(), ..Cost::default() },
                forward_work: self.forward(self.copies()),
                backward_work: self.backward(self.copies() + self.latent()),
                ..Spec::default()
            },
        );
        (indices, permuted)
    }

    /// All-to-all, gather over expert tensor parallel, sort by local expert; returns fc1's input and the
    /// probabilities of its rows. The last of the three makes those; what the others make is transient.
    fn dispatch(&self, b: &mut Builder<'_>, permuted: usize) -> (usize, usize) {
        let input = b.tensor("expert_input", self.gathered(), Holds::Activations);
        let probabilities = b.tensor("expert_probs", rows(self.probability_bytes()), Holds::Exact);
        b.routed(&[input, probabilities]);
        let (sort, gather) = (self.moe.local > 1, self.moe.etp > 1);
        let makes = |b: &mut Builder<'_>, name, bytes, last: bool| match last {
            true => (vec![input, probabilities], Amount::default()),
            false => (vec![b.transient(name, bytes)], bytes),
        };
        let (mut rows, work) = makes(b, "received", self.received(), !sort && !gather);
        b.op(
            "dispatch",
            Spec {
                reads: &[permuted],
                makes: &rows,
                forward_work: self.forward(self.copies() + work),
                backward_work: self.backward(self.copies() + self.received()),
                ..self.exchange()
            },
        );
        if gather {
            let (gathered, work) = makes(b, "gathered", self.gathered(), !sort);
            b.op(
                "etp_gather",
                Spec {
                    reads: &rows,
                    makes: &gathered,
                    cost: Cost { sent: self.gathered(), ..Cost::default() },
                    collective: Some(Group::Tp),
                    forward_work: self.forward(self.received() + work),
                    backward_work: self.backward(self.received() + self.gathered()),
                    ..Spec::default()
                },
            );
            rows = gathered;
        }
        if sort {
            b.op(
                "sort",
                Spec {
                    reads: &rows,
                    makes: &[input, probabilities],
                    forward_work: self.forward(self.gathered()),
                    ..self.copy(self.gathered())
                },
            );
        }
        (input, probabilities)
    }

    /// The all-to-all of dispatch or combine: none without expert parallel. It is priced by the rows that
    /// the rank's experts receive, which are those of a hot rank; one that receives less waits for it.
    fn exchange(&self) -> Spec<'static> {
        if self.moe.ep == 1 {
            return Spec::default();
        }
        let cost = Cost { sent: self.received(), ..Cost::default() };
        Spec { cost, collective: Some(Group::Ep), ..Spec::default() }
    }

    /// A kernel that copies `bytes` into another order, and their gradients back.
    fn copy(&self, bytes: Amount) -> Spec<'static> {
        Spec {
            cost: Cost { memory: bytes + bytes, ..Cost::default() },
            forward_work: self.forward(bytes + bytes),
            backward_work: self.backward(bytes + bytes),
            ..Spec::default()
        }
    }

    /// Bytes of the probability that a row carries to its expert: 2 in BF16, 4 with `--moe-router-dtype fp32`.
    /// Runs with experts on several ranks are taken to have that flag: at most 2 bytes a row too much.
    fn probability_bytes(&self) -> u128 {
        let alone = self.moe.ep * self.moe.etp == 1;
        if alone && self.shape.kind.precision == Precision::Bf16 { 2 } else { 4 }
    }

    /// The experts' own MLP: no collective, so recomputing it is a local decision.
    fn grouped_mlp(&self, b: &mut Builder<'_>, input: usize, probabilities: usize) -> usize {
        let (shape, moe) = (self.shape, self.moe);
        let inner = rows(shape.e * moe.f);
        let wide = rows(shape.e * shape.glu * moe.f);
        let fc1_out = b.tensor("fc1_out", wide, Holds::Activations);
        let mut factors = factors(b, ["act_gate", "act_linear"], inner);
        if !shape.kind.fused_activation {
            // The activation before it is multiplied by the row's probability.
            factors.push(b.tensor("act_unweighted", inner, Holds::Activations));
        }
        let act_out = b.tensor("act_out", inner, Holds::Activations);
        let output = b.transient("fc2_out", self.gathered());
        b.routed(&[&factors[..], &[fc1_out, act_out]].concat());
        let first = b.op_count();
        b.op(
            "fc1",
            Spec {
                reads: &[input],
                makes: &[fc1_out],
                saves: &[input],
                cost: Cost { grouped: 2 * moe.width * shape.glu * moe.f, ..Cost::default() },
                forward_work: self.forward(Amount::default()),
                backward_work: self.backward(wide + self.gathered()),
                ..Spec::default()
            },
        );
        b.op(
            "act",
            Spec {
                reads: &[fc1_out, probabilities],
                makes: &[&factors[..], &[act_out]].concat(),
                saves: &[&factors[..], &[fc1_out, probabilities]].concat(),
                cost: Cost { memory: wide + inner, ..Cost::default() },
                forward_work: self.forward(Amount::default()),
                backward_work: self.backward(factors.iter().fold(wide + inner, |sum, _| sum + inner)),
                ..Spec::default()
            },
        );
        b.op(
            "fc2",
            Spec {
                reads: &[act_out],
                makes: &[output],
                saves: &[act_out],
                cost: Cost { grouped: 2 * moe.f * moe.width, ..Cost::default() },
                forward_work: self.forward(self.gathered()),
                backward_work: self.backward(self.gathered() + inner),
                ..Spec::default()
            },
        );
        b.experts_since(first);
        output
    }

    /// The way back: sort by source, reduce over expert tensor parallel, all-to-all, sum over the k copies.
    fn combine(&self, b: &mut Builder<'_>, output: usize, indices: usize) -> usize {
        let shape = self.shape;
        let mut source = output;
        if self.moe.local > 1 {
            let unsorted = b.transient("unsorted", self.gathered());
            b.op("unsort", Spec { reads: &[source], makes: &[unsorted], ..self.copy(self.gathered()) });
            source = unsorted;
        }
        if self.moe.etp > 1 {
            let scattered = b.transient("scattered", self.received());
            b.op(
                "etp_scatter",
                Spec {
                    reads: &[source],
                    makes: &[scattered],
                    cost: Cost { sent: self.gathered(), ..Cost::default() },
                    collective: Some(Group::Tp),
                    forward_work: self.forward(self.received() + self.gathered()),
                    backward_work: self.backward(self.received() + self.gathered()),
                    ..Spec::default()
                },
            );
            source = scattered;
        }
        let combined = b.transient("combined", self.copies());
        b.op(
            "combine",
            Spec {
                reads: &[source],
                makes: &[combined],
                forward_work: self.forward(self.copies() + self.received()),
                backward_work: self.backward(self.copies() + self.received()),
                ..self.exchange()
            },
        );
        // Saved by the projection back from the latent, by nobody without it.
        let moe_out = match self.moe.width == shape.h {
            true => b.transient("moe_out", fixed(shape.hidden())),
            false => b.tensor("moe_out", self.latent(), Holds::Activations),
        };
        b.op(
            "unpermute",
            Spec {
                reads: &[combined, indices],
                makes: &[moe_out],
                saves: &[indices],
                cost: Cost { memory: self.copies() + self.copies(), ..Cost::default() },
                forward_work: self.forward(self.copies() + self.latent()),
                backward_work: self.backward(self.copies()),
                ..Spec::default()
            },
        );
        moe_out
    }
}

/// The router's own copy of its input.
fn fp32_copy(b: &mut Builder<'_>, normed: usize) -> usize {
    let shape = b.shape;
    let bytes = fixed(4 * shape.t * shape.h);
    let copy = b.tensor("router_input", bytes, Holds::Exact);
    b.copy_of(copy, normed);
    b.op(
        "router_cast",
        Spec {
            reads: &[normed],
            makes: &[copy],
            cost: Cost { memory: bytes + fixed(shape.hidden()), ..Cost::default() },
            forward_work: fixed(shape.hidden()),
            backward_work: fixed(2 * shape.hidden()) + bytes,
            ..Spec::default()
        },
    );
    copy
}
