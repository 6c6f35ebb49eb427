//! What others measured, predicted from shapes and compared: `docs/predictions.md`.
//!
//! Nothing is fitted. Every row that is computed here must be in the document as it is printed; each bound is the one
//! that is reached.

mod public;

use bagualu_core::schedule::{Event, Pipeline, most_in_flight};
use public::offload_ratio::Offloading;
use public::{Compared, Planned, Rows, megatron_runs};

/// Megatron-LM's own runs on eight H100: peak of the last pipeline rank, and what of it is allocated between
/// iterations.
#[test]
fn runs_of_megatrons_test_suite() {
    let mut rows = Rows::default();
    for run in megatron_runs() {
        let rank = Planned::new(&run.flags, run.gpus).last();
        let held = Compared { measured: run.peak_bytes - run.allocated_bytes, predicted: rank.activations };
        let peak = Compared { measured: run.peak_bytes, predicted: rank.peak() };
        let name = format!("`{}`", run.run);
        match run.nodes_known {
            true => rows.add(&[&name], &[&held, &peak]),
            false => rows.add(&[&name], &[&held]),
        }
        assert!(held.permille().abs() <= run.activations_permille, "{}: {}", run.run, held.permille());
        if !run.nodes_known {
            continue;
        }
        let libraries = run.allocated_bytes.checked_sub(rank.fixed).expect("no less than is modelled");
        assert!(libraries <= run.libraries_mib << 20, "{}: {} MiB", run.run, libraries >> 20);
        // The workspaces of libraries are in the device's margin and weigh nothing where it matters.
        if run.peak_bytes > 4 << 30 {
            assert!(peak.permille().abs() <= 30, "{}: {}", run.run, peak.permille());
        }
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
/// Llama-65B, sequence 8,192, on 256 H800. The activation is not fused, and its second factor a view.
const LLAMA_65B: &str = "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 22016 --num-attention-heads 64 \
    --vocab-size 32004 --seq-length 8192 --swiglu --no-bias-swiglu-fusion --normalization RMSNorm \
    --position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear --hidden-dropout 0 --attention-dropout 0 \
    --use-flash-attn --tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 2 \
    --pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 2 --use-distributed-optimizer --bf16 \
    --micro-batch-size 1 --global-batch-size 256";
/// What `--kaimm-recompute-norm --kaimm-recompute-mlp-activation-func` do not keep.
const NORMS_AND_ACTIVATION: [&str; 4] = ["ln1_out", "ln2_out", "act_gate", "act_out"];

#[test]
fn offloading_a_share_of_llama_65b() {
    let offloading = Offloading::new(&Planned::new(LLAMA_65B, 256).model, &["act_linear"]);
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
/// each. Its author expects 1,440 MB less on the first rank and 800 on the last, and measures 43,689,495,552 −
/// 42,179,546,624 bytes. The shape is not published; how many layers' worth it is follows from the schedule: all in flight
/// but the one that is running.
#[test]
fn layers_offloaded_in_an_interleaved_pipeline() {
    let layers = |rank| {
        let pipeline = Pipeline::new(2, rank, 8).interleaved(2);
        let mut events = vec![Event::Forward(0); 2 * pipeline.units().expect("units") as usize];
        2 * most_in_flight(pipeline.events(&mut events).expect("a schedule")) as u64 - 1
    };
    assert_eq!([layers(0), layers(1)], [9, 5]);
    let expected = 160 << 20;
    assert_eq!([layers(0) * expected, layers(1) * expected], [1_440 << 20, 800 << 20]);
    let saved = Compared { measured: 43_689_495_552 - 42_179_546_624, predicted: layers(0) * expected };
    assert_eq!(saved.permille(), 0);
}
