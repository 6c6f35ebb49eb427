//! What becomes of Megatron's flags that the model does not read.

/// What a flag that is not read means for the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// A setting of activation memory, which the plan replaces and *as configured* does not follow.
    Replaced,
    /// It may change memory; how the model differs.
    Differs(&'static str),
    /// It cannot change memory.
    Harmless,
    /// No flag known here.
    Unknown,
}

/// The effect of flag `name` with its values.
pub(super) fn effect(name: &str, values: &[String]) -> Effect {
    let same = SAME.iter().find(|(flag, _)| *flag == name);
    if same.is_some_and(|(_, same)| !values.is_empty() && values.iter().all(|v| same.contains(&v.as_str()))) {
        return Effect::Harmless;
    }
    if replaces(name) {
        return Effect::Replaced;
    }
    match DIFFERS.iter().find(|(flag, _)| means(flag, name)) {
        Some((_, how)) => Effect::Differs(how),
        None if HARMLESS.iter().any(|flag| means(flag, name)) => Effect::Harmless,
        None => Effect::Unknown,
    }
}

/// Whether a flag is a setting of activation memory that the plan replaces.
pub(super) fn replaces(name: &str) -> bool {
    REPLACED.iter().any(|flag| means(flag, name))
}

/// An entry that ends in a dash is a family of flags, any other one flag.
fn means(entry: &str, name: &str) -> bool {
    if entry.ends_with('-') { name.starts_with(entry) } else { name == entry }
}

/// Settings of activation memory that this product decides itself.
const REPLACED: &[&str] = &[
    "--recompute-",
    "--checkpoint-activations",
    "--checkpoint-num-layers",
    "--distribute-saved-activations",
    "--moe-layer-recompute",
    "--cpu-offloading",
    "--cpu-offloading-",
    "--fine-grained-activation-offloading",
    "--fine-grained-offloading-",
    "--offload-modules",
    "--min-offloaded-tensor-size",
    "--delta-offload-bytes-across-pp-ranks",
    "--activation-offload-fraction",
    "--moe-paged-stash",
    "--moe-paged-stash-",
    "--mlp-chunks-for-training",
];

/// Values with which flags below change nothing.
const SAME: &[(&str, &[&str])] = &[
    ("--cp-comm-type", &["p2p"]),
    ("--cpu-offloading-num-layers", &["0"]),
    ("--mlp-chunks-for-training", &["1"]),
    ("--moe-input-jitter-eps", &["0", "0.0"]),
    ("--moe-router-dtype", &["fp32", "none", "None"]),
    ("--moe-z-loss-coeff", &["0", "0.0"]),
    ("--num-distributed-optimizer-instances", &["1"]),
];

