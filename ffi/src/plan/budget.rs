//! `bagualu_budget`: Algorithm 1 on its own.

use bagualu_core::budget::{Allowance, Budget, Share, Unit};
use bagualu_core::schedule::Event;
use self_cell::{MutBorrow, self_cell};

use super::schedule::{MOST_UNITS, bagualu_event};
use crate::arguments::{elements, optional, out, out_struct, versioned};
use crate::boundary::boundary;
use crate::handle::{self, handle};
use crate::status::{Failure, bagualu_status};

/// How memory is divided among the micro-batches of one rank: Algorithm 1 of the paper.
///
/// Made by `bagualu_budget_new`, freed by `bagualu_budget_free`. Functions that take it as `const` may run at the same
/// time on several threads, all others one at a time.
pub struct bagualu_budget {
    _opaque: [u8; 0],
}

handle!(bagualu_budget, Object, 1);

self_cell!(
    /// A budget with its schedule and its units.
    pub(crate) struct Object {
        owner: Parts,
        #[covariant]
        dependent: Budget,
    }
);

/// What a budget borrows.
struct Parts {
    events: Vec<Event>,
    units: MutBorrow<Vec<Unit>>,
}

/// What a forward may hold, bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_allowance {
    /// sizeof(bagualu_allowance), set by the caller.
    pub struct_size: usize,
    /// Capacity less what is held.
    pub free: u64,
    /// The hard bound: whoever stays below it never makes a later micro-batch infeasible.
    pub limit: u64,
    /// The share to plan to; at most the limit.
    pub quota: u64,
}

versioned!(bagualu_allowance);

impl From<Allowance> for bagualu_allowance {
    fn from(allowance: Allowance) -> Self {
        let Allowance { free, limit, quota } = allowance;
        Self { struct_size: 0, free, limit, quota }
    }
}

/// Shares are equal (`bagualu_budget_new`, `bagualu_controller_config`): the paper's.
pub const BAGUALU_SHARE_EVEN: u32 = 0;
/// Shares are in proportion to the expected demand of each unit.
pub const BAGUALU_SHARE_PROPORTIONAL: u32 = 1;

pub(crate) fn share(number: u32) -> Result<Share, Failure> {
    match number {
        BAGUALU_SHARE_EVEN => Ok(Share::Even),
        BAGUALU_SHARE_PROPORTIONAL => Ok(Share::Proportional),
        other => Err(Failure::value("share", other, "give a BAGUALU_SHARE_…")),
    }
}

/// Makes a budget of `capacity` bytes for a schedule.
///
/// `events` are the schedule's, in order; `floors[u]` is what unit u holds at least, `demands[u]` what it is expected to
/// hold (may be NULL: its floor), for `unit_count` units. All are copied.
///
/// `BAGUALU_STATUS_INFEASIBLE` if the floors alone do not fit.
///
/// Thread-safe. `*budget` is the caller's, to be freed by `bagualu_budget_free`.
///
/// # Safety
/// - Each array is NULL or as long as its count; `budget` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_budget_new(
    capacity: u64,
    share: u32,
    events: *const bagualu_event,
    event_count: usize,
    floors: *const u64,
    demands: *const u64,
    unit_count: usize,
    budget: *mut *mut bagualu_budget,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (budget, events, floors, demands) = unsafe {
            let demands = if demands.is_null() { floors } else { demands };
            let given = elements(events, event_count, "events")?;
            let floors = elements(floors, unit_count, "floors")?;
            (out(budget, "budget")?, given, floors, elements(demands, unit_count, "demands")?)
        };
        if unit_count > MOST_UNITS || event_count > 2 * MOST_UNITS {
            let message = format!("{unit_count} units and {event_count} events; at most {MOST_UNITS} units");
            return Err(Failure::new(bagualu_status::Count, message));
        }
        let mut units: Vec<Unit> = floors.iter().map(|&floor| Unit::new(floor)).collect();
        for (unit, &demand) in units.iter_mut().zip(demands) {
            unit.demand = demand;
        }
        let events = events.iter().map(Event::try_from).collect::<Result<_, _>>()?;
        let share = self::share(share)?;
        let parts = Parts { events, units: MutBorrow::new(units) };
        let object = Object::try_new(parts, |parts| {
            Budget::new(capacity, share, &parts.events, parts.units.borrow_mut())
        })?;
        budget.set(handle::insert(object)?);
        Ok(())
    })
}

