//! Algorithm 1 on any schedule: Theorem 1 holds for whoever respects limits, and nothing panics for
//! whoever does not.

use bagualu_core::budget::{Budget, BudgetError, Share, Unit, floor_peak};
use bagualu_core::schedule::Event;

use crate::Input;

const MOST_UNITS: usize = 24;

/// The target.
pub fn budget(data: &[u8]) {
    let mut input = Input::new(data);
    if input.one_in(8) {
        any_events(&mut input);
    } else {
        valid_schedule(&mut input);
    }
}

/// Events in any order: refused or accepted, then called in any order.
fn any_events(input: &mut Input<'_>) {
    let count = input.below(MOST_UNITS);
    let events: Vec<Event> = (0..input.below(2 * MOST_UNITS))
        .map(|_| {
            let unit = input.below(count + 2) as u32;
            if input.one_in(2) { Event::Backward(unit) } else { Event::Forward(unit) }
        })
        .collect();
    let mut units: Vec<Unit> = (0..count).map(|_| Unit::new(input.quantity())).collect();
    let Ok(mut budget) = Budget::new(input.quantity(), Share::Even, &events, &mut units) else { return };
    while !input.is_empty() {
        let unit = input.below(count + 1) as u32;
        match input.below(6) {
            0 => drop(budget.forward()),
            1 => drop(budget.launch(input.quantity())),
            2 => drop(budget.release()),
            3 => drop(budget.headroom(unit)),
            4 => drop(budget.hold(unit, input.quantity())),
            _ => budget.restart(),
        }
    }
}

fn valid_schedule(input: &mut Input<'_>) {
    let count = 1 + input.below(MOST_UNITS);
    let events = schedule(input, count);
    let mut units: Vec<Unit> = (0..count).map(|_| unit(input)).collect();
    let floors: Vec<u64> = units.iter().map(|u| u.floor).collect();
    let needed = floor_peak(&events, &units).expect("modest floors do not overflow");
    let share = if input.one_in(2) { Share::Proportional } else { Share::Even };
    if let Some(less) = needed.checked_sub(1) {
        let refused = Budget::new(less, share, &events, &mut units).map(drop);
        assert_eq!(refused, Err(BudgetError::Infeasible { needed, capacity: less }));
    }
    let capacity = needed + input.modest();
    let mut budget = Budget::new(capacity, share, &events, &mut units).expect("the floors fit");
    let honest = !input.one_in(4);
    for event in &events {
        step(&mut budget, *event, &floors, honest, input);
        if honest {
            assert!(budget.held() <= capacity, "Theorem 1: {} held of {capacity}", budget.held());
        }
    }
    assert_eq!(budget.upcoming(), None);
}

fn step(budget: &mut Budget<'_>, event: Event, floors: &[u64], honest: bool, input: &mut Input<'_>) {
    let unit = match event {
        Event::Forward(unit) => unit,
        Event::Backward(_) => {
            let held = budget.held();
            let freed = budget.release().expect("the schedule's next event");
            assert_eq!(budget.held() + freed, held);
            return;
        }
    };
    let allowance = budget.forward().expect("the schedule's next event");
    assert!(allowance.quota <= allowance.limit && allowance.limit <= allowance.free);
    if !honest {
        budget.launch(input.modest()).expect("modest");
        return;
    }
    let floor = floors[unit as usize];
    assert!(allowance.quota >= floor, "Theorem 1: {allowance:?} below the floor {floor}");
    let held = match input.below(3) {
        0 => allowance.quota,
        1 => allowance.limit,
        _ => floor.min(allowance.limit),
    };
    budget.launch(held).expect("a limit is at most the capacity");
    // An early recovery within the headroom is growth that no later limit may notice below its floor.
    if input.one_in(3) {
        let room = budget.headroom(unit).expect("in flight");
        budget.hold(unit, held + room).expect("within the capacity");
    }
}

fn unit(input: &mut Input<'_>) -> Unit {
    let mut unit = Unit::new(input.modest());
    if input.one_in(2) {
        unit.demand = input.quantity();
    }
    unit
}

/// A schedule of `count` forwards, whose backwards come in any order.
fn schedule(input: &mut Input<'_>, count: usize) -> Vec<Event> {
    let (mut events, mut in_flight, mut next) = (Vec::new(), Vec::new(), 0);
    while next < count || !in_flight.is_empty() {
        if in_flight.is_empty() || (next < count && !input.one_in(2)) {
            events.push(Event::Forward(next as u32));
            in_flight.push(next as u32);
            next += 1;
        } else {
            let which = input.below(in_flight.len());
            events.push(Event::Backward(in_flight.remove(which)));
        }
    }
    events
}
