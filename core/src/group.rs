//! Rules that must be equal on all ranks of a group (design §8).
//!
//! Whatever runs dispatch or combine again, and splitting a dispatch, hangs the job if ranks disagree.
//! These rules take only group-equal types: [`GroupRows`] comes from the count matrix that the all-to-all
//! dispatcher already gathers on every rank, everything else is static or predicted. Never measured
//! bytes, never free memory.

use core::fmt;

use crate::fingerprint::Fingerprint;
use crate::limits::MAX_EP_RANKS;
use crate::provision::Provision;

mod replicated;

pub use replicated::{LayerLines, Peer, ReplicatedState};

/// Rows that each rank of an expert-parallel group receives for one layer of one micro-batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupRows {
    rows: heapless::Vec<u32, MAX_EP_RANKS>,
}

impl GroupRows {
    /// From the rows themselves.
    pub fn new(rows: &[u32]) -> Result<Self, GroupError> {
        if rows.is_empty() || rows.len() > MAX_EP_RANKS {
            return Err(GroupError::Ranks { count: rows.len() });
        }
        let rows = heapless::Vec::from_slice(rows);
        rows.map(|rows| Self { rows }).map_err(|_| GroupError::Ranks { count: MAX_EP_RANKS + 1 })
    }

    /// From the count matrix `[sources, experts]`, row by row: Megatron's `num_global_tokens_per_expert`
    /// (`core/transformer/moe/token_dispatcher.py`) with its tp and ep dimensions as sources. Experts
    /// are placed in order, `experts / ranks` on each rank.
    pub fn from_counts(counts: &[u32], experts: usize, ranks: usize) -> Result<Self, GroupError> {
        if ranks == 0 || ranks > MAX_EP_RANKS {
            return Err(GroupError::Ranks { count: ranks });
        }
        if experts == 0 || !experts.is_multiple_of(ranks) {
            return Err(GroupError::Experts { experts, ranks });
        }
        if counts.is_empty() || !counts.len().is_multiple_of(experts) {
            return Err(GroupError::Counts { count: counts.len(), experts });
        }
        let mut rows = heapless::Vec::new();
        let local = experts / ranks;
        for rank in 0..ranks {
            let sources = counts.chunks_exact(experts);
            let received = sources.flat_map(|source| &source[rank * local..(rank + 1) * local]);
            let sum: u64 = received.map(|&c| u64::from(c)).sum();
            let sum = u32::try_from(sum).map_err(|_| GroupError::RowsOverflow { rank })?;
            // Capacity was checked above.
            let _ = rows.push(sum);
        }
        Ok(Self { rows })
    }

    /// Rows of each rank.
    pub fn as_slice(&self) -> &[u32] {
        &self.rows
    }

    /// Rows of one rank; 0 for a rank outside the group.
    pub fn of(&self, rank: usize) -> u32 {
        self.rows.get(rank).copied().unwrap_or(0)
    }

    /// Rows of the hottest rank.
    pub fn hottest(&self) -> u32 {
        self.rows.iter().copied().max().unwrap_or(0)
    }
}

/// What a group decides for one layer of one micro-batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupDecision {
    /// Whether all ranks recompute the whole MoE module, dispatch and combine included.
    pub whole_moe: bool,
    /// In how many parts all ranks split the dispatch; 1 is no split. Part p brings each rank the p-th of
    /// equal runs of the rows it receives, ordered by source and expert: every source can tell its own
    /// from the count matrix, and no part exceeds its share.
    pub dispatch_chunks: u32,
}

/// The static rule: a layer whose largest rows over the group exceed R* is recomputed whole by all, and
/// above S* its dispatch is split by all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RowThreshold {
    /// R*, the group's minimum.
    pub row_threshold: u32,
    /// S*, the group's minimum; at least 1.
    pub dispatch_threshold: u32,
}

impl RowThreshold {
    /// The rule of one rank's provision; [`agree`](Self::agree) makes it the group's.
    pub fn new(provision: &Provision) -> Self {
        Self {
            row_threshold: provision.row_threshold,
            dispatch_threshold: provision.dispatch_threshold.max(1),
        }
    }

    /// The rule that serves this rank and a peer: the smaller thresholds.
    pub fn agree(self, peer: Self) -> Self {
        Self {
            row_threshold: self.row_threshold.min(peer.row_threshold),
            dispatch_threshold: self.dispatch_threshold.min(peer.dispatch_threshold),
        }
    }

    /// The decision for one layer of one micro-batch.
    pub fn decide(&self, rows: &GroupRows) -> GroupDecision {
        let hottest = rows.hottest();
        GroupDecision {
            whole_moe: hottest > self.row_threshold,
            dispatch_chunks: hottest.div_ceil(self.dispatch_threshold.max(1)).max(1),
        }
    }
}

/// Takes the element-wise maximum with a peer's calibrated profile, so that all ranks plan for the
/// slowest and the largest of them.
pub fn merge_profile(own: &mut [u64], peer: &[u64]) -> Result<(), GroupError> {
    if own.len() != peer.len() {
        return Err(GroupError::ProfileLength { own: own.len(), peer: peer.len() });
    }
    for (own, peer) in own.iter_mut().zip(peer) {
        *own = (*own).max(*peer);
    }
    Ok(())
}

/// What ranks compare before the first iteration: profile, static budgets and library version.
pub fn agreement(stage_fingerprint: u64, provision: &Provision) -> u64 {
    let Provision { recompute, row_threshold, dispatch_threshold, work_bytes, capacity_bytes } = *provision;
    let thresholds = [row_threshold.into(), dispatch_threshold.into(), work_bytes, capacity_bytes];
    let base = Fingerprint::new().with(stage_fingerprint).with(recompute as u64);
    base.with_all(thresholds).value()
}

