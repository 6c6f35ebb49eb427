//! The reader of launch scripts: the examples, single constructs against bash itself, and bad input.

use std::process::Command;

use bagualu_model::script::{
    Given, Launch, ScriptError, from_flags, from_flags_over, parse, parse_with, to_flags,
};
use bagualu_model::{Activation, Attention, MoeLayers, Norm, Precision, Preset};

const EXAMPLES: [(&str, &str); 4] = [
    ("glm-423b.sh", include_str!("../../examples/glm-423b.sh")),
    ("qwen3-30b-a3b.sh", include_str!("../../examples/qwen3-30b-a3b.sh")),
    ("mixtral-8x7b-slurm.sh", include_str!("../../examples/mixtral-8x7b-slurm.sh")),
    ("moe-by-size.sh", include_str!("../../examples/moe-by-size.sh")),
];

fn read(text: &str) -> Launch {
    parse(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str) -> String {
    parse(text.as_bytes()).expect_err("refused").to_string()
}

/// The flags of a small model that every snippet needs beside its own.
const BASE: &str = "--hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 100 \
                    --micro-batch-size 1 --bf16";

#[test]
fn examples_that_are_presets_read_as_the_presets() {
    for (script, name) in [(0, "glm-423b-a30b"), (1, "qwen3-30b-a3b"), (2, "mixtral-8x7b")] {
        let launch = read(EXAMPLES[script].1);
        let preset = Preset::named(name, None).expect("a preset");
        assert_eq!(launch.config, preset.config, "{name}");
        assert_eq!(launch.parallelism, preset.parallelism, "{name}");
        assert_eq!(launch.warnings, Vec::<String>::new(), "{name}");
    }
    let launch = read(EXAMPLES[1].1);
    assert_eq!(launch.replaced, ["--recompute-granularity", "--recompute-modules"]);
    assert!(launch.ignored.contains(&"--tokenizer-model".to_owned()));
}

#[test]
fn every_preset_reads_back_from_its_flags() {
    for name in bagualu_model::MODELS {
        let preset = Preset::named(name, None).expect("a preset");
        let flags = to_flags(&preset.config, &preset.parallelism);
        let launch = from_flags(&flags, preset.parallelism.gpus).expect("flags");
        assert_eq!((launch.config, launch.parallelism), (preset.config, preset.parallelism), "{name}");
        assert_eq!(launch.warnings, Vec::<String>::new());
    }
}

#[test]
fn arguments_and_variables_choose_as_they_would_at_run_time() {
    let text = EXAMPLES[3].1.as_bytes();
    let launch = parse(text).expect("a launch");
    assert_eq!((launch.config.layers, launch.config.hidden, launch.parallelism.pp), (16, 1_024, 2));
    let moe = launch.config.moe.expect("experts");
    assert_eq!((moe.experts, moe.ffn, moe.layers), (16, 512, MoeLayers::AfterDense(1)));
    let arguments = ["xl", "--global-batch-size", "128"].map(str::to_owned).to_vec();
    let launch = parse_with(text, &Given { arguments, ..Given::default() }).expect("a launch");
    assert_eq!((launch.config.layers, launch.parallelism.pp, launch.parallelism.ep), (32, 4, 2));
    assert_eq!(launch.config.moe.expect("experts").experts, 64);
    assert_eq!(launch.parallelism.global_batch, 128);
    let variables = vec![("NNODES".to_owned(), "128".to_owned())];
    let given = Given { variables, ..Given::default() };
    let launch = parse_with(EXAMPLES[0].1.as_bytes(), &given).expect("a launch");
    assert_eq!((launch.parallelism.gpus, launch.parallelism.global_batch), (1_024, 4_096));
}

#[test]
fn defaults_are_megatron_s() {
    let launch = read(&format!("torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 2 {BASE}"));
    let config = launch.config;
    assert_eq!((config.ffn, config.kv_groups, config.head_dim), (256, 4, 16));
    assert_eq!((config.norm, config.activation), (Norm::LayerNorm, Activation::Gelu));
    assert!(config.bias && config.tied_embeddings && config.hidden_dropout && config.attention_dropout);
    assert_eq!((config.position_rows, config.attention), (32, Attention::Flash));
    assert_eq!((launch.parallelism.gpus, launch.parallelism.global_batch), (4, 4));
    let gated = read(&format!("torchrun --nproc_per_node 1 x.py --num-layers 2 --swiglu {BASE}")).config;
    assert_eq!(gated.ffn, 64 * 4 * 2 / 3 / 64 * 64);
    let fp32 = read(&format!("torchrun --nproc_per_node 1 x.py --num-layers 2 {BASE}").replace("--bf16", ""));
    assert_eq!((fp32.parallelism.precision, fp32.config.attention), (Precision::Fp32, Attention::Unfused));
    // Expert TP is TP unless it is given.
    let flags = format!("--num-layers 2 {BASE} --num-experts 4 --tensor-model-parallel-size 2");
    let flags: Vec<_> = flags.split_whitespace().map(str::to_owned).collect();
    assert_eq!(from_flags(&flags, 2).expect("flags").parallelism.etp, 2);
}

/// Scripts that set X in every way that scripts do; bash says what X is.
const SNIPPETS: [&str; 40] = [
    "X=12",
    "X=\"1\"2",
    "A=3; X=$A$A",
    "X=${UNSET_NAME:-7}",
    "A=; X=${A:-5}",
    "A=; X=${A-5}8",
    "X=${A:=6}; X=$X$A",
    "A=1; X=${A:+9}",
    "B=8; X=${A:-${B}}",
    "A=3; X=$((A * 4 + 1))",
    "A=3; X=$(( $A ** 2 - (1 + 1) ))",
    "A=(4 5 6); X=${A[1]}",
    "A=(4 5 6); A+=(7); X=${#A[@]}",
    "A=12; X=${#A}",
    "A=ab.16.sh; A=${A%.sh}; X=${A##*.}",
    "A=16x2; X=${A%x*}",
    "A=a/b/24; X=${A##*/}",
    "A=1-2; X=${A/-/}",
    "B=9; A=B; X=${!A}",
    "if [ 3 -gt 2 ]; then X=1; else X=2; fi",
    "if [[ a == b ]]; then X=1; elif [[ abc == a* ]]; then X=2; else X=3; fi",
    "if [ -z \"$UNSET_NAME\" ]; then X=4; fi",
    "if [[ -n \"$UNSET_NAME\" && 1 -eq 1 ]]; then X=1; else X=2; fi",
    "if [[ 1 -eq 2 || 2 -eq 2 ]]; then X=1; else X=2; fi",
    "if ! [ 1 = 2 ] ; then X=3; else X=3; fi",
    "[ 1 = 1 ] && X=5 || X=6",
    "[ 1 = 2 ] && X=5 || X=6",
    "case moe-large in small) X=1;; moe-*) X=2;; *) X=3;; esac",
    "for i in 1 2 3; do X=$i; done",
    "X=0; for i in 1 2 3; do X=$((X + i)); done",
    "X=0; while [ $X -lt 5 ]; do X=$((X+1)); done",
    "X=1; ((X+=4))",
    "X=1; ((X++))",
    "f() { X=$(($1 + $2)); }; f 3 4",
    "function f { X=$#; }\nf a b c",
    "set -- 5 6; shift; X=$1",
    "eval 'X=$((2*3))'",
    "X=1 # not 2\nY=3",
    "cat <<EOT >/dev/null\nX=99\nEOT\nX=2",
    "export X=4 Y=5; declare Z=6; X=$X$Z",
];

#[test]
fn constructs_mean_what_they_mean_to_bash() {
    for snippet in SNIPPETS {
        let output = Command::new("bash").arg("-c").arg(format!("{snippet}\nprintf %s \"$X\"")).output();
        let output = output.expect("bash runs");
        let expected: u32 = String::from_utf8_lossy(&output.stdout).parse().expect(snippet);
        let launch =
            read(&format!("{snippet}\ntorchrun --nproc_per_node 1 pretrain_gpt.py --num-layers $X {BASE}"));
        assert_eq!(launch.config.layers, expected, "{snippet}");
    }
}

/// Ways in which scripts pass flags on; each must give four layers.
const LAUNCHES: [&str; 9] = [
    "ARGS=\"--num-layers 4 BASE\"\ntorchrun --nproc_per_node 8 pretrain_gpt.py $ARGS",
    "ARGS=(--num-layers 4\n  # a comment\n  BASE)\ntorchrun --nproc_per_node=8 pretrain_gpt.py \"${ARGS[@]}\"",
    "python -m torch.distributed.run --nproc-per-node 8 pretrain_gpt.py --num-layers=4 BASE",
    "torchrun --nproc_per_node 8 \\\r\n  pretrain_gpt.py \\\r\n  --num-layers 4 BASE",
    "CMD=\"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 BASE\"\necho $CMD\neval $CMD",
    "srun -N 1 --ntasks-per-node=8 bash -c \"python pretrain_gpt.py --num-layers 4 BASE\"",
    "mpirun -np 8 python pretrain_gpt.py --num-layers 4 BASE > log 2>&1 &",
    "if [ \"$(hostname)\" = a ]; then\n torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 BASE\nfi",
    "run() {\n  torchrun --nproc_per_node 8 pretrain_gpt.py \"$@\"\n}\nrun --num-layers 4 BASE | tee log",
];

#[test]
fn launches_are_found_however_they_are_written() {
    for script in LAUNCHES {
        let launch = read(&script.replace("BASE", BASE));
        assert_eq!((launch.config.layers, launch.parallelism.gpus), (4, 8), "{script}");
        assert_eq!(launch.warnings, Vec::<String>::new(), "{script}");
    }
}

/// What Slurm and the launchers are told, and the devices of it.
const SLURM: [(&str, u64); 18] = [
    (
        "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\nsrun torchrun --nnodes $SLURM_JOB_NUM_NODES --nproc_per_node $SLURM_GPUS_ON_NODE",
        32,
    ),
    (
        "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\nsrun torchrun --nnodes 4 --nproc_per_node gpu",
        32,
    ),
    (
        "#SBATCH -N 4\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=a100:8\nsrun torchrun --nnodes $SLURM_NNODES --nproc-per-node=auto",
        32,
    ),
    (
        "#SBATCH -N4\n#SBATCH --gres=nvme:1,gpu:8\nsrun torchrun --nnodes $(scontrol show hostnames | wc -l) --nproc-per-node $(nvidia-smi -L | wc -l)",
        32,
    ),
    ("srun -N4 --gres=gpu:h100:8 torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE", 32),
    ("srun -N4 --ntasks-per-node=1 bash -c \"torchrun --nnodes 4 --nproc_per_node 8", 32),
    ("#SBATCH --ntasks-per-node=1\nNNODES=4\nGPUS_PER_NODE=8\nsrun torchrun", 32),
    ("#SBATCH -N4\n#SBATCH --ntasks-per-node=8\nsrun python", 32),
    ("#SBATCH -N 4\n#SBATCH --ntasks-per-node=8\nsrun -n $SLURM_NTASKS python", 32),
    ("#SBATCH -N4\n#SBATCH -n32\nsrun python", 32),
    ("srun -N4 -n32 python", 32),
    ("srun -N 4 -n 32 python", 32),
    ("mpirun -np 32 -N 8 python", 32),
    ("srun -n 4 torchrun --nproc_per_node 8", 32),
    ("#SBATCH --nodes=4\n#SBATCH --gres=gpu:8\nsrun python", 32),
    ("nice -n 10 torchrun --nproc_per_node 8", 8),
    ("#SBATCH --nodes=4\ntorchrun --standalone --nproc_per_node 8", 8),
    ("#SBATCH --ntasks=1\ntorchrun --nproc_per_node 8", 8),
];

#[test]
fn devices_are_those_that_slurm_would_give() {
    for (launcher, gpus) in SLURM {
        let quote = if launcher.contains('"') { "\"" } else { "" };
        let launch = read(&format!("{launcher} x.py --num-layers 2 {BASE}{quote}"));
        assert_eq!(launch.parallelism.gpus, gpus, "{launcher}");
    }
}

#[test]
fn a_launcher_s_unknown_value_is_asked_for() {
    for (launcher, value) in [
        (
            "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\nsrun torchrun --nnodes 4 --nproc_per_node $SLURM_GPUS_ON_NODE",
            "$SLURM_GPUS_ON_NODE",
        ),
        (
            "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\nsrun torchrun --nnodes 4 --nproc_per_node gpu",
            "gpu",
        ),
        ("GPUS_PER_NODE=8\ntorchrun --nproc_per_node auto", "auto"),
        ("WORLD_SIZE=8\ntorchrun --nproc_per_node 8 --nnodes $N", "$N"),
        ("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nsrun -n$TASKS python", "$TASKS"),
        ("#SBATCH --ntasks-per-node=8\nsrun -N$NODES python", "$NODES"),
    ] {
        let text = refused(&format!("{launcher} x.py --num-layers 2 {BASE}"));
        let words = [format!("the number of devices is \"{value}\""), "--gpus N".to_owned()];
        assert!(words.iter().all(|word| text.contains(word)), "{launcher:?}: {text:?} lacks {words:?}");
    }
}

#[test]
fn nothing_is_ever_run() {
    let marker = std::env::temp_dir().join(format!("bagualu-script-{}", std::process::id()));
    let touch = format!("touch {}", marker.display());
    let script = format!(
        "A=$({touch})\nB=`{touch}`\n{touch}\neval \"{touch}\"\ncat <({touch})\nX=${{Y:-$({touch})}}\n\
         torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 2 {BASE} --save $({touch})"
    );
    assert_eq!(read(&script).config.layers, 2);
    assert!(!marker.exists());
}

#[test]
fn an_unknown_value_matters_only_in_a_flag_that_matters() {
    let launch = |flags: &str| format!("torchrun --nproc_per_node 2 pretrain_gpt.py {flags} {BASE}");
    let text = refused(&launch("--num-layers $(python count.py)"));
    assert!(text.contains("--num-layers") && text.contains("$(python count.py)") && text.contains("--env"));
    let text = refused(&launch("--num-layers $LAYERS"));
    assert!(text.contains("\"$LAYERS\""), "{text}");
    let text = refused(&format!("if [ -f x ]; then L=2; else L=3; fi\n{}", launch("--num-layers $L")));
    assert!(text.contains("$L, which depends on a condition"), "{text}");
    let read_anyway = read(&launch("--num-layers 2 --save $(pwd)/x --tensorboard-dir `date` $EXTRA"));
    assert_eq!(read_anyway.warnings, ["$EXTRA: not known without running the script; taken as empty"]);
    let nodes = format!("torchrun --nproc_per_node 8 --nnodes $NODES x.py --num-layers 2 {BASE}");
    assert!(refused(&nodes).contains("the number of devices is \"$NODES\""));
    let text = refused(&format!("torchrun --nproc_per_node $(nvidia-smi) x.py --num-layers 2 {BASE}"));
    assert!(text.contains("$(nvidia-smi)") && text.contains("--gpus N"), "{text}");
}

#[test]
fn what_is_wrong_is_named_with_its_value_and_a_fix() {
    let launch = |flags: &str| format!("torchrun --nproc_per_node 2 pretrain_gpt.py {flags} {BASE}");
    for (script, words) in [
        (launch(""), ["--num-layers is missing", "give --num-layers N"]),
        (
            launch("--num-layers 2 --recompute-granularity full"),
            ["--recompute-method is missing", "give --recompute-method uniform|block"],
        ),
        (
            launch("--num-layers 2 --recompute-granularity full --recompute-method block"),
            ["--recompute-num-layers is missing", "give --recompute-num-layers N"],
        ),
        (
            launch(
                "--num-layers 2 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'E|t|tL'",
            ),
            ["lists 3 stages for --pipeline-model-parallel-size 2", "list 2, or a multiple of it"],
        ),
        (launch("--num-layers many"), ["--num-layers is \"many\"", "a whole number"]),
        (launch("--num-layers -3"), ["--num-layers is \"-3\"", "a whole number"]),
        (launch("--num-layers"), ["--num-layers is \"\"", "a value"]),
        (launch("--num-layers 2 --normalization Fancy"), ["--normalization is \"Fancy\"", "RMSNorm"]),
        (launch("--num-layers 2 --hidden-dropout x"), ["--hidden-dropout is \"x\"", "from 0 to 1"]),
        (launch("--num-layers 2 --use-megatron-fsdp"), ["--use-megatron-fsdp", "not modelled"]),
        (launch("--num-layers 2 --use-custom-fsdp"), ["--use-megatron-fsdp", "not modelled"]),
        (
            launch("--num-layers 4 --num-experts 4 --moe-layer-freq [0]*1+[1]*4"),
            ["[0]*1+[1]*4", "each layer"],
        ),
        (launch("--num-layers 2 --num-layers-per-virtual-pipeline-stage 3"), ["stage is \"3\"", "a divisor"]),
        (
            launch("--num-layers 0 --num-layers-per-virtual-pipeline-stage 1"),
            ["--num-layers is \"0\"", "1 or more"],
        ),
        (
            format!(
                "TP=0; DP=$((8 / TP)); {}",
                launch("--num-layers 2 --tensor-model-parallel-size $TP --global-batch-size $((4 * DP))")
            ),
            ["--tensor-model-parallel-size is \"0\"", "1 or more"],
        ),
        (launch("--num-layers 2 --global-batch-size $((8 / 0))"), ["$((8 / 0))", "a division by zero"]),
        ("#".repeat(300_000), ["more than 262144 bytes", "the launch script itself"]),
        ("echo hello".to_owned(), ["no command", "--num-layers"]),
        (format!("python x.py --num-layers 2 {BASE}"), ["does not say how many devices", "--gpus N"]),
        ("A='b".to_owned(), ["line 1: single quote", "close it"]),
        ("\nA=${b".to_owned(), ["line 2: ${", "close it"]),
    ] {
        let text = refused(&script);
        assert!(words.iter().all(|word| text.contains(word)), "{script:?}: {text:?} lacks {words:?}");
    }
    let launch =
        read(&launch("--num-layers 2 --fp4-format e2m1 --my-own-flag 3 --delay-wgrad-compute --lr 1"));
    assert_eq!(launch.warnings.len(), 3, "{:?}", launch.warnings);
    assert!(launch.warnings[1].starts_with("--my-own-flag: not a flag known here"));
    assert_eq!(launch.ignored, ["--lr"]);
}

#[test]
fn a_sourced_file_of_flags_is_read_too() {
    let launch = parse_with(
        format!("MODEL_ARGS=\"\\\n --num-layers 2 \\\n {BASE}\"").as_bytes(),
        &Given { gpus: Some(4), ..Given::default() },
    );
    let launch = launch.expect("a launch");
    assert_eq!((launch.config.layers, launch.parallelism.gpus), (2, 4));
    assert_eq!(launch.warnings, ["no training command; the flags in $MODEL_ARGS are taken"]);
}

#[test]
fn hostile_input_ends_in_an_answer() {
    let deep = |open: &str, close: &str| open.repeat(5_000) + &close.repeat(5_000);
    for script in [
        deep("if true; then ", "fi;"),
        deep("( ", ")"),
        deep("{ ", "}"),
        deep("f() ", ""),
        deep("${a:-", "}"),
        format!("X={}", deep("${a:-", "}")),
        format!("X={}", deep("$((", "))")),
        deep("for i in 1 2; do ", "done;"),
        "A=aaaaaaaa\n".to_owned() + &"A=$A$A\n".repeat(60),
        "A=(a a)\n".to_owned() + &"A+=(\"${A[@]}\")\n".repeat(60),
        "f() { f; f; }\nf".to_owned(),
        "while true; do while true; do while true; do A+=x; done; done; done".to_owned(),
        "eval eval eval eval eval 'eval $X'".to_owned(),
        "X='eval $X'; eval $X".to_owned(),
        "A=".to_owned() + &"'".repeat(99_999),
        "${A[${A[${A[0]}]}]}".repeat(1_000),
        "\u{f8ff}0\u{f8ff} --num-layers \u{f8ff}9\u{f8ff}".to_owned(),
        "[[ ( ( && || < > \n [ -z ] \n case in in esac \n for \n done fi }".to_owned(),
    ] {
        let start: String = script.chars().take(30).collect();
        assert!(parse(script.as_bytes()).is_err(), "{start}");
    }
    assert!(matches!(parse(&vec![b'#'; 1 << 20]), Err(ScriptError::TooLong { .. })));
    assert!(matches!(parse(b"f() { f; }\nf"), Err(ScriptError::TooDeep { .. })));
    assert!(refused("f() { f; }\nf").starts_with("more than 64 levels of nested calls"));
    assert!(refused(&"if true; then\n".repeat(60)).contains(": more than 48 levels of nesting"));
    assert!(matches!(
        parse(("A=aaaaaaaa\n".to_owned() + &"A=$A$A\n".repeat(60)).as_bytes()),
        Err(ScriptError::TooMuch { .. })
    ));
}

#[test]
fn broken_examples_never_panic() {
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as usize) % below
    };
    let special = b"\"'`$(){}[]|&;<>\\#\n =!*";
    let mut read = 0;
    for (_, text) in EXAMPLES {
        for cut in (0..text.len()).step_by(5) {
            read += usize::from(parse(&text.as_bytes()[..cut]).is_ok());
        }
        for _ in 0..400 {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..1 + random(4) {
                let at = random(bytes.len());
                bytes[at] = if random(2) == 0 { special[random(special.len())] } else { random(256) as u8 };
            }
            read += usize::from(parse(&bytes).is_ok());
        }
    }
    // Most single changes leave a script that still reads.
    assert!(read > 400, "{read}");
}

