//! Megatron's own recompute and offload settings, by hand formula.

mod common;

use bagualu_core::set::Set;
use bagualu_model::settings::{
    ActivationSettings, Configured, Method, Offload, OffloadModule, Recompute, RecomputeModule,
};
use bagualu_model::{
    Capacity, Device, Fp8, Fp8Recipe, LayerType, Libraries, MODELS, Mla, Model, ModelConfig, MoeLayers,
    Parallelism, Preset,
};
use common::{alone, build, small};

/// [`small`] with a shared expert as wide as the routed ones, on one device: T = S = 64, h = 32, q = kv = 32,
/// four heads, E = 4, k = 2, f = 48, so that 128 rows are balanced.
fn model() -> Model {
    build(&with_shared(), &alone())
}

fn with_shared() -> ModelConfig {
    let mut config = small();
    config.moe.as_mut().expect("experts").shared_ffn = 48;
    config
}

const ROWS: u32 = 128;

fn configured(model: &Model, settings: &ActivationSettings) -> Configured {
    Configured::new(settings, model, &model.stages[0], ROWS).unwrap_or_else(|error| panic!("{error}"))
}

fn selective(modules: &[RecomputeModule]) -> ActivationSettings {
    ActivationSettings { recompute: Recompute::Selective(modules.to_vec()), ..ActivationSettings::default() }
}

fn full(method: Method, layers: u32) -> ActivationSettings {
    ActivationSettings { recompute: Recompute::Full { method, layers }, ..ActivationSettings::default() }
}

fn offload(modules: &[OffloadModule]) -> ActivationSettings {
    let offload = Offload { modules: modules.to_vec(), least_elements: 0, ..Offload::default() };
    ActivationSettings { offload: Some(offload), ..ActivationSettings::default() }
}

const LOCAL: Libraries = Libraries { transformer_engine: false, grouped_gemm: false };

/// `model` in Megatron's own layers.
fn local(model: &Model) -> Model {
    build(&model.config, &Parallelism { libraries: LOCAL, ..model.parallelism.clone() })
}

/// Bytes that `settings` hold less than nothing does.
fn saving(model: &Model, settings: &ActivationSettings) -> i128 {
    let kept = configured(model, &ActivationSettings::default()).held_bytes;
    i128::from(kept) - i128::from(configured(model, settings).held_bytes)
}

fn layer<'a>(model: &'a Model, name: &str) -> &'a LayerType {
    model.types.iter().find(|t| t.name == name).expect("a layer type")
}

fn names(layer: &LayerType, set: Set) -> Vec<&'static str> {
    let mut names: Vec<_> = set.iter().map(|tensor| layer.tensor_names[tensor]).collect();
    names.sort_unstable();
    names
}

#[test]
fn without_settings_everything_is_held() {
    let model = model();
    let kept = configured(&model, &ActivationSettings::default());
    let full: u64 =
        ["embedding", "moe", "output"].into_iter().map(|name| full_bytes(layer(&model, name))).sum();
    assert_eq!((kept.held_bytes, kept.added_ns, kept.host_bytes), (full, 0, 0));
    assert!(kept.peak_bytes > full, "work is part of the peak");
}

fn full_bytes(layer: &LayerType) -> u64 {
    let saved = layer.ops.iter().fold(Set::EMPTY, |set, op| set | op.saves);
    let held = |(index, t): (usize, &bagualu_core::cost::TensorModel)| {
        let rows = if layer.routed { ROWS } else { 0 };
        let held = t.block_input || saved.contains(index);
        if held { t.bytes.at(rows).expect("fits") } else { 0 }
    };
    layer.tensors.iter().enumerate().map(held).sum()
}

