//! What the ranks of a group tell each other before the first iteration, in stacks without Python (design §8).
//!
//! A group rule is safe only if all ranks run it on equal data. So the ranks first merge their calibrated profiles
//! ([`merge_profile`]), take the smaller of their thresholds ([`agree_thresholds`]), and then compare a fingerprint of all
//! that decisions rest on ([`agree`]). A mismatch is an error on every rank; a rank that never comes is a time-out on the
//! others. Nothing here is needed in an iteration: with the all-to-all dispatcher each rank holds the count matrix already.
//!
//! [`Collective`] has three carriers: [`Loopback`] over the threads of one process, `Nccl` and `Rccl` over devices.

use std::fmt;
use std::time::Duration;

use bagualu_core::group::{GroupError, RowThreshold, compare, merge_profile as merge};

use crate::device::DeviceError;

mod loopback;
#[cfg(any(feature = "cuda", feature = "hip"))]
mod nccl;

pub use loopback::Loopback;
#[cfg(feature = "cuda")]
pub use nccl::Nccl;
#[cfg(feature = "hip")]
pub use nccl::Rccl;
#[cfg(any(feature = "cuda", feature = "hip"))]
pub use nccl::{Communicator, CommunicatorConfig, UniqueId};

/// A rank's place in a group. All ranks make the same calls in the same order.
///
/// After an error the group is of no further use: every later call fails at once, on this rank and, where the carrier can
/// tell them, on the others.
pub trait Collective: fmt::Debug + Send {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// Ranks of the group.
    fn size(&self) -> usize;

    /// Every rank's `own` in the order of the ranks. `own` has the same length on all of them, and `all` is `size` times
    /// as long. Returns within `timeout`.
    fn gather(&mut self, own: &[u64], all: &mut [u64], timeout: Duration) -> Result<(), CollectiveError>;

    /// Replaces each value by its largest over the ranks. Returns within `timeout`.
    fn max(&mut self, values: &mut [u64], timeout: Duration) -> Result<(), CollectiveError> {
        let len = values.len();
        let mut all = vec![0; len.saturating_mul(self.size())];
        self.gather(values, &mut all, timeout)?;
        for peer in all.chunks_exact(len.max(1)) {
            merge(values, peer).map_err(|_| CollectiveError::Length { own: len, all: all.len() })?;
        }
        Ok(())
    }
}

/// Makes `profile` the element-wise maximum over the group, so that all ranks plan for the slowest and the largest of them
/// (design §8). Profiles of different lengths are an error on every rank.
pub fn merge_profile(
    group: &mut dyn Collective,
    profile: &mut [u64],
    timeout: Duration,
) -> Result<(), Disagreement> {
    let own = profile.len();
    let lengths = each(group, own as u64, timeout)?;
    if let Some(&peer) = lengths.iter().find(|&&peer| peer != own as u64) {
        let peer = usize::try_from(peer).unwrap_or(usize::MAX);
        return Err(Disagreement::Group(GroupError::ProfileLength { own, peer }));
    }
    Ok(group.max(profile, timeout)?)
}

/// The thresholds that serve every rank: the smallest R* and S* of the group.
pub fn agree_thresholds(
    group: &mut dyn Collective,
    own: RowThreshold,
    timeout: Duration,
) -> Result<RowThreshold, Disagreement> {
    let mut all = vec![0; group.size().saturating_mul(2)];
    group.gather(&[own.row_threshold.into(), own.dispatch_threshold.into()], &mut all, timeout)?;
    let rows = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let peers = all
        .chunks_exact(2)
        .map(|peer| RowThreshold { row_threshold: rows(peer[0]), dispatch_threshold: rows(peer[1]) });
    Ok(peers.fold(own, RowThreshold::agree))
}

/// Refuses to run where any rank's fingerprint ([`agreement`](bagualu_core::group::agreement)) differs. Either every rank
/// gets `Ok`, or every rank that is still there gets an error within `timeout`. Over devices one case is left that no
/// protocol can close: a rank may finish in the moment in which another stops waiting. Its next call then fails.
pub fn agree(group: &mut dyn Collective, fingerprint: u64, timeout: Duration) -> Result<(), Disagreement> {
    let fingerprints = each(group, fingerprint, timeout)?;
    compare(fingerprint, &fingerprints).map_err(Disagreement::Group)
}

/// One value of every rank.
fn each(group: &mut dyn Collective, own: u64, timeout: Duration) -> Result<Vec<u64>, CollectiveError> {
    let mut all = vec![0; group.size()];
    group.gather(&[own], &mut all, timeout)?;
    Ok(all)
}

/// Why a group does not start.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Disagreement {
    /// Ranks hold different data.
    Group(GroupError),
    /// The ranks could not be asked.
    Collective(CollectiveError),
}

impl From<CollectiveError> for Disagreement {
    fn from(error: CollectiveError) -> Self {
        Self::Collective(error)
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(error) => error.fmt(f),
            Self::Collective(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Disagreement {}

/// Why a collective call failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CollectiveError {
    /// Not all ranks came in time.
    TimedOut {
        /// How long they were waited for.
        timeout: Duration,
        /// A rank that had not come, where the carrier can tell.
        missing: Option<usize>,
    },
    /// A rank left the group: its thread has ended, or its process is gone.
    Left {
        /// The rank.
        rank: usize,
    },
    /// An earlier call of this group failed, here or on another rank.
    Broken,
    /// Lengths do not go together: ranks gave different ones, or the result has not room for all.
    Length {
        /// Values given.
        own: usize,
        /// Values of another rank, or room for the result.
        all: usize,
    },
    /// A group of no ranks, or a rank outside it.
    Rank {
        /// The rank.
        rank: usize,
        /// Ranks of the group.
        size: usize,
    },
    /// The library reported an error.
    Library {
        /// The function called.
        call: &'static str,
        /// Its status.
        code: i32,
        /// What the library says of it.
        message: String,
    },
    /// The device below the group failed.
    Device(DeviceError),
}

impl From<DeviceError> for CollectiveError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl fmt::Display for CollectiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { timeout, missing: Some(rank) } => {
                write!(f, "rank {rank} did not come within {timeout:?}; look at its log, or allow more time")
            }
            Self::TimedOut { timeout, missing: None } => {
                write!(
                    f,
                    "a rank did not come within {timeout:?}; look at the ranks' logs, or allow more time"
                )
            }
            Self::Left { rank } => write!(f, "rank {rank} left the group; look at its log"),
            Self::Broken => {
                f.write_str("an earlier call of this group failed, here or on another rank; make a new group")
            }
            Self::Length { own, all } => {
                write!(f, "{own} values do not go with {all}; all ranks give the same number")
            }
            Self::Rank { rank, size } => {
                write!(f, "rank {rank} of {size}; ranks count from 0 and a group has at least one")
            }
            Self::Library { call, code, message } => write!(f, "{call} returned {code}: {message}"),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CollectiveError {}
