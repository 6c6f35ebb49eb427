//! FP8 training: which linear layers run in it, what the optimizer keeps beside it, and what is offloaded of it.

mod common;

use bagualu_core::set::Set;
use bagualu_model::script::from_flags;
use bagualu_model::settings::{ActivationSettings, Configured, Offload, OffloadModule};
use bagualu_model::{Capacity, Fp8, Fp8Recipe, LayerType, Model, ModelConfig, Parallelism, RowPadding};
use common::{alone, build, small};

/// T = S = 64, h = 32, and 128 rows are balanced.
const ROWS: u32 = 128;
const RECIPES: [Fp8Recipe; 4] =
    [Fp8Recipe::Delayed, Fp8Recipe::Tensorwise, Fp8Recipe::Blockwise, Fp8Recipe::Mxfp8];

fn in_fp8(config: &ModelConfig, recipe: Fp8Recipe) -> Model {
    build(config, &Parallelism { fp8: Some(Fp8 { recipe, parameters: false }), ..alone() })
}

fn kind<'m>(model: &'m Model, name: &str) -> &'m LayerType {
    model.types.iter().find(|t| t.name == name).expect("a layer type")
}

/// Bytes of everything that a layer saves.
fn saved(layer: &LayerType) -> u64 {
    let saved = layer.ops.iter().fold(Set::EMPTY, |set, op| set | op.saves);
    saved.iter().map(|t| layer.tensors[t].bytes.at(ROWS).expect("fits")).sum()
}

#[test]
fn the_projection_of_multi_token_prediction_runs_in_fp8() {
    let config = ModelConfig { mtp_layers: 1, ..small() };
    let wide = build(&config, &alone());
    for recipe in RECIPES {
        let model = in_fp8(&config, recipe);
        let mtp = kind(&model, "mtp");
        let copy = mtp.tensor("eh_input_fp8").expect("an FP8 copy");
        assert!(mtp.ops[mtp.op("eh_proj").expect("a projection")].saves.contains(copy));
        let copy = mtp.tensors[copy].bytes.fixed;
        // The FP8 copy of the 2h columns takes the place of the BF16 tensor.
        assert_eq!(saved(kind(&wide, "mtp")) - saved(mtp), 2 * (64 * 2 * 32) - copy);
        assert!(mtp.saved_in(mtp.tensor("eh_input_fp8").expect("a copy")).is_some());
    }
}

/// By rows and by columns: a byte each, as for every other linear layer.
#[test]
fn every_linear_layer_that_runs_in_fp8_has_fp8_weights() {
    let latent = |columns| {
        let mut config = small();
        config.moe.as_mut().expect("experts").latent = columns;
        config
    };
    let weights = |config: &ModelConfig| {
        let stage = &in_fp8(config, Fp8Recipe::Tensorwise).stages[0];
        (stage.static_bytes.fp8_weights, stage.parameters)
    };
    let (bytes, parameters) = weights(&latent(8));
    assert_eq!(parameters.latent, 2 * 32 * 8);
    assert_eq!(bytes, 2 * (parameters.attention + parameters.latent + parameters.experts));
    let (bytes, parameters) = weights(&ModelConfig { mtp_layers: 1, ..small() });
    assert_eq!(parameters.mtp, 2 * 32 * 32);
    assert_eq!(bytes, 2 * (parameters.attention + parameters.mtp + parameters.experts));
}

/// Flags of FP8, and bytes of a main parameter that the precision-aware optimizer keeps beside them.
const MAIN: [(&str, u64); 9] = [
    ("--bf16 --fp8-format hybrid", 2),
    ("--bf16 --fp8-format hybrid --fp8-recipe delayed", 2),
    // An FP8 parameter is no half of one in FP32.
    ("--bf16 --fp8-format hybrid --fp8-param-gather", 4),
    ("--bf16 --fp8-format hybrid --fp8-recipe tensorwise", 4),
    ("--bf16 --fp8-format hybrid --fp8-recipe blockwise --fp8-param-gather", 4),
    ("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather", 4),
    // Megatron looks at the recipe alone.
    ("--bf16 --fp8-recipe blockwise", 4),
    ("--bf16 --fp8-format hybrid --fp8-recipe mxfp8 --main-params-dtype fp16", 2),
    ("--fp16 --fp8-format hybrid", 4),
];

#[test]
fn main_parameters_follow_the_recipe() {
    for (flags, bytes) in MAIN {
        let sizes = "--num-layers 1 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 \
                     --vocab-size 1000 --use-precision-aware-optimizer --use-distributed-optimizer";
        let words: Vec<_> =
            sizes.split_whitespace().chain(flags.split_whitespace()).map(str::to_owned).collect();
        let launch = from_flags(&words, 1).unwrap_or_else(|error| panic!("{flags}: {error}"));
        assert_eq!(launch.parallelism.optimizer.main_bytes, bytes, "{flags}");
    }
}

fn offload(modules: &[OffloadModule], least_elements: u64) -> ActivationSettings {
    let offload = Offload { modules: modules.to_vec(), least_elements, ..Offload::default() };
    ActivationSettings { offload: Some(offload), ..ActivationSettings::default() }
}

/// Three layers of which the last one's group stays, on one rank with one micro-batch in flight.
fn three_layers(recipe: Fp8Recipe) -> Model {
    let config = ModelConfig { layers: 3, ..small() };
    let fp8 = Some(Fp8 { recipe, parameters: false });
    build(&config, &Parallelism { fp8, global_batch: 6, ..alone() })
}

