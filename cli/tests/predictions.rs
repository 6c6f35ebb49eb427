//! What others measured, predicted from shapes and compared: `docs/predictions.md`.
//!
//! Nothing is fitted. Every row that is computed here must be in the document as it is printed. Bounds are those of a
//! class of runs.

mod public;

use bagualu_core::schedule::{Event, Pipeline, most_in_flight};
use public::offload_ratio::Offloading;
use public::{Compared, MegatronRun, Planned, Rows, megatron_runs};

/// What the error of a run stays below, in thousandths.
struct Bounds {
    activations: i64,
    peak: i64,
}

impl Bounds {
    /// Dense models and those with experts, whose loads are not published; small and large ones.
    fn of(run: &MegatronRun) -> Self {
        let experts = run.flags.contains("--num-experts");
        let activations = match (experts, run.activations() > LARGE_ACTIVATIONS) {
            (true, _) => 75,
            (false, true) => 30,
            (false, false) => 45,
        };
        let peak = match (run.is_large(), experts) {
            (true, _) => 80,
            (false, true) => 60,
            (false, false) => 20,
        };
        Self { activations, peak }
    }
}

/// Activations from which on those of dense models are within 3 %.
const LARGE_ACTIVATIONS: u64 = 1_200 << 20;
/// What a run of less than [`MegatronRun::LARGE`] has allocated between iterations beside what is modelled.
const BESIDE: u64 = 70 << 20;

/// Megatron-LM's own runs on eight H100: peak of the last pipeline rank, and what of it is allocated between
/// iterations.
#[test]
fn runs_of_megatrons_test_suite() {
    let mut rows = Rows::default();
    // Runs beyond 10 %, and all; small ones first.
    let mut beyond = [(0, 0); 2];
    for run in megatron_runs() {
        let rank = Planned::new(&run.flags, run.gpus).last();
        let held = Compared { measured: run.activations(), predicted: rank.activations };
        let bounds = Bounds::of(&run);
        let peak = Compared { measured: run.peak_bytes, predicted: rank.peak() };
        let name = format!("`{}`", run.run);
        match run.nodes_known {
            true => rows.add(&[&name], &[&held, &peak]),
            false => rows.add(&[&name], &[&held]),
        }
        assert!(held.permille().abs() <= bounds.activations, "{}: {}", run.run, held.permille());
        if !run.nodes_known {
            continue;
        }
        let beside = run.allocated_bytes.checked_sub(rank.fixed).expect("no less than is modelled");
        assert!(run.is_large() || beside <= BESIDE, "{}: {} MiB", run.run, beside >> 20);
        assert!(peak.permille().abs() <= bounds.peak, "{}: {}", run.run, peak.permille());
        let counted = &mut beyond[usize::from(run.is_large())];
        *counted = (counted.0 + usize::from(peak.permille().abs() > 100), counted.1 + 1);
    }
    for ((beyond, of), peaks) in beyond.into_iter().zip(["below", "above"]) {
        rows.sentence(format!("{beyond} of {of} peaks {peaks} 4 GiB are off by more than 10 %"));
    }
    rows.are_documented();
}

/// Largest `max_memory_allocated` over all ranks by α in tenths, without and with recomputation of norms and
/// activation: Fig. 7 of "Accelerating the Training of Large Language Models using Efficient Activation
/// Rematerialization and Optimal Hybrid Parallelism" (Yuan et al., USENIX ATC 2024), exact values of its artifact's README.
const OFFLOAD_RATIO: [(u64, Option<u64>, u64); 11] = [
    (0, None, 65_330_982_400),
    (1, None, 62_128_631_296),
    (2, None, 58_907_405_824),
    (3, Some(72_762_730_496), 55_554_059_776),
    (4, Some(66_951_784_960), 52_089_073_152),
    (5, Some(61_136_119_808), 48_604_098_048),
    (6, Some(55_733_856_256), 45_722_611_200),
    (7, Some(50_331_592_704), 42_832_735_744),
    (8, Some(45_824_813_056), 38_925_740_032),
    (9, Some(39_527_328_256), 36_144_916_480),
    (10, Some(34_491_172_352), 32_462_145_024),
];
/// Llama-65B, sequence 8,192, on 256 H800. The activation is not fused, and its second factor a view. Its Megatron, of
/// 2023, hands autograd no placeholders of gradients, which the flag behind it takes off.
const LLAMA_65B: &[u8] = include_bytes!("../../examples/measured/llama-65b.sh");
/// What `--kaimm-recompute-norm --kaimm-recompute-mlp-activation-func` do not keep.
const NORMS_AND_ACTIVATION: [&str; 4] = ["ln1_out", "ln2_out", "act_gate", "act_out"];

