use proptest::prelude::*;

use super::*;
use crate::schedule::Pipeline;

/// A random schedule: `picks` decides at each point between the next forward and some backward.
fn random_schedule(units: u32, picks: &[u8]) -> Vec<Event> {
    let (mut events, mut in_flight, mut next) = (Vec::new(), Vec::new(), 0);
    let mut picks = picks.iter().cycle();
    while next < units || !in_flight.is_empty() {
        let pick = *picks.next().expect("a cycle") as usize;
        if in_flight.is_empty() || (next < units && pick.is_multiple_of(2)) {
            events.push(Event::Forward(next));
            in_flight.push(next);
            next += 1;
        } else {
            events.push(Event::Backward(in_flight.remove(pick / 2 % in_flight.len())));
        }
    }
    events
}

/// reserve(v) from the words of the design, by looking at every prefix afresh.
fn reserve_by_definition(events: &[Event], at: usize, floors: &[u64], held: &[Option<u64>]) -> u64 {
    let Event::Forward(v) = events[at] else { panic!("a forward") };
    let own = events.iter().position(|e| *e == Event::Backward(v)).unwrap_or(events.len());
    let mut most = 0i128;
    for end in at + 1..=own {
        let mut sum = 0i128;
        for event in &events[at + 1..end] {
            sum += match *event {
                Event::Forward(u) => i128::from(floors[u as usize]),
                Event::Backward(u) => -i128::from(held[u as usize].unwrap_or(floors[u as usize])),
            };
        }
        most = most.max(sum);
    }
    most as u64
}

#[derive(Debug, Clone)]
struct Case {
    events: Vec<Event>,
    floors: Vec<u64>,
    spare: u64,
    greed: Vec<u16>,
}

