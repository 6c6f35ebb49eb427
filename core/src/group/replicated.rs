//! `ReplicatedState`: every rank advances the predicted budget of all its peers and takes the group's
//! maximum, so that a spike is recomputed by the group only if some rank really lacks the room.

use super::{GroupDecision, GroupError, GroupRows};
use crate::budget::{Allowance, Budget};
use crate::cost::Bytes;
use crate::schedule::Event;
use crate::stage::HeldLine;

/// The predicted state of one rank.
#[derive(Debug)]
pub struct Peer<'a> {
    budget: Budget<'a>,
    allowance: Allowance,
    /// What each unit could hold beyond its floor if all in flight held the same.
    even: u64,
    used: u64,
}

impl<'a> Peer<'a> {
    /// A peer whose floors are Σ [`LayerLines::recomputed`] of its units' layers: the group can always
    /// reach them.
    pub fn new(budget: Budget<'a>) -> Self {
        let allowance = Allowance { free: 0, limit: 0, quota: 0 };
        let even = budget.even_share_beyond_floors();
        Self { budget, allowance, even, used: 0 }
    }

    /// Bytes granted to the micro-batch under way, up to and including the last layer decided.
    pub fn granted(&self) -> u64 {
        self.used
    }
}

/// What the rule needs to know of a layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerLines {
    /// g with local strategies.
    pub least: HeldLine,
    /// Bytes with nothing mitigated.
    pub full: Bytes,
    /// Bytes where the group recomputes the MoE module.
    pub recomputed: u64,
}

/// The rule with the state of every rank of the group, on each of them.
///
/// Call order: [`handle_forward`](Self::handle_forward), then [`decide`](Self::decide) for each layer, then
/// [`handle_forward_done`](Self::handle_forward_done); [`handle_backward`](Self::handle_backward) for each
/// backward. A rank must hold at most what it is granted: then its real state is never worse than the
/// predicted one.
#[derive(Debug)]
pub struct ReplicatedState<'a, 'p> {
    peers: &'a mut [Peer<'p>],
    dispatch_threshold: u32,
}