#[test]
fn offloading_a_share_of_llama_65b() {
    let offloading = Offloading::new(
        &Planned::script(LLAMA_65B, "--no-gradient-accumulation-fusion").model,
        &["act_linear"],
    );
    let mut rows = Rows::default();
    for (recompute, from) in [(&[][..], 3), (&NORMS_AND_ACTIVATION, 0)] {
        let measured = |(_, none, recomputed): (u64, Option<u64>, u64)| match recompute.is_empty() {
            true => none,
            false => Some(recomputed),
        };
        let setting =
            if recompute.is_empty() { "nothing recomputed" } else { "norms, activation recomputed" };
        let predicted = |tenths: u64| offloading.peak(100 * tenths, recompute);
        for point in OFFLOAD_RATIO {
            let Some(measured) = measured(point) else { continue };
            let peak = Compared { measured, predicted: predicted(point.0) };
            let alpha = format!("{}.{}", point.0 / 10, point.0 % 10);
            rows.add(&[setting, &alpha], &[&peak]);
            assert!(peak.permille().abs() <= 40, "{setting} {}: {}", point.0, peak.permille());
        }
        // What offloading everything saves, against the least share that fits a device.
        let ends =
            [OFFLOAD_RATIO[from as usize], OFFLOAD_RATIO[10]].map(|point| measured(point).expect("it ran"));
        let saved = Compared { measured: ends[0] - ends[1], predicted: predicted(from) - predicted(10) };
        rows.add(&[setting, &format!("saved from 0.{from} to 1.0")], &[&saved]);
        assert!(saved.permille().abs() <= 30, "{setting}: {}", saved.permille());
    }
    rows.are_documented();
}

/// NVIDIA/Megatron-LM pull request 1752 offloads queries, keys and values under PP 2, two chunks a rank of two layers
/// each. Its author expects 1,440 MiB less on the first rank and 800 on the last, and measures 43,689,495,552 −
/// 42,179,546,624 bytes less on the first. The shape is not published, so that bytes cannot be predicted, but their
/// ratio: as many layers as are in flight, without the one that is running.
#[test]
fn layers_offloaded_in_an_interleaved_pipeline() {
    let layers = |rank| {
        let pipeline = Pipeline::new(2, rank, 8).interleaved(2);
        let mut events = vec![Event::Forward(0); 2 * pipeline.units().expect("units") as usize];
        2 * most_in_flight(pipeline.events(&mut events).expect("a schedule")) as u64 - 1
    };
    assert_eq!(layers(0) * 800, layers(1) * 1_440);
}

/// What one setting changes between two of Megatron-LM's runs that are alike otherwise, in bytes of activations.
#[test]
fn what_a_setting_changes() {
    let runs = megatron_runs();
    let mut rows = Rows::default();
    let pairs = [
        (
            "full recomputation of dense layers saves",
            "tp1_pp1_frozen_resume_torch_dist_dist_optimizer",
            "uniform_full_recompute",
        ),
        ("Megatron's fused loss costs", "tp2_pp2_cross_entropy_loss_fusion", "tp2_pp2_resume_torch_dist"),
        ("instead of Transformer Engine's", "etp1cp1_release_sm", "etp1cp1_release"),
    ];
    for (what, more, less) in pairs {
        let [more, less] = [more, less].map(|name| {
            let run = runs.iter().find(|run| run.run.ends_with(name)).expect("a run");
            let predicted = Planned::new(&run.flags, run.gpus).last().activations;
            Compared { measured: run.activations(), predicted }
        });
        let change =
            Compared { measured: more.measured - less.measured, predicted: more.predicted - less.predicted };
        rows.add(&[what], &[&change]);
        assert!(change.permille().abs() <= 20, "{what}: {}", change.permille());
    }
    rows.are_documented();
}

