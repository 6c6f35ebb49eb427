//! One suite for all devices: what [`device`](crate::device) promises, tried on a real one.
//!
//! Tests run it on the host, with and without injected faults; `scripts/device-check.sh` runs it on an accelerator and keeps the
//! report as JSON. What a backend says it cannot do is reported as such and is no failure.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::device::{Backend, Device, DeviceError};

mod bench;
mod casts;
mod copies;
mod events;
mod memory;
mod streams;

use bench::Bench;

/// How the suite is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of the larger buffers; at least 64 KiB are used.
    pub buffer_bytes: u64,
    /// What contents and sizes are drawn from.
    pub seed: u64,
    /// Whether free memory of the device moves for no other reason than this suite.
    pub exclusive: bool,
    /// How long a case may take before it counts as hung; a call that waits a third of it where it must not has failed.
    pub limit: Duration,
    /// The one case to run, by name; `None`: all.
    pub only: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Self { buffer_bytes: 1 << 20, seed: 1, exclusive: true, limit: Duration::from_secs(60), only: None }
    }
}

/// How the cases went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The device's backend.
    pub backend: Backend,
    /// In the order in which they ran.
    pub cases: Vec<Case>,
}

/// One case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// What is promised, in words joined by `_`.
    pub name: &'static str,
    /// How it went.
    pub outcome: Outcome,
}

/// How a case went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// As promised.
    Passed,
    /// Not as promised.
    Failed(String),
    /// The backend cannot do it, or it could not be told.
    NotRun(String),
}

type Test = fn(&Bench) -> Result<(), Outcome>;

const CASES: [(&str, Test); 26] = [
    ("allocations_are_apart", memory::allocations_are_apart),
    ("pinned_memory_is_aligned_and_readable", memory::pinned_memory_is_aligned_and_readable),
    ("a_huge_allocation_is_out_of_memory", memory::a_huge_allocation_is_out_of_memory),
    ("free_memory_moves", memory::free_memory_moves),
    ("contents_at_odd_sizes_and_offsets", copies::contents_at_odd_sizes_and_offsets),
    ("empty_copies", copies::empty_copies),
    ("unequal_lengths_are_refused", copies::unequal_lengths_are_refused),
    ("one_stream_keeps_its_order", copies::one_stream_keeps_its_order),
    ("large_copies_meet_both_ways", copies::large_copies_meet_both_ways),
    ("casts_are_those_of_the_host", casts::casts_are_those_of_the_host),
    ("casts_of_other_lengths_are_refused", casts::casts_of_other_lengths_are_refused),
    ("many_threads_submit", copies::many_threads_submit),
    ("host_functions_keep_their_order", streams::host_functions_keep_their_order),
    ("submission_returns_at_once", streams::submission_returns_at_once),
    ("streams_run_beside_each_other", streams::streams_run_beside_each_other),
    ("a_stream_ends_after_its_work", streams::a_stream_ends_after_its_work),
    ("an_adopted_stream_is_the_same", streams::an_adopted_stream_is_the_same),
    ("numbers_are_good_for_one_device_and_one_life", streams::numbers_are_good_for_one_device_and_one_life),
    ("an_event_not_recorded_is_done", events::an_event_not_recorded_is_done),
    ("an_event_follows_its_work", events::an_event_follows_its_work),
    ("streams_meet_through_events", events::streams_meet_through_events),
    ("recorded_again_on_its_stream", events::recorded_again_on_its_stream),
    ("recorded_again_on_another_stream", events::recorded_again_on_another_stream),
    ("destroyed_while_waited_on", events::destroyed_while_waited_on),
    ("thousands_of_events", events::thousands_of_events),
    ("work_after_a_wait_waits_too", events::work_after_a_wait_waits_too),
];

/// Runs all cases on `device`, one after another. After a case that hangs none is run any more.
pub fn run(device: &Arc<dyn Device>, options: &Options) -> Report {
    let mut cases = Vec::with_capacity(CASES.len());
    let mut hung = false;
    for (name, test) in CASES.into_iter().filter(|(name, _)| options.only.is_none_or(|only| only == *name)) {
        let outcome = match hung {
            true => Outcome::NotRun("a case before it hangs".to_owned()),
            false => run_one(device, *options, test).unwrap_or_else(|| {
                hung = true;
                Outcome::Failed(format!("no end after {:?}", options.limit))
            }),
        };
        cases.push(Case { name, outcome });
    }
    Report { backend: device.backend(), cases }
}

/// How `test` went; `None` if it hangs.
fn run_one(device: &Arc<dyn Device>, options: Options, test: Test) -> Option<Outcome> {
    let (send, outcome) = channel();
    let bench = Bench::new(Arc::clone(device), options);
    let case = thread::spawn(move || {
        // Who listens has given up if it cannot be told.
        let _ = send.send(test(&bench).err().unwrap_or(Outcome::Passed));
    });
    match outcome.recv_timeout(options.limit) {
        Ok(outcome) => Some(outcome),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => {
            let panic = case.join().err();
            let said = panic.as_ref().and_then(|panic| panic.downcast_ref::<String>());
            Some(Outcome::Failed(
                said.map_or("it panicked".to_owned(), |said| format!("it panicked: {said}")),
            ))
        }
    }
}

impl Report {
    /// The cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|case| matches!(case.outcome, Outcome::Failed(_)))
    }

    /// `{"backend": …, "cases": [{"name": …, "outcome": "passed" | "failed" | "not run", "reason": …}]}`.
    pub fn to_json(&self) -> String {
        let mut json =
            format!("{{\"backend\": \"{}\", \"cases\": [", format!("{:?}", self.backend).to_lowercase());
        for (i, case) in self.cases.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let (word, reason) = case.outcome.words();
            // Names and words hold nothing to escape; writing to a string cannot fail.
            let _ = write!(json, "{comma}\n  {{\"name\": \"{}\", \"outcome\": \"{word}\"", case.name);
            if let Some(reason) = reason {
                json.push_str(", \"reason\": ");
                push_quoted(&mut json, reason);
            }
            json.push('}');
        }
        json.push_str("\n]}\n");
        json
    }
}

impl Outcome {
    fn words(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::Passed => ("passed", None),
            Self::Failed(reason) => ("failed", Some(reason)),
            Self::NotRun(reason) => ("not run", Some(reason)),
        }
    }
}

impl From<DeviceError> for Outcome {
    /// For errors where none is promised.
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Unsupported { .. } => Self::NotRun(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.cases {
            let (word, reason) = case.outcome.words();
            write!(f, "{word:8} {}", case.name)?;
            match reason {
                Some(reason) => writeln!(f, ": {reason}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

fn push_quoted(json: &mut String, text: &str) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            // Writing to a string cannot fail.
            c if c < ' ' => drop(write!(json, "\\u{:04x}", c as u32)),
            c => json.push(c),
        }
    }
    json.push('"');
}
