//! A problem prepared for a scheduler.

use super::lanes::{FOUR, Item, Lanes};
use super::need::Needs;
use super::tables::Tables;
use super::{InterleaveError, Problem, Run, Solution, Step, run};

/// What all schedulers look things up in.
#[derive(Debug)]
pub(super) struct Window<'p> {
    problem: &'p Problem<'p>,
    pub lanes: Lanes,
    pub tables: Tables,
    /// Set where some operator of some order might have to wait for bytes.
    needs: Option<Needs>,
}

impl<'p> Window<'p> {
    /// Prepares `problem`, if an order of it fits.
    pub fn new(problem: &'p Problem<'p>) -> Result<Self, InterleaveError> {
        let lanes = Lanes::new(problem);
        let tables = Tables::new(&lanes);
        let binds = tables.may_bind(&lanes, [0; FOUR]);
        let window = Self { problem, needs: binds.then(|| Needs::new(&lanes)), lanes, tables };
        match window.needs.as_ref().map(Needs::smallest_capacity) {
            Some(needed) if needed > window.lanes.capacity => Err(InterleaveError::Infeasible {
                needed_bytes: needed.unsigned_abs(),
                available_bytes: problem.capacity_bytes(),
            }),
            _ => Ok(window),
        }
    }

    /// The part of `order` to fill.
    pub fn order<'o>(&self, order: &'o mut [Step]) -> Result<&'o mut [Step], InterleaveError> {
        let (available, needed) = (order.len(), self.problem.op_count());
        order.get_mut(..needed).ok_or(InterleaveError::StorageTooSmall { needed, available })
    }

    /// Whether some operator of some order might have to wait for bytes.
    pub fn memory_binds(&self) -> bool {
        self.needs.is_some()
    }

    /// Whether the rest still fits once `item` has run after `places`.
    pub fn leaves_room(&self, mut places: [usize; FOUR], item: &Item) -> bool {
        let Some(needs) = &self.needs else { return true };
        let before = self.tables.level(&self.lanes, places);
        places[usize::from(item.chain)] += 1;
        before + item.alloc <= self.lanes.capacity
            && needs.fits(self.lanes.places(places), before + item.net())
    }

    /// What `order` is worth when it is run; `proven` is a lower bound that its scheduler found.
    pub fn solution(&self, order: &[Step], proven: u64) -> Result<Solution, InterleaveError> {
        let Run { makespan_ns, peak_bytes } = run(self.problem, order)?;
        let lower_bound_ns = self.tables.root_bound().max(proven);
        Ok(Solution { makespan_ns, lower_bound_ns, optimal: makespan_ns == lower_bound_ns, peak_bytes })
    }
}