/// 14 layers of DeepSeek-V3's shape on 64 H100: NVIDIA/Megatron-LM pull requests 6311 and 6429.
const DEEPSEEK_V3: &[u8] = include_bytes!("../../examples/measured/deepseek-v3-14-layers.sh");
const FULL: &str = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1";

#[test]
fn fourteen_layers_of_deepseek_v3() {
    let mut rows = Rows::default();
    let peaks = [
        ("nothing recomputed (6311)", "", 68_704, 15),
        ("full recomputation (6311)", FULL, 60_154, 10),
        ("overlap of EP, nothing recomputed (6429)", "--overlap-moe-expert-parallel-comm", 70_279, 20),
    ];
    let [none, full, _] = peaks.map(|(what, setting, mib, within)| {
        let peak = Compared { measured: mib << 20, predicted: Planned::script(DEEPSEEK_V3, setting).peak() };
        rows.add(&[what], &[&peak]);
        assert!(peak.permille().abs() <= within, "{what}: {}", peak.permille());
        peak
    });
    let saved =
        Compared { measured: none.measured - full.measured, predicted: none.predicted - full.predicted };
    rows.add(&["full recomputation saves"], &[&saved]);
    assert!(saved.permille().abs() <= 70, "saved: {}", saved.permille());
    rows.are_documented();
}

/// Qwen3-30B-A3B on 16 H100 with forced balance: NVIDIA-NeMo/Megatron-Bridge pull request 3880.
const QWEN3_30B: &[u8] = include_bytes!("../../examples/measured/qwen3-30b-a3b.sh");

#[test]
fn qwen3_30b_a3b_on_sixteen_devices() {
    let mut rows = Rows::default();
    let core_attention = "--recompute-granularity selective --recompute-modules core_attn";
    for (what, setting, measured) in [
        ("nothing recomputed", "", 61_350_000_000),
        ("`core_attn` recomputed", core_attention, 63_140_000_000),
    ] {
        let peak = Compared { measured, predicted: Planned::script(QWEN3_30B, setting).peak() };
        rows.add(&[what], &[&peak]);
        assert!(peak.permille().abs() <= 30, "{what}: {}", peak.permille());
    }
    rows.are_documented();
}

/// Moonlight-16B-A3B on eight H100: `skills/nemo-mbridge-perf-activation-recompute` of NVIDIA-NeMo/Megatron-Bridge.
const MOONLIGHT: &[u8] = include_bytes!("../../examples/measured/moonlight-16b-a3b.sh");

/// The peak ends up in the same 45 MiB whatever is recomputed: it is then where no activation helps. So a prediction
/// is a bound.
#[test]
fn what_moonlight_saves_at_most() {
    let mut rows = Rows::default();
    let activations = |modules: &str| {
        let setting = match modules {
            "" => String::new(),
            modules => format!("--recompute-granularity selective --recompute-modules {modules}"),
        };
        Planned::script(MOONLIGHT, &setting).last().activations
    };
    let measured = [
        ("core_attn", 36_614_000_000u64),
        ("mla_up_proj", 35_902_000_000),
        ("mla_up_proj mlp", 35_917_000_000),
        ("moe_act", 35_941_000_000),
        ("layernorm moe_act", 35_949_000_000),
    ];
    let none = activations("");
    for (modules, peak) in measured {
        let saved = Compared { measured: 36_618_000_000 - peak, predicted: none - activations(modules) };
        rows.add(&[&format!("`{modules}`")], &[&saved]);
        assert!(saved.predicted + (1 << 20) >= saved.measured, "{modules}");
    }
    rows.are_documented();
}
