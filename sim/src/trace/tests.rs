use super::*;
use crate::load::{Gate, Load, Shape};

const OLMOE: &[u8] = include_bytes!("../../../traces/olmoe_microbatches.csv");
const COUNTS: &[u8] = include_bytes!("../../../traces/olmoe_expert_counts.csv");
const MMLU: [&[u8]; 2] = [
    include_bytes!("../../../traces/mmlu_international_law.json"),
    include_bytes!("../../../traces/mmlu_machine_learning.json"),
];

fn message(text: &str) -> String {
    Trace::parse(text.as_bytes(), None).expect_err("a bad trace").to_string()
}

/// Largest load of each (micro-batch, layer) in hundredths, sorted.
fn loads(trace: &Trace, ranks: u32) -> Vec<u32> {
    let shape = Shape::new(ranks, 64, 3, 160, 100_000).expect("a shape");
    let mapped = trace.onto(shape, None);
    let mut rows = vec![0; ranks as usize];
    let mut loads = Vec::new();
    for micro_batch in 0..160 {
        for layer in 0..3 {
            mapped.rows(Gate { iteration: 0, micro_batch, layer }, &mut rows);
            assert_eq!(rows.iter().map(|&r| u64::from(r)).sum::<u64>(), shape.total_rows());
            loads.push(rows.iter().max().expect("ranks") / 1_000);
        }
    }
    loads.sort_unstable();
    loads
}

#[test]
fn the_olmoe_micro_batches_have_their_published_loads() {
    let trace = Trace::parse(OLMOE, None).expect("the repository's trace");
    assert_eq!((trace.experts(), trace.layers(), trace.micro_batches()), (64, 3, 160));
    assert_eq!(trace.iterations(), None);
    for (ranks, median, most) in [(8, 127, 215), (16, 159, 260), (32, 237, 422), (64, 380, 770)] {
        let loads = loads(&trace, ranks);
        let middle = loads[loads.len() / 2];
        assert!(middle.abs_diff(median) <= 1, "EP {ranks}: median {middle}, published {median}");
        let last = loads[loads.len() - 1];
        assert!(last.abs_diff(most) <= 1, "EP {ranks}: maximum {last}, published {most}");
    }
}

#[test]
fn the_other_files_of_the_repository_are_read() {
    for (model, experts, domains) in [("olmoe", 64, 6), ("mistral", 8, 5), ("olmoe-sft", 64, 1)] {
        let trace = Trace::parse(COUNTS, Some(model)).expect("the repository's counts");
        assert_eq!(
            (trace.experts(), trace.layers(), trace.micro_batches()),
            (experts, 3, domains),
            "{model}"
        );
    }
    let error = Trace::parse(COUNTS, None).expect_err("four models");
    assert!(error.to_string().ends_with("choose one of mistral, olmoe, olmoe-dpo, olmoe-sft"), "{error}");
    for text in MMLU {
        let trace = Trace::parse(text, None).expect("the repository's popularity");
        assert_eq!((trace.experts(), trace.layers(), trace.micro_batches()), (8, 32, 1));
    }
}

#[test]
fn iterations_and_layers_are_mapped_as_documented() {
    let text = "iteration,microbatch,layer,e0,e1\n\
                0,0,0,1,1\n0,0,5,3,1\n0,1,0,1,3\n0,1,5,0,4\n1,0,0,4,0\n1,0,5,2,2\n";
    let trace = Trace::parse(text.as_bytes(), None).expect("a trace");
    assert_eq!((trace.iterations(), trace.micro_batches(), trace.layers()), (Some(2), 3, 2));
    let mapped = trace.onto(Shape::new(2, 2, 4, 2, 4).expect("a shape"), None);
    let at = |iteration, micro_batch, layer| {
        let mut rows = [0; 2];
        mapped.rows(Gate { iteration, micro_batch, layer }, &mut rows);
        rows
    };
    assert_eq!([at(0, 0, 0), at(0, 0, 1), at(0, 0, 2), at(0, 0, 3)], [[4, 4], [4, 4], [6, 2], [6, 2]]);
    assert_eq!(at(0, 1, 3), [0, 8]);
    assert_eq!(at(1, 1, 0), [8, 0], "iteration 1 has one micro-batch, which repeats");
    assert_eq!(at(2, 1, 3), [0, 8], "iteration 2 is iteration 0");
}