impl<'a, 'p> ReplicatedState<'a, 'p> {
    /// A rule over the group's peers, in rank order; `dispatch_threshold` is the group's S*.
    pub fn new(peers: &'a mut [Peer<'p>], dispatch_threshold: u32) -> Self {
        Self { peers, dispatch_threshold: dispatch_threshold.max(1) }
    }

    /// The next micro-batch's forward starts on all ranks.
    pub fn handle_forward(&mut self) -> Result<(), GroupError> {
        for peer in self.peers.iter_mut() {
            peer.allowance = peer.budget.forward()?;
            // A light micro-batch's room goes to those that need it, not to whoever comes next: else the
            // one that takes its place in the steady state finds too little.
            let floor = peer.budget.upcoming_floor();
            peer.allowance.quota = peer.allowance.quota.min(floor.saturating_add(peer.even));
            peer.used = 0;
        }
        Ok(())
    }

    /// Decides one layer from the rows of all ranks. `later_floors` is Σ floor of the micro-batch's later
    /// layers, `later_expected` what they are expected to hold.
    pub fn decide(
        &mut self,
        rows: &GroupRows,
        layer: &LayerLines,
        later_floors: u64,
        later_expected: u64,
    ) -> Result<GroupDecision, GroupError> {
        if rows.as_slice().len() != self.peers.len() {
            return Err(GroupError::GroupSize { rows: rows.as_slice().len(), peers: self.peers.len() });
        }
        // A split dispatch bounds the rows at work, not those held: as under the static rule, nothing of
        // them stays.
        let mut whole_moe = rows.hottest() > self.dispatch_threshold;
        for (peer, &n) in self.peers.iter().zip(rows.as_slice()) {
            let room = peer.allowance.limit.saturating_sub(peer.used).saturating_sub(later_floors);
            whole_moe |= layer.least.at(n)?.bytes > room;
        }
        for (peer, &n) in self.peers.iter_mut().zip(rows.as_slice()) {
            let least = if whole_moe { layer.recomputed } else { layer.least.at(n)?.bytes };
            let full = layer.full.at(n).ok_or(crate::stage::StageError::Overflow)?;
            let limit = peer.allowance.limit.saturating_sub(peer.used).saturating_sub(later_floors);
            let share = peer.allowance.quota.saturating_sub(peer.used).saturating_sub(later_expected);
            // Never more than the limit leaves, never less than the layer needs.
            let granted = full.min(share.max(least)).min(limit.max(least));
            peer.used = peer.used.checked_add(granted).ok_or(crate::stage::StageError::Overflow)?;
        }
        let dispatch_chunks = rows.hottest().div_ceil(self.dispatch_threshold).max(1);
        Ok(GroupDecision { whole_moe, dispatch_chunks })
    }

    /// Bytes that `rank` may hold of the micro-batch under way, up to and including the last layer decided.
    pub fn granted(&self, rank: usize) -> u64 {
        self.peers.get(rank).map_or(0, Peer::granted)
    }

    /// The forward ended on all ranks: each is taken to hold what it was granted.
    pub fn handle_forward_done(&mut self) -> Result<(), GroupError> {
        for peer in self.peers.iter_mut() {
            peer.budget.launch(peer.used)?;
        }
        Ok(())
    }

    /// The next micro-batch's backward ended on all ranks.
    pub fn handle_backward(&mut self) -> Result<(), GroupError> {
        for peer in self.peers.iter_mut() {
            peer.budget.release()?;
        }
        Ok(())
    }

    /// The next event of the schedule, the same on all ranks.
    pub fn upcoming(&self) -> Option<Event> {
        self.peers.first().and_then(|peer| peer.budget.upcoming())
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::budget::{Share, Unit};
    use crate::group::RowThreshold;
    use crate::schedule::Pipeline;

    const LAYER: LayerLines = LayerLines {
        least: HeldLine {
            bytes: Bytes { fixed: 10, per_row: 2 },
            host_bytes: Bytes { fixed: 0, per_row: 0 },
        },
        full: Bytes { fixed: 30, per_row: 6 },
        recomputed: 10,
    };
    const LAYERS: u64 = 3;

    /// The decisions of the rule over one iteration, as one rank of the group computes them.
    fn decisions(
        pipeline: Pipeline,
        capacity: u64,
        expected_rows: u64,
        gates: &[Vec<u32>],
    ) -> Result<Vec<(GroupDecision, Vec<u64>)>, TestCaseError> {
        let ranks = gates[0].len();
        let mut events = vec![Event::Forward(0); 2 * pipeline.micro_batches as usize];
        pipeline.events(&mut events).expect("a schedule");
        let mut units = vec![Unit::new(LAYERS * LAYER.recomputed); ranks * pipeline.micro_batches as usize];
        let budgets = units.chunks_mut(pipeline.micro_batches as usize);
        let mut peers: Vec<_> = budgets
            .map(|units| Peer::new(Budget::new(capacity, Share::Even, &events, units).expect("feasible")))
            .collect();
        let mut rule = ReplicatedState::new(&mut peers, 1_000);
        let (mut out, mut gates) = (Vec::new(), gates.iter().cycle());
        while let Some(event) = rule.upcoming() {
            if let Event::Backward(_) = event {
                rule.handle_backward().expect("in order");
                continue;
            }
            rule.handle_forward().expect("in order");
            for layer in 0..LAYERS {
                let rows = GroupRows::new(gates.next().expect("a cycle")).expect("a group");
                let left = LAYERS - 1 - layer;
                let (later, expected) = (left * LAYER.recomputed, left * (10 + 2 * expected_rows));
                let decision = rule.decide(&rows, &LAYER, later, expected).expect("a decision");
                let granted: Vec<_> = (0..ranks).map(|rank| rule.granted(rank)).collect();
                for (rank, &granted) in granted.iter().enumerate() {
                    prop_assert!(granted + later <= rule.peers[rank].allowance.limit, "beyond the limit");
                }
                out.push((decision, granted));
            }
            rule.handle_forward_done().expect("in order");
            for peer in rule.peers.iter() {
                prop_assert!(peer.budget.held() <= capacity);
            }
        }
        Ok(out)
    }

    proptest! {
        /// Every rank computes the same from the same matrix, no grant passes a limit, and a layer is
        /// recomputed by the group only if some rank lacks the room.
        #[test]
        fn ranks_agree_and_grants_fit(
            ranks in 1u32..6, rank in 0u32..6, batches in 1u32..10, spare in 0u64..2_000,
            gates in prop::collection::vec(prop::collection::vec(0u32..60, 4), 1..20),
        ) {
            let p = Pipeline::new(ranks, rank % ranks, batches);
            let in_flight = u64::from((p.warm_up().expect("a rank") + 1).min(batches));
            let capacity = in_flight * LAYERS * LAYER.recomputed + spare;
            let first = decisions(p, capacity, 60, &gates)?;
            prop_assert_eq!(&first, &decisions(p, capacity, 60, &gates)?);
            for (decision, _) in &first {
                if spare >= in_flight * LAYERS * 2 * 60 {
                    prop_assert!(!decision.whole_moe, "recomputed with room for every row");
                }
            }
        }
    }

    /// One layer of one rank under a rule with S* = 100.
    fn decide(rows: u32, layer: &LayerLines, layers: usize) -> Result<GroupDecision, GroupError> {
        let mut units = [Unit::new(0)];
        let budget = Budget::new(u64::MAX / 2, Share::Even, &[Event::Forward(0)], &mut units);
        let mut peers = [Peer::new(budget.expect("feasible"))];
        let mut rule = ReplicatedState::new(&mut peers, 100);
        rule.handle_forward().expect("in order");
        let rows = GroupRows::new(&[rows]).expect("a group");
        for _ in 1..layers {
            rule.decide(&rows, layer, 0, 0)?;
        }
        rule.decide(&rows, layer, 0, 0)
    }

    #[test]
    fn what_is_dispatched_in_parts_is_recomputed() {
        let whole = decide(101, &LAYER, 1).expect("a decision");
        assert_eq!(whole, GroupDecision { whole_moe: true, dispatch_chunks: 2 });
        let kept = decide(100, &LAYER, 1).expect("a decision");
        assert_eq!(kept, GroupDecision { whole_moe: false, dispatch_chunks: 1 });
    }

    #[test]
    fn bytes_past_u64_are_an_error() {
        let huge = LayerLines { full: Bytes::fixed(u64::MAX), recomputed: u64::MAX, ..LAYER };
        let overflow = GroupError::Stage(crate::stage::StageError::Overflow);
        assert_eq!(decide(101, &huge, 2), Err(overflow));
    }

    #[test]
    fn it_recomputes_less_than_the_static_rule() {
        // Every other micro-batch is heavy. The static threshold must assume that all are.
        let gates: Vec<Vec<u32>> = (0..24).map(|i| vec![if i / 3 % 2 == 0 { 20 } else { 5 }, 10]).collect();
        let p = Pipeline::new(4, 0, 8);
        let capacity = 4 * LAYERS * (10 + 2 * 14);
        let replicated = decisions(p, capacity, 10, &gates).expect("no property fails");
        let recomputed = replicated.iter().filter(|(d, _)| d.whole_moe).count();
        let rule = RowThreshold { row_threshold: 14, dispatch_threshold: 1_000 };
        let fixed =
            gates.iter().filter(|g| rule.decide(&GroupRows::new(g).expect("a group")).whole_moe).count();
        assert_eq!((recomputed, fixed), (2, 12));
    }
}
