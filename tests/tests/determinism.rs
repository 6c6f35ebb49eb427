//! The same answers in debug and release, on every processor: digests over the answers to many random
//! instances, pinned. `make test` runs this file in both profiles.
//!
//! A digest changes if a solver changes its answers, also to equally good ones; then it is pinned anew,
//! and the change is named in CHANGELOG.md.

use bagualu::Error;
use bagualu::solve::budget;

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

#[test]
fn budget_answers_are_pinned() {
    let mut numbers = Numbers(1);
    let instances: Vec<String> = (0..2_000).map(|_| budget_instance(&mut numbers)).collect();
    let answers = |method| digest(instances.iter().map(|i| shown(budget::solve(i.as_bytes(), method))));
    let digests = (answers(budget::Method::Even), answers(budget::Method::Proportional));
    assert_eq!(digests, (6504539563032582913, 7659510840529595664));
}