fn cases() -> impl Strategy<Value = Case> {
    let arbitrary = (1u32..14, prop::collection::vec(any::<u8>(), 1..40))
        .prop_map(|(units, picks)| random_schedule(units, &picks));
    let pipelines = (1u32..6, 0u32..6, 1u32..5, 1u32..4).prop_map(|(ranks, rank, groups, chunks)| {
        let p = Pipeline::new(ranks, rank % ranks, groups * ranks).interleaved(chunks);
        let mut out = vec![Event::Forward(0); 2 * p.units().expect("units") as usize];
        p.events(&mut out).expect("a schedule").to_vec()
    });
    prop_oneof![arbitrary, pipelines].prop_flat_map(|events| {
        let units = events.len() / 2;
        (
            Just(events),
            prop::collection::vec(0u64..100, units),
            0u64..300,
            prop::collection::vec(any::<u16>(), units),
        )
            .prop_map(|(events, floors, spare, greed)| Case { events, floors, spare, greed })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Theorem 1, with limits from the definition and each unit holding anything from 0 to its limit.
    #[test]
    fn theorem_1(case in cases(), share in prop_oneof![Just(Share::Even), Just(Share::Proportional)]) {
        let mut units: Vec<_> = case.floors.iter().map(|&f| Unit::new(f)).collect();
        let peak = floor_peak(&case.events, &units).expect("no overflow");
        let capacity = peak + case.spare;
        let mut budget = Budget::new(capacity, share, &case.events, &mut units).expect("feasible");
        let mut held = vec![None; case.floors.len()];
        for (at, event) in case.events.iter().enumerate() {
            match *event {
                Event::Forward(unit) => {
                    let allowance = budget.forward().expect("a forward is next");
                    let free = capacity - held.iter().flatten().sum::<u64>();
                    prop_assert_eq!(allowance.free, free);
                    let reserve = reserve_by_definition(&case.events, at, &case.floors, &held);
                    prop_assert_eq!(allowance.limit, free - reserve, "Σ held passed the capacity, or worse");
                    prop_assert!(allowance.limit >= case.floors[unit as usize], "a limit below its floor");
                    prop_assert!(allowance.quota <= allowance.limit);
                    prop_assert!(allowance.quota >= case.floors[unit as usize]);
                    let greed = u64::from(case.greed[unit as usize]);
                    let bytes = allowance.limit * greed / u64::from(u16::MAX);
                    budget.launch(bytes).expect("in order");
                    held[unit as usize] = Some(bytes);
                }
                Event::Backward(unit) => {
                    prop_assert_eq!(budget.release().ok(), held[unit as usize]);
                    held[unit as usize] = Some(0);
                }
            }
            prop_assert!(budget.held() <= capacity);
        }
        prop_assert!(budget.peak() <= capacity);
    }

    /// Growth up to the headroom keeps Theorem 1; one byte more breaks it for some schedule (below).
    #[test]
    fn growth_within_the_headroom_is_safe(case in cases(), grow in prop::collection::vec(any::<u8>(), 1..30)) {
        let mut units: Vec<_> = case.floors.iter().map(|&f| Unit::new(f)).collect();
        let capacity = floor_peak(&case.events, &units).expect("no overflow") + case.spare;
        let mut budget = Budget::new(capacity, Share::Even, &case.events, &mut units).expect("feasible");
        let mut grow = grow.iter().cycle();
        for event in &case.events {
            match *event {
                Event::Forward(unit) => {
                    let allowance = budget.forward().expect("a forward is next");
                    prop_assert!(allowance.limit >= case.floors[unit as usize]);
                    let greed = u64::from(case.greed[unit as usize]);
                    budget.launch(allowance.limit * greed / u64::from(u16::MAX)).expect("in order");
                }
                Event::Backward(_) => { budget.release().expect("in order"); }
            }
            let pick = u32::from(*grow.next().expect("a cycle"));
            let unit = pick % case.floors.len() as u32;
            if let Ok(headroom) = budget.headroom(unit) {
                budget.hold(unit, budget.held_by(unit) + headroom).expect("in flight");
            }
            prop_assert!(budget.held() <= capacity);
        }
    }

    /// With equal floors and everything held at its quota, this is the paper's Algorithm 1.
    #[test]
    fn equal_floors_give_the_papers_algorithm(
        ranks in 1u32..8, rank in 0u32..8, batches in 1u32..24, floor in 0u64..50, spare in 0u64..5_000,
    ) {
        let p = Pipeline::new(ranks, rank % ranks, batches);
        let mut out = vec![Event::Forward(0); 2 * batches as usize];
        let events = p.events(&mut out).expect("a schedule").to_vec();
        let warm_up = u64::from((p.warm_up().expect("a rank") + 1).min(batches));
        let capacity = warm_up * floor + spare;
        let mut units = vec![Unit::new(floor); batches as usize];
        let mut budget = Budget::new(capacity, Share::Even, &events, &mut units).expect("feasible");
        let (mut remaining, mut launched) = (capacity, 0u64);
        for event in &events {
            match *event {
                Event::Forward(_) => {
                    // Lines 3–9: M0 + (M − (B_w − i)·M0) / (B_w − i) while warming up; line 12 after: all.
                    let left = warm_up.saturating_sub(launched).max(1);
                    let quota = floor + (remaining - left * floor) / left;
                    prop_assert_eq!(budget.forward().expect("forward").quota, quota);
                    budget.launch(quota).expect("in order");
                    remaining -= quota;
                    launched += 1;
                }
                Event::Backward(_) => remaining += budget.release().expect("in order"),
            }
        }
    }
}

#[test]
fn growth_past_the_headroom_starves_a_later_forward() {
    let events = [Event::Forward(0), Event::Forward(1), Event::Backward(0), Event::Backward(1)];
    let mut units = [Unit::new(10), Unit::new(10)];
    let mut budget = Budget::new(25, Share::Even, &events, &mut units).expect("feasible");
    budget.launch(10).expect("in order");
    assert_eq!(budget.headroom(0), Ok(5));
    budget.hold(0, 16).expect("in flight");
    assert_eq!(budget.forward().expect("forward").limit, 9);
}

#[test]
fn a_held_above_its_limit_shrinks_what_follows() {
    let events = [Event::Forward(0), Event::Forward(1), Event::Backward(0), Event::Backward(1)];
    let mut units = [Unit::new(10), Unit::new(10)];
    let mut budget = Budget::new(30, Share::Even, &events, &mut units).expect("feasible");
    assert_eq!(budget.forward(), Ok(Allowance { free: 30, limit: 20, quota: 15 }));
    budget.launch(40).expect("accepted");
    assert_eq!(budget.forward(), Ok(Allowance { free: 0, limit: 0, quota: 0 }));
    assert_eq!(budget.peak(), 40);
}

#[test]
fn bad_schedules_and_calls_are_refused() {
    let mut units = [Unit::new(1)];
    let error = |events: &[Event], units: &mut [Unit]| Budget::new(9, Share::Even, events, units).err();
    assert!(matches!(error(&[Event::Forward(1)], &mut units), Some(BudgetError::NoSuchUnit { .. })));
    assert!(matches!(error(&[Event::Backward(0)], &mut units), Some(BudgetError::BadSchedule { .. })));
    let twice = [Event::Forward(0), Event::Forward(0)];
    assert!(matches!(error(&twice, &mut units), Some(BudgetError::BadSchedule { at: 1, .. })));
    let floor = Budget::new(0, Share::Even, &[Event::Forward(0)], &mut units).err();
    assert_eq!(floor, Some(BudgetError::Infeasible { needed: 1, capacity: 0 }));

    let events = [Event::Forward(0)];
    let mut budget = Budget::new(9, Share::Even, &events, &mut units).expect("feasible");
    assert!(matches!(budget.release(), Err(BudgetError::OutOfOrder { at: 0, .. })));
    assert!(matches!(budget.headroom(0), Err(BudgetError::NotInFlight { .. })));
    assert_eq!(budget.launch(u64::MAX), Err(BudgetError::Overflow));
    budget.launch(1).expect("in order");
    assert!(matches!(budget.forward(), Err(BudgetError::OutOfOrder { at: 1, scheduled: None })));
}
