//! The real ledger (design §6): what the device holds, not what it is meant to hold.
//!
//! A tensor being offloaded is still on the device; a tensor recovered early is there already.
//! current(v) = arrive(v) less each copy-out that has ended, and 0 after v's backward. *Theorem 2*: with
//! Theorem 1's premises and these admissions the real bytes never exceed D and no wait is endless.

use core::fmt;

/// What the ledger keeps of one unit. The caller owns the storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    current: u64,
    pending: u64,
}

/// Whether an operator may start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Admission {
    /// It may: its bytes are counted from now on.
    Run,
    /// It must wait until copy-outs have ended (back-pressure).
    Wait {
        /// Bytes that copy-outs must free first.
        bytes: u64,
    },
}

/// Who is running operators: a forward and a backward may do so together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The forward under way.
    Forward,
    /// The backward under way.
    Backward,
}

/// The bytes on the device over one iteration.
#[derive(Debug)]
pub struct Ledger<'a> {
    device_bytes: u64,
    entries: &'a mut [Entry],
    current: u64,
    pending: u64,
    work: [u64; 2],
    peak: u64,
}

impl<'a> Ledger<'a> {
    /// An empty ledger of a device with D = `device_bytes`.
    pub fn new(device_bytes: u64, entries: &'a mut [Entry]) -> Self {
        entries.fill(Entry::default());
        Self { device_bytes, entries, current: 0, pending: 0, work: [0; 2], peak: 0 }
    }

    /// Forgets the iteration.
    pub fn restart(&mut self) {
        self.entries.fill(Entry::default());
        (self.current, self.pending, self.work, self.peak) = (0, 0, [0; 2], 0);
    }

    /// Asks to run a layer that adds `stays` bytes to `unit`, of which `leaves` are copied out afterwards,
    /// and needs `work` bytes while it runs.
    ///
    /// Counts them if it may. Otherwise says what must be copied out first; [`LedgerError::Starved`] if
    /// that can never be enough.
    pub fn admit(
        &mut self,
        side: Side,
        unit: u32,
        stays: u64,
        leaves: u64,
        work: u64,
    ) -> Result<Admission, LedgerError> {
        let other = self.work[1 - side as usize];
        let needed = [self.current, other, stays, work]
            .iter()
            .try_fold(0u64, |sum, &b| sum.checked_add(b))
            .ok_or(LedgerError::Overflow)?;
        if needed > self.device_bytes {
            let bytes = needed - self.device_bytes;
            if bytes <= self.pending || other > 0 {
                return Ok(Admission::Wait { bytes });
            }
            return Err(LedgerError::Starved { needed: needed - self.pending, available: self.device_bytes });
        }
        let entry = self.entries.get_mut(unit as usize).ok_or(LedgerError::NoSuchUnit { unit })?;
        // What leaves is part of what stays, so neither sum passes `needed`.
        let leaves = leaves.min(stays);
        entry.current += stays;
        entry.pending += leaves;
        self.current += stays;
        self.pending += leaves;
        self.work[side as usize] = work;
        self.peak = self.peak.max(needed);
        Ok(Admission::Run)
    }

    /// The layer admitted last on this side has ended: its work is free.
    pub fn done(&mut self, side: Side) {
        self.work[side as usize] = 0;
    }

    /// A copy-out of `bytes` of `unit` has ended.
    pub fn copied_out(&mut self, unit: u32, bytes: u64) -> Result<(), LedgerError> {
        let entry = self.entries.get_mut(unit as usize).ok_or(LedgerError::NoSuchUnit { unit })?;
        if bytes > entry.pending {
            return Err(LedgerError::NotPending { unit, bytes, pending: entry.pending });
        }
        entry.current -= bytes;
        entry.pending -= bytes;
        self.current -= bytes;
        self.pending -= bytes;
        Ok(())
    }

    /// `bytes` that `unit` keeps will leave after all, by a copy-out that starts now.
    pub fn leaves(&mut self, unit: u32, bytes: u64) -> Result<(), LedgerError> {
        let there = self.kept_by(unit);
        let entry = self.entries.get_mut(unit as usize).ok_or(LedgerError::NoSuchUnit { unit })?;
        if bytes > there {
            return Err(LedgerError::NotPending { unit, bytes, pending: there });
        }
        entry.pending += bytes;
        self.pending += bytes;
        Ok(())
    }

    /// `unit` was measured to keep `kept` bytes, those still leaving not included.
    pub fn measured(&mut self, unit: u32, kept: u64) -> Result<(), LedgerError> {
        let entry = self.entries.get_mut(unit as usize).ok_or(LedgerError::NoSuchUnit { unit })?;
        let current = kept.checked_add(entry.pending).ok_or(LedgerError::Overflow)?;
        let others = self.current - entry.current;
        self.current = others.checked_add(current).ok_or(LedgerError::Overflow)?;
        entry.current = current;
        self.peak = self.peak.max(self.current);
        Ok(())
    }

    /// Whether `growth` more bytes fit beside `reserve` bytes of work, and then counts them for `unit`:
    /// an early recovery.
    pub fn grow(&mut self, unit: u32, growth: u64, reserve: u64) -> Result<bool, LedgerError> {
        let reserve = reserve.max(self.work[0].saturating_add(self.work[1]));
        let needed = self.current.checked_add(growth).and_then(|b| b.checked_add(reserve));
        let entry = self.entries.get_mut(unit as usize).ok_or(LedgerError::NoSuchUnit { unit })?;
        let fits = entry.pending == 0 && needed.is_some_and(|b| b <= self.device_bytes);
        if fits {
            entry.current += growth;
            self.current += growth;
            self.peak = self.peak.max(self.current);
        }
        Ok(fits)
    }