#[test]
fn groups_fold_before_they_spread() {
    let text = "microbatch,layer,e0,e1,e2,e3\n0,0,9,1,2,0\n";
    let trace = Trace::parse(text.as_bytes(), None).expect("a trace");
    let rows = |groups| {
        let mut rows = [0; 4];
        let shape = Shape::new(4, 8, 1, 1, 30).expect("a shape");
        trace.onto(shape, groups).rows(Gate { iteration: 0, micro_batch: 0, layer: 0 }, &mut rows);
        rows
    };
    assert_eq!(rows(None), [90, 10, 20, 0]);
    assert_eq!(rows(Some(2)), [50, 50, 10, 10]);
    assert_eq!(rows(Some(1)), [30; 4]);
}

#[test]
fn mistakes_are_named() {
    for (text, expected) in [
        ("", "the trace has no micro-batch; at least one is needed"),
        ("microbatch,layer,e0\n", "the trace has no micro-batch; at least one is needed"),
        (
            "batch,layer,e0\n",
            "line 1, column 1: \"batch\"; the header needs \"iteration\", \"microbatch\" or \"model\" here",
        ),
        ("microbatch,layer\n0,0\n", "line 1, column 3: \"\"; the header needs \"e0\" here"),
        ("microbatch,layer,e0,e2\n", "line 1, column 4: \"e2\"; the header needs \"e1\" here"),
        ("microbatch,layer,e0\n0,0,1,2\n", "line 2: 4 fields; the header has 3"),
        ("microbatch,layer,e0\n0,0,-1\n", "line 2, column e0: \"-1\"; a whole number below 2^32 is needed"),
        (
            "microbatch,layer,e0\n0,0,4294967296\n",
            "line 2, column e0: \"4294967296\"; a whole number below 2^32 is needed",
        ),
        ("microbatch,layer,e0\n0,0,1.5\n", "line 2, column e0: \"1.5\"; a whole number below 2^32 is needed"),
        (
            "microbatch,layer,e0\n0,0,0\n",
            "line 2: no expert received a row; at least one count above 0 is needed",
        ),
        (
            "microbatch,layer,e0\n0,0,1\n0,0,2\n",
            "line 3: iteration 0, micro-batch 0, layer 0 is there twice; remove one",
        ),
        (
            "microbatch,layer,e0\n0,0,1\n0,3,1\n1,0,1\n",
            "iteration 0, micro-batch 1, layer 3 is missing; iterations and micro-batches count from 0 and each micro-batch needs the layers 0, 3",
        ),
        (
            "iteration,microbatch,layer,e0\n0,0,0,1\n2,0,0,1\n",
            "iteration 0, micro-batch 1, layer 0 is missing; iterations and micro-batches count from 0 and each micro-batch needs the layers 0",
        ),
        (
            "model,domain,slot,expert,count\nm,a,0,0,5\nm,a,0,2,5\n",
            "iteration 0, micro-batch 0, layer 0, expert 1 is missing; experts 0 to 1 are needed",
        ),
        (
            "model,domain,slot,expert,count\nm,a,0,0,5\nm,a,0,0,5\n",
            "line 3: model \"m\", domain \"a\", slot 0, expert 0 is there twice; remove one",
        ),
        (
            "{\"expert_popularity\": [[1, 2], [3]]}",
            "expert_popularity[1][1] is missing; all layers need the same experts",
        ),
        (
            "{\"expert_popularity\": [[0]]}",
            "expert_popularity[0]: no expert received a row; at least one count above 0 is needed",
        ),
        ("{\"expert_popularity\": []}", "the trace has no micro-batch; at least one is needed"),
    ] {
        assert_eq!(message(text), expected);
    }
    for text in ["{\"expert_popularity\": [[-1]]}", "{}", "{\"expert_popularity\": [[1.5]]}", "\u{0}\"", "{"]
    {
        let message = message(text);
        assert!(
            message.ends_with("see docs/formats.md for the trace formats") || message.contains("header"),
            "{message}"
        );
    }
}
