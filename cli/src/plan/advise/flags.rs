//! The flags that lead from one distribution to another, behind those that a run has already.

use bagualu_model::{Model, Parallelism};

use crate::input::Input;
use crate::plan::diff::settings::{Flags, Given, distribution_flags};

const GPUS: &str = "--gpus";
const CHUNKS: &str = "--num-virtual-stages-per-pipeline-rank";
const GROUP_SIZE: &str = "--microbatch-group-size-per-virtual-pipeline-stage";
const LAYERS_OF_CHUNK: &str = "--num-layers-per-virtual-pipeline-stage";
/// Follows from the other flags of the optimizer: narrow parameters are nothing to advise.
const MAIN_PARAMETERS: &str = "--main-params-dtype";
/// Rounds of adding flags for settings that follow others.
const ROUNDS: usize = 3;

/// The flags (`--gpus` among them) with which the input reads as `target`; none where no flags do.
///
/// Settings may follow others by default (expert TP follows TP, the batch follows the devices), so what reads
/// back otherwise is added and read again.
pub fn leading_to(input: &Input, from: &Model, target: &Parallelism) -> Option<Vec<String>> {
    [CHUNKS, LAYERS_OF_CHUNK].into_iter().find_map(|chunks| rounds(input, from, target, chunks))
}

/// Virtual stages are given by the flag `chunks`: of Megatron's two, a run's own must stay the only one.
fn rounds(input: &Input, from: &Model, target: &Parallelism, chunks: &str) -> Option<Vec<String>> {
    let config = &from.config;
    let wanted = distribution_flags(config, target);
    let mut at = from.parallelism.clone();
    let mut added = Flags::new();
    for _ in 0..ROUNDS {
        let has = distribution_flags(config, &at);
        let meaningless = |flag: &str| flag == MAIN_PARAMETERS || (flag == GROUP_SIZE && target.chunks == 1);
        let missing = |wanted: &&(String, Given)| !meaningless(&wanted.0) && !has.contains(wanted);
        for (flag, given) in wanted.iter().filter(missing) {
            let (flag, given) = match flag == CHUNKS && chunks == LAYERS_OF_CHUNK {
                true => (chunks, Given::Value(layers_of_chunk(config.layers, target)?)),
                false => (flag.as_str(), given.clone()),
            };
            added.retain(|(other, _)| other != flag);
            added.push((flag.to_owned(), given));
        }
        let changed = input.with(&words(&added), target.gpus);
        let (launch, _) = changed.launch().ok()?;
        if same(&launch.parallelism, target) {
            // What is advised must pass every check of the command.
            let works = launch.config == *config && changed.load().is_ok();
            return works.then(|| with_gpus(&added));
        }
        at = launch.parallelism;
    }
    None
}

/// Whether two distributions run alike: with one chunk a rank, the size of micro-batch groups says nothing.
fn same(a: &Parallelism, b: &Parallelism) -> bool {
    let group_size = if b.chunks == 1 { b.group_size } else { a.group_size };
    Parallelism { group_size, ..a.clone() } == *b
}

fn layers_of_chunk(layers: u32, target: &Parallelism) -> Option<String> {
    let stages = target.pp.checked_mul(target.chunks)?;
    (stages > 0 && layers.is_multiple_of(stages)).then(|| (layers / stages).to_string())
}

/// Megatron's flags as words; the number of devices is none of them.
fn words(flags: &[(String, Given)]) -> Vec<String> {
    let of = |(flag, given): &(String, Given)| match given {
        Given::Switch(_) => vec![flag.clone()],
        Given::Value(value) => vec![flag.clone(), value.clone()],
    };
    flags.iter().filter(|(flag, _)| flag != GPUS).flat_map(of).collect()
}

/// The same with the number of devices in front, where it changes.
fn with_gpus(flags: &[(String, Given)]) -> Vec<String> {
    let mut all = Vec::new();
    if let Some((flag, Given::Value(gpus))) = flags.iter().find(|(flag, _)| flag == GPUS) {
        all.extend([flag.clone(), gpus.clone()]);
    }
    all.append(&mut words(flags));
    all
}
