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
    used: u64,
}

impl<'a> Peer<'a> {
    /// A peer whose floors are those of full recomputation: the group can always reach them.
    pub fn new(budget: Budget<'a>) -> Self {
        Self { budget, allowance: Allowance { free: 0, limit: 0, quota: 0 }, used: 0 }
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
        let mut whole_moe = false;
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
            peer.used += full.min(share.max(least)).min(limit.max(least));
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