/// Flags that may change memory and are not modelled, and how the model differs.
const DIFFERS: &[(&str, &str)] = &[
    ("--spec", "Megatron's usual GPT layer is modelled"),
    ("--cp-comm-type", "context parallel is modelled as a ring (p2p)"),
    ("--freeze-", "all parameters are modelled as trained"),
    ("--first-last-layers-bf16", "all layers are modelled in FP8"),
    ("--num-layers-at-", "all layers are modelled in FP8"),
    ("--no-fp8-wgrad", "linear layers are modelled as saving their inputs in FP8"),
    ("--disable-fp8-wgrad", "linear layers are modelled as saving their inputs in FP8"),
    ("--fp8-", "FP8 is modelled as far as its format and recipe"),
    ("--te-precision-config-file", "FP8 is modelled as far as its format and recipe"),
    ("--fp4-", "activations and weights are modelled without FP4"),
    ("--moe-expert-rank-capacity-factor", "rows are modelled without a static buffer"),
    ("--moe-enable-deepep", "dispatch is modelled as all-to-all"),
    ("--moe-flex-dispatcher-backend", "dispatch is modelled as all-to-all"),
    ("--moe-hybridep-", "dispatch is modelled as all-to-all"),
    ("--moe-ncclep-", "dispatch is modelled as all-to-all"),
    ("--moe-permute-fusion-into-hybridep", "dispatch is modelled as all-to-all"),
    ("--moe-apply-probs-on-input", "probabilities are modelled on the activation"),
    ("--moe-input-jitter-eps", "the jittered copy of the router's input is not counted"),
    ("--moe-router-dtype", "the router's scores are modelled in FP32"),
    ("--moe-z-loss-coeff", "what the z-loss saves of the router's scores is not counted"),
    ("--num-distributed-optimizer-instances", "optimizer state is divided over all data-parallel ranks"),
    ("--data-parallel-sharding-strategy", "only optimizer state is modelled as divided"),
    ("--attention-softmax-in-fp32", "unfused probabilities are modelled once, in the run's precision"),
    ("--apply-query-key-layer-scaling", "unfused probabilities are modelled once, in the run's precision"),
    ("--no-masked-softmax-fusion", "the softmax of unfused attention is modelled as one kernel"),
    ("--apply-residual-connection-post-layernorm", "the residual is modelled as taken before the norm"),
    ("--openai-gelu", "the activation is modelled as one kernel"),
    ("--use-te-activation-func", "Megatron's own activation is modelled"),
    ("--disable-jit-fuser", "fused kernels are modelled"),
    ("--qk-l2-norm", "the L2 norm of queries and keys is not counted"),
    ("--no-clone-scatter-output-in-embedding", "the whole embedding's output is modelled as freed"),
    ("--disable-clone-scatter-output-in-embedding", "the whole embedding's output is modelled as freed"),
    ("--no-pad-vocab-size", "the vocabulary is modelled as padded"),
    ("--disable-pad-vocab-size", "the vocabulary is modelled as padded"),
    ("--fp16-lm-cross-entropy", "the loss is modelled in FP32"),
    ("--deterministic-mode", "attention's deterministic workspace is not counted"),
    ("--delay-wgrad-compute", "activations are modelled as released by their backward"),
    ("--defer-embedding-wgrad-compute", "activations are modelled as released by their backward"),
    ("--wgrad-deferral-limit", "activations are modelled as released by their backward"),
    (
        "--overlap-dispatch-backward-with-experts-wgrad",
        "activations are modelled as released by their backward",
    ),
    ("--ep-overlap-early-attn-memory-release", "activations are modelled as released by their backward"),
    ("--attention-output-gate", "the gate's columns of the attention projection are not counted"),
    ("--window-size", "attention is priced without a window"),
    ("--enable-cuda-graph", "memory of CUDA graphs is not counted"),
    ("--external-cuda-graph", "memory of CUDA graphs is not counted"),
    ("--cuda-graph-", "memory of CUDA graphs is not counted"),
    ("--optimizer-cuda-graph", "memory of CUDA graphs is not counted"),
    ("--tp-comm-overlap", "its communication buffers are not counted"),
    ("--tp-comm-overlap-", "its communication buffers are not counted"),
    ("--use-nccl-ub", "its communication buffers are not counted"),
    ("--ddp-reduce-scatter-with-fp32-accumulation", "its communication buffers are not counted"),
    ("--ddp-param-name-patterns-for-fp32-local-accumulation", "one type of the gradient buffer is modelled"),
    ("--rampup-batch-size", "the full batch is modelled"),
    ("--use-legacy-models", "Megatron-core's layers are modelled"),
    ("--experimental-attention-variant", "plain attention is modelled"),
    ("--linear-attention-", "plain attention is modelled"),
    ("--use-kitchen-attention", "plain attention is modelled"),
    ("--heterogeneous-layers-config-", "equal layers are modelled"),
    ("--enable-mhc-connections", "one residual stream is modelled"),
    ("--logits-load-", "the loss against another model's logits is not counted"),
];