#[test]
fn the_older_switch_for_rope_leaves_no_position_embedding() {
    let rows = |flags: &str| {
        read(&format!("torchrun --nproc_per_node 1 x.py --num-layers 2 {BASE} {flags}")).config.position_rows
    };
    assert_eq!(rows(""), 32);
    assert_eq!(rows("--max-position-embeddings 64"), 64);
    assert_eq!(rows("--max-position-embeddings 64 --use-rotary-position-embeddings"), 0);
    assert_eq!(rows("--max-position-embeddings 64 --position-embedding-type rope"), 0);
}

#[test]
fn another_exchange_of_keys_and_values_than_the_ring_is_warned_about() {
    let warnings = |kind: &str| {
        read(&format!("torchrun --nproc_per_node 2 x.py --num-layers 2 {BASE} --cp-comm-type {kind}"))
            .warnings
    };
    assert_eq!(warnings("p2p"), Vec::<String>::new());
    let differs = ["--cp-comm-type: context parallel is modelled as a ring (p2p)"];
    assert_eq!(warnings("all_gather"), differs);
    assert_eq!(warnings("p2p a2a"), differs);
}

#[test]
fn another_dispatcher_than_the_one_modelled_is_warned_about() {
    let warnings = |flags: &str| {
        let flags = format!("--num-experts 4 {flags}");
        read(&format!("torchrun --nproc_per_node 2 x.py --num-layers 2 {BASE} {flags}")).warnings
    };
    let none = Vec::<String>::new();
    assert_eq!(warnings("--expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall"), none);
    assert_eq!(warnings("--moe-token-dispatcher-type flex"), none, "no row leaves its rank");
    let differs =
        |kind| [format!("--moe-token-dispatcher-type is {kind}: dispatch is modelled as all-to-all")];
    assert_eq!(warnings("--expert-model-parallel-size 2 --moe-token-dispatcher-type flex"), differs("flex"));
    assert_eq!(warnings("--expert-model-parallel-size 2"), differs("allgather"), "Megatron's default");
}