    /// The backward of `unit` has ended: nothing of it is on the device.
    pub fn release(&mut self, unit: u32) -> Result<(), LedgerError> {
        let entry = self.entries.get_mut(unit as usize).ok_or(LedgerError::NoSuchUnit { unit })?;
        if entry.pending > 0 {
            return Err(LedgerError::StillLeaving { unit, pending: entry.pending });
        }
        self.current -= core::mem::take(&mut entry.current);
        Ok(())
    }

    /// Bytes on the device now, work not included.
    pub fn current(&self) -> u64 {
        self.current
    }

    /// Bytes of copy-outs that have not ended.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Bytes of `unit` whose copy-out has not ended.
    pub fn pending_of(&self, unit: u32) -> u64 {
        self.entries.get(unit as usize).map_or(0, |e| e.pending)
    }

    /// Bytes of `unit` on the device that no copy-out takes away.
    pub fn kept_by(&self, unit: u32) -> u64 {
        self.entries.get(unit as usize).map_or(0, |e| e.current - e.pending)
    }

    /// The largest sum of current bytes and work so far.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// D.
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes
    }
}

/// Why the ledger refuses a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LedgerError {
    /// The operator does not fit even after every copy-out has ended: a premise of Theorem 2 is broken
    /// (something held more than its limit, or more rows came than S* lets through).
    Starved {
        /// Bytes needed after every copy-out.
        needed: u64,
        /// D.
        available: u64,
    },
    /// The unit has no storage.
    NoSuchUnit {
        /// The unit.
        unit: u32,
    },
    /// More bytes are said to leave than do.
    NotPending {
        /// The unit.
        unit: u32,
        /// Bytes named.
        bytes: u64,
        /// Bytes there are.
        pending: u64,
    },
    /// A backward ended before the unit's copy-outs did.
    StillLeaving {
        /// The unit.
        unit: u32,
        /// Bytes still leaving.
        pending: u64,
    },
    /// The bytes pass `u64`.
    Overflow,
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starved { needed, available } => write!(
                f,
                "an operator needs {needed} bytes with every copy-out ended, and the device has {available}; \
                 something holds more than its limit"
            ),
            Self::NoSuchUnit { unit } => write!(f, "no storage was given for unit {unit}"),
            Self::NotPending { unit, bytes, pending } => write!(
                f,
                "{bytes} bytes of unit {unit} are said to leave, and {pending} can; report each copy-out once"
            ),
            Self::StillLeaving { unit, pending } => write!(
                f,
                "unit {unit} ended its backward with {pending} bytes still being copied out; wait for them before \
                 they are reloaded"
            ),
            Self::Overflow => write!(f, "the bytes on the device pass 2^64"),
        }
    }
}

impl core::error::Error for LedgerError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_waits_for_copies_and_then_runs() {
        let mut entries = [Entry::default(); 2];
        let mut ledger = Ledger::new(100, &mut entries);
        assert_eq!(ledger.admit(Side::Forward, 0, 60, 50, 30), Ok(Admission::Run));
        ledger.done(Side::Forward);
        assert_eq!(ledger.admit(Side::Forward, 1, 30, 0, 30), Ok(Admission::Wait { bytes: 20 }));
        ledger.copied_out(0, 20).expect("pending");
        assert_eq!(ledger.admit(Side::Forward, 1, 30, 0, 30), Ok(Admission::Run));
        assert_eq!((ledger.current(), ledger.pending(), ledger.peak()), (70, 30, 100));
    }

    #[test]
    fn a_backward_waits_for_the_forward_beside_it() {
        let mut entries = [Entry::default(); 2];
        let mut ledger = Ledger::new(100, &mut entries);
        assert_eq!(ledger.admit(Side::Forward, 0, 10, 0, 60), Ok(Admission::Run));
        assert_eq!(ledger.admit(Side::Backward, 1, 0, 0, 60), Ok(Admission::Wait { bytes: 30 }));
        ledger.done(Side::Forward);
        assert_eq!(ledger.admit(Side::Backward, 1, 0, 0, 60), Ok(Admission::Run));
    }

    #[test]
    fn what_can_never_fit_is_an_error() {
        let mut entries = [Entry::default()];
        let mut ledger = Ledger::new(100, &mut entries);
        let starved = LedgerError::Starved { needed: 101, available: 100 };
        assert_eq!(ledger.admit(Side::Forward, 0, 1, 0, 100), Err(starved));
    }

    #[test]
    fn recovery_and_release_keep_the_sums() {
        let mut entries = [Entry::default(); 1];
        let mut ledger = Ledger::new(100, &mut entries);
        ledger.admit(Side::Forward, 0, 50, 40, 0).expect("fits");
        assert_eq!(ledger.grow(0, 40, 0), Ok(false), "its copy-out has not ended");
        assert!(matches!(ledger.release(0), Err(LedgerError::StillLeaving { pending: 40, .. })));
        ledger.copied_out(0, 40).expect("pending");
        assert!(matches!(ledger.copied_out(0, 1), Err(LedgerError::NotPending { .. })));
        assert_eq!(ledger.grow(0, 40, 51), Ok(false), "no room beside the work");
        assert_eq!(ledger.grow(0, 40, 50), Ok(true));
        assert_eq!(ledger.current(), 50);
        ledger.release(0).expect("nothing leaves");
        assert_eq!((ledger.current(), ledger.pending()), (0, 0));
    }
}
