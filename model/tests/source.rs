//! Every saved tensor has a place in Megatron.

mod common;

use bagualu_core::cost::LayerStorage;
use bagualu_model::{
    Activation, Attention, Fp8, Fp8Recipe, LayerType, Loss, MODELS, Model, ModelConfig, MoeLayers, Precision,
    Preset, RouterInput,
};
use common::{alone, build, device, small};

/// Checks the layer types of a model and returns how many saved tensors they have.
fn check(model: &Model) -> usize {
    let mut storage = LayerStorage::new();
    let mut count = 0;
    for kind in &model.types {
        let layer = kind.model().at(1, &model.device.rooflines(), &mut storage).expect("a layer");
        for tensor in (layer.saved() | layer.block_inputs()).iter() {
            let (layer, name) = (kind.name, kind.tensor_names[tensor]);
            let place = kind.saved_in(tensor).unwrap_or_else(|| panic!("{layer}.{name} has no place"));
            let (file, module) = place.split_once(": ").expect("file: module");
            assert!(file.starts_with("core/") && file.ends_with(".py") && !module.is_empty(), "{place}");
            count += 1;
        }
    }
    count
}

fn kind<'m>(model: &'m Model, name: &str) -> &'m LayerType {
    model.types.iter().find(|t| t.name == name).expect("a layer type")
}

#[test]
fn every_saved_tensor_of_every_preset_has_a_place_in_megatron() {
    for name in MODELS {
        let preset = Preset::named(name, None).expect("a preset");
        let model = Model::new(&preset.config, &preset.parallelism, &device()).expect("a model");
        assert!(check(&model) > 20, "{name}");
    }
}

#[test]
fn so_has_every_tensor_that_settings_add() {
    let mut config = ModelConfig { layers: 2, hidden_dropout: true, attention_dropout: true, ..small() };
    config.qk_norm = true;
    config.attention = Attention::Unfused;
    config.fused_activation = false;
    let moe = config.moe.as_mut().expect("experts");
    (moe.shared_ffn, moe.router_input, moe.layers) = (48, RouterInput::Fp32Copy, MoeLayers::AfterDense(1));
    let unfused = build(&config, &alone());
    for (layer, tensor) in [("dense", "act_gate"), ("moe", "router_input"), ("embedding", "embedding_mask")] {
        assert!(kind(&unfused, layer).tensor(tensor).is_some(), "{layer}.{tensor}");
    }
    check(&unfused);
    let fp8 = Fp8 { recipe: Fp8Recipe::Delayed, parameters: false };
    check(&build(&config, &bagualu_model::Parallelism { fp8: Some(fp8), ..alone() }));
    config.activation = Activation::Gelu;
    check(&build(&config, &bagualu_model::Parallelism { precision: Precision::Fp32, ..alone() }));
    config.mtp_layers = 1;
    for loss in [Loss::Unfused, Loss::Native, Loss::TransformerEngine] {
        check(&build(&ModelConfig { loss, ..config.clone() }, &alone()));
    }
}

#[test]
fn the_place_is_the_layer_type_s_own() {
    let config = ModelConfig {
        layers: 2,
        moe: small().moe.map(|moe| bagualu_model::MoeConfig { layers: MoeLayers::AfterDense(1), ..moe }),
        ..small()
    };
    let model = build(&config, &alone());
    let place = |layer: &str, tensor: &str| {
        let layer = kind(&model, layer);
        layer.saved_in(layer.tensor(tensor).expect("a tensor"))
    };
    assert_eq!(place("moe", "act_out"), Some("core/transformer/moe/experts.py: linear_fc2"));
    assert_eq!(place("dense", "act_out"), Some("core/transformer/mlp.py: linear_fc2"));
    assert_eq!(place("moe", "combined"), None, "nobody saves it");
}