/// Refuses to run where a peer's [`agreement`] differs.
pub fn compare(own: u64, peers: &[u64]) -> Result<(), GroupError> {
    match peers.iter().position(|&peer| peer != own) {
        None => Ok(()),
        Some(rank) => Err(GroupError::Mismatch { rank, own, peer: peers[rank] }),
    }
}

/// Why a group rule cannot be applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GroupError {
    /// No ranks, or more than [`MAX_EP_RANKS`].
    Ranks {
        /// How many.
        count: usize,
    },
    /// Experts do not divide among the ranks.
    Experts {
        /// Experts.
        experts: usize,
        /// Ranks.
        ranks: usize,
    },
    /// The count matrix is not a whole number of rows of all experts.
    Counts {
        /// Its length.
        count: usize,
        /// Experts.
        experts: usize,
    },
    /// A rank's rows pass `u32`.
    RowsOverflow {
        /// The rank.
        rank: usize,
    },
    /// The group has another number of ranks than the rule was made for.
    GroupSize {
        /// Ranks given.
        rows: usize,
        /// Peers of the rule.
        peers: usize,
    },
    /// Two ranks' profiles have different lengths.
    ProfileLength {
        /// This rank's.
        own: usize,
        /// The peer's.
        peer: usize,
    },
    /// A peer runs with another profile, budget or version.
    Mismatch {
        /// The peer.
        rank: usize,
        /// This rank's fingerprint.
        own: u64,
        /// The peer's.
        peer: u64,
    },
    /// The predicted budget refused a step.
    Budget(crate::budget::BudgetError),
    /// The stage is refused.
    Stage(crate::stage::StageError),
}

impl From<crate::budget::BudgetError> for GroupError {
    fn from(error: crate::budget::BudgetError) -> Self {
        Self::Budget(error)
    }
}

impl From<crate::stage::StageError> for GroupError {
    fn from(error: crate::stage::StageError) -> Self {
        Self::Stage(error)
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ranks { count } => write!(
                f,
                "{count} expert-parallel ranks; a group has 1 to {MAX_EP_RANKS} (BAGUALU_MAX_EP_RANKS)"
            ),
            Self::Experts { experts, ranks } => {
                write!(f, "{experts} experts on {ranks} ranks; each rank holds the same whole number")
            }
            Self::Counts { count, experts } => {
                write!(f, "{count} counts for {experts} experts; give one per source and expert")
            }
            Self::RowsOverflow { rank } => write!(f, "the rows of rank {rank} pass 2^32"),
            Self::GroupSize { rows, peers } => {
                write!(f, "rows of {rows} ranks for a rule over {peers}; give one per rank of the group")
            }
            Self::ProfileLength { own, peer } => {
                write!(f, "a peer's profile has {peer} values and this rank's {own}; run one version")
            }
            Self::Mismatch { rank, own, peer } => write!(
                f,
                "rank {rank} runs with fingerprint {peer:016x} and this rank with {own:016x}; give all ranks the \
                 same profile, budgets and library version"
            ),
            Self::Budget(error) => error.fmt(f),
            Self::Stage(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for GroupError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rows_are_summed_by_placement() {
        let counts = [1, 2, 3, 4, 10, 20, 30, 40];
        let rows = GroupRows::from_counts(&counts, 4, 2).expect("rows");
        assert_eq!(rows.as_slice(), [33, 77]);
        assert_eq!((rows.hottest(), rows.of(0), rows.of(2)), (77, 33, 0));
        assert_eq!(GroupRows::from_counts(&counts, 4, 3), Err(GroupError::Experts { experts: 4, ranks: 3 }));
        assert_eq!(GroupRows::from_counts(&counts, 3, 1), Err(GroupError::Counts { count: 8, experts: 3 }));
        let huge = [u32::MAX, 1];
        assert_eq!(GroupRows::from_counts(&huge, 1, 1), Err(GroupError::RowsOverflow { rank: 0 }));
    }

    #[test]
    fn profiles_and_fingerprints_are_compared() {
        let mut own = [3, 5];
        merge_profile(&mut own, &[4, 1]).expect("the same length");
        assert_eq!(own, [4, 5]);
        assert!(merge_profile(&mut own, &[1]).is_err());
        assert_eq!(compare(7, &[7, 7]), Ok(()));
        assert_eq!(compare(7, &[7, 8]), Err(GroupError::Mismatch { rank: 1, own: 7, peer: 8 }));
    }

    proptest! {
        /// Every rank sees the same matrix, and so decides the same; no part of a split exceeds S*.
        #[test]
        fn the_threshold_rule_depends_on_the_matrix_alone(
            counts in prop::collection::vec(0u32..5_000, 64), ranks in prop::sample::select(vec![1usize, 2, 4, 8]),
            row_threshold in 0u32..50_000, dispatch_threshold in 1u32..50_000,
        ) {
            let rows = GroupRows::from_counts(&counts, 16, ranks).expect("rows");
            let total: u32 = counts.iter().sum();
            prop_assert_eq!(rows.as_slice().iter().sum::<u32>(), total);
            let rule = RowThreshold { row_threshold, dispatch_threshold };
            let decision = rule.decide(&rows);
            prop_assert_eq!(decision.whole_moe, rows.as_slice().iter().any(|&r| r > row_threshold));
            for &r in rows.as_slice() {
                prop_assert!(r.div_ceil(decision.dispatch_chunks) <= dispatch_threshold);
            }
        }
    }
}
