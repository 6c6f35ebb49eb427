//! Programs around Megatron whose defaults differ from its own.

use super::Setting;

/// A program, as far as its runs can be told.
pub(crate) struct Program {
    /// What it is called, with the version that the defaults are of.
    pub name: &'static str,
    /// Flags for what a run does not say.
    pub flags: &'static [&'static str],
    /// Flags for what it does not say of a model whose sizes it gives itself.
    pub of_sizes: &'static [&'static str],
}

/// The version of each and what it takes where a run says nothing. Only what changes memory is listed.
pub(crate) const MS_SWIFT: Program = Program {
    // swift/megatron/argument/megatron_args.py; before 3.9 experts took the TP, before 3.10 they ran one by one.
    name: "ms-swift 3.10",
    flags: &[
        "--micro-batch-size",
        "1",
        "--global-batch-size",
        "16",
        "--expert-tensor-parallel-size",
        "1",
        "--moe-token-dispatcher-type",
        "alltoall",
        "--moe-grouped-gemm",
        "--use-distributed-optimizer",
        "--attention-backend",
        "flash",
        "--recompute-granularity",
        "selective",
        "--bf16",
    ],
    of_sizes: &[
        "--normalization",
        "RMSNorm",
        "--position-embedding-type",
        "rope",
        "--hidden-dropout",
        "0",
        "--attention-dropout",
        "0",
        "--swiglu",
        "--disable-bias-linear",
        "--untie-embeddings-and-output-weights",
    ],
};

pub(crate) const VERL: Program = Program {
    // verl/trainer/config/engine/megatron.yaml and verl/models/mcore.
    name: "verl 0.6",
    flags: &[
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--attention-backend",
        "flash",
        "--moe-token-dispatcher-type",
        "alltoall",
        "--moe-grouped-gemm",
        "--bf16",
    ],
    of_sizes: &[],
};

/// Fields that only a run of ms-swift has at its top.
const OF_MS_SWIFT: [&str; 9] = [
    "train_type",
    "tuner_type",
    "load_safetensors",
    "save_safetensors",
    "lazy_tokenize",
    "load_from_cache_file",
    "split_dataset_ratio",
    "dataset_num_proc",
    "cached_dataset",
];

/// The program that settings are recognisably for.
pub(super) fn program(list: &[Setting]) -> Option<&'static Program> {
    let any = |is: fn(&Setting) -> bool| list.iter().any(is);
    if any(|setting| setting.path.first().is_some_and(|part| part == "actor_rollout_ref")) {
        return Some(&VERL);
    }
    // Its files are flat, so a section tells another program.
    let flat = list.iter().all(|setting| setting.path.len() == 1);
    let swift = flat && any(|setting| OF_MS_SWIFT.contains(&setting.field()));
    swift.then_some(&MS_SWIFT)
}

impl Program {
    /// The flags that are not given, and one line that names them. `sized`: the run gives sizes itself; experts'
    /// flags are for a model `with_experts`.
    pub(super) fn assumed(
        &self,
        sized: bool,
        with_experts: bool,
        is_given: impl Fn(&str) -> bool,
    ) -> (Vec<String>, Option<String>) {
        let of_experts = |flag: &str| flag.starts_with("--moe-") || flag.starts_with("--expert-");
        // Either precision stands against the other.
        let other_precision = |flag: &str| flag == "--bf16" && is_given("--fp16");
        let groups = [self.flags, if sized { self.of_sizes } else { &[] }];
        let flags = groups.iter().flat_map(|flags| flags.chunk_by(|_, next| !next.starts_with("--")));
        let assumed: Vec<_> = flags
            .filter(|flag| !is_given(flag[0]) && !other_precision(flag[0]))
            .filter(|flag| with_experts || !of_experts(flag[0]))
            .collect();
        let line = assumed.iter().map(|flag| flag.join(" ")).collect::<Vec<_>>().join(", ");
        let note = format!("assumed where nothing else is given, as {} does: {line}", self.name);
        (assumed.concat().into_iter().map(str::to_owned).collect(), (!assumed.is_empty()).then_some(note))
    }
}
