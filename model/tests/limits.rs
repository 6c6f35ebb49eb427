//! Sizes at their limits, in every variant of the layers: a model or one error, never an overflow.

mod common;

use bagualu_core::cost::LayerStorage;
use bagualu_model::script::{Launch, from_flags};
use bagualu_model::{
    Activation, Attention, Capacity, Fp8, Fp8Recipe, Loss, Mla, Model, ModelConfig, MoeConfig, Norm,
    Parallelism, Precision, Rotary, RouterInput,
};
use common::{alone, build, device, small};

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// A size: small, at the limit, a part of it, or anything at all.
    fn size(&mut self) -> u64 {
        match self.below(12) {
            0 => u64::MAX >> self.below(64),
            1 => (1 << 28) + self.below(2),
            2..5 => 1 << 28,
            5..8 => 1 << self.below(29),
            _ => 1 + self.below(2),
        }
    }

    fn ranks(&mut self) -> u64 {
        match self.below(8) {
            0 => 1 << 20,
            1 => 1 << self.below(21),
            2 => u64::MAX >> self.below(64),
            _ => 1,
        }
    }
}

fn config(n: &mut Numbers) -> ModelConfig {
    let heads = n.size();
    let mla = Mla {
        q_lora_rank: if n.coin() { 0 } else { n.size() },
        kv_lora_rank: n.size(),
        qk_head_dim: n.size(),
        qk_rope_dim: n.size(),
        v_head_dim: n.size(),
    };
    let sometimes = |n: &mut Numbers| if n.coin() { n.size() } else { 0 };
    let experts = n.size();
    let moe = MoeConfig {
        experts,
        top_k: if n.coin() { 1 } else { experts },
        ffn: n.size(),
        shared_ffn: sometimes(n),
        router_input: if n.coin() { RouterInput::Shared } else { RouterInput::Fp32Copy },
        latent: sometimes(n),
        shared_gate: n.coin(),
        capacity: n.coin().then(|| Capacity { factor_permille: u32::MAX >> n.below(32), pad: n.coin() }),
        ..small().moe.expect("experts")
    };
    ModelConfig {
        layers: if n.coin() { 1 } else { 4_096 },
        hidden: n.size(),
        heads,
        kv_groups: if n.coin() { 1 } else { heads },
        head_dim: n.size(),
        ffn: n.size(),
        moe: n.coin().then_some(moe),
        vocab: n.size(),
        vocab_multiple: n.size(),
        seq: n.size(),
        norm: if n.coin() { Norm::RmsNorm } else { Norm::LayerNorm },
        qk_norm: n.coin(),
        activation: if n.coin() { Activation::SwiGlu } else { Activation::Gelu },
        fused_activation: n.coin(),
        attention: if n.coin() { Attention::Flash } else { Attention::Unfused },
        hidden_dropout: n.coin(),
        attention_dropout: n.coin(),
        tied_embeddings: n.coin(),
        bias: n.coin(),
        qkv_bias: n.coin(),
        position_rows: sometimes(n),
        rotary: [Rotary::None, Rotary::Fused, Rotary::Unfused][n.below(3) as usize],
        mla: n.coin().then_some(mla),
        mtp_layers: [0, 1, 8][n.below(3) as usize],
        loss: [Loss::Unfused, Loss::Native, Loss::TransformerEngine][n.below(3) as usize],
    }
}

fn parallelism(n: &mut Numbers) -> Parallelism {
    let (tp, cp, ep, etp) = (n.ranks(), n.ranks(), n.ranks(), n.ranks());
    let recipes = [Fp8Recipe::Delayed, Fp8Recipe::Tensorwise, Fp8Recipe::Blockwise, Fp8Recipe::Mxfp8];
    let fp8 = Fp8 { recipe: recipes[n.below(4) as usize], parameters: n.coin() };
    // Mostly as many devices as the groups take.
    let least = tp.saturating_mul(cp).max(ep.saturating_mul(etp));
    let micro_batch = n.size();
    Parallelism {
        gpus: if n.below(4) == 0 { n.ranks() } else { least },
        tp,
        cp,
        ep,
        etp,
        sequence_parallel: tp > 1 && n.below(4) > 0,
        micro_batch,
        global_batch: if n.below(4) == 0 { n.size() } else { micro_batch.saturating_mul(least / tp / cp) },
        precision: if n.below(4) == 0 { Precision::Fp32 } else { Precision::Bf16 },
        distributed_optimizer: n.coin(),
        fp8: n.coin().then_some(fp8),
        fp8_activation_store: n.below(4) == 0,
        ..Parallelism::default()
    }
}

#[test]
fn sizes_at_their_limits_are_a_model_or_an_error() {
    let mut numbers = Numbers(7);
    let (mut built, mut refused) = (0, 0);
    for _ in 0..200_000 {
        let (config, parallelism) = (config(&mut numbers), parallelism(&mut numbers));
        match Model::new(&config, &parallelism, &device()) {
            Ok(model) => {
                built += 1;
                evaluate(&model);
            }
            Err(error) => refused += usize::from(!error.to_string().is_empty()),
        }
        let _ = config.parameters();
    }
    assert_eq!(built + refused, 200_000);
    assert!(built > 300, "{built} models");
}

