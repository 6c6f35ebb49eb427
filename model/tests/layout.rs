//! Which layers each virtual stage runs: Megatron's ways to say it, and its rules.

mod common;

use bagualu_model::script::{from_flags, to_flags};
use bagualu_model::{Layout, Model, ModelConfig, Parallelism, StageLayout};
use common::{alone, build, device, small};

/// Layers of the virtual stages.
fn layers(layers: u32, pp: u32, chunks: u32, layout: Layout) -> Result<Vec<u32>, String> {
    let config = ModelConfig { layers, ..small() };
    let parallelism = pipeline(pp, chunks, layout);
    let layouts = parallelism.stage_layouts(&config).map_err(|error| error.to_string())?;
    let ends: Vec<_> = layouts.iter().map(|stage| (stage.embedding, stage.loss)).collect();
    assert_eq!(ends.iter().filter(|(embedding, _)| *embedding).count(), 1);
    assert!(ends.first().is_some_and(|stage| stage.0) && ends.last().is_some_and(|stage| stage.1));
    Ok(layouts.iter().map(|stage| stage.layers).collect())
}

fn pipeline(pp: u32, chunks: u32, layout: Layout) -> Parallelism {
    let micro_batches = u64::from(pp) * 2;
    let gpus = pp.into();
    Parallelism { gpus, pp, chunks, group_size: pp, global_batch: 2 * micro_batches, layout, ..alone() }
}

const fn even(embedding: bool, loss: bool) -> Layout {
    Layout::Even { embedding, loss }
}

const fn ends(first: u32, last: u32) -> Layout {
    // 0: not given.
    let first = if first == 0 { None } else { Some(first) };
    let last = if last == 0 { None } else { Some(last) };
    Layout::Ends { first, last }
}

#[test]
fn embedding_and_loss_may_count_as_layers() {
    assert_eq!(layers(8, 2, 2, even(false, false)), Ok(vec![2; 4]));
    assert_eq!(layers(30, 4, 2, even(true, true)), Ok(vec![3, 4, 4, 4, 4, 4, 4, 3]));
    assert_eq!(layers(31, 4, 2, even(false, true)), Ok(vec![4, 4, 4, 4, 4, 4, 4, 3]));
    assert_eq!(layers(2, 4, 1, even(true, true)), Ok(vec![0, 1, 1, 0]));
    assert_eq!(layers(4, 1, 1, even(true, true)), Ok(vec![4]));
}

#[test]
fn the_ends_may_have_layers_of_their_own() {
    assert_eq!(layers(61, 16, 1, ends(3, 2)), Ok([&[3][..], &[4; 14], &[2]].concat()));
    assert_eq!(layers(14, 4, 1, ends(0, 2)), Ok(vec![4, 4, 4, 2]));
    assert_eq!(layers(14, 4, 1, ends(2, 0)), Ok(vec![2, 4, 4, 4]));
    // Over two chunks, each with half of its rank's layers.
    assert_eq!(layers(12, 3, 2, ends(2, 2)), Ok(vec![1, 4, 1, 1, 4, 1]));
    assert_eq!(layers(5, 2, 1, ends(2, 3)), Ok(vec![2, 3]));
}

/// Layers, PP, V, layout, and what the message names.
const REFUSED: [(u32, u32, u32, Layout, [&str; 2]); 8] = [
    (
        61,
        16,
        1,
        even(false, false),
        ["layers is 61, which pp·chunks = 16 does not divide", "Ettt|(tttt|)*13ttt|tttL"],
    ),
    (60, 8, 2, even(true, false), ["61 with the embedding", "\"Ettt|(tttt|)*12(ttt|)*2tttL\""]),
    (3, 4, 1, even(false, false), ["layers is 3", "fewer layers than stages"]),
    (12, 3, 2, ends(3, 2), ["decoder_first_pipeline_num_layers is 3", "chunks = 2"]),
    (12, 3, 1, ends(13, 0), ["decoder_first_pipeline_num_layers is 13", "from 1 to 12"]),
    (12, 4, 1, ends(2, 3), ["between the first and the last rank is 7", "their ranks = 2"]),
    (12, 2, 1, ends(5, 6), ["layers of the first and last rank is 11", "all layers must have a rank"]),
    (12, 1, 1, ends(6, 6), ["decoder_last_pipeline_num_layers is 6", "one pipeline rank"]),
];

#[test]
fn layers_that_cannot_be_divided_are_refused_with_the_rule_and_a_layout() {
    for (count, pp, chunks, layout, words) in REFUSED {
        let text = layers(count, pp, chunks, layout).expect_err(words[0]);
        assert!(words.iter().all(|word| text.contains(word)), "{text:?} lacks {words:?}");
    }
}

/// Flags of a model with `layers` layers, and `more`.
fn flags(layers: u32, pp: u32, more: &[&str]) -> Vec<String> {
    let config = ModelConfig { layers, ..small() };
    let mut flags = to_flags(&config, &pipeline(pp, 1, even(false, false)));
    let at = flags.iter().position(|flag| flag == "--num-virtual-stages-per-pipeline-rank").expect("V");
    flags.drain(at..at + 2);
    flags.extend(more.iter().map(|&flag| flag.to_owned()));
    flags
}

#[test]
fn a_layout_s_suggestion_is_a_layout() {
    let text = layers(61, 16, 1, even(false, false)).expect_err("does not divide");
    let layout = text.split('"').nth(1).expect("a quoted layout");
    let launch =
        from_flags(&flags(61, 16, &["--pipeline-model-parallel-layout", layout]), 16).expect("flags");
    let stages = launch.parallelism.stage_layouts(&launch.config).expect("a layout");
    assert_eq!(stages.len(), 16);
    assert!(stages.iter().all(|stage| matches!(stage.layers, 3 | 4)));
}

