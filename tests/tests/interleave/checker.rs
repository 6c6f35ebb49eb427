//! What an order is worth, straight from the text of design §10; shares no code with the library.

use bagualu_core::interleave::{Chain, Op, Step};

/// Start and end of each operator of the order, and the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub times: Vec<(u64, u64)>,
    pub makespan: u64,
    pub peak: i128,
}

struct Placed {
    chain: Chain,
    op: Op,
    start: u64,
    end: u64,
}

/// Bytes in use after each event of the placed operators: (time, bytes).
///
/// At equal times ends come before the starts of other operators. An operator of no length ends before
/// others start, so it comes before those that last; among such operators the order decides.
fn events(base: u64, placed: &[Placed]) -> Vec<(u64, i128)> {
    let mut events: Vec<(u64, u8, i128)> = vec![(0, 0, 0)];
    for p in placed {
        let (takes, gives) = (i128::from(p.op.alloc_bytes), -i128::from(p.op.free_bytes));
        let kinds = if p.start == p.end { (1, 1) } else { (2, 0) };
        events.push((p.start, kinds.0, takes));
        events.push((p.end, kinds.1, gives));
    }
    events.sort_by_key(|&(at, kind, _)| (at, kind)); // stable: the order is kept among equals
    let mut bytes = i128::from(base);
    events
        .into_iter()
        .map(|(at, _, change)| {
            bytes += change;
            (at, bytes)
        })
        .collect()
}

/// Whether `alloc` more bytes fit from `at` on.
fn fits(events: &[(u64, i128)], at: u64, alloc: u64, capacity: u64) -> bool {
    let now = events.iter().rev().find(|e| e.0 <= at).map(|e| e.1);
    let later = events.iter().filter(|e| e.0 > at).map(|e| e.1);
    now.into_iter().chain(later).all(|bytes| bytes + i128::from(alloc) <= i128::from(capacity))
}

/// `None` where an operator finds no time.
pub fn check(chains: [&[Op]; 4], base: u64, capacity: u64, order: &[Step]) -> Option<Outcome> {
    let mut placed: Vec<Placed> = Vec::new();
    for step in order {
        let op = chains[step.chain as usize][step.index as usize];
        let before = placed.iter().filter(|p| p.chain == step.chain);
        assert_eq!(before.clone().count(), step.index as usize, "the chain's order is kept");
        let ready = before
            .chain(placed.iter().filter(|p| p.op.resource == op.resource))
            .map(|p| p.end)
            .max()
            .unwrap_or(0);
        let events = events(base, &placed);
        let mut times: Vec<u64> =
            events.iter().map(|e| e.0).filter(|&at| at > ready).chain([ready]).collect();
        times.sort_unstable();
        let start = times.into_iter().find(|&at| fits(&events, at, op.alloc_bytes, capacity))?;
        placed.push(Placed { chain: step.chain, op, start, end: start + op.ns });
    }
    let peak = events(base, &placed).into_iter().map(|e| e.1).max().expect("the first event");
    Some(Outcome {
        makespan: placed.iter().map(|p| p.end).max().unwrap_or(0),
        times: placed.iter().map(|p| (p.start, p.end)).collect(),
        peak,
    })
}

/// Calls `visit` with every order that keeps the chains and, where given, the merge.
pub fn all_orders(lengths: [usize; 4], merge: Option<&[Chain]>, visit: &mut impl FnMut(&[Step])) {
    fn go(
        lengths: [usize; 4],
        merge: Option<&[Chain]>,
        order: &mut Vec<Step>,
        visit: &mut impl FnMut(&[Step]),
    ) {
        if order.len() == lengths.iter().sum() {
            return visit(order);
        }
        let done = |chain: Chain| order.iter().filter(|s| s.chain == chain).count();
        let merged = done(Chain::Forward) + done(Chain::Backward);
        let next: Vec<Step> = Chain::ALL
            .into_iter()
            .map(|chain| Step { chain, index: done(chain) as u8 })
            .filter(|s| (s.index as usize) < lengths[s.chain as usize])
            .filter(|s| match (merge, s.chain) {
                (Some(merge), Chain::Forward | Chain::Backward) => merge[merged] == s.chain,
                _ => true,
            })
            .collect();
        for step in next {
            order.push(step);
            go(lengths, merge, order, visit);
            order.pop();
        }
    }
    go(lengths, merge, &mut Vec::new(), visit);
}