/// Every layer at the most rows: a layer or a typed error.
fn evaluate(model: &Model) {
    let mut storage = LayerStorage::new();
    for layer in model.types.iter().map(|layer| layer.model()) {
        for rows in [model.balanced_rows, u32::MAX] {
            let _ = layer.at(rows, &device().rooflines(), &mut storage);
            let _ = (layer.times(rows), layer.work(rows));
        }
    }
}

/// What one size may be where the others are 1 is no matter of products.
#[test]
fn each_size_alone_may_be_at_its_limit() {
    let one = ModelConfig {
        hidden: 1,
        heads: 1,
        kv_groups: 1,
        head_dim: 1,
        ffn: 1,
        moe: None,
        vocab: 1,
        seq: 1,
        ..small()
    };
    let limit = 1 << 28;
    for config in [
        ModelConfig { hidden: limit, ..one.clone() },
        ModelConfig { heads: limit, ..one.clone() },
        ModelConfig { head_dim: limit, ..one.clone() },
        ModelConfig { ffn: limit, ..one.clone() },
        ModelConfig { vocab: limit, ..one.clone() },
        ModelConfig { seq: limit, ..one.clone() },
    ] {
        assert_eq!(build(&config, &Parallelism::default()).micro_batches, 1);
    }
    let refused = |config: ModelConfig, words: &str| {
        let error = Model::new(&config, &alone(), &device()).expect_err("refused").to_string();
        assert!(error.starts_with(words), "{error}");
    };
    refused(ModelConfig { heads: limit, head_dim: 2, ..one.clone() }, "heads·head_dim is 536870912; give");
    refused(ModelConfig { vocab_multiple: u64::MAX, ..one.clone() }, "make_vocab_size_divisible_by is ");
    refused(ModelConfig { vocab_multiple: 0, ..one.clone() }, "make_vocab_size_divisible_by is 0; give");
    let many = Parallelism { micro_batch: limit, global_batch: limit, ..Parallelism::default() };
    let error = Model::new(&ModelConfig { seq: 17, ..one.clone() }, &many, &device()).expect_err("refused");
    assert!(error.to_string().starts_with("seq·micro_batch is 4563402752; give"), "{error}");
    let mla = Mla { q_lora_rank: 1, kv_lora_rank: 1, qk_head_dim: 1, qk_rope_dim: 1, v_head_dim: 3 };
    let latent = |heads, mla| ModelConfig { heads, kv_groups: heads, mla: Some(mla), ..one.clone() };
    refused(latent(limit / 2, mla), "heads·v_head_dim is ");
    refused(latent(limit, Mla { v_head_dim: 1, ..mla }), "heads·(qk_head_dim + qk_pos_emb_head_dim) is ");
}

/// Flags are read before anything is checked against anything.
#[test]
fn flags_of_any_size_are_a_launch_or_an_error() {
    const NUMBERS: [&str; 24] = [
        "--num-layers",
        "--hidden-size",
        "--num-attention-heads",
        "--kv-channels",
        "--num-query-groups",
        "--ffn-hidden-size",
        "--seq-length",
        "--vocab-size",
        "--make-vocab-size-divisible-by",
        "--micro-batch-size",
        "--global-batch-size",
        "--num-experts",
        "--moe-router-topk",
        "--moe-ffn-hidden-size",
        "--moe-shared-expert-intermediate-size",
        "--tensor-model-parallel-size",
        "--context-parallel-size",
        "--expert-model-parallel-size",
        "--expert-tensor-parallel-size",
        "--pipeline-model-parallel-size",
        "--num-layers-per-virtual-pipeline-stage",
        "--microbatch-group-size-per-virtual-pipeline-stage",
        "--mtp-num-layers",
        "--recompute-num-layers",
    ];
    let mut n = Numbers(11);
    let (mut read, mut built) = (0, 0);
    for _ in 0..20_000 {
        let mut flags = vec!["--bf16".to_owned(), "--group-query-attention".to_owned()];
        for (at, flag) in NUMBERS.into_iter().enumerate() {
            // The sizes of a model are needed; the others are there now and then.
            if at < 12 || n.below(3) == 0 {
                flags.extend([flag.to_owned(), n.size().to_string()]);
            }
        }
        let gpus = n.ranks();
        let Ok(Launch { config, parallelism, settings, .. }) = from_flags(&flags, gpus) else { continue };
        read += 1;
        let _ = settings.check(&config, &parallelism);
        built += usize::from(Model::new(&config, &parallelism, &device()).is_ok());
    }
    assert!(read > 1_000 && built > 0, "{read} launches, {built} models");
}

/// A plan goes through every micro-batch on every rank: that has a bound of its own.
#[test]
fn runs_of_stages_and_layers_are_bounded() {
    let config = ModelConfig { layers: 4_096, moe: None, ..small() };
    let model = |pp: u32, micro_batches| {
        let parallelism =
            Parallelism { gpus: pp.into(), pp, global_batch: micro_batches, ..Parallelism::default() };
        Model::new(&config, &parallelism, &device()).map(|model| model.micro_batches)
    };
    assert_eq!(model(1_024, 1_024), Ok(1_024));
    let error = model(2_048, 1_024).expect_err("refused").to_string();
    assert_eq!(error, "pp·chunks·micro-batches is 2097152; give a value from 1 to 1048576");
    let error = model(1, 2_048).expect_err("refused").to_string();
    assert_eq!(error, "layers·micro-batches is 8388608; give a value from 1 to 4194304");
}
