//! The same answers in debug and release, on every processor: digests over the answers to many random
//! instances, pinned. `make test` runs this file in both profiles.
//!
//! A digest changes if a solver changes its answers, also to equally good ones; then it is pinned anew,
//! and the change is named in CHANGELOG.md.

use bagualu::Error;
use bagualu::solve::{budget, interleave, mitigate};

/// SplitMix64: numbers that depend on nothing but the seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// FNV-1a.
fn digest(texts: impl Iterator<Item = String>) -> u64 {
    texts.flat_map(String::into_bytes).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn shown<A: serde::Serialize>(answer: Result<A, Error>) -> String {
    match answer {
        Ok(answer) => serde_json::to_string(&answer).expect("answers are JSON"),
        Err(error) => error.to_string(),
    }
}

/// A schedule of up to 20 units whose backwards come in any order; now and then it does not fit.
fn budget_instance(numbers: &mut Numbers) -> String {
    let count = 1 + numbers.below(20);
    let (mut events, mut in_flight, mut next, mut floors) = (Vec::new(), Vec::new(), 0, 0);
    while next < count || !in_flight.is_empty() {
        if in_flight.is_empty() || (next < count && numbers.below(2) == 0) {
            let floor = numbers.below(1 << 30);
            let demand = numbers.below(1 << 34);
            events.push(format!(
                r#"{{"forward": "{next}", "floor_bytes": {floor}, "demand_bytes": {demand}}}"#
            ));
            in_flight.push(next);
            (next, floors) = (next + 1, floors + floor);
        } else {
            let which = numbers.below(in_flight.len() as u64) as usize;
            events.push(format!(r#"{{"backward": "{}"}}"#, in_flight.remove(which)));
        }
    }
    let capacity = floors / 2 + numbers.below(1 << 33);
    let held: Vec<String> =
        (0..count / 3).map(|i| format!(r#""{}": {}"#, 3 * i, numbers.below(1 << 31))).collect();
    format!(
        r#"{{"capacity_bytes": {capacity}, "events": [{}], "held_bytes": {{{}}}}}"#,
        events.join(", "),
        held.join(", ")
    )
}

/// Up to four layers that are chains of operators with skip connections; loads from one to many.
fn mitigate_instance(numbers: &mut Numbers) -> String {
    let layers: Vec<String> = (0..1 + numbers.below(4))
        .map(|index| {
            let count = 2 + numbers.below(14);
            let tensors: Vec<String> = (0..count).map(|t| tensor(numbers, t)).collect();
            let ops: Vec<String> = (1..count).map(|t| op(numbers, t)).collect();
            let (tensors, ops) = (tensors.join(", "), ops.join(", "));
            format!(r#"{{"name": "{index}", "tensors": [{tensors}], "ops": [{ops}]}}"#)
        })
        .collect();
    let limit = layers.len() as u64 * numbers.below(7_000_000_000);
    let host = match numbers.below(3) {
        0 => format!(r#""host_limit_bytes": {}, "#, numbers.below(8_000_000_000)),
        _ => String::new(),
    };
    let layers = layers.join(", ");
    format!(r#"{{"limit_bytes": {limit}, {host}"allow_collectives": ["ep"], "layers": [{layers}]}}"#)
}

fn tensor(numbers: &mut Numbers, index: u64) -> String {
    let bytes = numbers.below(1_000_000_000);
    let mut text = format!(r#"{{"name": "{index}", "bytes": {bytes}, "block_input": {}"#, index == 0);
    if numbers.below(2) == 0 {
        text += &format!(
            r#", "copy_out_ns": {}, "copy_in_ns": {}"#,
            bytes / 25,
            bytes / (10 + numbers.below(40))
        );
    }
    if numbers.below(2) == 0 {
        let narrow = bytes / 2 + numbers.below(1_000_000);
        text += &format!(
            r#", "cast_ns": {}, "uncast_ns": {}, "quantized_bytes": {narrow}"#,
            bytes / 900,
            bytes / 700
        );
    }
    text + "}"
}

/// The operator that makes tensor `t` from the one before and perhaps one further back.
fn op(numbers: &mut Numbers, t: u64) -> String {
    let collective = ["", "", "", "", r#", "collective": "ep""#, r#", "collective": "tp""#];
    let collective = collective[numbers.below(6) as usize];
    let (skip, ns) = (numbers.below(t), numbers.below(2_000_000));
    let saves =
        if numbers.below(4) == 0 { String::new() } else { format!(r#", "saves": ["{t}", "{skip}"]"#) };
    format!(
        r#"{{"name": "{t}", "reads": ["{}", "{skip}"], "makes": ["{t}"], "forward_ns": {ns}{saves}{collective}}}"#,
        t - 1
    )
}

/// Four chains of up to six operators; memory binds in some.
fn interleave_instance(numbers: &mut Numbers) -> String {
    let resources = ["compute", "communication", "copy_out", "copy_in"];
    let mut lengths = Vec::new();
    let chains: Vec<String> = ["forward", "backward", "offload", "recover"]
        .iter()
        .map(|chain| {
            let length = numbers.below(7);
            lengths.push(length);
            let ops: Vec<String> = (0..length)
                .map(|_| {
                    let resource = resources[numbers.below(4) as usize];
                    let (ns, alloc, free) = (numbers.below(1000), numbers.below(100), numbers.below(100));
                    format!(r#"{{"resource": "{resource}", "ns": {ns}, "alloc_bytes": {alloc}, "free_bytes": {free}}}"#)
                })
                .collect();
            format!(r#""{chain}": [{}]"#, ops.join(", "))
        })
        .collect();
    let mut merge = vec![r#""backward""#; lengths[1] as usize];
    for _ in 0..lengths[0] {
        let at = numbers.below(merge.len() as u64 + 1) as usize;
        merge.insert(at, r#""forward""#);
    }
    let merge = match numbers.below(3) {
        0 => format!(r#", "merge": [{}]"#, merge.join(", ")),
        _ => String::new(),
    };
    let capacity = numbers.below(1_500);
    format!(
        r#"{{"chains": {{{}}}, "base_bytes": 10, "capacity_bytes": {capacity}{merge}}}"#,
        chains.join(", ")
    )
}

#[test]
fn budget_answers_are_pinned() {
    let mut numbers = Numbers(1);
    let instances: Vec<String> = (0..2_000).map(|_| budget_instance(&mut numbers)).collect();
    let answers = |method| digest(instances.iter().map(|i| shown(budget::solve(i.as_bytes(), method))));
    let digests = (answers(budget::Method::Even), answers(budget::Method::Proportional));
    assert_eq!(digests, (6504539563032582913, 7659510840529595664));
}

#[test]
fn mitigate_answers_are_pinned() {
    let mut numbers = Numbers(2);
    let instances: Vec<String> = (0..500).map(|_| mitigate_instance(&mut numbers)).collect();
    let answers = |method| digest(instances.iter().map(|i| shown(mitigate::solve(i.as_bytes(), method))));
    let methods = [mitigate::Method::Exact, mitigate::Method::Ratio, mitigate::Method::Paper];
    assert_eq!(methods.map(answers), [15708809703055008944, 12744071613770443351, 10136000348894402276]);
}

#[test]
fn interleave_answers_are_pinned() {
    let mut numbers = Numbers(3);
    let instances: Vec<String> = (0..500).map(|_| interleave_instance(&mut numbers)).collect();
    let answers = |method| digest(instances.iter().map(|i| shown(interleave::solve(i.as_bytes(), method))));
    let methods = [interleave::Method::Exact, interleave::Method::Paper, interleave::Method::List];
    assert_eq!(methods.map(answers), [17731233041815205259, 3077483508180952202, 875763865077841767]);
}
