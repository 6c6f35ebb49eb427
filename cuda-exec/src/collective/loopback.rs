//! A group over the threads of one process.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Collective, CollectiveError};

/// One rank of a group over threads. A rank that is dropped, by a panic too, leaves: the others get
/// [`CollectiveError::Left`] and do not wait out their time.
pub struct Loopback {
    rank: usize,
    shared: Arc<Shared>,
}

impl Loopback {
    /// The ranks of a new group, in order. `size` is at least 1.
    pub fn group(size: usize) -> Result<Vec<Self>, CollectiveError> {
        if size == 0 {
            return Err(CollectiveError::Rank { rank: 0, size });
        }
        let ranks = (0..size).map(|_| Rank::default()).collect();
        let state = Mutex::new(State { ranks, broken: None });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        Ok((0..size).map(|rank| Self { rank, shared: Arc::clone(&shared) }).collect())
    }

    /// Gives `own` to the round, once the round before has been taken by all.
    fn give(&self, own: &[u64], room: usize, limit: Limit) -> Result<(), CollectiveError> {
        let mut state = self.shared.lock();
        loop {
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
            if state.ranks[self.rank].given.is_none() {
                break;
            }
            let slow = state.first(|rank| rank.given.is_some() && !rank.taken);
            state = self.shared.wait(state, limit, slow)?;
        }
        if own.len().checked_mul(state.ranks.len()) != Some(room) {
            return Err(self.shared.end(&mut state, CollectiveError::Length { own: own.len(), all: room }));
        }
        state.ranks[self.rank].given = Some(own.to_vec());
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Takes what all have given. Whether a round is complete comes before whether the group has broken since, so that
    /// all ranks see the same round or none does.
    fn take(&self, own: &[u64], all: &mut [u64], limit: Limit) -> Result<(), CollectiveError> {
        let mut state = self.shared.lock();
        loop {
            let missing = state.ranks.iter().position(|rank| rank.given.is_none());
            let Some(missing) = missing else { break };
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
            if let Some(rank) = state.ranks.iter().position(|rank| rank.given.is_none() && rank.left) {
                return Err(self.shared.end(&mut state, CollectiveError::Left { rank }));
            }
            state = self.shared.wait(state, limit, missing)?;
        }
        // Where lengths differ, every rank finds one that differs from its own.
        let given = || state.ranks.iter().filter_map(|rank| rank.given.as_deref());
        if let Some(other) = given().map(<[u64]>::len).find(|&len| len != own.len()) {
            return Err(self.shared.end(&mut state, CollectiveError::Length { own: own.len(), all: other }));
        }
        if !own.is_empty() {
            all.chunks_exact_mut(own.len()).zip(given()).for_each(|(to, from)| to.copy_from_slice(from));
        }
        state.ranks[self.rank].taken = true;
        self.shared.finish(&mut state);
        Ok(())
    }
}

impl Collective for Loopback {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.lock().ranks.len()
    }

    fn gather(&mut self, own: &[u64], all: &mut [u64], timeout: Duration) -> Result<(), CollectiveError> {
        // A time beyond the clock's range is no limit.
        let limit = Limit { timeout, deadline: Instant::now().checked_add(timeout) };
        self.give(own, all.len(), limit)?;
        self.take(own, all, limit)
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ranks[self.rank].left = true;
        self.shared.finish(&mut state);
        self.shared.changed.notify_all();
    }
}

impl fmt::Debug for Loopback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loopback").field("rank", &self.rank).finish_non_exhaustive()
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A round: every rank gives its values, then every rank takes all of them.
struct State {
    ranks: Vec<Rank>,
    broken: Option<CollectiveError>,
}

#[derive(Default)]
struct Rank {
    given: Option<Vec<u64>>,
    taken: bool,
    left: bool,
}

#[derive(Clone, Copy)]
struct Limit {
    timeout: Duration,
    deadline: Option<Instant>,
}

impl State {
    fn first(&self, wanted: impl Fn(&Rank) -> bool) -> usize {
        self.ranks.iter().position(wanted).unwrap_or(0)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No rank leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change; out of time, ends the group.
    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        limit: Limit,
        missing: usize,
    ) -> Result<MutexGuard<'a, State>, CollectiveError> {
        let left = match limit.deadline {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        };
        if left.is_zero() {
            let error = CollectiveError::TimedOut { timeout: limit.timeout, missing: Some(missing) };
            return Err(self.end(&mut state, error));
        }
        Ok(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Ends the group for all; the first reason stays. Returns this one.
    fn end(&self, state: &mut State, error: CollectiveError) -> CollectiveError {
        state.broken.get_or_insert_with(|| error.clone());
        self.changed.notify_all();
        error
    }

    /// Clears a round that all have taken who are still here.
    fn finish(&self, state: &mut State) {
        let complete = state.ranks.iter().all(|rank| rank.given.is_some());
        if complete && state.ranks.iter().all(|rank| rank.taken || rank.left) {
            for rank in &mut state.ranks {
                (rank.given, rank.taken) = (None, false);
            }
            self.changed.notify_all();
        }
    }
}
