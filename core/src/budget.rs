//! Algorithm 1: how much memory each micro-batch may hold (§V-A).
//!
//! A *unit* is one (micro-batch, model chunk). For the forward of unit v
//!
//! ```text
//! free       = capacity − Σ held of the units in flight
//! limit(v)   = free − reserve(v)
//! quota(v)   = min(limit(v), floor(v) + (free − Σ floor of n forwards) / n)
//! reserve(v) = the largest, over the points after v and before v's own backward, of
//!              Σ floor of the forwards launched since v − Σ released by the backwards since v
//! ```
//!
//! where n counts the forwards from v up to the schedule's next backward, so that the paper's warm-up
//! and steady cases (lines 3–9 and 10–16) are one rule. *Theorem 1*: if the floors alone are feasible
//! and each v holds at most limit(v), then Σ held ≤ capacity at every point and limit(u) ≥ floor(u) for
//! every later u.
//!
//! The same rule serves a second resource: the host pool is a [`Budget`] of its own.

use core::fmt;

use crate::schedule::{Event, most_in_flight};

/// How the even share of the paper is weighted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Share {
    /// The paper's: equal shares.
    #[default]
    Even,
    /// In proportion to the expected demand of each forward ([`Unit::demand`]).
    Proportional,
}

/// What the budget keeps of one unit. The caller owns the storage and sets floor and demand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unit {
    /// Bytes held under full recomputation (the paper's M0), whatever the rows.
    pub floor: u64,
    /// Bytes it is expected to hold; only [`Share::Proportional`] reads it.
    pub demand: u64,
    held: u64,
    phase: Phase,
}

impl Unit {
    /// A unit that needs at least `floor` bytes.
    pub const fn new(floor: u64) -> Self {
        Self { floor, demand: floor, held: 0, phase: Phase::Waiting }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    #[default]
    Waiting,
    InFlight,
    Done,
}

/// What a forward may hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Allowance {
    /// Capacity less what is held.
    pub free: u64,
    /// The hard bound; below its floor only if something held more than its own limit.
    pub limit: u64,
    /// The share to plan to; at most the limit.
    pub quota: u64,
}

/// The budget of one rank over one iteration.
///
/// Call order: for each event of the schedule, [`forward`](Self::forward) then
/// [`launch`](Self::launch), or [`release`](Self::release).
#[derive(Debug)]
pub struct Budget<'a> {
    capacity: u64,
    share: Share,
    events: &'a [Event],
    units: &'a mut [Unit],
    next: usize,
    held: u64,
    peak: u64,
}

impl<'a> Budget<'a> {
    /// Checks the schedule and that the floors alone fit in `capacity`.
    ///
    /// `units` is indexed by the events' unit numbers. An event list may end before the last backward.
    pub fn new(
        capacity: u64,
        share: Share,
        events: &'a [Event],
        units: &'a mut [Unit],
    ) -> Result<Self, BudgetError> {
        check_order(events, units)?;
        let needed = floor_peak(events, units)?;
        if needed > capacity {
            return Err(BudgetError::Infeasible { needed, capacity });
        }
        Ok(Self { capacity, share, events, units, next: 0, held: 0, peak: 0 })
    }

    /// Starts the iteration again with the same floors.
    pub fn restart(&mut self) {
        for unit in self.units.iter_mut() {
            (unit.held, unit.phase) = (0, Phase::Waiting);
        }
        (self.next, self.held, self.peak) = (0, 0, 0);
    }

    /// What the next event's forward may hold (the paper's lines 5 and 12).
    pub fn forward(&self) -> Result<Allowance, BudgetError> {
        let unit = self.expect_forward()?;
        // Something may hold more than its limit: then nothing is free, and the limits say so.
        let free = self.capacity.saturating_sub(self.held);
        let limit = free.saturating_sub(self.reserve(unit, self.next + 1));
        let quota = self.even_share(unit, free).min(limit);
        Ok(Allowance { free, limit, quota })
    }

    /// Records what the next event's forward holds, measured or planned (lines 7 and 14).
    ///
    /// More than the limit is accepted: the model may err. Later limits then shrink, and may fall
    /// below their floors.
    pub fn launch(&mut self, held: u64) -> Result<(), BudgetError> {
        let unit = self.expect_forward()?;
        self.occupy(unit, 0, held)?;
        self.units[unit].phase = Phase::InFlight;
        self.next += 1;
        Ok(())
    }

    /// Records the next event's backward, which frees what its unit held (line 11).
    pub fn release(&mut self) -> Result<u64, BudgetError> {
        let Some(&Event::Backward(unit)) = self.events.get(self.next) else {
            return Err(self.unexpected());
        };
        let state = &mut self.units[unit as usize];
        let freed = core::mem::take(&mut state.held);
        state.phase = Phase::Done;
        self.held -= freed;
        self.next += 1;
        Ok(freed)
    }

