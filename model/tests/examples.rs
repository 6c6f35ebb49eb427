//! The examples of launchers: each is read, in the format that its content decides, to the numbers that it
//! would run with.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use bagualu_model::read::{Format, read};
use bagualu_model::script::{Given, Launch};
use bagualu_model::{Device, Layout, Loss, Model, MoeLayers, Norm, Preset, Rotary};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/launchers")
}

fn launch(name: &str, given: &Given) -> Launch {
    let text = fs::read(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    read(&text, None, given).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn on(gpus: u64) -> Given {
    Given { gpus: Some(gpus), ..Given::default() }
}

/// An example, the devices given beside it (0: it says so itself), and what it runs: layers, h, E, k, sequence
/// length; devices, TP, PP, V, EP, sequences of a micro-batch, micro-batches.
type Row = (&'static str, u64, [u64; 5], [u64; 7]);

#[rustfmt::skip]
const EXAMPLES: [Row; 14] = [
    ("deepspeed.sh", 0, [24, 2_048, 0, 0, 2_048], [16, 2, 4, 1, 1, 4, 16]),
    ("mpirun.sh", 0, [56, 6_144, 8, 2, 4_096], [128, 2, 8, 7, 8, 1, 32]),
    ("ms-swift.sh", 0, [48, 2_048, 128, 8, 8_192], [16, 2, 2, 1, 4, 1, 8]),
    ("ms-swift.yaml", 16, [27, 2_048, 64, 6, 2_048], [16, 1, 2, 1, 8, 2, 4]),
    ("nemo.yaml", 0, [32, 4_096, 0, 0, 4_096], [32, 4, 2, 4, 1, 2, 16]),
    ("megatron-bridge.yaml", 16, [48, 2_048, 128, 8, 4_096], [16, 4, 2, 1, 4, 1, 256]),
    ("megatron-test.yaml", 8, [12, 512, 8, 2, 1_024], [8, 2, 2, 1, 4, 4, 4]),
    ("megatron-yaml-cfg.yaml", 8, [24, 1_024, 0, 0, 4_096], [8, 2, 2, 3, 1, 2, 32]),
    ("positional.sh", 0, [27, 2_048, 64, 6, 4_096], [16, 1, 2, 1, 8, 1, 2]),
    ("verl.sh", 0, [48, 2_048, 128, 8, 4_096], [32, 2, 4, 1, 8, 2, 40]),
    ("docker.sh", 0, [16, 2_048, 64, 8, 4_096], [8, 1, 2, 2, 4, 2, 64]),
    ("srun-container.sh", 0, [94, 4_096, 128, 8, 4_096], [128, 2, 8, 4, 16, 1, 128]),
    ("recipe.sh", 0, [32, 4_096, 8, 2, 4_096], [32, 1, 4, 2, 8, 1, 32]),
    ("flags.txt", 16, [24, 2_880, 32, 4, 8_192], [16, 1, 2, 2, 8, 1, 32]),
];

/// What positional.sh is started with.
fn given(name: &str, gpus: u64) -> Given {
    let mut given = Given { gpus: (gpus > 0).then_some(gpus), ..Given::default() };
    if name == "positional.sh" {
        let arguments = "dlc 16B 1 16 1e-5 1e-6 4096 bf16 1 2 8 true";
        given.arguments = arguments.split(' ').map(str::to_owned).collect();
        given.variables = vec![("WORLD_SIZE".to_owned(), "2".to_owned())];
    }
    given
}

#[test]
fn every_example_is_read_to_the_numbers_it_runs_with() {
    let device = Device::named("h100-80g").expect("a preset");
    for (name, gpus, shape, run) in EXAMPLES {
        let launch = launch(name, &given(name, gpus));
        let (config, parallelism) = (&launch.config, &launch.parallelism);
        let (experts, top_k) = config.moe.as_ref().map_or((0, 0), |moe| (moe.experts, moe.top_k));
        let read = [config.layers.into(), config.hidden, experts, top_k, config.seq];
        assert_eq!(read, shape, "{name}");
        let p = parallelism;
        let read = [p.gpus, p.tp, p.pp.into(), p.chunks.into(), p.ep, p.micro_batch, p.micro_batches()];
        assert_eq!(read, run, "{name}");
        assert!(p.tp == 1 || p.sequence_parallel || experts == 0, "{name}");
        Model::new(config, parallelism, &device).unwrap_or_else(|error| panic!("{name}: {error}"));
        let unknown: Vec<_> =
            launch.warnings.iter().filter(|line| line.contains("not a flag known")).collect();
        assert_eq!(unknown, Vec::<&String>::new(), "{name}");
    }
    let files = fs::read_dir(folder()).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let files: BTreeSet<_> = files.map(|name| name.into_string().expect("UTF-8")).collect();
    assert_eq!(files, EXAMPLES.iter().map(|row| row.0.to_owned()).collect());
}

#[test]
fn content_decides_the_format() {
    for (name, ..) in EXAMPLES {
        let expected = match name.rsplit('.').next() {
            Some("sh") => Format::Script,
            Some("yaml") => Format::Yaml,
            _ => Format::Flags,
        };
        let text = fs::read(folder().join(name)).expect("a file");
        assert_eq!(Format::of(&text), expected, "{name}");
    }
    for (text, format) in [
        ("\u{feff}{\"model_type\": 1}", Format::HuggingFace),
        ("\n  {", Format::HuggingFace),
        ("# comment\r\n---\r\na: 1", Format::Yaml),
        ("model: x", Format::Yaml),
        ("'--num-layers': 4", Format::Yaml),
        ("--num-layers: 4", Format::Yaml),
        ("--num-layers 4", Format::Flags),
        ("# a comment\n--num-layers=4", Format::Flags),
        ("#!/bin/bash\n--num-layers: 4", Format::Script),
        (": ${A:=1}", Format::Script),
        ("A=1\ntorchrun x.py", Format::Script),
        ("", Format::Script),
    ] {
        assert_eq!(Format::of(text.as_bytes()), format, "{text:?}");
    }
}

#[test]
fn names_of_other_programs_mean_megatron_s_flags() {
    let nemo = launch("nemo.yaml", &Given::default()).config;
    assert_eq!((nemo.ffn, nemo.norm, nemo.vocab), (11_008, Norm::RmsNorm, 32_000));
    assert!(launch("nemo.yaml", &Given::default()).parallelism.distributed_optimizer);
    assert!(!nemo.bias && !nemo.tied_embeddings && !nemo.fused_activation && !nemo.hidden_dropout);
    let bridge = launch("megatron-bridge.yaml", &on(16));
    let preset = Preset::named("qwen3-30b-a3b", None).expect("a preset").config;
    assert_eq!(bridge.config, preset);
    assert!(bridge.parallelism.distributed_optimizer);
    let test = launch("megatron-test.yaml", &on(8)).config;
    assert_eq!(test.moe.expect("experts").layers, MoeLayers::AfterDense(3));
    assert_eq!(test.mla.expect("MLA").q_lora_rank, 1_536);
    let mixtral = Preset::named("mixtral-8x7b", None).expect("a preset");
    let recipe = launch("recipe.sh", &Given::default());
    assert_eq!((recipe.config, recipe.parallelism), (mixtral.config, mixtral.parallelism));
    let verl = launch("verl.sh", &Given::default());
    assert!(verl.ignored.contains(&"actor_rollout_ref.rollout (but n)".to_owned()), "{:?}", verl.ignored);
    assert_eq!(launch("srun-container.sh", &Given::default()).config.loss, Loss::TransformerEngine);
    let positional = launch("positional.sh", &given("positional.sh", 0));
    assert_eq!(positional.config.rotary, Rotary::Unfused);
    assert_eq!(positional.parallelism.layout, Layout::Ends { first: Some(14), last: Some(13) });
}

#[test]
fn a_model_s_name_brings_its_sizes_with_a_note() {
    let swift = launch("ms-swift.sh", &Given::default());
    let preset = Preset::named("qwen3-30b-a3b", None).expect("a preset").config;
    assert_eq!(swift.config.vocab, preset.vocab);
    assert!(swift.warnings.iter().any(|line| line.contains("the sizes of the preset qwen3-30b-a3b")));
    assert!(swift.parallelism.distributed_optimizer);
    let other = "model: someone/else-7b\nmicro_batch_size: 1\n";
    let error = read(other.as_bytes(), None, &on(8)).expect_err("refused").to_string();
    assert!(error.contains("\"someone/else-7b\"") && error.contains("config.json"), "{error}");
    let lora =
        fs::read_to_string(folder().join("ms-swift.yaml")).expect("a file").replace(": full", ": lora");
    let launch = read(lora.as_bytes(), None, &on(16)).expect("a launch");
    assert!(launch.warnings.contains(&"train_type lora: training of all parameters is modelled".to_owned()));
}

#[test]
fn what_is_wrong_is_named_by_its_setting() {
    let yaml = |from: &str, to: &str| {
        let text = fs::read_to_string(folder().join("megatron-bridge.yaml")).expect("a file");
        read(text.replace(from, to).as_bytes(), None, &on(16)).expect_err("refused").to_string()
    };
    for (error, words) in [
        (
            yaml("num_layers: 48", "num_layers: many"),
            ["model.num_layers: --num-layers is \"many\"", "a whole number"],
        ),
        (yaml("num_layers: 48", "depth: 48"), ["--num-layers is missing", "give --num-layers N"]),
        (
            yaml("num_layers: 48", "num_layers: 48\n  num_layers: 4"),
            ["line 5: \"num_layers\" is set twice", "keep one"],
        ),
        (yaml("num_layers: 48", "num_layers: [48"), ["line ", "not YAML"]),
        (yaml("train:", "---\ntrain:"), ["a second document", "a file of one"]),
    ] {
        assert!(words.iter().all(|word| error.contains(word)), "{error:?} lacks {words:?}");
    }
    let no_gpus = read(b"num_layers: 4", None, &Given::default()).expect_err("refused").to_string();
    assert!(no_gpus.contains("--gpus N"), "{no_gpus}");
}

#[test]
fn flags_beside_a_file_override_it_in_every_format() {
    let flags = ["--seq-length", "16384", "--global-batch-size", "1280"].map(str::to_owned).to_vec();
    for (name, gpus, ..) in EXAMPLES {
        let launch = launch(name, &Given { flags: flags.clone(), ..given(name, gpus) });
        assert_eq!((launch.config.seq, launch.parallelism.global_batch), (16_384, 1_280), "{name}");
    }
}

#[test]
fn merged_and_shared_yaml_is_as_if_written_out() {
    let text = "base: &base {num_layers: 2, hidden_size: 64}\nmodel:\n  <<: *base\n  hidden_size: 32\n";
    let rest = "num_attention_heads: 4\nseq_length: 16\nvocab_size: 100\nmicro_batch_size: &one 1\nglobal_batch_size: *one\n";
    let launch = read(format!("{text}{rest}").as_bytes(), None, &on(1)).expect("a launch");
    assert_eq!((launch.config.layers, launch.config.hidden, launch.parallelism.global_batch), (2, 32, 1));
}

/// Settings of a small model in one mapping, before `rest`.
fn small(rest: &str) -> Launch {
    let sizes = "num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 16, vocab_size: 100, micro_batch_size: 1";
    let text = format!(
        "base: &base {{{sizes}, tensor_model_parallel_size: 2, sequence_parallel: true, bias: false, num_query_groups: 2}}\n{rest}"
    );
    read(text.as_bytes(), None, &on(2)).unwrap_or_else(|error| panic!("{rest}: {error}"))
}

#[test]
fn false_and_null_take_back_what_was_set() {
    let merged = small("model:\n  <<: *base\n");
    assert!(merged.parallelism.sequence_parallel && !merged.config.bias && merged.config.kv_groups == 2);
    let own =
        small("model:\n  <<: *base\n  sequence_parallel: false\n  bias: true\n  num_query_groups: null\n");
    assert!(!own.parallelism.sequence_parallel && own.config.bias && own.config.kv_groups == 4);
    let again = small("model:\n  <<: *base\n  sequence_parallel: false\nlast: {sequence_parallel: true}\n");
    assert!(again.parallelism.sequence_parallel, "the last counts");
    let flags = "model.num_layers=2 model.hidden_size=64 model.num_attention_heads=4 model.seq_length=16 \
                 model.vocab_size=100 model.micro_batch_size=1 model.tensor_model_parallel_size=2";
    let hydra = |more: &str| {
        let script = format!("torchrun --nproc_per_node 2 train.py {flags} {more}");
        read(script.as_bytes(), None, &Given::default()).expect("a launch").parallelism.sequence_parallel
    };
    assert!(hydra("model.sequence_parallel=True"));
    assert!(!hydra("model.sequence_parallel=True model.sequence_parallel=False"));
    assert!(!hydra("model.sequence_parallel=True model.sequence_parallel=null"));
    let swift = "megatron sft --model Qwen/Qwen3-30B-A3B --expert_model_parallel_size 2";
    let divided = |more: &str| {
        let script = format!("NPROC_PER_NODE=2 {swift} {more}");
        read(script.as_bytes(), None, &on(2)).expect("a launch").parallelism.distributed_optimizer
    };
    assert!(divided("") && !divided("--use_distributed_optimizer false"));
}

#[test]
fn the_optimizer_s_section_says_where_its_state_is() {
    let optimizer = |section: &str| {
        let launch = small(&format!("model:\n  optim: {{{section}, lr: 1e-4, sched: {{name: sgd}}}}\n"));
        (
            launch.parallelism.distributed_optimizer,
            launch.parallelism.optimizer.second_moment_bytes,
            launch.warnings,
        )
    };
    for name in ["distributed_fused_adam", "mcore_distributed_optim"] {
        assert_eq!(optimizer(&format!("name: {name}")), (true, 4, vec![]));
    }
    assert_eq!(optimizer("name: fused_adam"), (false, 4, vec![]));
    assert_eq!(optimizer("name: fused_adam, use_distributed_optimizer: true"), (true, 4, vec![]));
    assert_eq!(optimizer("config: {optimizer: sgd, use_distributed_optimizer: true}"), (true, 0, vec![]));
    let (divided, _, warnings) = optimizer("name: adafactor");
    assert!(!divided);
    assert_eq!(warnings, ["model.optim.name adafactor: the state of Adam is modelled"]);
}
