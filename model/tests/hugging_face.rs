//! Hugging Face configs: those of the presets, each model type's own keys, and what is refused.

use bagualu_model::read::{ConfigError, HuggingFace, ReadError, read};
use bagualu_model::script::Given;
use bagualu_model::{MODELS, ModelConfig, MoeLayers, Preset};
use serde_json::{Value, json};

fn file(name: &str) -> Vec<u8> {
    let path = format!("{}/../examples/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn parsed(value: &Value) -> HuggingFace {
    HuggingFace::parse(value.to_string().as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(value: &Value) -> String {
    HuggingFace::parse(value.to_string().as_bytes()).expect_err("refused").to_string()
}

/// A small config of `model_type` with `more` over it; `null` takes a key away.
fn config(model_type: &str, more: &Value) -> Value {
    let mut value = json!({
        "model_type": model_type, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1_000, "hidden_act": "silu",
    });
    let object = value.as_object_mut().expect("an object");
    object.extend(more.as_object().expect("an object").clone());
    value
}

#[test]
fn the_public_configs_are_the_presets() {
    let mut seen = 0;
    for name in MODELS.into_iter().filter(|name| !name.starts_with("glm-") || name.contains('.')) {
        let HuggingFace { config, warnings, .. } = HuggingFace::parse(&file(name)).expect(name);
        assert_eq!(config, Preset::named(name, None).expect("a preset").config, "{name}");
        let window: &[&str] = match name.starts_with("gpt-oss") {
            true => &["sliding_window: attention is priced without a window"],
            false => &[],
        };
        assert_eq!(warnings, window, "{name}");
        seen += 1;
    }
    assert_eq!(seen, 15);
}

#[test]
fn a_dense_model_has_no_experts() {
    let read = HuggingFace::parse(&file("llama-3.1-8b")).expect("a config");
    assert_eq!((read.config.moe.clone(), read.config.kv_groups, read.config.head_dim), (None, 8, 128));
    let count = read.config.parameters().expect("a count");
    assert!((count.total as f64 / 8.03e9 - 1.0).abs() < 0.005, "{count:?}");
    for model_type in ["qwen3_moe", "deepseek_v3"] {
        let experts = if model_type == "qwen3_moe" { "num_experts" } else { "n_routed_experts" };
        let mla = json!({"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8});
        let mut value = config(model_type, &mla);
        value[experts] = json!(0);
        assert_eq!(parsed(&value).config.moe, None, "{model_type}");
        value[experts] = Value::Null;
        assert_eq!(parsed(&value).config.moe, None, "{model_type}");
    }
}

#[test]
fn what_a_type_means_without_a_key() {
    let of = |model_type: &str| parsed(&config(model_type, &json!({}))).config;
    let has = |config: &ModelConfig| (config.qk_norm, config.qkv_bias, config.bias);
    assert_eq!(has(&of("llama")), (false, false, false));
    assert_eq!(has(&of("mistral")), (false, false, false));
    assert_eq!(has(&of("qwen2")), (false, true, false));
    assert_eq!(has(&of("qwen3")), (true, false, false));
    assert_eq!(has(&of("glm4_moe")), (false, false, false));
    assert_eq!(has(&of("gpt_oss")), (false, false, true));
    let with = |model_type: &str, more: Value| parsed(&config(model_type, &more)).config;
    assert!(with("glm4_moe", json!({"use_qk_norm": true, "attention_bias": true})).qkv_bias);
    assert!(with("llama", json!({"attention_bias": true})).qkv_bias);
    assert!(!with("qwen2_moe", json!({"qkv_bias": false})).qkv_bias);
    assert!(with("llama", json!({"tie_word_embeddings": true})).tied_embeddings);
    assert!(!of("llama").tied_embeddings);
}

#[test]
fn layers_with_experts_are_those_of_the_keys() {
    let layers = |model_type: &str, more: Value| {
        let mut value = config(model_type, &json!({"num_experts_per_tok": 2, "moe_intermediate_size": 32}));
        value["num_experts"] = json!(8);
        value.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        parsed(&value).config.moe.expect("experts").layers
    };
    assert_eq!(layers("qwen3_moe", json!({})), MoeLayers::AfterDense(0));
    let every_second = MoeLayers::Listed(vec![false, true, false, true]);
    assert_eq!(layers("qwen3_moe", json!({"decoder_sparse_step": 2})), every_second);
    assert_eq!(layers("qwen3_moe", json!({"mlp_only_layers": [0, 1]})), MoeLayers::AfterDense(2));
    let hole = MoeLayers::Listed(vec![true, true, false, true]);
    assert_eq!(layers("qwen2_moe", json!({"mlp_only_layers": [2]})), hole);
    assert_eq!(layers("glm4_moe", json!({"first_k_dense_replace": 3})), MoeLayers::AfterDense(3));
    let listed = MoeLayers::Listed(vec![false, false, true, false]);
    assert_eq!(layers("glm4_moe", json!({"first_k_dense_replace": 1, "moe_layer_freq": 2})), listed);
}

#[test]
fn what_is_not_known_is_said() {
    let more = json!({"new_thing": 1, "rope_theta": 1e6, "sliding_window": 128, "hidden_act": "gelu", "mlp_bias": true});
    let read = parsed(&config("llama", &more));
    assert_eq!(read.ignored, ["rope_theta"]);
    let said = |text: &str| read.warnings.iter().any(|warning| warning.contains(text));
    assert!(said("new_thing: not a key known here") && said("sliding_window"), "{:?}", read.warnings);
    assert!(said("hidden_act gelu") && said("mlp_bias"), "{:?}", read.warnings);
    let other = parsed(&config("newest", &json!({})));
    assert!(
        other.warnings[0].starts_with("model_type newest: not a type known here"),
        "{:?}",
        other.warnings
    );
    assert!(other.config.tied_embeddings);
    let mut heads = config("llama", &json!({}));
    heads["num_key_value_heads"] = Value::Null;
    let read = parsed(&heads);
    assert_eq!((read.config.kv_groups, read.warnings.len()), (8, 1), "{:?}", read.warnings);
    let whole = json!({"model_type": "see", "vision_config": {}, "text_config": config("llama", &json!({}))});
    let part = parsed(&whole);
    assert_eq!(part.warnings, ["text_config: only the language model is modelled"]);
    assert_eq!(part.config, parsed(&config("llama", &json!({}))).config);
}

#[test]
fn what_is_wrong_is_named_with_its_value_and_a_fix() {
    let with = |more: Value| refused(&config("qwen3_moe", &more));
    let experts = |k: Value| with(json!({"num_experts": 8, "num_experts_per_tok": k}));
    for (text, words) in [
        (refused(&json!({"model_type": "vits"})), ["model_type is \"vits\"", "deepseek_v3"]),
        (refused(&json!({})), ["no model_type", "hidden_size"]),
        (with(json!({"hidden_size": null})), ["hidden_size is missing", "add it"]),
        (with(json!({"hidden_size": "64"})), ["hidden_size is \"64\"", "a whole number from 1"]),
        (with(json!({"hidden_size": -1})), ["hidden_size is -1", "from 1"]),
        (with(json!({"hidden_size": 64.5})), ["hidden_size is 64.5", "a whole number"]),
        (with(json!({"num_hidden_layers": 1e9 as u64})), ["num_hidden_layers is 1000000000", "to 4096"]),
        (with(json!({"num_key_value_heads": 3})), ["num_key_value_heads is 3", "a divisor"]),
        (with(json!({"num_attention_heads": 6})), ["num_attention_heads is 6", "head_dim"]),
        (experts(json!(9)), ["num_experts_per_tok is 9", "from 1 to 8"]),
        (experts(Value::Null), ["num_experts_per_tok is missing", "add it"]),
        (
            with(json!({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [4]})),
            ["[4]", "below 4"],
        ),
        (with(json!({"tie_word_embeddings": "yes"})), ["tie_word_embeddings is \"yes\"", "true or false"]),
        (with(json!({"attention_dropout": 2})), ["attention_dropout is 2", "from 0 to 1"]),
        (refused(&config("deepseek_v3", &json!({}))), ["kv_lora_rank is missing", "add it"]),
        (refused(&json!([1])), ["not a JSON object", "config.json"]),
    ] {
        assert!(words.iter().all(|word| text.contains(word)), "{text:?} lacks {words:?}");
    }
    let twice = HuggingFace::parse(b"{\"hidden_size\": 1, \"hidden_size\": 2}").expect_err("refused");
    assert!(
        matches!(&twice, ConfigError::Syntax { text } if text.contains("\"hidden_size\" is given twice"))
    );
}

#[test]
fn flags_beside_a_config_describe_the_run() {
    let flags = "--pipeline-model-parallel-size 4 --expert-model-parallel-size 8 --global-batch-size 64 \
                 --seq-length 8192 --num-layers 24";
    let flags: Vec<_> = flags.split_whitespace().map(str::to_owned).collect();
    let given = Given { flags, gpus: Some(32), ..Given::default() };
    let launch = read(&file("qwen3-30b-a3b"), None, &given).expect("a launch");
    let preset = Preset::named("qwen3-30b-a3b", None).expect("a preset").config;
    assert_eq!(launch.config, ModelConfig { seq: 8_192, layers: 24, ..preset });
    let parallelism = launch.parallelism;
    assert_eq!(
        (parallelism.gpus, parallelism.pp, parallelism.ep, parallelism.micro_batches()),
        (32, 4, 8, 8)
    );
    assert!(launch.warnings[0].ends_with(": --bf16, --micro-batch-size 1"), "{:?}", launch.warnings);
    let alone = Given { gpus: Some(1), ..Given::default() };
    let launch = read(&file("qwen3-30b-a3b"), None, &alone).expect("a launch");
    assert_eq!(launch.config.seq, 4_096);
    assert!(launch.warnings[0].contains("--seq-length 4096"), "{:?}", launch.warnings);
    assert_eq!(read(&file("qwen3-30b-a3b"), None, &Given::default()), Err(ReadError::NoGpus));
    let given = Given { arguments: vec!["x".to_owned()], ..alone };
    assert_eq!(read(b"{}", None, &given), Err(ReadError::OnlyForScripts { option: "--arg" }));
}

#[test]
fn layers_of_another_kind_than_attention_are_told() {
    let text = |kinds: &str| {
        format!(
            "{{\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \
             \"num_key_value_heads\": 4, \"intermediate_size\": 64, \"vocab_size\": 128, \"layer_types\": {kinds}}}"
        )
    };
    let warnings = |kinds: &str| HuggingFace::parse(text(kinds).as_bytes()).expect("a config").warnings;
    assert_eq!(warnings("[\"full_attention\", \"full_attention\"]"), [""; 0]);
    assert_eq!(
        warnings("[\"linear_attention\", \"full_attention\"]"),
        ["layer_types: 1 layers are \"linear_attention\"; full attention is modelled in all of them"]
    );
}
