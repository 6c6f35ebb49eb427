//! The layer tables against formulas of others: "Reducing Activation Recomputation in Large Transformer
//! Models" (Korthikanti et al., MLSys 2023), section 4, whose models have MHA, GELU, dropout and attention that
//! keeps its probabilities. Both sides are exact once what the paper leaves out is taken off by name.

mod common;

use bagualu_core::set::Set;
use bagualu_model::settings::{ActivationSettings, Configured, Method, Recompute};
use bagualu_model::{Activation, Attention, LayerType, Model, ModelConfig, Norm, Parallelism, Rotary};
use common::{alone, build, small};

/// Attention heads and h of the paper's four models: 22 B, 175 B, 530 B and 1 T.
const MODELS: [(u64, u64); 4] = [(64, 6_144), (96, 12_288), (128, 20_480), (160, 25_600)];
/// s: tokens of a sequence.
const SEQUENCE: u64 = 2_048;
/// t: tensor-parallel ranks.
const TP: u64 = 8;
/// What "small buffers" the paper leaves out: statistics of the norms, and state of the generators.
const LEFT_OUT: [&str; 3] = ["ln1_stats", "ln2_stats", "rng_state"];
/// What the paper's selective recomputation drops: the softmax' output, its dropout's mask and output.
const CORE_ATTENTION: [&str; 3] = ["attn_probs", "attn_probs_mask", "attn_probs_dropped"];

fn config(heads: u64, hidden: u64) -> ModelConfig {
    ModelConfig {
        hidden,
        heads,
        kv_groups: heads,
        head_dim: hidden / heads,
        ffn: 4 * hidden,
        moe: None,
        seq: SEQUENCE,
        norm: Norm::LayerNorm,
        activation: Activation::Gelu,
        attention: Attention::Unfused,
        hidden_dropout: true,
        attention_dropout: true,
        bias: true,
        position_rows: SEQUENCE,
        rotary: Rotary::None,
        ..small()
    }
}

fn split(tp: u64, sequence_parallel: bool) -> Parallelism {
    Parallelism { gpus: tp, tp, sequence_parallel, micro_batch: 1, global_batch: 1, ..alone() }
}

fn layer(model: &Model) -> &LayerType {
    model.types.iter().find(|t| t.name == "dense").expect("a dense layer")
}

/// Bytes that a layer saves, but for the tensors named.
fn saved_without(layer: &LayerType, without: &[&str]) -> u64 {
    let saved = layer.ops.iter().fold(Set::EMPTY, |all, op| all | op.saves);
    let kept = (0..layer.tensors.len()).filter(|&t| saved.contains(t) || layer.tensors[t].block_input);
    kept.filter(|&t| !without.contains(&layer.tensor_names[t]))
        .map(|t| layer.tensors[t].bytes.at(0).expect("fits"))
        .sum()
}

/// Table 2 of the paper, all rows but the last: 10, 24 and 5as/h parts of s·b·h bytes.
#[test]
fn a_layer_saves_what_korthikanti_et_al_say() {
    for (heads, hidden) in MODELS {
        let config = config(heads, hidden);
        for micro_batch in [1, 2] {
            let sbh = SEQUENCE * micro_batch * hidden;
            let attention = 5 * heads * SEQUENCE * SEQUENCE * micro_batch;
            let bytes = |tp, sequence_parallel| {
                let parallelism =
                    Parallelism { micro_batch, global_batch: micro_batch, ..split(tp, sequence_parallel) };
                let model = build(&config, &parallelism);
                let selective = [&LEFT_OUT[..], &CORE_ATTENTION].concat();
                (saved_without(layer(&model), &LEFT_OUT), saved_without(layer(&model), &selective))
            };
            assert_eq!(bytes(1, false), (34 * sbh + attention, 34 * sbh), "no parallelism");
            let split = 10 * sbh + 24 * sbh / TP;
            assert_eq!(bytes(TP, false), (split + attention / TP, split), "tensor parallel");
            let all = 34 * sbh / TP;
            assert_eq!(bytes(TP, true), (all + attention / TP, all), "with sequence parallel");
        }
    }
}

/// The table's last row: full recomputation keeps a layer's input, 2sbh bytes.
#[test]
fn full_recomputation_keeps_a_layers_input() {
    for (heads, hidden) in MODELS {
        let sbh = SEQUENCE * hidden;
        // What one layer more holds until its backward.
        let layer = |recompute: Recompute| {
            let settings = ActivationSettings { recompute, ..ActivationSettings::default() };
            let held = |layers| {
                let model = build(&ModelConfig { layers, ..config(heads, hidden) }, &split(1, false));
                Configured::new(&settings, &model, &model.stages[0], 0).expect("an iteration").held_bytes
            };
            held(3) - held(2)
        };
        // States of the four generators, which the paper leaves out.
        let states = 4 * 16;
        let full = layer(Recompute::Full { method: Method::Uniform, layers: 1 });
        assert_eq!(full, 2 * sbh + states);
        let attention = 5 * heads * SEQUENCE * SEQUENCE;
        let statistics = 2 * 2 * 4 * SEQUENCE;
        assert_eq!(layer(Recompute::None), 34 * sbh + attention + statistics + states);
    }
}

/// Section 5: selective recomputation takes 70 % off GPT-3 and 65 % off the 530 B model.
#[test]
fn selective_recomputation_saves_the_published_share() {
    for ((heads, hidden), percent) in [(MODELS[1], 70), (MODELS[2], 65)] {
        let model = build(&config(heads, hidden), &split(TP, true));
        let whole = saved_without(layer(&model), &[]);
        let less = saved_without(layer(&model), &CORE_ATTENTION);
        assert_eq!((whole - less) * 100 / whole, percent);
    }
}
