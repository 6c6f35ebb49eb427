//! What the three losses keep, and what they need while they run.

mod common;

use bagualu_core::cost::LayerStorage;
use bagualu_model::{LayerType, Loss, Model, ModelConfig};
use common::{alone, build, small};

fn model(loss: Loss) -> Model {
    build(&ModelConfig { loss, ..small() }, &alone())
}

fn output(model: &Model) -> &LayerType {
    model.types.iter().find(|t| t.name == "output").expect("an output layer")
}

/// Bytes that the loss saves, all of which belong to the floor.
fn kept(model: &Model) -> u64 {
    let mut storage = LayerStorage::new();
    let kind = output(model);
    let layer = kind.model().at(0, &model.device.rooflines(), &mut storage).expect("a layer");
    let saves = kind.ops[kind.op("loss").expect("a loss")].saves;
    assert!(saves.iter().all(|t| layer.block_inputs().contains(t)));
    saves.iter().map(|t| kind.tensors[t].bytes.fixed).sum()
}

/// Tokens and rows of the padded vocabulary.
const LOGITS: u64 = 64 * 1_024;

#[test]
fn megatron_s_losses_keep_fp32_probabilities_and_the_target() {
    // FP32; an int64 column, a mask of a byte and the FP32 loss of each token (`cross_entropy.py`).
    assert_eq!(kept(&model(Loss::Unfused)), 4 * LOGITS + 13 * 64);
    assert_eq!(kept(&model(Loss::Native)), kept(&model(Loss::Unfused)));
}

#[test]
fn transformer_engine_s_keeps_the_gradient_in_place_of_the_logits() {
    assert_eq!(kept(&model(Loss::TransformerEngine)), 2 * LOGITS + 4 * 64);
}

#[test]
fn fused_losses_take_less_time_and_a_compiled_backward_a_copy() {
    let [unfused, native, te] = [Loss::Unfused, Loss::Native, Loss::TransformerEngine].map(|loss| {
        let model = model(loss);
        let kind = output(&model);
        let op = kind.ops[kind.op("loss").expect("a loss")];
        (op.forward.fixed_ns, op.forward_work.fixed, op.backward_work.fixed)
    });
    // The BF16 logits beside their FP32 copy, and their gradient beside the FP32 one.
    assert_eq!((unfused.1, unfused.2), (2 * LOGITS, 2 * LOGITS));
    // Compiled, what subtracts the target's element writes to an FP32 copy.
    assert_eq!((native.1, native.2), (2 * LOGITS, (2 + 4) * LOGITS));
    assert_eq!((te.1, te.2), (0, 0));
    assert!(te.0 < native.0 && native.0 < unfused.0, "{te:?} {native:?} {unfused:?}");
}