fn configured(model: &Model, settings: &ActivationSettings) -> Configured {
    Configured::new(settings, model, &model.stages[0], ROWS).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn an_offloaded_first_linear_layer_saves_its_input_itself() {
    let (n, h) = (u64::from(ROWS), 32);
    let settings = offload(&[OffloadModule::ExpertFc1], 0);
    for (recipe, copy, leaves) in [
        (Fp8Recipe::Tensorwise, n * h, 2 * n * h),
        (Fp8Recipe::Blockwise, n * (h + 4), 2 * n * h),
        // Its copy leaves as it is.
        (Fp8Recipe::Mxfp8, n * (h + 1), n * (h + 1)),
    ] {
        let model = three_layers(recipe);
        let kept = configured(&model, &ActivationSettings::default());
        let offloaded = configured(&model, &settings);
        assert_eq!(offloaded.host_bytes, 2 * leaves, "{recipe:?}: two layers' leave");
        assert_eq!(
            kept.held_bytes - offloaded.held_bytes,
            3 * copy - leaves,
            "{recipe:?}: the third's stays"
        );
    }
    // All experts as one module are no such case.
    let model = three_layers(Fp8Recipe::Tensorwise);
    let whole = configured(&model, &offload(&[OffloadModule::FusedGroupMlp], 0));
    let experts = n * h + n * (4 * 48 + 2) + n * 48;
    assert_eq!(whole.host_bytes, 2 * experts);
}

/// Transformer Engine: "DelayedScaling recipe is not supported with save_original_input".
#[test]
fn delayed_scales_do_not_go_with_it() {
    let model = three_layers(Fp8Recipe::Delayed);
    let check = |module| offload(&[module], 0).check(&model.config, &model.parallelism);
    let error = check(OffloadModule::ExpertFc1).expect_err("refused").to_string();
    assert!(error.contains("expert_fc1") && error.contains("--fp8-recipe"), "{error}");
    assert_eq!(check(OffloadModule::MoeAct), Ok(()));
}

#[test]
fn elements_in_fp8_have_a_byte() {
    let model = three_layers(Fp8Recipe::Mxfp8);
    let elements = u64::from(ROWS) * 33;
    let leaves = |least| configured(&model, &offload(&[OffloadModule::ExpertFc1], least)).host_bytes;
    assert_eq!((leaves(elements), leaves(elements + 1)), (2 * elements, 0));
}

/// Two ranks of 64 tokens, k = 2, E = 4: 128 rows are balanced on each, 256 are all.
fn padded(padding: RowPadding, capacity: Option<Capacity>) -> Model {
    let mut config = small();
    config.moe.as_mut().expect("experts").capacity = capacity;
    build(&config, &Parallelism { row_padding: padding, gpus: 2, ep: 2, global_batch: 4, ..alone() })
}

#[test]
fn padding_adds_at_most_what_each_expert_lacks_of_a_multiple() {
    let rows = |by_router, capacity| {
        let model = padded(RowPadding { multiple: 16, by_router }, capacity);
        let moe = kind(&model, "moe");
        let indices = moe.tensors[moe.tensor("permute_indices").expect("indices")].bytes.fixed;
        (model.balanced_rows, model.rows_at(1_000), model.rows_at(2_000), model.most_rows, indices)
    };
    let argsort = 8 * 64 * 4;
    // Two local experts, each up to 15 rows more than they receive.
    assert_eq!(rows(false, None), (128, 128 + 30, 256 + 30, 286, 8 * 128 + argsort));
    // From each of two ranks; each sends up to 15 more to each of four experts.
    assert_eq!(rows(true, None), (128, 128 + 60, 256 + 60, 316, 8 * (128 + 60) + argsort));
    // Padded to capacity, 40 from each rank: routers have nothing to add, experts have.
    let capacity = Some(Capacity { factor_permille: 1_250, pad: true });
    assert_eq!(rows(true, capacity), (160, 160, 160, 160, 8 * 160));
    assert_eq!(rows(false, capacity), (160, 190, 190, 190, 8 * 160));
    assert_eq!(padded(RowPadding::default(), None).padding_rows, 0);
    let model = padded(RowPadding { multiple: 16, by_router: false }, None);
    assert_eq!((model.padded(0), model.padded(1), model.padded(256)), (0, 31, 286));
}

#[test]
fn flags_say_how_rows_are_padded() {
    for (flags, multiple, by_router) in [
        ("", 1, false),
        ("--moe-router-padding-for-quantization", 1, false),
        ("--fp8-format hybrid", 16, false),
        ("--fp8-format hybrid --moe-router-padding-for-fp8", 16, true),
        ("--fp8-format e4m3 --fp8-recipe mxfp8 --moe-router-padding-for-quantization", 32, true),
        ("--fp8-format e4m3 --fp8-recipe blockwise --use-transformer-engine-op-fuser", 256, false),
    ] {
        let sizes = "--num-layers 1 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 \
                     --vocab-size 1000 --num-experts 4 --bf16";
        let words: Vec<_> =
            sizes.split_whitespace().chain(flags.split_whitespace()).map(str::to_owned).collect();
        let launch = from_flags(&words, 1).unwrap_or_else(|error| panic!("{flags}: {error}"));
        assert_eq!(launch.parallelism.row_padding, RowPadding { multiple, by_router }, "{flags}");
        assert!(launch.warnings.iter().all(|warning| !warning.contains("padding")), "{:?}", launch.warnings);
    }
}
