//! How far a replay is, on standard error, for whatever takes more than two seconds.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::output;

const SILENT: Duration = Duration::from_secs(2);

/// Counts steps and tells of them every two seconds.
pub struct Progress {
    total: u64,
    done: AtomicU64,
    start: Instant,
    told: Mutex<Option<Instant>>,
}

impl Progress {
    pub fn new(total: u64) -> Self {
        Self { total, done: AtomicU64::new(0), start: Instant::now(), told: Mutex::new(None) }
    }

    /// One more step is done; called from any thread.
    pub fn step(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let now = Instant::now();
        // Whoever finds the lock taken leaves the telling to its holder.
        let Ok(mut told) = self.told.try_lock() else { return };
        if now.duration_since(told.unwrap_or(self.start)) >= SILENT {
            *told = Some(now);
            let percent = u128::from(done) * 100 / u128::from(self.total.max(1));
            output::complain(&format!("replay: {percent} % of {} device iterations\n", self.total));
        }
    }

    /// All is done: says so if anything was said.
    pub fn end(&self) {
        if self.told.lock().is_ok_and(|told| told.is_some()) {
            let seconds = self.start.elapsed().as_secs();
            output::complain(&format!("replay: done in {seconds} s\n"));
        }
    }
}