#[test]
fn each_module_saves_what_its_formula_says() {
    use RecomputeModule::{CoreAttn, Layernorm, Moe, MoeAct, SharedExperts};
    let model = model();
    let (t, h, f, k, e, n) = (64, 32, 48, 2, 4, i128::from(ROWS));
    let shared = 6 * t * f;
    let router = 4 * t * e + 20 * t * k + t * e + (8 * t * k + 8 * t * e);
    let experts = n * (2 * h + 6 * f + 2);
    let cases = [
        // Flash attention saves q, k, v and the output anyway: only the log-sum-exp goes.
        (&[CoreAttn][..], 4 * t * 4),
        (&[MoeAct], 2 * n * f),
        // The norm before the router, and its statistics; the other is fused into the projection.
        (&[Layernorm], 2 * t * h + 4 * t),
        (&[SharedExperts], shared),
        (&[Moe], shared + router + experts),
        (&[Moe, MoeAct], shared + router + experts),
        (&[CoreAttn, MoeAct, Layernorm], 4 * t * 4 + 2 * n * f + 2 * t * h + 4 * t),
    ];
    for (modules, bytes) in cases {
        assert_eq!(saving(&model, &selective(modules)), bytes, "{modules:?}");
    }
    assert_eq!(
        saving(&local(&model), &selective(&[Layernorm])),
        2 * (2 * t * h + 4 * t),
        "both norms are modules"
    );
}

#[test]
fn recomputing_what_holds_little_saves_little() {
    let preset = Preset::named("qwen3-30b-a3b", None).expect("a preset");
    let model = build(&preset.config, &preset.parallelism);
    let stage = &model.stages[0];
    let at = |settings: &ActivationSettings| {
        Configured::new(settings, &model, stage, model.balanced_rows).expect("settings of this model")
    };
    let kept = at(&ActivationSettings::default());
    let attention = at(&selective(&[RecomputeModule::CoreAttn]));
    let saved = kept.peak_bytes.saturating_sub(attention.peak_bytes);
    assert!(saved * 100 < kept.peak_bytes, "{saved} of {}", kept.peak_bytes);
    assert!(attention.added_ns > 0);
    let experts = at(&selective(&[RecomputeModule::Moe]));
    assert!(experts.peak_bytes * 2 < kept.peak_bytes, "{} of {}", experts.peak_bytes, kept.peak_bytes);
}

#[test]
fn the_dense_mlp_is_recomputed_with_the_norm_that_is_fused_into_it() {
    let mut config = small();
    config.moe.as_mut().expect("experts").layers = MoeLayers::AfterDense(1);
    let model = build(&config, &alone());
    let (t, h, f) = (64, 32, 48);
    let mlp = selective(&[RecomputeModule::Mlp]);
    assert_eq!(saving(&model, &mlp), 6 * t * f + 2 * t * h + 4 * t);
    assert_eq!(saving(&local(&model), &mlp), 6 * t * f, "the checkpoint keeps the norm's output, its input");
    assert_eq!(saving(&model, &selective(&[RecomputeModule::Moe])), 0, "no layer has experts");
}

/// [`small`] with the latents of a small DeepSeek: 24 columns for queries, 16 + 8 for keys and values, heads of
/// 8 + 8 and 8.
fn latent() -> ModelConfig {
    let mla = Mla { q_lora_rank: 24, kv_lora_rank: 16, qk_head_dim: 8, qk_rope_dim: 8, v_head_dim: 8 };
    ModelConfig { mla: Some(mla), qk_norm: true, ..small() }
}

#[test]
fn the_up_projection_of_latents_is_recomputed_from_them() {
    let model = build(&latent(), &alone());
    let (t, heads) = (64, 4);
    let qkv = 2 * t * heads * (16 + 16 + 8);
    let settings = selective(&[RecomputeModule::MlaUpProj]);
    let norms = 2 * t * (24 + 16) + 2 * 4 * t;
    assert_eq!(saving(&model, &settings), qkv + norms, "the norms are fused into it");
    assert_eq!(saving(&local(&model), &settings), qkv, "the latents' norms are outside");
    // Beside latents the norm before attention is a module with Transformer Engine too.
    let norms = 2 * (2 * t * 32 + 4 * t);
    assert_eq!(saving(&model, &selective(&[RecomputeModule::Layernorm])), norms);
}