#[test]
fn settings_that_as_configured_does_not_follow_are_warned_about() {
    let flags = "--moe-paged-stash --cpu-offloading-num-layers 1 --recompute-granularity selective";
    let launch = read(&format!("torchrun --nproc_per_node 1 x.py --num-layers 2 {BASE} {flags}"));
    let without = "the plan replaces it; as configured is shown without it";
    let warnings =
        ["--moe-paged-stash", "--cpu-offloading-num-layers"].map(|flag| format!("{flag}: {without}"));
    assert_eq!(launch.warnings, warnings);
    assert_eq!(launch.replaced.len(), 3, "{:?}", launch.replaced);
}

#[test]
fn words_that_may_hide_a_missing_flag_are_named() {
    let script = "torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 1 $(cat args.txt)";
    let error = parse(script.as_bytes()).expect_err("no sizes").to_string();
    assert!(error.contains("is missing, unless it is in $(cat args.txt)"), "{error}");
}

#[test]
fn accelerate_counts_all_processes_and_ssh_is_followed() {
    let devices = |launcher: &str| {
        parse(format!("{launcher} pretrain_gpt.py --num-layers 2 {BASE}").as_bytes())
            .map(|launch| launch.parallelism.gpus)
    };
    assert_eq!(devices("accelerate launch --config_file x.yaml --num_machines 2 --num_processes 16"), Ok(16));
    assert!(devices("accelerate launch").expect_err("unknown").to_string().contains("--gpus N"));
    let inner = format!("cd /x && torchrun --nnodes 2 --nproc_per_node 8 x.py --num-layers 2 {BASE}");
    for line in [
        format!("ssh -n node1 \"{inner}\""),
        format!("for node in a b; do\n  ssh $node '{inner}' &\ndone"),
        format!("pdsh -w a,b \"{inner}\""),
    ] {
        let launch = parse(line.as_bytes()).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(launch.parallelism.gpus, 16, "{line}");
    }
}

