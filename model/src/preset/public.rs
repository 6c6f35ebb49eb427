//! Public models: shapes from their `config.json`, parallelism as published or, where a comment says so, ours.

use super::{GROUPED, Preset, decoder, moe};
use crate::{Layout, Mla, ModelConfig, MoeConfig, MoeLayers, Parallelism};

/// A public model.
struct Row {
    name: &'static str,
    /// Last parts of its Hugging Face ids, in lower case, without what does not change the shape.
    ids: &'static [&'static str],
    layers: u32,
    hidden: u64,
    heads: u64,
    kv_groups: u64,
    head_dim: u64,
    ffn: u64,
    vocab: u64,
    /// E, k and the hidden size of an expert.
    experts: (u64, u64, u64),
    shared_ffn: u64,
    /// Leading layers without experts.
    dense: u32,
    mla: Option<Mla>,
    mtp_layers: u32,
    qk_norm: bool,
    qkv_bias: bool,
    /// Whether all linear layers have a bias.
    bias: bool,
    shared_gate: bool,
    run: Run,
}

/// How it is distributed.
struct Run {
    gpus: u64,
    tp: u64,
    ep: u64,
    pp: u32,
    chunks: u32,
    split: Split,
    micro_batches: u64,
}

/// How its layers are divided over the pipeline.
#[derive(Clone, Copy)]
enum Split {
    Even,
    /// Embedding and loss count as layers.
    Counted,
    /// So many on the first and on the last rank.
    Ends(u32, u32),
}

const ROW: Row = Row {
    name: "",
    ids: &[],
    layers: 1,
    hidden: 1,
    heads: 1,
    kv_groups: 1,
    head_dim: 128,
    ffn: 1,
    vocab: 1,
    experts: (1, 1, 1),
    shared_ffn: 0,
    dense: 0,
    mla: None,
    mtp_layers: 0,
    qk_norm: false,
    qkv_bias: false,
    bias: false,
    shared_gate: false,
    run: RUN,
};

const RUN: Run = Run { gpus: 16, tp: 1, ep: 8, pp: 2, chunks: 1, split: Split::Even, micro_batches: 32 };

/// DeepSeek's attention; the smaller models have no latent of the queries.
const fn mla(q_lora_rank: u64) -> Option<Mla> {
    Some(Mla { q_lora_rank, kv_lora_rank: 512, qk_head_dim: 128, qk_rope_dim: 64, v_head_dim: 128 })
}

