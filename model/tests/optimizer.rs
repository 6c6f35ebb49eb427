//! Optimizer state: its types, its division, and what is kept on the host.

mod common;

use bagualu_model::script::from_flags;
use bagualu_model::{Device, GradientType, Model, Optimizer, Parallelism, Precision, Preset, StaticBytes};
use common::{alone, build, device, small};

fn bytes(optimizer: Optimizer) -> StaticBytes {
    build(&small(), &Parallelism { optimizer, ..alone() }).stages[0].static_bytes
}

fn parameters() -> u64 {
    build(&small(), &alone()).stages[0].parameters.total()
}

#[test]
fn state_has_the_types_it_is_given() {
    let n = parameters();
    let state = |main_bytes, first_moment_bytes, second_moment_bytes| {
        let optimizer =
            Optimizer { main_bytes, first_moment_bytes, second_moment_bytes, ..Optimizer::default() };
        bytes(optimizer).optimizer
    };
    assert_eq!(
        [state(4, 4, 4), state(2, 2, 2), state(2, 1, 2), state(4, 0, 0)],
        [12 * n, 6 * n, 5 * n, 4 * n]
    );
}

#[test]
fn what_is_on_the_host_is_not_on_the_device() {
    let n = parameters();
    let offloaded = |host_permille| bytes(Optimizer { host_permille, ..Optimizer::default() });
    let none = offloaded(0);
    assert_eq!((none.optimizer, none.optimizer_host), (12 * n, 0));
    // Parameters and two moments in FP32, and the gradients that they are stepped with.
    let all = offloaded(1_000);
    assert_eq!((all.optimizer, all.optimizer_host), (0, 16 * n));
    // Parameters and gradients stay in their buffers.
    assert_eq!((all.weights, all.gradients), (2 * n, 4 * n));
    let half = offloaded(500);
    assert_eq!((half.optimizer, half.optimizer_host), (6 * n, 8 * n));
    assert_eq!(all.total() + 12 * n, none.total());
}

#[test]
fn the_host_s_share_is_divided_over_the_replicas_too() {
    let preset = Preset::named("glm-423b-a30b", None).expect("a preset");
    let optimizer = Optimizer { host_permille: 1_000, ..Optimizer::default() };
    let model = build(&preset.config, &Parallelism { optimizer, ..preset.parallelism.clone() });
    let stage = &model.stages[3];
    let (experts, all) = (stage.parameters.experts, stage.parameters.total());
    assert_eq!((preset.parallelism.dp(), preset.parallelism.expert_dp()), (32, 1));
    assert_eq!(stage.static_bytes.optimizer_host, 16 * experts + (16 * (all - experts)).div_ceil(32));
}

#[test]
fn the_optimizer_leaves_less_of_the_host_to_activations() {
    let optimizer = Optimizer { host_permille: 1_000, ..Optimizer::default() };
    let model = build(&small(), &Parallelism { optimizer, ..alone() });
    let stage = &model.stages[0];
    assert_eq!(model.host_room(stage), device().host_bytes - 16 * parameters());
    let little = Device { host_bytes: 1_000, ..device() };
    let model = Model::new(&small(), &model.parallelism, &little).expect("a model");
    assert_eq!(model.host_room(&model.stages[0]), 0);
}

/// Flags beside the sizes, and what follows: bytes of main parameter, moments and gradient.
const TYPES: [(&[&str], [u64; 3], GradientType); 10] = [
    (&["--bf16"], [4, 4, 4], GradientType::Fp32),
    (&["--bf16", "--grad-reduce-in-bf16"], [4, 4, 4], GradientType::Bf16),
    // FP16 gradients are FP16 unless asked for otherwise.
    (&["--fp16"], [4, 4, 4], GradientType::Bf16),
    (&["--fp16", "--accumulate-allreduce-grads-in-fp32"], [4, 4, 4], GradientType::Fp32),
    // Only what BF16 cuts off the main parameters is stored beside them.
    (&["--bf16", AWARE, DISTRIBUTED], [2, 4, 4], GradientType::Fp32),
    (&["--fp16", AWARE, DISTRIBUTED, "--exp-avg-dtype", "bf16"], [4, 2, 4], GradientType::Bf16),
    (
        &[
            "--bf16",
            AWARE,
            DISTRIBUTED,
            "--main-grads-dtype",
            "bf16",
            "--exp-avg-dtype",
            "fp8",
            "--exp-avg-sq-dtype",
            "fp16",
        ],
        [2, 1, 2],
        GradientType::Bf16,
    ),
    // On the host everything is FP32.
    (
        &["--bf16", AWARE, DISTRIBUTED, "--optimizer-cpu-offload", "--exp-avg-dtype", "bf16"],
        [4, 4, 4],
        GradientType::Fp32,
    ),
    (&["--bf16", "--optimizer", "sgd"], [4, 4, 0], GradientType::Fp32),
    (&["--bf16", "--optimizer", "sgd", "--sgd-momentum", "0"], [4, 0, 0], GradientType::Fp32),
];

const AWARE: &str = "--use-precision-aware-optimizer";
const DISTRIBUTED: &str = "--use-distributed-optimizer";

fn read(more: &[&str]) -> Result<Parallelism, String> {
    let sizes = "--num-layers 1 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 \
                 --vocab-size 1000";
    let flags: Vec<_> = sizes.split_whitespace().chain(more.iter().copied()).map(str::to_owned).collect();
    from_flags(&flags, 1).map(|launch| launch.parallelism).map_err(|error| error.to_string())
}

#[test]
fn flags_say_the_types() {
    for (flags, bytes, gradients) in TYPES {
        let read = read(flags).unwrap_or_else(|error| panic!("{flags:?}: {error}"));
        let Optimizer { main_bytes, first_moment_bytes, second_moment_bytes, .. } = read.optimizer;
        assert_eq!([main_bytes, first_moment_bytes, second_moment_bytes], bytes, "{flags:?}");
        assert_eq!(read.gradients, gradients, "{flags:?}");
        assert_eq!(read.precision, Precision::Bf16);
    }
    let offload = [AWARE, DISTRIBUTED, "--optimizer-cpu-offload"];
    let share =
        |more: &[&str]| read(&[&["--bf16"], &offload[..], more].concat()).map(|p| p.optimizer.host_permille);
    assert_eq!(share(&[]), Ok(1_000));
    assert_eq!(share(&["--optimizer-offload-fraction", "0.25"]), Ok(250));
    assert!(share(&["--optimizer-offload-fraction", "1.5"]).is_err_and(|e| e.contains("1.5")));
}

#[test]
fn a_flag_without_the_one_that_megatron_asks_for_is_refused() {
    for (flags, words) in [
        (&["--bf16", "--optimizer-cpu-offload"][..], ["--optimizer-cpu-offload", AWARE]),
        (&["--bf16", AWARE], [AWARE, DISTRIBUTED]),
    ] {
        let error = read(flags).expect_err("refused");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
