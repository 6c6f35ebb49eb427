//! How far a long command is: a bar on a terminal's standard error, nothing where that is piped.

use std::sync::Once;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What takes less stays quiet.
const SILENT: Duration = Duration::from_secs(1);
const TEMPLATE: &str = "{prefix}: {bar:30} {percent:>3} % of {len} {msg}, {eta} left";

/// Counts steps; the bar appears after a second and is gone once all is done.
pub struct Progress {
    bar: ProgressBar,
    start: Instant,
    shown: Once,
}

impl Progress {
    /// For `total` steps of `command`, each one of the `things`.
    pub fn new(command: &'static str, total: u64, things: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        bar.set_prefix(command);
        bar.set_message(things);
        Self { bar, start: Instant::now(), shown: Once::new() }
    }

    /// One more step is done; called from any thread.
    pub fn step(&self) {
        self.bar.inc(1);
        if self.start.elapsed() >= SILENT {
            self.shown.call_once(|| self.bar.set_draw_target(ProgressDrawTarget::stderr()));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_one() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
