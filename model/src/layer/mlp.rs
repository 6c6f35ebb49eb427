//! The MLP on all tokens: the dense layer's, and the shared expert's.

use bagualu_core::layer::Group;

use super::attention::{add, norm};
use super::builder::{Amount, Builder, Cost, Holds, Spec, fixed};

/// Adds norm, dense MLP and residual: the second half of a dense layer.
pub(super) fn dense(b: &mut Builder<'_>, residual: usize) {
    let normed = norm(b, ["ln2", "ln2_stats", "ln2_out"], residual);
    let names = Names {
        fc1: "fc1",
        fc1_out: "fc1_out",
        act: "act",
        factors: ["act_gate", "act_linear"],
        act_out: "act_out",
        fc2: "fc2",
        output: "mlp_out",
        output_saved: false,
    };
    let output = mlp(b, names, normed, b.shape.ffn);
    add(b, ["mlp_add", "mlp_mask"], &[output, residual], None);
}

/// Names of an MLP's operators and tensors.
pub(super) struct Names {
    pub fc1: &'static str,
    pub fc1_out: &'static str,
    pub act: &'static str,
    pub factors: [&'static str; 2],
    pub act_out: &'static str,
    pub fc2: &'static str,
    pub output: &'static str,
    /// Whether the operator behind it saves the output.
    pub output_saved: bool,
}

/// Adds fc1, activation and fc2 on all tokens, split over the tensor-parallel ranks; returns the output.
pub(super) fn mlp(b: &mut Builder<'_>, names: Names, input: usize, columns: u128) -> usize {
    let shape = b.shape;
    let inner = shape.e * shape.s * columns;
    let collective = shape.tp.then_some(Group::Tp);
    let fc1_out = b.tensor(names.fc1_out, fixed(shape.glu * inner), Holds::Activations);
    b.op(
        names.fc1,
        Spec {
            reads: &[input],
            makes: &[fc1_out],
            saves: &[input],
            cost: Cost {
                gemm: 2 * shape.s * shape.h * shape.glu * columns,
                sent: fixed(shape.gather_work()),
                ..Cost::default()
            },
            collective,
            forward_work: fixed(shape.gather_work()),
            backward_work: fixed(shape.hidden() + shape.gather_work() + shape.gathered() + shape.glu * inner),
        },
    );
    let factors = factors(b, names.factors, fixed(inner));
    let act_out = b.tensor(names.act_out, fixed(inner), Holds::Activations);
    b.op(
        names.act,
        Spec {
            reads: &[fc1_out],
            makes: &[&factors[..], &[act_out]].concat(),
            saves: &[&factors[..], &[fc1_out]].concat(),
            cost: Cost { memory: fixed((shape.glu + 1) * inner), ..Cost::default() },
            backward_work: fixed(shape.hidden() + (shape.glu + 1 + factors.len() as u128) * inner),
            ..Spec::default()
        },
    );
    let output = match names.output_saved {
        true => b.tensor(names.output, fixed(shape.hidden()), Holds::Activations),
        false => b.transient(names.output, fixed(shape.hidden())),
    };
    b.op(
        names.fc2,
        Spec {
            reads: &[act_out],
            makes: &[output],
            saves: &[act_out],
            cost: Cost {
                gemm: 2 * shape.s * columns * shape.h,
                sent: fixed(shape.gather_work()),
                ..Cost::default()
            },
            collective,
            forward_work: fixed(shape.hidden() + shape.gather_work()),
            backward_work: fixed(shape.hidden() + shape.gathered() + inner),
        },
    );
    output
}

/// Adds what an activation that is not one kernel saves beside its input: the two factors of a gated one.
/// (The second is a tensor of its own since Megatron adds an offset to it.)
pub(super) fn factors(b: &mut Builder<'_>, names: [&'static str; 2], bytes: Amount) -> Vec<usize> {
    match (b.shape.kind.fused_activation, b.shape.glu) {
        (false, 2) => names.iter().map(|&name| b.tensor(name, bytes, Holds::Activations)).collect(),
        _ => Vec::new(),
    }
}