/// Frees a budget; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_budget_free(budget: *mut bagualu_budget) -> bagualu_status {
    boundary(|| handle::remove(budget).map(drop))
}

/// What the next event's forward may hold.
///
/// # Safety
/// - `allowance` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_budget_forward(
    budget: *const bagualu_budget,
    allowance: *mut bagualu_allowance,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(allowance, "allowance") }?;
        let allowance = handle::with(budget, |object| Ok(object.borrow_dependent().forward()?))?;
        out.set_struct(allowance.into());
        Ok(())
    })
}

/// Records what the next event's forward holds, measured or planned. More than its limit is accepted: later limits
/// then shrink, and may fall below their floors.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_budget_launch(budget: *mut bagualu_budget, held: u64) -> bagualu_status {
    boundary(|| {
        handle::with_mut(budget, |object| Ok(object.with_dependent_mut(|_, budget| budget.launch(held))?))
    })
}

/// Records the next event's backward; `freed`, which may be NULL, receives what its unit held.
///
/// # Safety
/// - `freed` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_budget_release(
    budget: *mut bagualu_budget,
    freed: *mut u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = optional(freed, |to| unsafe { out(to, "freed") })?;
        let freed =
            handle::with_mut(budget, |object| Ok(object.with_dependent_mut(|_, budget| budget.release())?))?;
        if let Some(out) = out {
            out.set(freed);
        }
        Ok(())
    })
}

/// Sets what `unit`, between its forward and its backward, holds.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_budget_hold(budget: *mut bagualu_budget, unit: u32, held: u64) -> bagualu_status {
    boundary(|| {
        handle::with_mut(budget, |object| Ok(object.with_dependent_mut(|_, budget| budget.hold(unit, held))?))
    })
}

/// Starts the iteration again with the same floors.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_budget_restart(budget: *mut bagualu_budget) -> bagualu_status {
    boundary(|| {
        handle::with_mut(budget, |object| {
            object.with_dependent_mut(|_, budget| budget.restart());
            Ok(())
        })
    })
}

/// Where a budget stands, bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_budget_state {
    /// sizeof(bagualu_budget_state), set by the caller.
    pub struct_size: usize,
    /// What may be held.
    pub capacity: u64,
    /// What the units between forward and backward hold.
    pub held: u64,
    /// The most that they held so far.
    pub peak: u64,
    /// By how much they hold too much for some later forward to get its floor.
    pub deficit: u64,
}

versioned!(bagualu_budget_state);

/// Writes where a budget stands.
///
/// # Safety
/// - `state` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_budget_read(
    budget: *const bagualu_budget,
    state: *mut bagualu_budget_state,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(state, "state") }?;
        out.set_struct(handle::with(budget, |object| {
            Ok(bagualu_budget_state::from(object.borrow_dependent()))
        })?);
        Ok(())
    })
}

impl From<&Budget<'_>> for bagualu_budget_state {
    fn from(budget: &Budget<'_>) -> Self {
        Self {
            struct_size: 0,
            capacity: budget.capacity(),
            held: budget.held(),
            peak: budget.peak(),
            deficit: budget.deficit(),
        }
    }
}

/// By how much `unit`, between its forward and its backward, may grow with every later limit still at least its floor.
///
/// # Safety
/// - `bytes` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_budget_headroom(
    budget: *const bagualu_budget,
    unit: u32,
    bytes: *mut u64,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(bytes, "bytes") }?;
        out.set(handle::with(budget, |object| Ok(object.borrow_dependent().headroom(unit)?))?);
        Ok(())
    })
}