#[rustfmt::skip]
const PUBLIC: [Row; 15] = [
    // TP 1, EP 8 and PP 4 as in Megatron's example for it; devices and virtual stages are ours.
    Row {
        name: "mixtral-8x7b", ids: &["mixtral-8x7b"],
        layers: 32, hidden: 4_096, heads: 32, kv_groups: 8, ffn: 14_336, vocab: 32_000, experts: (8, 2, 14_336),
        run: Run { gpus: 32, pp: 4, chunks: 2, ..RUN }, ..ROW
    },
    // Parallelism is ours.
    Row {
        name: "qwen3-30b-a3b", ids: &["qwen3-30b-a3b", "qwen3-coder-30b-a3b"],
        layers: 48, hidden: 2_048, heads: 32, kv_groups: 4, ffn: 6_144, vocab: 151_936, experts: (128, 8, 768),
        qk_norm: true, run: Run { chunks: 2, ..RUN }, ..ROW
    },
    // PP 16, EP 8 and a batch of 9,216 sequences from its report (arXiv 2405.04434); devices and stages are ours.
    Row {
        name: "deepseek-v2", ids: &["deepseek-v2", "deepseek-v2.5", "deepseek-coder-v2"],
        layers: 60, hidden: 5_120, heads: 128, kv_groups: 128, ffn: 12_288, vocab: 102_400, experts: (160, 6, 1_536),
        shared_ffn: 2 * 1_536, dense: 1, mla: mla(1_536), qk_norm: true,
        run: Run { gpus: 512, pp: 16, split: Split::Ends(2, 2), micro_batches: 288, ..RUN }, ..ROW
    },
    // Parallelism is ours.
    Row {
        name: "deepseek-v2-lite", ids: &["deepseek-v2-lite", "deepseek-coder-v2-lite"],
        layers: 27, hidden: 2_048, heads: 16, kv_groups: 16, ffn: 10_944, vocab: 102_400, experts: (64, 6, 1_408),
        shared_ffn: 2 * 1_408, dense: 1, mla: mla(0), qk_norm: true,
        run: Run { split: Split::Ends(14, 13), ..RUN }, ..ROW
    },
    // 2,048 devices, PP 16, EP 64 and a batch of 15,360 sequences from its report (arXiv 2412.19437), which
    // runs both ends of the pipeline on each device; here one rank holds one stage.
    Row {
        name: "deepseek-v3", ids: &["deepseek-v3", "deepseek-v3.1", "deepseek-r1", "deepseek-r1-zero"],
        layers: 61, hidden: 7_168, heads: 128, kv_groups: 128, ffn: 18_432, vocab: 129_280, experts: (256, 8, 2_048),
        shared_ffn: 2_048, dense: 3, mla: mla(1_536), mtp_layers: 1, qk_norm: true,
        run: Run { gpus: 2_048, ep: 64, pp: 16, split: Split::Ends(4, 1), micro_batches: 120, ..RUN }, ..ROW
    },
    // Parallelism is ours.
    Row {
        name: "mixtral-8x22b", ids: &["mixtral-8x22b"],
        layers: 56, hidden: 6_144, heads: 48, kv_groups: 8, ffn: 16_384, vocab: 32_768, experts: (8, 2, 16_384),
        run: Run { gpus: 128, tp: 2, pp: 8, chunks: 7, ..RUN }, ..ROW
    },
    // Parallelism is ours.
    Row {
        name: "qwen2-57b-a14b", ids: &["qwen2-57b-a14b"],
        layers: 28, hidden: 3_584, heads: 28, kv_groups: 4, ffn: 18_944, vocab: 151_936, experts: (64, 8, 2_560),
        shared_ffn: 20_480, qkv_bias: true, shared_gate: true,
        run: Run { gpus: 64, pp: 4, chunks: 7, ..RUN }, ..ROW
    },
    // Parallelism is ours; with embedding and loss its 94 layers are 96.
    Row {
        name: "qwen3-235b-a22b", ids: &["qwen3-235b-a22b"],
        layers: 94, hidden: 4_096, heads: 64, kv_groups: 4, ffn: 12_288, vocab: 151_936, experts: (128, 8, 1_536),
        qk_norm: true,
        run: Run { gpus: 256, tp: 4, pp: 16, split: Split::Counted, micro_batches: 64, ..RUN }, ..ROW
    },
    // Parallelism is ours.
    Row {
        name: "glm-4.5", ids: &["glm-4.5"],
        layers: 92, hidden: 5_120, heads: 96, kv_groups: 8, ffn: 12_288, vocab: 151_552, experts: (160, 8, 1_536),
        shared_ffn: 1_536, dense: 3, mtp_layers: 1, qk_norm: true, qkv_bias: true,
        run: Run { gpus: 256, ep: 16, pp: 8, split: Split::Ends(10, 10), ..RUN }, ..ROW
    },
    // Parallelism is ours.
    Row {
        name: "glm-4.5-air", ids: &["glm-4.5-air"],
        layers: 46, hidden: 4_096, heads: 96, kv_groups: 8, ffn: 10_944, vocab: 151_552, experts: (128, 8, 1_408),
        shared_ffn: 1_408, dense: 1, mtp_layers: 1, qkv_bias: true,
        run: Run { gpus: 64, pp: 4, split: Split::Counted, ..RUN }, ..ROW
    },
    // PP 16, EP 16 and a batch of 67 million tokens from its report (arXiv 2507.20534), which also has virtual
    // stages; devices and stages are ours.
    Row {
        name: "kimi-k2", ids: &["kimi-k2"],
        layers: 61, hidden: 7_168, heads: 64, kv_groups: 64, ffn: 18_432, vocab: 163_840, experts: (384, 8, 2_048),
        shared_ffn: 2_048, dense: 1, mla: mla(1_536), qk_norm: true,
        run: Run { gpus: 2_048, ep: 16, pp: 16, split: Split::Ends(4, 1), micro_batches: 128, ..RUN }, ..ROW
    },
    // Parallelism is ours.
    Row {
        name: "olmoe-1b-7b", ids: &["olmoe-1b-7b"],
        layers: 16, hidden: 2_048, heads: 16, kv_groups: 16, ffn: 1_024, vocab: 50_304, experts: (64, 8, 1_024),
        qk_norm: true, run: Run { gpus: 8, ep: 4, chunks: 2, ..RUN }, ..ROW
    },
    // Parallelism is ours.
    Row {
        name: "moonlight-16b-a3b", ids: &["moonlight-16b-a3b"],
        layers: 27, hidden: 2_048, heads: 16, kv_groups: 16, ffn: 11_264, vocab: 163_840, experts: (64, 6, 1_408),
        shared_ffn: 2 * 1_408, dense: 1, mla: mla(0), qk_norm: true,
        run: Run { split: Split::Ends(14, 13), ..RUN }, ..ROW
    },
    // Parallelism is ours.
    Row {
        name: "gpt-oss-20b", ids: &["gpt-oss-20b"],
        layers: 24, hidden: 2_880, heads: 64, kv_groups: 8, head_dim: 64, ffn: 2_880, vocab: 201_088,
        experts: (32, 4, 2_880), bias: true, run: Run { chunks: 2, ..RUN }, ..ROW
    },
    // Parallelism is ours.
    Row {
        name: "gpt-oss-120b", ids: &["gpt-oss-120b"],
        layers: 36, hidden: 2_880, heads: 64, kv_groups: 8, head_dim: 64, ffn: 2_880, vocab: 201_088,
        experts: (128, 4, 2_880), bias: true, run: Run { gpus: 64, ep: 16, pp: 4, chunks: 3, ..RUN }, ..ROW
    },
];