#[test]
fn the_older_switches_of_fp8_are_its_format() {
    let fp8 = |flags: &str| {
        read(&format!("torchrun --nproc_per_node 1 x.py --num-layers 2 {BASE} {flags}")).parallelism.fp8
    };
    let format = fp8("--fp8-format hybrid");
    assert!(format.is_some());
    assert_eq!((fp8("--fp8-hybrid"), fp8("--fp8-e4m3"), fp8("")), (format, format, None));
}

#[test]
fn what_megatron_refuses_of_flags_together_is_refused() {
    let launch = |flags: &str| {
        let bare = BASE.replace(" --bf16", "");
        refused(&format!("torchrun --nproc_per_node 4 x.py --num-layers 2 {bare} {flags}"))
    };
    let offload = "--bf16 --fine-grained-activation-offloading --offload-modules qkv_linear";
    let host = "--bf16 --use-precision-aware-optimizer --use-distributed-optimizer --optimizer-cpu-offload";
    let experts = "--bf16 --num-experts 4 --moe-shared-expert-intermediate-size 8";
    let overlap = "--expert-model-parallel-size 2 --overlap-moe-expert-parallel-comm";
    for (flags, words) in [
        ("--bf16 --fp16".to_owned(), ["--bf16 is given with --fp16", "leave one of them out"]),
        ("--bf16 --swiglu --quick-geglu".to_owned(), ["--swiglu is given with --quick-geglu", "leave one"]),
        ("--bf16 --fp8-param-gather".to_owned(), ["--fp8-param-gather", "--fp8-format"]),
        (
            "--bf16 --fp8-format e4m3 --fp8-param-gather".to_owned(),
            ["--fp8-param-gather", "--use-distributed-optimizer"],
        ),
        (
            "--bf16 --recompute-granularity selective --recompute-method uniform".to_owned(),
            ["--recompute-method is \"uniform\"", "full recomputation"],
        ),
        (
            "--bf16 --recompute-granularity selective --recompute-modules core_attn moe_act".to_owned(),
            ["--recompute-modules is \"core_attn moe_act\"", "without moe_act"],
        ),
        (
            format!(
                "{experts} --moe-shared-expert-overlap --recompute-granularity selective --recompute-modules shared_experts"
            ),
            ["--recompute-modules is \"shared_experts\"", "--moe-shared-expert-overlap"],
        ),
        (format!("{offload} --activation-offload-fraction -0.5"), ["is \"-0.5\"", "from 0 to 1"]),
        (format!("{offload} --activation-offload-fraction 1.5"), ["is \"1.5\"", "from 0 to 1"]),
        (format!("{host} --optimizer-offload-fraction -1"), ["is \"-1\"", "from 0 to 1"]),
        (
            format!("{experts} {overlap} --moe-token-dispatcher-type allgather"),
            ["--moe-token-dispatcher-type is \"allgather\"", "alltoall or flex"],
        ),
        (
            format!("{experts} {overlap} --moe-token-dispatcher-type flex --moe-shared-expert-overlap"),
            ["--moe-shared-expert-overlap is given with", "--overlap-moe-expert-parallel-comm"],
        ),
    ] {
        let text = launch(&flags);
        assert!(words.iter().all(|word| text.contains(word)), "{flags:?}: {text:?} lacks {words:?}");
    }
}