/// Flags that cannot change device memory in training, or only by less than the margin.
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    // Data, tokenizer, learning rate, checkpoints, logging and what watches over a run.
    "--adlr-", "--app-tag-", "--async-", "--auto-detect-", "--bert-", "--calc-", "--check-", "--chat-template",
    "--ckpt-", "--config-logger-", "--data-args-path", "--data-cache-path", "--data-path", "--dataloader-",
    "--dataset", "--dataset-", "--dist-ckpt-", "--distributed-", "--dump-", "--embedding-path", "--eod-", "--eval-",
    "--exit-", "--fim-", "--finetune", "--flight-recorder-", "--ft-", "--full-validation", "--inprocess-", "--load",
    "--load-", "--log-", "--logging-", "--logits-save-", "--lr", "--lr-", "--manual-gc", "--manual-gc-",
    "--mask-prob", "--memory-snapshot-path", "--merge-file", "--mmap-", "--mock-data", "--most-recent-k",
    "--multiple-validation-sets", "--non-persistent-", "--null-tokenizer-", "--num-dataset-", "--num-workers",
    "--nvtx-ranges", "--object-storage-", "--one-logger", "--one-logger-", "--override-", "--per-split-",
    "--persistent-save-interval", "--pretrained-checkpoint", "--profile", "--profile-", "--pytorch-profiler-",
    "--query-in-block-prob", "--record-", "--replication", "--replication-", "--rerun-", "--result-rejected-",
    "--run-workload-", "--sample-rate", "--save", "--save-", "--seed", "--sft", "--sft-", "--short-seq-prob",
    "--skip-train", "--special-tokens", "--split", "--straggler-", "--tensorboard-", "--test-", "--tiktoken-",
    "--timing-", "--titles-", "--tokenizer-", "--train-", "--trust-remote-code", "--valid-", "--validation-",
    "--vocab-file", "--wandb-",
    // The optimizer's numbers.
    "--adam-", "--clip-grad", "--decoupled-", "--decrease-batch-size-if-needed", "--end-weight-decay", "--hysteresis",
    "--initial-loss-scale", "--lion-", "--loss-scale", "--loss-scale-", "--min-loss-scale", "--min-lr", "--muon-",
    "--overlap-cpu-optimizer-d2h-h2d", "--pin-cpu-", "--start-", "--warmup", "--wd-", "--weight-decay",
    "--weight-decay-", "--apply-wd-to-qk-layernorm",
    // The model's numbers.
    "--apply-layernorm-1p", "--calculate-per-token-loss", "--embedding-init-method-std", "--init-method-std",
    "--init-method-xavier-uniform", "--init-model-with-meta-device", "--layernorm-epsilon", "--mscale",
    "--mscale-all-dim", "--mtp-loss-scaling-factor", "--norm-epsilon", "--qk-clip", "--qk-clip-", "--rope-",
    "--rotary-", "--softmax-type", "--squared-relu", "--yarn-",
    // Experts.
    "--moe-aux-loss-coeff", "--moe-deepep-num-sms", "--moe-extended-tp", "--moe-flex-dispatcher-num-sms",
    "--moe-mlp-glu-interleave-size", "--moe-pad-experts-for-cuda-graph-inference", "--moe-per-layer-logging",
    "--moe-permute-fusion", "--moe-router-bias-update-rate", "--moe-router-enable-expert-bias",
    "--moe-router-force-biased", "--moe-router-force-load-balancing", "--moe-router-fusion",
    "--moe-router-group-topk", "--moe-router-load-balancing-type", "--moe-router-num-groups",
    "--moe-router-pre-softmax", "--moe-router-quantile-balancing-ema", "--moe-router-score-function",
    "--moe-router-topk-limited-devices", "--moe-router-topk-scaling-factor", "--moe-shared-expert-glu-interleave-size",
    "--moe-single-grouped-bias", "--moe-single-grouped-weight", "--moe-token-drop-policy", "--moe-upcycling-",
    "--moe-use-legacy-grouped-gemm", "--moe-use-upcycling",
    // Kernels and communication.
    "--align-grad-reduce", "--align-param-gather", "--batch-p2p-", "--bias-dropout-fusion",
    "--bias-gelu-fusion", "--bias-swiglu-fusion", "--clone-scatter-output-in-embedding", "--create-",
    "--data-parallel-random-init", "--ddp-average-in-collective", "--ddp-bucket-size", "--ddp-num-buckets",
    "--ddp-pad-buckets-for-high-nccl-busbw", "--deallocate-pipeline-outputs", "--disable-align-grad-reduce",
    "--disable-bf16-reduced-precision-matmul", "--disable-ckpt-", "--disable-flight-recorder-",
    "--disable-gloo-process-groups", "--disable-log-", "--disable-mamba-", "--disable-manual-gc-eval",
    "--disable-msc", "--disable-straggler-on-startup", "--disable-stream-ckpt-dequant",
    "--disable-strict-fsdp-dtensor-load", "--disable-symmetric-registration", "--disable-tokenizer-",
    "--disable-tp-comm-", "--disable-use-tokenizer-model-from-checkpoint-args", "--distrib-optim-",
    "--empty-unused-memory-level", "--enable-experimental", "--enable-ft-package", "--enable-gloo-process-groups",
    "--enable-msc", "--flash-", "--gradient-accumulation-fusion", "--gradient-reduce-div-fusion", "--high-priority-",
    "--inference-", "--lazy-mpu-init", "--local-rank", "--masked-softmax-fusion", "--nccl-",
    "--overlap-grad-reduce", "--overlap-p2p-", "--overlap-param-gather", "--overlap-param-gather-",
    "--pad-vocab-size", "--persist-layer-norm", "--pipeline-model-parallel-comm-backend", "--reset-",
    "--sharp-enabled-group", "--te-rng-tracker", "--tp-comm-bootstrap-backend",
    // Off.
    "--no-align-", "--no-async-tensor-model-parallel-allreduce", "--no-barrier-", "--no-bias-dropout-fusion",
    "--no-check-for-nan-in-loss-and-grad", "--no-ckpt-", "--no-contiguous-buffers-in-local-ddp",
    "--no-create-attention-mask-in-dataloader", "--no-data-sharding", "--no-flight-recorder-",
    "--no-gradient-reduce-div-fusion", "--no-inference-", "--no-initialization", "--no-load-", "--no-log-",
    "--no-manual-gc-eval", "--no-mmap-bin-files", "--no-one-logger", "--no-overlap-p2p-communication",
    "--no-persist-layer-norm", "--no-pin-cpu-", "--no-position-embedding", "--no-query-key-layer-scaling",
    "--no-rope-freq", "--no-save-", "--no-scatter-gather-tensors-in-pipeline", "--no-stream-ckpt-dequant",
    "--no-strict-fsdp-dtensor-load", "--no-tokenizer-", "--no-tp-comm-",
    "--no-use-tokenizer-model-from-checkpoint-args", "--no-weight-decay-cond-type",
    "--no-yarn-correction-range-round-to-int",
    // On.
    "--use-checkpoint-opt-param-scheduler", "--use-cpu-initialization", "--use-dist-ckpt", "--use-fused-rmsnorm",
    "--use-mcore-models", "--use-mp-args-from-checkpoint-args", "--use-one-sent-docs", "--use-persistent-ckpt-worker",
    "--use-pytorch-profiler", "--use-ring-exchange-p2p", "--use-rope-scaling",
    "--use-same-sampling-seed-across-dp-ranks", "--use-sharp", "--use-tokenizer-model-from-checkpoint-args",
    "--use-torch-optimizer-for-cpu-offload", "--use-tp-pp-dp-mapping",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Effect {
        let words: Vec<_> = text.split(' ').map(str::to_owned).collect();
        effect(&words[0], &words[1..])
    }

    #[test]
    fn flags_that_change_memory_are_not_taken_for_their_harmless_neighbours() {
        for flag in [
            "--moe-input-jitter-eps 0.01",
            "--moe-router-dtype fp64",
            "--moe-z-loss-coeff 1e-3",
            "--qk-l2-norm",
            "--no-masked-softmax-fusion",
            "--no-fp8-wgrad",
            "--ep-overlap-early-attn-memory-release",
            "--disable-jit-fuser",
            "--deterministic-mode",
            "--apply-query-key-layer-scaling",
            "--optimizer-cuda-graph",
            "--cp-comm-type p2p a2a",
            "--num-distributed-optimizer-instances 2",
        ] {
            assert!(matches!(of(flag), Effect::Differs(_)), "{flag}: {:?}", of(flag));
        }
        for family in
            ["moe", "use", "qk", "no", "ep-overlap", "disable", "overlap", "apply", "ddp", "optimizer"]
        {
            let flag = format!("--{family}-anything-new");
            assert_eq!(of(&flag), Effect::Unknown, "{flag}");
        }
    }

    #[test]
    fn values_that_change_nothing_are_no_difference() {
        for flag in [
            "--cp-comm-type p2p",
            "--moe-router-dtype fp32",
            "--moe-z-loss-coeff 0",
            "--lr 1",
            "--moe-router-fusion",
        ] {
            assert_eq!(of(flag), Effect::Harmless, "{flag}");
        }
        assert_eq!(of("--cp-comm-type"), Effect::Differs("context parallel is modelled as a ring (p2p)"));
        assert_eq!(of("--mlp-chunks-for-training 1"), Effect::Harmless);
        assert_eq!(of("--mlp-chunks-for-training 2"), Effect::Replaced);
    }

    #[test]
    fn no_flag_has_two_effects() {
        let differs = DIFFERS.iter().map(|(flag, _)| flag);
        for flag in differs.chain(REPLACED) {
            assert!(!HARMLESS.iter().any(|harmless| means(harmless, flag)), "{flag}");
        }
        for (index, flag) in HARMLESS.iter().enumerate() {
            assert!(!HARMLESS[..index].contains(flag), "{flag} is listed twice");
            let family = |other: &&&str| other != &flag && means(other, flag);
            assert_eq!(HARMLESS.iter().find(family), None, "{flag}");
        }
    }
}