/// The public model called `name`.
pub(super) fn preset(name: &str) -> Option<Preset> {
    let row = PUBLIC.iter().find(|row| row.name == name)?;
    Some(Preset { config: row.config(), parallelism: row.run.parallelism() })
}

impl Row {
    fn config(&self) -> ModelConfig {
        let (experts, top_k, ffn) = self.experts;
        ModelConfig {
            layers: self.layers,
            hidden: self.hidden,
            heads: self.heads,
            kv_groups: self.kv_groups,
            head_dim: self.head_dim,
            ffn: self.ffn,
            moe: Some(MoeConfig {
                shared_ffn: self.shared_ffn,
                shared_gate: self.shared_gate,
                layers: MoeLayers::AfterDense(self.dense),
                ..moe(experts, top_k, ffn)
            }),
            vocab: self.vocab,
            seq: 4_096,
            qk_norm: self.qk_norm,
            qkv_bias: self.qkv_bias,
            bias: self.bias,
            mla: self.mla,
            mtp_layers: self.mtp_layers,
            ..decoder()
        }
    }
}

impl Run {
    fn parallelism(&self) -> Parallelism {
        let mut parallelism = Parallelism {
            gpus: self.gpus,
            tp: self.tp,
            sequence_parallel: self.tp > 1,
            ep: self.ep,
            pp: self.pp,
            chunks: self.chunks,
            group_size: self.pp,
            distributed_optimizer: true,
            libraries: GROUPED,
            layout: match self.split {
                Split::Even => Layout::default(),
                Split::Counted => Layout::Even { embedding: true, loss: true },
                Split::Ends(first, last) => Layout::Ends { first: Some(first), last: Some(last) },
            },
            ..Parallelism::default()
        };
        parallelism.repeat(self.micro_batches);
        parallelism
    }
}

/// Words behind a model's name that do not change its shape; so do not versions and dates.
const SAME_SHAPE: [&str; 9] =
    ["base", "instruct", "chat", "thinking", "hf", "fp8", "bf16", "mcore", "terminus"];

/// The preset that a Hugging Face id or a folder's path stands for.
pub(super) fn name_of_id(id: &str) -> Option<&'static str> {
    let last = id.trim_end_matches('/').rsplit('/').next()?.to_ascii_lowercase();
    let same_shape = |word: &str| {
        let digits = word.strip_prefix('v').unwrap_or(word);
        SAME_SHAPE.contains(&word) || digits.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    };
    let is = |id: &str| match last.strip_prefix(id) {
        Some("") => true,
        Some(rest) => rest.strip_prefix('-').is_some_and(|rest| rest.split('-').all(same_shape)),
        None => false,
    };
    PUBLIC.iter().find(|row| row.ids.iter().any(|id| is(id))).map(|row| row.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stand_for_the_models_of_their_shape() {
        for (id, name) in [
            ("deepseek-ai/DeepSeek-V3", Some("deepseek-v3")),
            ("deepseek-ai/DeepSeek-R1-0528", Some("deepseek-v3")),
            ("/models/DeepSeek-V2-Lite-Chat/", Some("deepseek-v2-lite")),
            ("Qwen/Qwen3-30B-A3B-Instruct-2507", Some("qwen3-30b-a3b")),
            ("mistralai/Mixtral-8x22B-v0.3", Some("mixtral-8x22b")),
            ("zai-org/GLM-4.5-Air-Base", Some("glm-4.5-air")),
            ("moonshotai/Kimi-K2-Instruct-0905", Some("kimi-k2")),
            ("allenai/OLMoE-1B-7B-0924", Some("olmoe-1b-7b")),
            ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", None),
            ("deepseek-ai/DeepSeek-V3.2-Exp", None),
            ("", None),
        ] {
            assert_eq!(name_of_id(id), name, "{id}");
        }
    }
}
