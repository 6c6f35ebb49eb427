//! Pinned fingerprints of spiked iterations: the same on every machine and in every build, and another one
//! as soon as a byte of the input is.

use bagualu_core::controller::Gate;
use bagualu_core::group::{GroupRows, RowThreshold};
use bagualu_core::ledger::Admission;
use bagualu_core::schedule::Event;
use bagualu_tests::random_rank::{Random, RandomRank, buffers, controller, provision};

/// An instance: a rank, and the rows of its group's two ranks at every gate.
#[derive(Clone)]
struct Instance {
    rank: RandomRank,
    rows: Vec<[u32; 2]>,
}

impl Instance {
    /// The instance of `seed`; `None` where it cannot run.
    fn new(seed: u64) -> Option<Self> {
        let mut random = Random::new(seed);
        let rank = RandomRank::new(&mut random);
        let routed = |layers: &Vec<u16>| layers.iter().filter(|&&k| rank.kinds[k as usize].routed).count();
        let gates = rank.pipeline.micro_batches as usize * rank.chunks.iter().map(routed).sum::<usize>();
        let balanced = u64::from(rank.balanced_rows);
        let rows = (0..gates).map(|gate| {
            // Every seventh gate is a spike.
            let load = if gate % 7 == 3 { 1_200 + random.below(1_401) } else { 800 + random.below(401) };
            let here = balanced * load / 1_000;
            [here as u32, (2 * balanced - here.min(2 * balanced)) as u32]
        });
        let instance = Self { rows: rows.collect(), rank };
        instance.fingerprint().map(|_| instance)
    }

    /// Fingerprint after one iteration; copies end as soon as something waits for them.
    fn fingerprint(&self) -> Option<u64> {
        let Self { rank, rows } = self;
        let (types, slices) = (rank.types(), rank.slices());
        let stage = rank.stage(&types, &slices);
        let mut storage = buffers(&stage, rank);
        let provision = provision(&mut storage, &stage, rank).ok()?;
        let mut controller = controller(&mut storage, stage, rank, provision);
        let rule = RowThreshold::new(&provision);
        let mut rows = rows.iter();
        for event in &rank.events {
            let (Event::Forward(unit) | Event::Backward(unit)) = *event;
            let layers = rank.chunks[rank.pipeline.parts(unit).1 as usize].len();
            if let Event::Backward(_) = event {
                controller.handle_backward(unit).expect("in order");
                for layer in (0..layers).rev() {
                    while let Admission::Wait { .. } = controller.poll_recovery(layer).expect("it fits") {
                        end_copies(&mut controller, rank);
                    }
                    controller.handle_recovery_done().expect("in order");
                }
                controller.handle_backward_done().expect("in order");
                continue;
            }
            controller.handle_forward(unit).expect("in order");
            for layer in 0..layers {
                let kind = rank.chunks[rank.pipeline.parts(unit).1 as usize][layer];
                let gate = if rank.kinds[kind as usize].routed {
                    let group = GroupRows::new(rows.next().expect("a gate")).expect("a group");
                    Gate { rows: group.of(0), group: rule.decide(&group), granted: None }
                } else {
                    Gate::DENSE
                };
                while let Admission::Wait { .. } = controller.poll_to_gate().expect("it fits") {
                    end_copies(&mut controller, rank);
                }
                controller.handle_layer(layer, gate).expect("in order");
                while let Admission::Wait { .. } = controller.poll_layer().expect("it fits") {
                    end_copies(&mut controller, rank);
                }
                controller.handle_layer_done().expect("in order");
            }
            controller.handle_forward_done(None).expect("in order");
        }
        Some(controller.fingerprint())
    }

    /// The same with one byte of one of its numbers changed.
    fn with_one_byte_changed(&self, random: &mut Random) -> Self {
        let mut other = self.clone();
        let rank = &mut other.rank;
        let mut numbers: Vec<&mut u64> = vec![&mut rank.device_bytes, &mut rank.host_bytes];
        for kind in &mut rank.kinds {
            for (index, tensor) in kind.tensors.iter_mut().enumerate() {
                let grows = kind.moe.contains(index);
                numbers.push(if grows { &mut tensor.bytes.per_row } else { &mut tensor.bytes.fixed });
            }
            for op in &mut kind.ops {
                numbers.extend([&mut op.forward.fixed_ns, &mut op.backward.per_row_ps]);
                numbers.extend([&mut op.forward_work.fixed, &mut op.backward_work.per_row]);
            }
        }
        let pick = random.below((numbers.len() + other.rows.len()) as u64) as usize;
        let byte = 1 + random.below(255);
        match numbers.len() {
            count if pick < count => *numbers[pick] ^= byte,
            count => other.rows[pick - count][0] ^= byte as u32,
        }
        other
    }
}

fn end_copies(controller: &mut bagualu_core::controller::Controller<'_>, rank: &RandomRank) {
    for unit in 0..rank.events.len() as u32 / 2 {
        let pending = controller.ledger().pending_of(unit);
        if pending > 0 {
            controller.handle_copied_out(unit, pending).expect("pending");
        }
    }
}

fn instances() -> impl Iterator<Item = (u64, Instance)> {
    (0..).filter_map(|seed| Instance::new(seed).map(|instance| (seed, instance))).take(200)
}

/// Whoever means to change decisions replaces the pins: the test prints them.
#[test]
fn fingerprints_are_pinned() {
    let lines: Vec<String> = instances()
        .map(|(seed, i)| format!("{seed} {:016x}", i.fingerprint().expect("it ran before")))
        .collect();
    let pinned: Vec<&str> = include_str!("fingerprints.txt").lines().collect();
    assert_eq!(lines.len(), 200);
    if lines != pinned {
        println!("{}", lines.join("\n"));
    }
    assert!(lines == pinned, "the fingerprints printed above are not those of tests/tests/fingerprints.txt");
}

#[test]
fn one_byte_changes_them() {
    let mut random = Random::new(9);
    let (mut changed, mut ran) = (0, 0);
    for (_, instance) in instances() {
        let other = instance.with_one_byte_changed(&mut random);
        // A changed byte may leave too little memory to run at all: no fingerprint, so a change.
        changed += u32::from(other.fingerprint() != instance.fingerprint());
        ran += u32::from(other.fingerprint().is_some());
    }
    assert!(changed >= 190 && ran >= 150, "{changed} of 200 changed, {ran} ran");
}