#[test]
fn v_follows_from_the_layout_and_layers_from_the_stages() {
    let layout = ["--pipeline-model-parallel-layout", "E|t|(tt|)*2|L"];
    let launch = from_flags(&flags(5, 2, &layout), 2).expect("flags");
    assert_eq!((launch.parallelism.pp, launch.parallelism.chunks), (2, 3));
    let model = Model::new(&launch.config, &launch.parallelism, &device()).expect("a model");
    let numbers = |rank: usize| -> Vec<Vec<_>> {
        let chunks = model.stages[rank].chunks.iter();
        chunks.map(|layers| layers.iter().map(|layer| layer.number).collect()).collect()
    };
    assert_eq!(numbers(0), [vec![None], vec![Some(1), Some(2)], vec![]]);
    assert_eq!(numbers(1), [vec![Some(0)], vec![Some(3), Some(4)], vec![None]]);
    let name = |rank: usize, chunk: usize| model.types[model.stages[rank].chunks[chunk][0].layer_type].name;
    assert_eq!((name(0, 0), name(1, 2)), ("embedding", "output"));
    let parts = model.stages.iter().map(|stage| stage.parameters);
    assert_eq!(
        parts.map(|p| (p.embedding > 0, p.output > 0)).collect::<Vec<_>>(),
        [(true, false), (false, true)]
    );
}

#[test]
fn a_layout_moves_parameters_and_loses_none() {
    let config = ModelConfig { layers: 6, ..small() };
    let total = |parallelism: &Parallelism| -> u64 {
        build(&config, parallelism).stages.iter().map(|stage| stage.parameters.total()).sum()
    };
    let whole = total(&pipeline(1, 1, even(false, false)));
    let stage = |layers| StageLayout { layers, ..StageLayout::default() };
    let listed = Layout::Stages(vec![
        StageLayout { embedding: true, ..stage(1) },
        stage(0),
        stage(3),
        StageLayout { loss: true, ..stage(2) },
    ]);
    for parallelism in
        [pipeline(3, 2, even(false, false)), pipeline(2, 1, ends(2, 4)), pipeline(2, 2, listed)]
    {
        assert_eq!(total(&parallelism), whole);
    }
}

/// Layouts for 4 layers on 2 ranks, and what the message says.
const MALFORMED: [(&str, &str); 8] = [
    ("Ett|ttL|", "a multiple of it"),
    ("Ett|t", "the embedding is on the first virtual stage and the loss on the last"),
    ("tt|ttL", "the embedding is on the first"),
    ("Ett|tL", "lists every layer once"),
    ("Ett|ttmL", "0"),
    ("Et*4000000000|L", "at most 4096 layers"),
    ("E(t|tL", "such as"),
    ("Ett|Ltt", "then t"),
];

#[test]
fn malformed_layouts_are_refused() {
    for (layout, word) in MALFORMED {
        let text = match from_flags(&flags(4, 2, &["--pipeline-model-parallel-layout", layout]), 2) {
            Err(error) => error.to_string(),
            Ok(launch) => match Model::new(&launch.config, &launch.parallelism, &device()) {
                Err(error) => error.to_string(),
                Ok(_) => panic!("accepted: {layout}"),
            },
        };
        assert!(text.contains(word) && text.contains("pipeline"), "{layout}: {text}");
    }
}

#[test]
fn only_one_flag_divides_the_layers() {
    let layout = ["--pipeline-model-parallel-layout", "Ett|ttL"];
    let pairs: [&[&str]; 4] = [
        &["--decoder-first-pipeline-num-layers", "2"],
        &["--decoder-last-pipeline-num-layers", "2"],
        &["--account-for-loss-in-pipeline-split"],
        &["--num-layers-per-virtual-pipeline-stage", "2"],
    ];
    for other in pairs {
        let text = from_flags(&flags(4, 2, &[&layout[..], other].concat()), 2).expect_err("two").to_string();
        assert!(text.contains(layout[0]) && text.contains(other[0]), "{text}");
    }
    let counted = [pairs[0], pairs[2]].concat();
    assert!(
        from_flags(&flags(4, 2, &counted), 2).is_err_and(|e| e.to_string().contains("leave one of them out"))
    );
    let per_stage = [pairs[0], pairs[3]].concat();
    assert!(
        from_flags(&flags(4, 2, &per_stage), 2).is_err_and(|e| e.to_string().contains("virtual-pipeline"))
    );
    // V may be given where it agrees.
    let v = |v| {
        from_flags(&flags(4, 2, &[&layout[..], &["--num-virtual-stages-per-pipeline-rank", v]].concat()), 2)
    };
    assert!(v("1").is_ok() && v("2").is_err_and(|e| e.to_string().contains("or leave it out")));
}

#[test]
fn layers_of_a_virtual_stage_count_embedding_and_loss() {
    let more = ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"];
    let per_stage = ["--num-layers-per-virtual-pipeline-stage", "2"];
    let launch = from_flags(&flags(6, 2, &[&more[..], &per_stage].concat()), 2).expect("flags");
    assert_eq!(launch.parallelism.chunks, 2);
    let stages = launch.parallelism.stage_layouts(&launch.config).expect("a layout");
    assert_eq!(stages.iter().map(|stage| stage.layers).collect::<Vec<_>>(), [1, 2, 2, 1]);
}