#[test]
fn full_recomputation_holds_the_floor_less_what_the_router_makes_again() {
    let model = model();
    let moe = layer(&model, "moe");
    let configured = configured(&model, &full(Method::Uniform, 1));
    let kept = names(moe, Set::first(moe.tensors.len()) - configured.plans[0][1].recompute);
    assert!(kept.contains(&"input") && !kept.contains(&"top_k"));
    let input = 2 * 64 * 32;
    let ends = full_bytes(layer(&model, "embedding")) + full_bytes(layer(&model, "output"));
    assert_eq!(configured.held_bytes, ends + input);
    // Its backward has the whole layer there.
    assert!(configured.peak_bytes >= full_bytes(moe));
    let (forward, _) = moe.model().times(ROWS).expect("fits");
    assert_eq!(configured.added_ns, forward);
}

/// Twelve layers on two ranks with two chunks each: three layers in a virtual stage.
fn deep() -> Model {
    let config = ModelConfig { layers: 12, ..with_shared() };
    let parallelism = Parallelism { gpus: 2, pp: 2, chunks: 2, group_size: 2, global_batch: 8, ..alone() };
    build(&config, &parallelism)
}

#[test]
fn units_are_counted_within_a_virtual_stage() {
    let model = deep();
    let moe = layer(&model, "moe");
    let (input, bit) = (moe.tensor("input").expect("an input"), moe.tensor("fc1_out").expect("fc1's output"));
    let of = |settings: &ActivationSettings, tensor: usize| -> Vec<Vec<bool>> {
        let configured = Configured::new(settings, &model, &model.stages[1], ROWS).expect("settings");
        let numbered = |(chunk, plans): (usize, &Vec<_>)| {
            let layers =
                model.stages[1].chunks[chunk].iter().zip(plans).filter(|(layer, _)| layer.number.is_some());
            layers
                .map(|(_, plan): (_, &bagualu_core::layer::LayerPlan)| plan.recompute.contains(tensor))
                .collect()
        };
        configured.plans.iter().enumerate().map(numbered).collect()
    };
    let (yes, no) = (true, false);
    assert_eq!(of(&full(Method::Block, 2), bit), [[yes, yes, no]; 2]);
    assert_eq!(of(&full(Method::Block, 12), bit), [[yes; 3]; 2], "no more than there are");
    assert_eq!(of(&full(Method::Uniform, 2), bit), [[yes; 3]; 2]);
    assert_eq!(of(&full(Method::Uniform, 2), input), [[no, yes, no]; 2], "one input for two layers");
    assert_eq!(of(&full(Method::Uniform, 3), input), [[no, yes, yes]; 2]);
}

