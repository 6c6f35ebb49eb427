//! The order of forward, backward, offload and recovery operators (§V-B).
//!
//! At a scheduling point a rank holds four chains: F of one micro-batch, B of another, O of the forward
//! before and R of the backward after. The order within a chain never changes; what is decided is how the
//! chains are threaded into one another so that copies and recomputation hide behind communication.
//! An order is judged by its [`run`](run()).
//!
//! There are two entry points, both through [`Problem::new`]:
//!
//! - without a merge, all four chains are free;
//! - with a merge, the order of F and B among each other is given, and only O and R are placed in it. In an
//!   expert-parallel group the merge is agreed upon by all ranks, the placement is each rank's own.
//!
//! Three [`Scheduler`]s solve a problem: [`Exact`], the default, [`PaperDp`], the paper's dynamic program,
//! and [`List`], a priority rule.

mod compact;
mod error;
mod exact;
mod lanes;
mod list;
mod need;
mod paper_dp;
mod run;
mod tables;
mod tails;
mod window;

pub use compact::{Span, compact};
pub use error::InterleaveError;
pub use exact::{Config, Exact, ExactSlot};
pub use list::List;
pub use paper_dp::{PaperDp, PaperSlot};
pub use run::{Run, run, run_with};

use crate::layer::Resource;
use crate::limits::MAX_CHAIN;

/// The most operators that a problem, and so an order, can have.
pub const MAX_ORDER: usize = 4 * MAX_CHAIN;

/// One of the four chains of a scheduling point F_x B_y.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Chain {
    /// F: forward of micro-batch x.
    #[default]
    Forward,
    /// B: backward of micro-batch y.
    Backward,
    /// O: copy-outs of micro-batch x − 1.
    Offload,
    /// R: reload, recomputation and cast back of micro-batch y + 1.
    Recover,
}

impl Chain {
    /// The chains, in the order of [`Problem::chains`].
    pub const ALL: [Self; 4] = [Self::Forward, Self::Backward, Self::Offload, Self::Recover];
}

/// An operator of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Op {
    /// What it occupies while it runs.
    pub resource: Resource,
    /// Run time, ns; may be 0.
    pub ns: u64,
    /// Device bytes it takes when it starts.
    pub alloc_bytes: u64,
    /// Device bytes it gives back when it ends.
    pub free_bytes: u64,
}

/// One element of an order: an operator by its chain and place in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Step {
    /// The chain.
    pub chain: Chain,
    /// Place in the chain, from 0.
    pub index: u8,
}

/// Four chains, the memory they share, and optionally a merge of F and B.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    chains: [&'a [Op]; 4],
    base_bytes: u64,
    capacity_bytes: u64,
    merge: Option<&'a [Chain]>,
}

impl<'a> Problem<'a> {
    /// Checks a problem: `chains` in the order F, B, O, R; `base_bytes` in use before the first operator;
    /// `capacity_bytes` never to be passed; `merge`, where given, names F and B as often as they have
    /// operators and fixes that subsequence of every order.
    pub fn new(
        chains: [&'a [Op]; 4],
        base_bytes: u64,
        capacity_bytes: u64,
        merge: Option<&'a [Chain]>,
    ) -> Result<Self, InterleaveError> {
        let problem = Self { chains, base_bytes, capacity_bytes, merge };
        problem.check_sums()?;
        problem.check_merge()?;
        Ok(problem)
    }

    /// No level or time of any order may overflow, so that none needs checking later.
    fn check_sums(&self) -> Result<(), InterleaveError> {
        const MOST: u64 = i64::MAX as u64;
        let (mut bytes, mut ns) = (self.base_bytes, 0u64);
        if bytes > MOST {
            return Err(InterleaveError::BaseOverflow { base_bytes: bytes });
        }
        for (chain, ops) in Chain::ALL.into_iter().zip(self.chains) {
            if ops.len() > MAX_CHAIN {
                return Err(InterleaveError::TooLong { chain, count: ops.len() });
            }
            for (index, op) in ops.iter().enumerate() {
                ns = ns.saturating_add(op.ns);
                bytes = bytes.saturating_add(op.alloc_bytes).saturating_add(op.free_bytes);
                if ns > MOST || bytes > MOST {
                    return Err(InterleaveError::Overflow { chain, index });
                }
            }
        }
        Ok(())
    }

    fn check_merge(&self) -> Result<(), InterleaveError> {
        let Some(merge) = self.merge else { return Ok(()) };
        for (chain, ops) in Chain::ALL.into_iter().zip(self.chains) {
            let placed = matches!(chain, Chain::Forward | Chain::Backward);
            let (named, needed) =
                (merge.iter().filter(|&&c| c == chain).count(), if placed { ops.len() } else { 0 });
            if named != needed {
                return Err(InterleaveError::BadMerge { chain, named, needed });
            }
        }
        Ok(())
    }

    /// The chains: F, B, O, R.
    pub fn chains(&self) -> [&'a [Op]; 4] {
        self.chains
    }

    /// The operators of one chain.
    pub fn chain(&self, chain: Chain) -> &'a [Op] {
        self.chains[chain as usize]
    }

    /// Bytes in use before the first operator.
    pub fn base_bytes(&self) -> u64 {
        self.base_bytes
    }

    /// Bytes never to be passed.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// The given order of F and B, if any.
    pub fn merge(&self) -> Option<&'a [Chain]> {
        self.merge
    }

    /// Operators of all chains: the length of an order.
    pub fn op_count(&self) -> usize {
        self.chains.iter().map(|ops| ops.len()).sum()
    }
}

/// What a scheduler claims of the order it returned. Replaying the order with [`run`](run()) gives exactly
/// this makespan and peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Solution {
    /// End of the last operator, ns.
    pub makespan_ns: u64,
    /// No order of this problem is shorter, ns.
    pub lower_bound_ns: u64,
    /// Whether the makespan equals the lower bound.
    pub optimal: bool,
    /// Largest number of bytes in use at any time; at least the base, at most the capacity.
    pub peak_bytes: u64,
}

/// Finds an order of a problem.
pub trait Scheduler {
    /// Writes an order to the first [`Problem::op_count`] elements of `order` and says what it is worth.
    ///
    /// [`InterleaveError::Infeasible`] where no order fits, with the smallest capacity that would do.
    fn schedule(&mut self, problem: &Problem<'_>, order: &mut [Step]) -> Result<Solution, InterleaveError>;
}
