//! `bagualu replay`: a routing trace through one pipeline, under the controller and under static
//! policies.

use std::path::PathBuf;
use std::str::FromStr;

use bagualu_core::provision::{Aim, Part, ProvisionError};
use bagualu_sim::controlled::{ControlError, Controlled, Setup, replay_controlled};
use bagualu_sim::job::Job;
use bagualu_sim::load::Load;
use bagualu_sim::policy::Static;
use bagualu_sim::replay::{self, Outcome};
use bagualu_sim::text::{message, value};

use crate::input::Input;
use crate::progress::Progress;
use crate::spike::Spike;
use crate::{Error, output};

mod file;
mod json;
mod picture;
mod source;
mod table;

use file::PictureFile;
use source::Source;

/// Replay a routing trace through one pipeline and one expert-parallel group.
///
/// Every pipeline rank × every expert-parallel rank runs under the controller, deferred planning included,
/// and a checker that shares no code with it counts the real bytes. Static policies run beside it.
///
/// Examples:
///   bagualu replay examples/glm-423b.sh --trace traces/olmoe_microbatches.csv --trace-groups 8 --iterations 1
///   bagualu replay --model glm-423b-a30b --memory 60 --trace spike --seed 17 --iterations 1 --static full --svg /tmp/replay.svg
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    input: Input,
    /// A trace file (docs/formats.md), or a generated load: w0 to w7, spike
    #[arg(long, value_name = "FILE|w0…w7|spike")]
    trace: String,
    /// Which model of a trace file that holds several
    #[arg(long, value_name = "NAME")]
    trace_model: Option<String>,
    /// Fold the trace's experts into this many groups first: the imbalance of so many ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    trace_groups: Option<u32>,
    /// Largest load of a generated trace, in balanced rows [default: 2.6]
    #[arg(long, value_name = "LOAD")]
    peak: Option<Load1000>,
    #[command(flatten)]
    spike: Spike,
    /// Training iterations
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Seed of a generated trace
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A static policy to run beside the controller: none, selective or full; may be repeated
    #[arg(long = "static", value_name = "POLICY")]
    policies: Vec<Static>,
    /// Draw device memory over time to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    /// Threads; the answer does not depend on them [default: all processors]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// A load in thousandths of the balanced one, written as a decimal number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Load1000(u32);

impl FromStr for Load1000 {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{} is no load; give a number from 1 with at most three decimals, as 2.6", value(text))
        };
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || decimals.len() > 3 {
            return Err(wrong());
        }
        let thousandths = format!("{whole}{decimals:0<3}").parse().map_err(|_| wrong())?;
        if thousandths < 1_000 { Err(wrong()) } else { Ok(Self(thousandths)) }
    }
}

impl Args {
    /// Whether the answer is to be JSON.
    pub fn json(&self) -> bool {
        self.json
    }
}

/// Everything that a replay found.
struct Answer<'a> {
    job: &'a Job<'a>,
    /// The launch script, the preset, or `flags`.
    model: &'a str,
    source: &'a Source,
    iterations: u32,
    /// What the static decisions aim at.
    aim: Aim,
    controlled: Vec<Controlled>,
    statics: Vec<(Static, Vec<Outcome>)>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Error> {
    let picture = args.svg.as_deref().map(PictureFile::new).transpose()?;
    let loaded = args.input.load()?;
    for warning in &loaded.warnings {
        output::complain(&format!("warning: {}\n", message(warning, 600)));
    }
    let job = Job::new(&loaded.model).map_err(|e| Error::bad_input(&loaded.source, e.to_string(), ""))?;
    let source = Source::new(&args, &job)?;
    let aim = args.spike.aim(&loaded.model)?;
    let threads = args.threads.map_or(0, usize::from);
    let answer = replay::on_threads(threads, || compute(&args, aim, &job, &loaded.source, &source))
        .map_err(|e| Error::bad_input("--threads", e.to_string(), "use fewer"))??;
    let drawn = picture.map_or(Ok(()), |file| file.write(&picture::draw(&answer)?));
    // A picture that fails after all does not take the answer with it.
    output::print(&if args.json { output::json(&json::report(&answer))? } else { table::describe(&answer) })?;
    drawn
}

fn compute<'a>(
    args: &Args,
    aim: Aim,
    job: &'a Job<'a>,
    model: &'a str,
    source: &'a Source,
) -> Result<Answer<'a>, Error> {
    let load: &dyn Load = source.load();
    let devices = job.stages() as u64 * u64::from(job.shape().ranks());
    let runs = 1 + args.policies.len() as u64;
    let progress = Progress::new("replay", devices * runs * u64::from(args.iterations), "device iterations");
    let step = || progress.step();
    let controlled = replay_controlled(job, load, &Setup::aiming_at(aim), args.iterations, &step)
        .map_err(|error| refused(error, model))?;
    let statics = args
        .policies
        .iter()
        .map(|&policy| (policy, replay::replay_static(job, load, policy, args.iterations, &step)));
    let statics = statics.collect();
    Ok(Answer { job, model, source, iterations: args.iterations, aim, controlled, statics })
}

/// What the user hears where nothing can run at all.
fn refused(error: ControlError, model: &str) -> Error {
    let ControlError::Provision { stage, error: ProvisionError::Infeasible { part, needed, available } } =
        error
    else {
        return Error::bad_input(model, error.to_string(), "");
    };
    let holds = match part {
        Part::Floor => "full recomputation holds",
        Part::Work => "full recomputation and the operators while they run hold",
        Part::Host => "the host would hold",
    };
    Error::infeasible(format!("{model}: on pipeline rank {stage} {holds}"), needed, available)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_decimal_numbers() {
        assert_eq!("2.6".parse(), Ok(Load1000(2_600)));
        assert_eq!("1".parse(), Ok(Load1000(1_000)));
        assert_eq!("12.345".parse(), Ok(Load1000(12_345)));
        for wrong in ["", "0.9", "2.6001", "-1", "1e3", "2.", ".5", "x", "99999999999"] {
            assert!(wrong.parse::<Load1000>().is_err(), "{wrong}");
        }
    }
}
