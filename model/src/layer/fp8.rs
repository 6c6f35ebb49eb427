//! What is stored in FP8: the inputs of linear layers in FP8 training, and fc1's output for the activation
//! (`--activation-func-fp8-input-store`).
//!
//! Transformer Engine saves of a linear layer's input the one orientation that its weight gradient reads, beside
//! nothing where nobody else saves the input itself. Where somebody does (core attention and the router save in
//! BF16), the FP8 copy comes on top: FP8 then *costs* memory. Megatron avoids that for attention's projection and
//! the shared expert (`set_save_original_input`), but not with delayed scaling.

use bagualu_core::cost::Bytes;
use bagualu_core::set::Set;

use super::LayerType;
use super::builder::Amount;
use crate::Fp8Recipe;
use crate::assumptions::{FP8_BLOCK, MXFP8_BLOCK};

/// A linear layer of Transformer Engine.
#[derive(Clone, Copy)]
pub(super) struct Linear {
    /// Its operator.
    pub op: &'static str,
    /// The operator that casts its input.
    pub cast: &'static str,
    /// The FP8 copy.
    pub copy: &'static str,
    /// Whether Megatron has it save its input itself where scaling is not delayed.
    pub original: bool,
}

const fn linear(op: &'static str, cast: &'static str, copy: &'static str) -> Linear {
    Linear { op, cast, copy, original: false }
}

const fn original(op: &'static str, cast: &'static str, copy: &'static str) -> Linear {
    Linear { original: true, ..linear(op, cast, copy) }
}

/// The linear layers that run in FP8. Router, gates and output layer do not.
const LINEARS: [Linear; 14] = [
    linear("qkv", "cast_qkv", "ln1_out_fp8"),
    // Two layers read the norm's output, and each casts its own copy.
    linear("q_proj", "cast_q_proj", "ln1_out_fp8_q"),
    linear("q_down", "cast_q_down", "ln1_out_fp8_q"),
    linear("kv_down", "cast_kv_down", "ln1_out_fp8_kv"),
    linear("q_up", "cast_q_up", "q_latent_fp8"),
    linear("kv_up", "cast_kv_up", "kv_latent_fp8"),
    original("proj", "cast_proj", "attn_out_fp8"),
    linear("fc1", "cast_fc1", "fc1_input_fp8"),
    linear("fc2", "cast_fc2", "act_out_fp8"),
    original("shared_fc1", "shared_cast_fc1", "shared_input_fp8"),
    linear("shared_fc2", "shared_cast_fc2", "shared_act_out_fp8"),
    linear("latent_down", "cast_latent_down", "latent_input_fp8"),
    linear("latent_up", "cast_latent_up", "moe_out_fp8"),
    // Joined under an FP8 context of its own (`multi_token_prediction.py`).
    linear("eh_proj", "cast_eh_proj", "eh_input_fp8"),
];

/// Whether an operator is one that casts to FP8.
pub(crate) fn is_cast(op: &str) -> bool {
    LINEARS.iter().any(|linear| linear.cast == op)
}

/// Whether a tensor is in FP8.
pub(crate) fn is_copy(tensor: &str) -> bool {
    LINEARS.iter().any(|linear| linear.copy == tensor) || STORED.iter().any(|(_, copy)| *copy == tensor)
}

/// The linear layer that an operator is.
pub(super) fn named(op: &str) -> Option<&'static Linear> {
    LINEARS.iter().find(|linear| linear.op == op)
}

/// Activations, and the FP8 copy of fc1's output that each saves.
const STORED: [(&str, &str); 2] = [("act", "fc1_out_fp8"), ("shared_act", "shared_fc1_out_fp8")];

/// The FP8 copy of fc1's output that an activation saves.
pub(super) fn stored(op: &str) -> Option<&'static str> {
    STORED.iter().find(|(activation, _)| *activation == op).map(|(_, copy)| *copy)
}

impl LayerType {
    /// The layer with linear layer `op` saving its input itself, where it saves an FP8 copy otherwise: what
    /// Megatron's `set_save_original_input` makes of it. Tensors and operators keep their places.
    pub(crate) fn saving_original_input(&self, op: &str) -> Option<Self> {
        let linear = named(op)?;
        let (at, cast) = (self.op(op)?, self.op(linear.cast)?);
        let copy = self.tensor(linear.copy)?;
        let input = usize::from(self.tensors[copy].source?);
        let mut layer = self.clone();
        if !self.ops.iter().any(|op| op.saves.contains(input)) {
            // It was work as long as nobody saved it.
            let made = self.ops.iter().position(|op| op.makes.contains(input)).unwrap_or(0);
            for op in &mut layer.ops[made..=cast] {
                op.forward_work = less(op.forward_work, self.tensors[input].bytes);
            }
        }
        // Cast in forward and again in backward, and gone behind each.
        let bytes = self.tensors[copy].bytes;
        let op = &mut layer.ops[at];
        op.saves = (op.saves - Set::one(copy)) | Set::one(input);
        op.backward_work = more(op.backward_work, bytes);
        for op in &mut layer.ops[cast..=at] {
            op.forward_work = more(op.forward_work, bytes);
        }
        Some(layer)
    }
}

fn more(work: Bytes, by: Bytes) -> Bytes {
    Bytes { fixed: work.fixed.saturating_add(by.fixed), per_row: work.per_row.saturating_add(by.per_row) }
}

fn less(work: Bytes, by: Bytes) -> Bytes {
    Bytes { fixed: work.fixed.saturating_sub(by.fixed), per_row: work.per_row.saturating_sub(by.per_row) }
}

/// Bytes of so many elements with their scales; a tensor's own scale is not counted.
pub(super) fn bytes(recipe: Fp8Recipe, elements: u128) -> u128 {
    match recipe {
        Fp8Recipe::Delayed | Fp8Recipe::Tensorwise => elements,
        Fp8Recipe::Blockwise => elements + 4 * elements.div_ceil(FP8_BLOCK),
        Fp8Recipe::Mxfp8 => elements + elements.div_ceil(MXFP8_BLOCK),
    }
}

/// Bytes of an amount, cast by `recipe`, of elements of `element` bytes.
pub(super) fn amount(recipe: Fp8Recipe, whole: Amount, element: u128) -> Option<Amount> {
    whole.map(|whole| Some(bytes(recipe, whole / element)))
}