    /// By how much `unit`, in flight, may grow until its backward with every later limit still at least
    /// its floor (design §6, the real ledger: an early recovery is growth).
    pub fn headroom(&self, unit: u32) -> Result<u64, BudgetError> {
        let index = self.in_flight(unit)?;
        let free = self.capacity.saturating_sub(self.held);
        Ok(free.saturating_sub(self.reserve(index, self.next)))
    }

    /// Sets what `unit`, in flight, holds: after a correction, or an early recovery that
    /// [`headroom`](Self::headroom) admits.
    pub fn hold(&mut self, unit: u32, held: u64) -> Result<(), BudgetError> {
        let index = self.in_flight(unit)?;
        self.occupy(index, self.units[index].held, held)
    }

    /// By how much the units in flight hold too much for some later forward to get its floor.
    pub fn deficit(&self) -> u64 {
        // No unit's backward is left out: the reserve over the whole rest of the schedule.
        let reserve = self.reserve(usize::MAX, self.next);
        self.held.saturating_add(reserve).saturating_sub(self.capacity)
    }

    /// The units in flight, the one launched last first.
    pub fn in_flight_latest_first(&self) -> impl Iterator<Item = u32> {
        self.events[..self.next].iter().rev().filter_map(|event| match *event {
            Event::Forward(unit) if self.units[unit as usize].phase == Phase::InFlight => Some(unit),
            _ => None,
        })
    }

    /// Σ held of the units in flight.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// The largest Σ held so far.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// The capacity.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The next event, `None` at the end of the iteration.
    pub fn upcoming(&self) -> Option<Event> {
        self.events.get(self.next).copied()
    }

    /// The event after the next one: a fused scheduling point runs both together.
    pub fn following(&self) -> Option<Event> {
        self.events.get(self.next + 1).copied()
    }

    /// What each unit could hold beyond its floor if all units in flight at the peak held the same.
    pub fn even_share_beyond_floors(&self) -> u64 {
        let peak = floor_peak(self.events, self.units).unwrap_or(self.capacity);
        self.capacity.saturating_sub(peak) / most_in_flight(self.events).max(1) as u64
    }

    /// The floor of the next event's unit; 0 at the end.
    pub fn upcoming_floor(&self) -> u64 {
        match self.upcoming() {
            Some(Event::Forward(unit) | Event::Backward(unit)) => self.floor_of(unit),
            None => 0,
        }
    }

    /// The floor of `unit`.
    pub fn floor_of(&self, unit: u32) -> u64 {
        self.units.get(unit as usize).map_or(0, |u| u.floor)
    }

    /// What `unit` holds; 0 unless it is in flight.
    pub fn held_by(&self, unit: u32) -> u64 {
        self.units.get(unit as usize).map_or(0, |u| u.held)
    }

    /// The largest Σ floors launched less Σ released, over the points from event `from` on and before
    /// `unit`'s own backward; at least 0.
    fn reserve(&self, unit: usize, from: usize) -> u64 {
        let (mut launched, mut released, mut most) = (0u64, 0u64, 0u64);
        for event in &self.events[from..] {
            match *event {
                Event::Forward(u) => {
                    launched += self.units[u as usize].floor;
                    most = most.max(launched.saturating_sub(released));
                }
                Event::Backward(u) if u as usize == unit => break,
                Event::Backward(u) => {
                    let state = &self.units[u as usize];
                    released += if state.phase == Phase::InFlight { state.held } else { state.floor };
                }
            }
        }
        most
    }

    /// floor(v) + (free − Σ floors of the n forwards) · weight, rounded down.
    fn even_share(&self, unit: usize, free: u64) -> u64 {
        let (mut n, mut floors, mut demand) = (0u64, 0u64, 0u128);
        for event in &self.events[self.next..] {
            let Event::Forward(u) = *event else { break };
            n += 1;
            floors += self.units[u as usize].floor;
            demand += u128::from(self.units[u as usize].demand);
        }
        let state = &self.units[unit];
        let spare = free.saturating_sub(floors);
        let share = match self.share {
            Share::Proportional if demand > 0 => {
                (u128::from(spare) * u128::from(state.demand) / demand) as u64
            }
            _ => spare / n.max(1),
        };
        state.floor.saturating_add(share)
    }

    fn occupy(&mut self, unit: usize, before: u64, held: u64) -> Result<(), BudgetError> {
        let total = (self.held - before).checked_add(held);
        // Half the range is left to the floors, so that reserve() cannot overflow.
        let total = total.filter(|&t| t <= u64::MAX / 2).ok_or(BudgetError::Overflow)?;
        self.held = total;
        self.units[unit].held = held;
        self.peak = self.peak.max(total);
        Ok(())
    }