#[test]
fn a_given_precision_replaces_an_assumed_one() {
    let preset = Preset::named("qwen3-30b-a3b", None).expect("a preset");
    let base = to_flags(&preset.config, &preset.parallelism);
    let aware = "--fp16 --use-precision-aware-optimizer --use-distributed-optimizer --global-batch-size 4096";
    let flags: Vec<_> = aware.split(' ').map(str::to_owned).collect();
    let launch = from_flags_over(&base, &flags, preset.parallelism.gpus).expect("a launch");
    assert_eq!(launch.parallelism.optimizer.main_bytes, 4, "beside FP16 all of a main parameter is kept");
}

#[test]
fn no_experts_are_a_dense_model() {
    let launch = read(&format!("torchrun --nproc_per_node 2 x.py --num-layers 2 {BASE} --num-experts 0"));
    assert_eq!((launch.config.moe, launch.parallelism.etp), (None, 1));
}

#[test]
fn a_gated_gelu_has_the_defaults_of_gelu() {
    let config =
        |flags: &str| read(&format!("torchrun --nproc_per_node 1 x.py --num-layers 2 {BASE} {flags}")).config;
    assert_eq!(config("--swiglu").ffn, 128, "two thirds of 4·h, in multiples of 64");
    assert_eq!(config("--quick-geglu").ffn, 256);
    assert!(config("--quick-geglu --no-bias-swiglu-fusion").fused_activation);
    assert!(!config("--quick-geglu --no-bias-gelu-fusion").fused_activation);
    assert!(!config("--quick-geglu --disable-bias-linear").fused_activation, "its fusion takes a bias");
    assert!(config("--swiglu --disable-bias-linear").fused_activation);
}
