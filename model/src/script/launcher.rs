//! Where a launch command ends its launcher and begins its flags, and how many devices it starts.

use super::expand::{Environment, Variable, is_unknown};
use super::flags::FLAGS;

/// Splits a command into launcher words and Megatron's: after the training script, or else from the first
/// flag that the model reads.
pub(super) fn split(words: &[String]) -> (&[String], &[String]) {
    let script = words.iter().position(|word| word.ends_with(".py")).map(|at| at + 1);
    let is_flag = |word: &String| {
        let name = word.split('=').next().unwrap_or(word);
        FLAGS.iter().any(|flag| flag.name == name)
    };
    let first_flag = words.iter().position(is_flag).unwrap_or(words.len());
    // A `.py` behind the first flag is some flag's value.
    words.split_at(script.filter(|&at| at <= first_flag).unwrap_or(first_flag))
}

/// Flags of torchrun, srun and DeepSpeed for the processes of a node, then variables of the same meaning.
const PER_NODE: [&str; 6] =
    ["--nproc_per_node", "--nproc-per-node", "--ntasks-per-node", "--gpus-per-node", "--num_gpus", "--gres"];
const PER_NODE_VARIABLES: [&str; 4] =
    ["GPUS_PER_NODE", "NPROC_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS_PER_NODE"];
const NODES: [&str; 5] = ["--nnodes", "--nodes", "-N", "--num_nodes", "--num-nodes"];
const NODES_VARIABLES: [&str; 4] = ["NNODES", "NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"];
const TASKS: [&str; 4] = ["-n", "--ntasks", "-np", "--np"];
const TASKS_VARIABLES: [&str; 3] = ["WORLD_SIZE", "SLURM_NTASKS", "NUM_GPUS"];

/// Devices that the launcher starts; what could not be read, where they are not known.
pub(super) fn devices(launcher: &[String], environment: &Environment) -> Result<u64, String> {
    let per_node = number(launcher, environment, &PER_NODE, &PER_NODE_VARIABLES);
    let nodes = number(launcher, environment, &NODES, &NODES_VARIABLES);
    let tasks = || number(launcher, environment, &TASKS, &TASKS_VARIABLES);
    match (per_node, nodes) {
        (Ok(Some(per_node)), Ok(Some(nodes))) => Ok(per_node.saturating_mul(nodes)),
        // torchrun on one node.
        (Ok(Some(per_node)), Ok(None)) if !matches!(tasks(), Ok(Some(_))) => Ok(per_node),
        (per_node, nodes) => match tasks() {
            Ok(Some(tasks)) => Ok(tasks),
            Err(text) => Err(text),
            Ok(None) => Err(per_node.err().or(nodes.err()).unwrap_or_default()),
        },
    }
}

/// The first known number among flags, then variables; an error shows what stands there instead.
fn number(
    launcher: &[String],
    environment: &Environment,
    flags: &[&str],
    variables: &[&str],
) -> Result<Option<u64>, String> {
    let mut found = None;
    let given = flags.iter().filter_map(|flag| value_of(launcher, flag));
    let set = variables.iter().filter_map(|name| environment.scalar(name));
    for text in given.chain(set) {
        // `--gres=gpu:8` and `--gres=gpu:a100:8` end in the number.
        let number = text.rsplit(':').next().unwrap_or(text).trim().parse().ok();
        match number.filter(|_| !is_unknown(text)) {
            Some(number) => return Ok(Some(number)),
            None => {
                found.get_or_insert_with(|| environment.shown(text));
            }
        }
    }
    match found {
        Some(text) => Err(text),
        None => Ok(None),
    }
}

/// The last value of a launcher's flag: `--flag value` or `--flag=value`.
fn value_of<'a>(launcher: &'a [String], flag: &str) -> Option<&'a str> {
    let mut found = None;
    for (index, word) in launcher.iter().enumerate() {
        if word == flag {
            found = launcher.get(index + 1).map(String::as_str);
        } else if let Some(value) = word.strip_prefix(flag).and_then(|rest| rest.strip_prefix('=')) {
            found = Some(value);
        }
    }
    found
}

/// Sets the variables that SLURM would set for a script's `#SBATCH` lines, where they are not set.
pub(super) fn slurm(text: &str, environment: &mut Environment) {
    const DIRECTIVES: [(&str, &[&str]); 7] = [
        ("--nodes", &["SLURM_NNODES", "SLURM_JOB_NUM_NODES"]),
        ("-N", &["SLURM_NNODES", "SLURM_JOB_NUM_NODES"]),
        ("--ntasks-per-node", &["SLURM_NTASKS_PER_NODE"]),
        ("--ntasks", &["SLURM_NTASKS"]),
        ("-n", &["SLURM_NTASKS"]),
        ("--gpus-per-node", &["SLURM_GPUS_PER_NODE"]),
        ("--gres", &["SLURM_GPUS_PER_NODE"]),
    ];
    for line in text.lines() {
        let Some(rest) = line.trim_start().strip_prefix("#SBATCH") else { continue };
        let words: Vec<_> = rest.split_whitespace().map(str::to_owned).collect();
        for (flag, variables) in DIRECTIVES {
            let Some(value) = value_of(&words, flag) else { continue };
            let value = value.rsplit(':').next().unwrap_or(value);
            for &variable in variables {
                if environment.scalar(variable).is_none() && value.parse::<u64>().is_ok() {
                    environment.variables.insert(variable.to_owned(), Variable::Scalar(value.to_owned()));
                }
            }
        }
    }
}
