//! Where the rows come from: a trace file or a generated load.

use std::fs::File;
use std::io::Read;

use bagualu_sim::job::Job;
use bagualu_sim::load::{Gate, Load};
use bagualu_sim::trace::{Mapped, Trace};
use bagualu_sim::workload::{DEFAULT_PEAK_PERMILLE, Kind, Workload};

use super::{Args, Load1000};
use crate::Error;
use crate::input::largest_load;

/// Bytes of the largest trace read: a thousand micro-batches of some hundred layers and experts are far below.
const MOST_BYTES: u64 = 256 << 20;

/// The rows of a replay, and what to call them.
pub enum Source {
    /// A trace file.
    File {
        /// As the user named it.
        path: String,
        /// Traced experts, layers and micro-batches.
        traced: (usize, usize, usize),
        /// The rows.
        rows: Mapped,
    },
    /// A generated load.
    Generated {
        /// Its seed.
        seed: u64,
        /// Its largest load, in thousandths.
        peak: u32,
        /// The rows.
        rows: Workload,
    },
}

impl Source {
    /// Reads or prepares what `args` name.
    pub fn new(args: &Args, job: &Job<'_>) -> Result<Self, Error> {
        match args.trace.parse::<Kind>() {
            Ok(kind) => Self::generated(args, job, kind),
            Err(unknown) => Self::file(args, job, &unknown.to_string()),
        }
    }

    fn generated(args: &Args, job: &Job<'_>, kind: Kind) -> Result<Self, Error> {
        for (option, given) in
            [("--trace-model", args.trace_model.is_some()), ("--trace-groups", args.trace_groups.is_some())]
        {
            if given {
                let problem = format!("{} is generated", kind.name());
                return Err(Error::bad_input(option, problem, "it is for trace files; leave it out"));
            }
        }
        let most = largest_load(job.model()).unwrap_or(u32::MAX);
        let peak = match args.peak {
            None => DEFAULT_PEAK_PERMILLE.min(most),
            Some(Load1000(peak)) if peak > most => {
                let problem = format!("{} is no load of this group", decimal(peak));
                let fix = format!("give at most {}: one rank then receives every row", decimal(most));
                return Err(Error::bad_input("--peak", problem, fix));
            }
            Some(Load1000(peak)) => peak,
        };
        let rows = Workload::new(kind, *job.shape(), args.seed, peak)
            .map_err(|e| Error::bad_input("--peak", e.to_string(), ""))?;
        Ok(Self::Generated { seed: args.seed, peak, rows })
    }

    fn file(args: &Args, job: &Job<'_>, no_kind: &str) -> Result<Self, Error> {
        if args.peak.is_some() {
            return Err(Error::bad_input(
                "--peak",
                "the trace is a file",
                "it is for generated loads; leave it out",
            ));
        }
        let path = &args.trace;
        let unread = |problem: String| Error::bad_input(format!("--trace {path}"), problem, "");
        let file = File::open(path).map_err(|e| unread(format!("{e}, and {no_kind}")))?;
        let mut text = Vec::new();
        // Bounded also where there is no size to ask for, as of a device or a pipe.
        file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(|e| unread(e.to_string()))?;
        if text.len() as u64 > MOST_BYTES {
            return Err(unread(format!("more than {MOST_BYTES} bytes; cut the trace into several")));
        }
        let trace = Trace::parse(&text, args.trace_model.as_deref()).map_err(|e| unread(e.to_string()))?;
        Ok(Self::File {
            path: path.clone(),
            traced: (trace.experts(), trace.layers(), trace.micro_batches()),
            rows: trace.onto(*job.shape(), args.trace_groups),
        })
    }

    /// The rows.
    pub fn load(&self) -> &dyn Load {
        match self {
            Self::File { rows, .. } => rows,
            Self::Generated { rows, .. } => rows,
        }
    }

    /// In words.
    pub fn describe(&self) -> String {
        match self {
            Self::File { path, traced: (experts, layers, micro_batches), .. } => {
                format!("{path} ({experts} experts, {layers} layers, {micro_batches} micro-batches)")
            }
            Self::Generated { seed, peak, rows } => {
                format!("{} (seed {seed}, peak {})", rows.kind().name(), decimal(*peak))
            }
        }
    }

    /// The largest load of each iteration, in thousandths of the balanced rows, rounded up.
    pub fn loads(&self, job: &Job<'_>, iterations: u32) -> Vec<u64> {
        let shape = *job.shape();
        let mut rows = vec![0; shape.ranks() as usize];
        let mut highest = |iteration| {
            let mut most = 0;
            for layer in job.routed_layers() {
                for micro_batch in 0..shape.micro_batches() {
                    self.load().rows(Gate { iteration, micro_batch, layer }, &mut rows);
                    most = rows.iter().copied().fold(most, u32::max);
                }
            }
            (u64::from(most) * 1_000).div_ceil(u64::from(shape.balanced_rows()))
        };
        (0..iterations).map(&mut highest).collect()
    }
}

/// Thousandths as a decimal number.
fn decimal(thousandths: u32) -> String {
    let text = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