    fn expect_forward(&self) -> Result<usize, BudgetError> {
        match self.events.get(self.next) {
            Some(&Event::Forward(unit)) => Ok(unit as usize),
            _ => Err(self.unexpected()),
        }
    }

    fn in_flight(&self, unit: u32) -> Result<usize, BudgetError> {
        let state = self.units.get(unit as usize);
        match state.map(|u| u.phase) {
            Some(Phase::InFlight) => Ok(unit as usize),
            _ => Err(BudgetError::NotInFlight { unit }),
        }
    }

    fn unexpected(&self) -> BudgetError {
        BudgetError::OutOfOrder { at: self.next, scheduled: self.upcoming() }
    }
}

/// The largest Σ held over the schedule if every unit holds its floor.
pub fn floor_peak(events: &[Event], units: &[Unit]) -> Result<u64, BudgetError> {
    let (mut held, mut peak, mut sum) = (0u64, 0u64, 0u64);
    for (at, event) in events.iter().enumerate() {
        let (Event::Forward(unit) | Event::Backward(unit)) = *event;
        let state = units.get(unit as usize);
        let floor = state.ok_or(BudgetError::NoSuchUnit { at, unit, count: units.len() })?.floor;
        if let Event::Forward(_) = event {
            sum = sum.checked_add(floor).filter(|&s| s <= u64::MAX / 2).ok_or(BudgetError::Overflow)?;
            held += floor;
            peak = peak.max(held);
        } else {
            held = held.checked_sub(floor).ok_or(BudgetError::BadSchedule { at, event: *event })?;
        }
    }
    Ok(peak)
}

/// Each unit has one forward and at most one backward, after it. Leaves all units waiting.
fn check_order(events: &[Event], units: &mut [Unit]) -> Result<(), BudgetError> {
    for unit in units.iter_mut() {
        (unit.held, unit.phase) = (0, Phase::Waiting);
    }
    let count = units.len();
    for (at, event) in events.iter().enumerate() {
        let (unit, from, to) = match *event {
            Event::Forward(unit) => (unit, Phase::Waiting, Phase::InFlight),
            Event::Backward(unit) => (unit, Phase::InFlight, Phase::Done),
        };
        let state = units.get_mut(unit as usize).ok_or(BudgetError::NoSuchUnit { at, unit, count })?;
        if state.phase != from {
            return Err(BudgetError::BadSchedule { at, event: *event });
        }
        state.phase = to;
    }
    for unit in units.iter_mut() {
        unit.phase = Phase::Waiting;
    }
    Ok(())
}

/// Why a budget cannot be made or a step not be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BudgetError {
    /// The floors alone do not fit: nothing can run.
    Infeasible {
        /// The largest Σ floors of the schedule.
        needed: u64,
        /// The capacity.
        capacity: u64,
    },
    /// An event names a unit for which there is no storage.
    NoSuchUnit {
        /// The event's position.
        at: usize,
        /// The unit.
        unit: u32,
        /// Units given.
        count: usize,
    },
    /// A unit's second forward, or a backward without a forward before it.
    BadSchedule {
        /// The event's position.
        at: usize,
        /// The event.
        event: Event,
    },
    /// The call does not match the schedule's next event.
    OutOfOrder {
        /// The next event's position.
        at: usize,
        /// The next event.
        scheduled: Option<Event>,
    },
    /// The unit is not in flight.
    NotInFlight {
        /// The unit.
        unit: u32,
    },
    /// The bytes pass 2^63.
    Overflow,
}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infeasible { needed, capacity } => write!(
                f,
                "the floors alone need {needed} bytes and the capacity is {capacity}; free {} more bytes",
                needed - capacity
            ),
            Self::NoSuchUnit { at, unit, count } => {
                write!(f, "event {at} names unit {unit}; storage was given for {count} units")
            }
            Self::BadSchedule { at, event } => {
                write!(f, "event {at} is {event:?}; each unit has one forward and then at most one backward")
            }
            Self::OutOfOrder { at, scheduled: Some(event) } => {
                write!(f, "the schedule's next event, {at}, is {event:?}; calls follow the schedule")
            }
            Self::OutOfOrder { at, scheduled: None } => {
                write!(f, "the schedule ended after {at} events; restart it for the next iteration")
            }
            Self::NotInFlight { unit } => {
                write!(f, "unit {unit} is not between its forward and its backward")
            }
            Self::Overflow => write!(f, "the sum of bytes passes 2^63"),
        }
    }
}

impl core::error::Error for BudgetError {}

#[cfg(test)]
mod tests;