#[test]
fn a_depth_of_multi_token_prediction_is_a_unit_with_its_joint() {
    let model = build(&ModelConfig { layers: 2, mtp_layers: 1, ..small() }, &alone());
    let of = |method| {
        let plans = configured(&model, &full(method, 1)).plans.remove(0);
        let names = model.stages[0].chunks[0].iter().map(|layer| model.types[layer.layer_type].name);
        let again = plans.iter().map(|plan| !plan.recompute.is_empty());
        names.zip(again).filter(|(_, again)| *again).map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(of(Method::Uniform), ["moe", "moe", "mtp", "moe"]);
    assert_eq!(of(Method::Block), ["moe"], "one layer, and no depth");
    let error = full(Method::Uniform, 2).check(&model.config, &model.parallelism).expect_err("refused");
    assert!(error.to_string().contains("recompute_num_layers is 2"), "{error}");
}

#[test]
fn longer_units_hold_less_and_peak_higher() {
    let model = deep();
    let at = |layers| {
        Configured::new(&full(Method::Uniform, layers), &model, &model.stages[0], ROWS).expect("settings")
    };
    let (one, three) = (at(1), at(3));
    let in_flight = (one.held_bytes - three.held_bytes) / (2 * (2 * 64 * 32));
    assert_eq!(in_flight, 5, "the units in flight, two inputs less in each");
    assert_eq!(one.added_ns, three.added_ns);
    assert!(three.peak_bytes - three.held_bytes > 2 * (one.peak_bytes - one.held_bytes));
}

#[test]
fn offloaded_modules_leave_the_device() {
    use OffloadModule::{AttnProj, CoreAttn, ExpertFc1, MlpNorm, MoeAct, QkvLinear};
    let model = deep();
    let moe = layer(&model, "moe");
    let offloaded = |modules: &[OffloadModule]| {
        let configured =
            Configured::new(&offload(modules), &model, &model.stages[0], ROWS).expect("settings");
        names(moe, configured.plans[0].last().expect("a layer").offload)
    };
    assert_eq!(offloaded(&[CoreAttn]), ["attn_lse", "qkv"], "the projection still holds attention's output");
    assert_eq!(offloaded(&[CoreAttn, AttnProj]), ["attn_lse", "attn_out", "qkv"]);
    assert_eq!(offloaded(&[QkvLinear]), ["input", "ln1_out", "ln1_stats"], "the norm is fused into it");
    assert_eq!(offloaded(&[MlpNorm]), ["attn_residual", "ln2_stats"]);
    assert_eq!(offloaded(&[ExpertFc1, MoeAct]), ["expert_input", "expert_probs", "fc1_out"]);
}

#[test]
fn small_tensors_stay() {
    let model = deep();
    let moe = layer(&model, "moe");
    let mut settings = offload(&[OffloadModule::MoeAct]);
    settings.offload.as_mut().expect("offload").least_elements = 128 * 96;
    let configured = Configured::new(&settings, &model, &model.stages[0], ROWS).expect("settings");
    assert_eq!(names(moe, configured.plans[0].last().expect("a layer").offload), ["fc1_out"]);
    let configured = Configured::new(&settings, &model, &model.stages[0], ROWS - 1).expect("settings");
    assert!(configured.plans[0].last().expect("a layer").offload.is_empty());
    assert_eq!(configured.added_ns, 0);
}

#[test]
fn what_comes_back_first_never_leaves() {
    // One layer, one rank: each backward follows its forward, and its only group is the last.
    let model = build(&ModelConfig { layers: 1, ..small() }, &Parallelism { global_batch: 6, ..alone() });
    let configured = configured(&model, &offload(&[OffloadModule::MoeAct]));
    assert_eq!((configured.host_bytes, configured.added_ns), (0, 0));
    // Three layers: two leave.
    let model = build(&ModelConfig { layers: 3, ..small() }, &Parallelism { global_batch: 6, ..alone() });
    let bytes = u64::from(ROWS) * (4 * 48 + 2);
    assert_eq!(configured_of(&model).host_bytes, 2 * bytes);
}

fn configured_of(model: &Model) -> Configured {
    configured(model, &offload(&[OffloadModule::MoeAct]))
}

#[test]
fn a_fraction_and_a_margin_keep_groups() {
    let model = build(&ModelConfig { layers: 5, ..small() }, &Parallelism { global_batch: 6, ..alone() });
    let with = |change: fn(&mut Offload)| {
        let mut settings = offload(&[OffloadModule::MoeAct]);
        change(settings.offload.as_mut().expect("offload"));
        configured(&model, &settings)
    };
    let all = with(|_| {});
    let bytes = u64::from(ROWS) * (4 * 48 + 2);
    assert_eq!(all.host_bytes, 4 * bytes);
    // Of five groups (four where the last stays from the beginning) half stay, from the last on.
    let half = with(|offload| offload.fraction_permille = 500);
    let moe = layer(&model, "moe");
    let left: Vec<bool> =
        half.plans[0].iter().map(|plan| plan.offload.contains(moe.tensor("fc1_out").expect("it"))).collect();
    assert_eq!(left, [false, true, true, true, false, false, false], "embedding, five layers, output");
    assert_eq!(with(|offload| offload.fraction_permille = 0).host_bytes, 0);
    // The first rank's margin is 0 times the delta.
    assert_eq!(with(|offload| offload.delta_bytes = 1 << 40), all);
    let deep = deep();
    let mut settings = offload(&[OffloadModule::MoeAct]);
    settings.offload.as_mut().expect("offload").delta_bytes = 1;
    let second = |settings: &_| Configured::new(settings, &deep, &deep.stages[1], ROWS).expect("settings");
    let with_margin = second(&settings);
    settings.offload.as_mut().expect("offload").delta_bytes = 0;
    assert!(with_margin.added_ns < second(&settings).added_ns, "one group less leaves");
}

#[test]
fn every_preset_takes_every_setting() {
    let all = [
        selective(&[RecomputeModule::CoreAttn, RecomputeModule::MoeAct, RecomputeModule::Layernorm]),
        selective(&[RecomputeModule::Moe, RecomputeModule::Mlp, RecomputeModule::SharedExperts]),
        selective(&[RecomputeModule::Moe, RecomputeModule::MoeAct, RecomputeModule::Layernorm]),
        full(Method::Uniform, 1),
        full(Method::Uniform, 2),
        full(Method::Block, 1),
        offload(&OffloadModule::ALL[..7]),
    ];
    for name in MODELS {
        let preset = Preset::named(name, None).expect("a preset");
        let model = build(&preset.config, &preset.parallelism);
        // The last stage may have a single layer, of which nothing is offloaded.
        let stage = model.stages.first().expect("a stage");
        let rows = model.rows_at(1_200);
        let kept = Configured::new(&ActivationSettings::default(), &model, stage, rows).expect("keeps");
        let longer = full(Method::Uniform, 2);
        let refused = |settings: &&ActivationSettings| **settings == longer && preset.config.mtp_layers > 0;
        for settings in all.iter().filter(|settings| !refused(settings)) {
            let configured = Configured::new(settings, &model, stage, rows).expect("settings");
            assert!(configured.held_bytes <= kept.held_bytes, "{name}: {settings:?}");
            assert_eq!(configured.compute_ns, kept.compute_ns);
            assert!(configured.added_ns > 0, "{name}: {settings:?}");
        }
    }
}

/// [`small`] with a capacity, on two ranks: 64 tokens each, k = 2, E = 4, so 32 rows for each expert and rank.
fn limited(factor_permille: u32, pad: bool) -> Model {
    let mut config = small();
    config.moe.as_mut().expect("experts").capacity = Some(Capacity { factor_permille, pad });
    build(&config, &Parallelism { gpus: 2, ep: 2, global_batch: 4, ..alone() })
}

#[test]
fn a_capacity_caps_rows() {
    let rows =
        |model: &Model| (model.rows_at(500), model.rows_at(1_000), model.rows_at(2_000), model.most_rows);
    // 1.25 · 32 = 40 rows from each of two ranks to each of two experts; all 256 of the group would be twice N.
    assert_eq!(rows(&limited(1_250, false)), (64, 128, 160, 160));
    assert_eq!(limited(1_250, false).expert_capacity, Some(80));
    // Rounded up: ⌈1.01 · 32⌉ = 33.
    assert_eq!(limited(1_010, false).most_rows, 132);
    assert_eq!(limited(500, false).balanced_rows, 64);
    // No expert takes more than all 64 tokens of each rank.
    assert_eq!(limited(9_000, false).most_rows, 256);
    assert_eq!(rows(&limited(1_250, true)), (160, 160, 160, 160));
    assert_eq!(limited(1_250, true).balanced_rows, 160);
}

#[test]
fn a_capacity_changes_what_is_sent() {
    let indices = |model: &Model| {
        let moe = layer(model, "moe");
        moe.tensors[moe.tensor("permute_indices").expect("indices")].bytes.fixed
    };
    let argsort = 8 * 64 * 4;
    assert_eq!(indices(&limited(1_250, false)), 8 * 128 + argsort);
    assert_eq!(indices(&limited(500, false)), 8 * 64 + argsort, "half of the rows are dropped");
    assert_eq!(indices(&limited(1_250, true)), 8 * 160, "a copy of the slice, padding included");
}

fn in_fp8(config: &ModelConfig, recipe: Fp8Recipe) -> Model {
    build(config, &Parallelism { fp8: Some(Fp8 { recipe, parameters: false }), ..alone() })
}

/// Bytes of everything that the MoE layer saves in FP8, by tensor.
fn narrow(model: &Model) -> Vec<(&'static str, u64)> {
    let moe = layer(model, "moe");
    let saved = moe.ops.iter().fold(Set::EMPTY, |set, op| set | op.saves);
    let copies = saved.iter().filter(|&t| moe.tensor_names[t].contains("fp8"));
    copies.map(|t| (moe.tensor_names[t], moe.tensors[t].bytes.at(ROWS).expect("fits"))).collect()
}

#[test]
fn fp8_training_saves_the_inputs_of_linear_layers_in_fp8() {
    let (t, h, f, n) = (64, 32, 48, u64::from(ROWS));
    let model = in_fp8(&with_shared(), Fp8Recipe::Tensorwise);
    let copies = [
        ("ln1_out_fp8", t * h),
        ("shared_act_out_fp8", t * f),
        ("fc1_input_fp8", n * h),
        ("act_out_fp8", n * f),
    ];
    assert_eq!(narrow(&model), copies);
    let wide = full_bytes(layer(&self::model(), "moe"));
    assert_eq!(wide - full_bytes(layer(&model, "moe")), t * h + t * f + n * h + n * f, "half of each");
    // Scales: FP32 for each 128 elements, or a byte for each 32.
    let of = |recipe| narrow(&in_fp8(&with_shared(), recipe))[2].1;
    assert_eq!(of(Fp8Recipe::Blockwise), n * (h + 4));
    assert_eq!(of(Fp8Recipe::Mxfp8), n * (h + h / 32));
}

#[test]
fn fp8_storage_that_costs_memory_is_shown_as_costing_it() {
    let (t, h) = (64, 32);
    let with = |recipe| full_bytes(layer(&in_fp8(&with_shared(), recipe), "moe"));
    // With delayed scaling attention's projection and the shared expert keep an FP8 copy beside the BF16
    // tensor that core attention and the router keep anyway; otherwise they save that tensor.
    assert_eq!(with(Fp8Recipe::Delayed) - with(Fp8Recipe::Tensorwise), 2 * t * h);
    let copies: Vec<_> = narrow(&in_fp8(&with_shared(), Fp8Recipe::Delayed)).iter().map(|c| c.0).collect();
    assert!(copies.contains(&"attn_out_fp8") && copies.contains(&"shared_input_fp8"), "{copies:?}");
    // Both projections to latents cast the norm's output for themselves: two copies and their scales are more
    // than the one BF16 tensor that they share otherwise.
    let block = narrow(&in_fp8(&latent(), Fp8Recipe::Blockwise));
    let twice: u64 =
        block.iter().filter(|(name, _)| name.starts_with("ln1_out")).map(|(_, bytes)| bytes).sum();
    assert_eq!(twice, 2 * (t * h + 4 * t * h / 128));
    assert!(twice > 2 * t * h);
}

#[test]
fn recomputing_an_activation_drops_its_fp8_copy() {
    let model = in_fp8(&with_shared(), Fp8Recipe::Tensorwise);
    let f = 48;
    assert_eq!(saving(&model, &selective(&[RecomputeModule::MoeAct])), i128::from(ROWS) * f);
    let delayed = in_fp8(&with_shared(), Fp8Recipe::Delayed);
    let error = selective(&[RecomputeModule::MoeAct]).check(&delayed.config, &delayed.parallelism);
    assert!(error.expect_err("refused").to_string().contains("delayed FP8 scales"));
}

#[test]
fn the_activation_s_input_in_fp8_is_half_of_it() {
    let stored = Parallelism { fp8_activation_store: true, ..alone() };
    let model = build(&with_shared(), &stored);
    let (t, f, n) = (64, 48, u64::from(ROWS));
    assert_eq!(narrow(&model), [("shared_fc1_out_fp8", 2 * t * f), ("fc1_out_fp8", 2 * n * f)]);
    let wide = full_bytes(layer(&self::model(), "moe"));
    assert_eq!(wide - full_bytes(layer(&model, "moe")), 2 * t * f + 2 * n * f);
    let plain = ModelConfig { fused_activation: false, ..small() };
    let error = Model::new(&plain, &stored, &common::device()).expect_err("refused").to_string();
    assert!(error.contains("fp8_activation_store"), "{error}");
}

#[test]
fn fp8_linear_layers_run_at_their_own_rate() {
    let h200 = Device::named("h200-141g").expect("a preset");
    let preset = Preset::named("glm-423b-a30b", None).expect("a preset");
    let narrow = Fp8 { recipe: Fp8Recipe::Tensorwise, parameters: false };
    let times = |fp8| {
        let parallelism = Parallelism { fp8, ..preset.parallelism.clone() };
        let model = Model::new(&preset.config, &parallelism, &h200).expect("a model");
        let layer = layer(&model, "moe");
        let ns = |op: &str| layer.ops[layer.op(op).expect("an operator")].forward.at(12_288).expect("fits");
        (ns("fc1"), ns("router"))
    };
    let (wide, fp8) = (times(None), times(Some(narrow)));
    assert!(fp8.0 * 10 < wide.0 * 6 && fp8.0 * 10 > wide.0 * 4, "{fp8:?} {wide:?}");
    assert_eq!(fp8.1, wide.1, "the router runs in full precision");
}

#[test]
fn megatrons_rules_are_errors_that_name_them() {
    use OffloadModule::{AttnProj, CoreAttn, ExpertFc1, FusedGroupMlp};
    let (config, parallelism) = (small(), alone());
    let overlap = Parallelism { overlap_ep: true, ..alone() };
    let refused = |settings: &ActivationSettings, parallelism: &Parallelism, words: &[&str]| {
        let error = settings.check(&config, parallelism).expect_err("refused").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    refused(&selective(&[RecomputeModule::MlaUpProj]), &parallelism, &["recompute_modules", "mla_up_proj"]);
    refused(&selective(&[RecomputeModule::Moe]), &overlap, &["moe", "--overlap-moe-expert-parallel-comm"]);
    refused(&full(Method::Uniform, 1), &overlap, &["full", "--overlap-moe-expert-parallel-comm"]);
    refused(&full(Method::Uniform, 0), &parallelism, &["recompute_num_layers is 0"]);
    refused(&offload(&[AttnProj]), &parallelism, &["attn_proj", "add core_attn"]);
    refused(&offload(&[]), &parallelism, &["offload_modules"]);
    refused(&offload(&[FusedGroupMlp, ExpertFc1]), &parallelism, &["fused_group_mlp"]);
    let recompute = Recompute::Selective(vec![RecomputeModule::Moe]);
    refused(&ActivationSettings { recompute, ..offload(&[ExpertFc1]) }, &parallelism, &["expert_fc1", "moe"]);
    let recompute = Recompute::Full { method: Method::Uniform, layers: 1 };
    refused(&ActivationSettings { recompute, ..offload(&[CoreAttn]) }, &parallelism, &["full recomputation"]);
    refused(
        &offload(&[CoreAttn]),
        &Parallelism { libraries: LOCAL, ..parallelism.clone() },
        &["transformer_impl"],
    );
}
