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

/// A small dense config of `model_type` with `more` over it.
fn config(model_type: &str, more: &Value) -> Value {
    let mut value = json!({
        "model_type": model_type, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1_000, "hidden_act": "silu",
        "head_dim": 8, "num_experts": 0,
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
        let experts = json!({
            "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": null,
            "shared_expert_intermediate_size": 0, "first_k_dense_replace": 0,
        });
        let mut value = config(model_type, &experts);
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

/// A config without `key`.
fn without(mut value: Value, key: &str) -> Value {
    value.as_object_mut().expect("an object").remove(key);
    value
}

#[test]
fn a_key_that_is_missing_is_what_transformers_takes_or_an_error() {
    let head_dim = |model_type: &str| parsed(&without(config(model_type, &json!({})), "head_dim"));
    for (model_type, elements, said) in [
        ("llama", 8, false),
        ("mixtral", 8, false),
        ("olmoe", 8, false),
        ("qwen3", 128, true),
        ("gpt_oss", 64, true),
        // transformers divides; that published configs never leave it out is said.
        ("qwen3_moe", 8, true),
        ("glm4_moe", 8, true),
    ] {
        let read = head_dim(model_type);
        assert_eq!(read.config.head_dim, elements, "{model_type}");
        let warned = read.warnings.iter().any(|line| line.starts_with("head_dim is missing: "));
        assert_eq!(warned, said, "{model_type}: {:?}", read.warnings);
    }
    let null = parsed(&config("gpt_oss", &json!({"head_dim": null})));
    assert_eq!(null.config.head_dim, 8);
    let groups = |model_type: &str, heads: u64| {
        without(config(model_type, &json!({"num_attention_heads": heads})), "num_key_value_heads")
    };
    for (model_type, heads, expected) in [
        ("llama", 32, 32),
        ("mistral", 32, 8),
        ("qwen3_moe", 32, 4),
        ("qwen2_moe", 32, 16),
        ("gpt_oss", 64, 8),
    ] {
        let read = parsed(&groups(model_type, heads));
        assert_eq!(read.config.kv_groups, expected, "{model_type}");
        assert!(read.warnings.iter().any(|line| line.starts_with("num_key_value_heads is missing: ")));
    }
    assert!(refused(&groups("qwen2", 28)).contains("num_key_value_heads is missing"));
    for (model_type, key) in [
        ("mixtral", "num_local_experts"),
        ("qwen3_moe", "num_experts"),
        ("glm4_moe", "n_routed_experts"),
        ("ernie4_5_moe", "moe_num_experts"),
    ] {
        let text = refused(&without(config(model_type, &json!({})), "num_experts"));
        assert_eq!(text, format!("{key} is missing; add it to the config.json"));
    }
    let experts = json!({"num_experts": 8, "num_experts_per_tok": 2});
    for (model_type, key) in [
        ("qwen3_moe", "moe_intermediate_size"),
        ("glm4_moe", "moe_intermediate_size"),
        ("ernie4_5_moe", "moe_intermediate_size"),
    ] {
        assert!(refused(&config(model_type, &experts)).starts_with(key), "{model_type}");
    }
    let wide = json!({"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32});
    assert!(refused(&config("qwen2_moe", &wide)).starts_with("shared_expert_intermediate_size is missing"));
    assert!(refused(&config("glm4_moe", &wide)).starts_with("n_shared_experts is missing"));
}

#[test]
fn ernie_is_read_by_its_own_keys() {
    // ERNIE-4.5-21B-A3B: 21 billion parameters, 3 billion for a token.
    let ernie = json!({
        "model_type": "ernie4_5_moe", "hidden_size": 2_560, "intermediate_size": 12_288, "num_hidden_layers": 28,
        "num_attention_heads": 20, "num_key_value_heads": 4, "vocab_size": 103_424, "hidden_act": "silu",
        "moe_num_experts": 64, "moe_k": 6, "moe_num_shared_experts": 2, "moe_intermediate_size": 1_536,
        "moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 1, "use_bias": false,
        "moe_capacity": [64, 64, 64], "moe_gate": "topk", "moe_norm_min": 1e-12, "tie_word_embeddings": true,
    });
    let HuggingFace { config, warnings, .. } = parsed(&ernie);
    assert!(warnings.is_empty(), "{warnings:?}");
    let moe = config.moe.as_ref().expect("experts");
    assert_eq!((moe.experts, moe.top_k, moe.ffn, moe.shared_ffn), (64, 6, 1_536, 3_072));
    assert_eq!((&moe.layers, config.head_dim, config.bias), (&MoeLayers::AfterDense(1), 128, false));
    let count = config.parameters().expect("a count");
    assert!((count.total as f64 / 21.83e9 - 1.0).abs() < 0.005, "{count:?}");
    assert!((2.8e9..3.4e9).contains(&(count.active as f64)), "{count:?}");
    let with = |key: &str, value: Value| {
        let mut ernie = ernie.clone();
        ernie["num_hidden_layers"] = json!(4);
        ernie[key] = value;
        ernie
    };
    let layers = |key: &str, value: Value| parsed(&with(key, value)).config.moe.expect("experts").layers;
    let listed = |layers: [bool; 4]| MoeLayers::Listed(layers.to_vec());
    assert_eq!(layers("moe_layer_end_index", json!(2)), listed([false, true, true, false]));
    assert_eq!(layers("moe_layer_interval", json!(2)), listed([false, true, false, true]));
    assert!(parsed(&with("use_bias", json!(true))).config.bias);
    assert!(refused(&with("moe_layer_end_index", json!(4))).contains("-1 or a layer number below 4"));
    let text = refused(&with("num_experts", json!(32)));
    assert!(text.starts_with("moe_num_experts is 64; give the same as num_experts = 32"), "{text}");
}

#[test]
fn no_model_with_experts_becomes_a_dense_one() {
    // What each type's own config.json says of its experts, beside the keys of any decoder.
    let other = |model_type: &str, more: Value| {
        let mut value = without(config(model_type, &json!({})), "num_experts");
        value.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        value
    };
    for (value, words) in [
        (
            other("llama4_text", json!({"interleave_moe_layer_step": 1, "intermediate_size_mlp": 256})),
            "moe_layer",
        ),
        (
            other("jamba", json!({"num_experts": 16, "num_experts_per_tok": 2, "expert_layer_period": 2})),
            "expert_l",
        ),
        (
            other("dbrx", json!({"ffn_config": {"moe_num_experts": 16, "moe_top_k": 4}})),
            "ffn_config.moe_num_experts",
        ),
        (
            other("hunyuan_v1_moe", json!({"num_experts": 64, "moe_topk": 8})),
            "num_experts_per_tok is missing",
        ),
        (
            other("step3_text", json!({"moe_num_experts": 48, "moe_top_k": 3})),
            "num_experts_per_tok is missing",
        ),
        (other("longcat_flash", json!({"zero_expert_num": 256, "expert_ffn_hidden_size": 64})), "expert"),
        (
            other("granitemoeshared", json!({"shared_intermediate_size": 64})),
            "shared_intermediate_size is 64",
        ),
        (other("newest", json!({"moe": {"count": 4}})), "moe is {\"count\":4}"),
        (other("newest", json!({"moe_layers_enum": "1,2,3"})), "moe_layers_enum is \"1,2,3\""),
        (other("llama", json!({"mixture_of_experts": true})), "mixture_of_experts is true"),
    ] {
        let text = refused(&value);
        assert!(text.contains(words), "{text}");
    }
    // Those whose keys are known have experts, though their type is not.
    for (model_type, more) in [
        ("phimoe", json!({"num_local_experts": 16, "num_experts_per_tok": 2, "router_jitter_noise": 0.01})),
        (
            "bailing_moe",
            json!({"num_experts": 64, "num_experts_per_tok": 6, "num_shared_experts": 2,
            "moe_intermediate_size": 32}),
        ),
        (
            "minimax_m2",
            json!({"num_local_experts": 256, "num_experts_per_tok": 8, "shared_intermediate_size": 0}),
        ),
    ] {
        let read = parsed(&other(model_type, more));
        let moe = read.config.moe.expect(model_type);
        assert_eq!(moe.shared_ffn, if model_type == "bailing_moe" { 64 } else { 0 });
        assert!(read.warnings[0].starts_with("model_type "), "{:?}", read.warnings);
    }
    // What is off, or no count, changes no size.
    let off =
        json!({"use_moe": false, "moe_layers": [], "moe_dropout": 0.1, "expert_count": 0, "n_expert": null});
    assert_eq!(parsed(&other("newest", off)).config.moe, None);
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
    let experts =
        |k: Value| with(json!({"num_experts": 8, "num_experts_per_tok": k, "moe_intermediate_size": 8}));
    for (text, words) in [
        (refused(&json!({"model_type": "vits"})), ["model_type is \"vits\"", "deepseek_v3"]),
        (refused(&json!({})), ["no model_type", "hidden_size"]),
        (with(json!({"hidden_size": null})), ["hidden_size is missing", "add it"]),
        (with(json!({"hidden_size": "64"})), ["hidden_size is \"64\"", "a whole number from 1"]),
        (with(json!({"hidden_size": -1})), ["hidden_size is -1", "from 1"]),
        (with(json!({"hidden_size": 64.5})), ["hidden_size is 64.5", "a whole number"]),
        (with(json!({"num_hidden_layers": 1e9 as u64})), ["num_hidden_layers is 1000000000", "to 4096"]),
        (with(json!({"num_key_value_heads": 3})), ["num_key_value_heads is 3", "a divisor"]),
        (with(json!({"num_attention_heads": 6, "head_dim": null})), ["num_attention_heads is 6", "head_dim"]),
        (experts(json!(9)), ["num_experts_per_tok is 9", "from 1 to 8"]),
        (experts(Value::Null), ["num_experts_per_tok is missing", "add it"]),
        (
            with(json!({
                "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "mlp_only_layers": [4],
            })),
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
    let flags = "--bf16 --seq-length 64 --micro-batch-size 2".split(' ').map(str::to_owned).collect();
    let all = Given { flags, ..alone.clone() };
    assert_eq!(read(&file("qwen3-30b-a3b"), None, &all).expect("a launch").warnings, [""; 0]);
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
