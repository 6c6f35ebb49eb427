//! Where a launch command ends its launcher and begins its flags, and how many devices it starts.

use super::expand::{Environment, Variable, is_unknown};
use super::flags::FLAGS;
use crate::fields::{MS_SWIFT, Setting, Settings, settings as settings_of};

/// Splits a command into launcher words and Megatron's: after the training script, or else from the first
/// flag that the model reads.
pub(super) fn split(words: &[String]) -> (&[String], &[String]) {
    if let Some(at) = swift(words) {
        return words.split_at(at);
    }
    if words.iter().any(|word| overrides_size(word)) {
        let first =
            words.iter().position(|word| Setting::of_override(word).is_some_and(|s| s.path.len() > 1));
        return words.split_at(first.unwrap_or(words.len()));
    }
    let script = words.iter().position(|word| word.ends_with(".py")).map(|at| at + 1);
    let is_flag = |word: &String| {
        let name = word.split('=').next().unwrap_or(word).replace('_', "-");
        FLAGS.iter().any(|flag| flag.name == name)
    };
    let first_flag = words.iter().position(is_flag).unwrap_or(words.len());
    // A `.py` behind the first flag is some flag's value.
    words.split_at(script.filter(|&at| at <= first_flag).unwrap_or(first_flag))
}

/// Whether `word` sets the size of a model or its distribution as Hydra's overrides do.
pub(super) fn overrides_size(word: &str) -> bool {
    Setting::of_override(word).is_some_and(|setting| setting.starts_training())
}

/// Where the flags of `megatron sft` (ms-swift) begin.
pub(super) fn swift(words: &[String]) -> Option<usize> {
    let is = |pair: &[String]| {
        let program = pair[0].rsplit('/').next().unwrap_or_default();
        program == "megatron" && matches!(pair[1].as_str(), "sft" | "pt" | "rlhf")
    };
    words.windows(2).position(is).map(|at| at + 2)
}

/// What a command's words say in the manner of another program, and the rest, which are Megatron's flags.
pub(super) fn settings(launcher: &[String], words: &[String]) -> (Settings, Vec<String>) {
    if swift(launcher).is_some() {
        let options: Vec<_> = words.chunk_by(|_, next| !next.starts_with("--")).collect();
        let list: Vec<_> = options.into_iter().filter_map(Setting::of_option).collect();
        return (settings_of(&list, Some(&MS_SWIFT)), Vec::new());
    }
    if words.iter().any(|word| overrides_size(word)) {
        let (list, rest): (Vec<_>, Vec<_>) =
            words.iter().partition(|word| Setting::of_override(word).is_some());
        let list: Vec<_> = list.into_iter().filter_map(|word| Setting::of_override(word)).collect();
        return (settings_of(&list, None), rest.into_iter().cloned().collect());
    }
    (Settings::default(), words.to_vec())
}

const SCHEDULERS: [&str; 6] = ["srun", "yhrun", "mpirun", "mpiexec", "orterun", "aprun"];
const TORCHRUN: [&str; 4] = ["torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed"];

/// torchrun's and DeepSpeed's flags.
const PROCESSES: [&str; 3] = ["--nproc_per_node", "--nproc-per-node", "--num_gpus"];
const NODES: [&str; 3] = ["--nnodes", "--num_nodes", "--num-nodes"];
/// Flags of srun and mpirun.
const SCHEDULED_NODES: [&str; 2] = ["--nodes", "-N"];
const TASKS: [&str; 4] = ["--ntasks", "-n", "-np", "--np"];
const TASKS_PER_NODE: [&str; 1] = ["--ntasks-per-node"];
const GPUS_PER_NODE: [&str; 2] = ["--gpus-per-node", "--gres"];
/// Variables that Slurm sets.
const SLURM_NODES: [&str; 2] = ["SLURM_NNODES", "SLURM_JOB_NUM_NODES"];
const SLURM_TASKS: [&str; 2] = ["SLURM_NTASKS", "SLURM_NPROCS"];
const SLURM_TASKS_PER_NODE: [&str; 1] = ["SLURM_NTASKS_PER_NODE"];
const SLURM_GPUS_PER_NODE: [&str; 2] = ["SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"];
/// Variables that scripts set.
const NODES_VARIABLES: [&str; 2] = ["NNODES", "NUM_NODES"];
const PER_NODE_VARIABLES: [&str; 2] = ["GPUS_PER_NODE", "NPROC_PER_NODE"];
const TOTAL_VARIABLES: [&str; 2] = ["WORLD_SIZE", "NUM_GPUS"];

/// A number that is given or not; where it is given and not known, its text.
type Said = Result<Option<u64>, String>;

/// Devices that the launcher starts; what could not be read, where they are not known.
///
/// What a launcher is given counts: a value that is not known gives way to what Slurm is told, and to
/// nothing else.
pub(super) fn devices(launcher: &[String], environment: &Environment) -> Result<u64, String> {
    let find = |names: &[&str]| {
        launcher.iter().position(|word| names.contains(&word.rsplit('/').next().unwrap_or(word)))
    };
    // ms-swift starts torchrun itself.
    let torchrun = find(&TORCHRUN).or_else(|| swift(launcher).map(|at| at - 2));
    let (before, own) = launcher.split_at(torchrun.unwrap_or(launcher.len()));
    // A short flag in front of torchrun is the scheduler's, not that of `nice -n 10`.
    let scheduler = match find(&SCHEDULERS).filter(|&at| at < before.len()) {
        Some(at) => &before[at..],
        None if torchrun.is_some() => &[],
        None => before,
    };
    if let Some(at) = find(&["accelerate"]) {
        // It counts the processes of all machines.
        let launch = Launcher { scheduler: &[], torchrun: &launcher[at..], environment };
        return launch
            .flag(launch.torchrun, &["--num_processes", "--num-processes"])?
            .ok_or_else(String::new);
    }
    let launch = Launcher { scheduler, torchrun: own, environment };
    let devices = if torchrun.is_some() { launch.processes()? } else { launch.tasks()? };
    devices.ok_or_else(String::new)
}

struct Launcher<'a> {
    /// srun or mpirun with its flags.
    scheduler: &'a [String],
    /// torchrun or DeepSpeed with its flags.
    torchrun: &'a [String],
    environment: &'a Environment,
}

impl Launcher<'_> {
    /// torchrun starts one process for each GPU, whatever the tasks of a node are.
    fn processes(&self) -> Said {
        let given = known_or(self.flag(self.torchrun, &PROCESSES), || self.gpus_per_node());
        let per_node = given_or(given, || self.variable(&PER_NODE_VARIABLES))?;
        let nodes = match self.flag(self.torchrun, &NODES) {
            Ok(None) if self.torchrun.iter().any(|word| word == "--standalone") => Some(1),
            given => given_or(known_or(given, || self.nodes()), || self.variable(&NODES_VARIABLES))?,
        };
        match (per_node, nodes) {
            (Some(per_node), Some(nodes)) => Ok(Some(per_node.saturating_mul(nodes))),
            (Some(per_node), None) => match self.flag(self.scheduler, &TASKS)? {
                Some(tasks) => Ok(Some(per_node.saturating_mul(tasks))),
                None => Ok(self.variable(&TOTAL_VARIABLES)?.or(Some(per_node))),
            },
            (None, _) => self.variable(&TOTAL_VARIABLES),
        }
    }

    /// Without torchrun every task is a process of its own.
    fn tasks(&self) -> Said {
        if let Some(tasks) = self.flag(self.scheduler, &TASKS)? {
            return Ok(Some(tasks));
        }
        let given = known_or(self.flag(self.scheduler, &TASKS_PER_NODE), || {
            given_or(self.variable(&SLURM_TASKS_PER_NODE), || self.gpus_per_node())
        });
        let per_node = given_or(given, || self.variable(&PER_NODE_VARIABLES))?;
        // Flags of torchrun where no torchrun stands: a wrapper of the user passes them on.
        let nodes = known_or(self.flag(self.scheduler, &NODES), || self.nodes());
        let nodes = given_or(nodes, || self.variable(&NODES_VARIABLES))?;
        match (per_node, nodes) {
            (Some(per_node), Some(nodes)) => Ok(Some(per_node.saturating_mul(nodes))),
            (per_node, _) => {
                let total = given_or(self.variable(&TOTAL_VARIABLES), || self.variable(&SLURM_TASKS))?;
                Ok(total.or(per_node))
            }
        }
    }

    /// GPUs of a node, as Slurm is told.
    fn gpus_per_node(&self) -> Said {
        given_or(self.flag(self.scheduler, &GPUS_PER_NODE), || self.variable(&SLURM_GPUS_PER_NODE))
    }

    /// Nodes, as Slurm is told.
    fn nodes(&self) -> Said {
        given_or(self.flag(self.scheduler, &SCHEDULED_NODES), || self.variable(&SLURM_NODES))
    }

    /// The value of the first of `flags` that is given.
    fn flag(&self, words: &[String], flags: &[&str]) -> Said {
        flags.iter().find_map(|flag| value_of(words, flag)).map(|text| self.number(text)).transpose()
    }

    /// The value of the first of `names` that is set.
    fn variable(&self, names: &[&str]) -> Said {
        names.iter().find_map(|name| self.environment.scalar(name)).map(|text| self.number(text)).transpose()
    }

    fn number(&self, text: &str) -> Result<u64, String> {
        match count(text).parse() {
            Ok(number) if !is_unknown(text) => Ok(number),
            _ => Err(self.environment.shown(text)),
        }
    }
}

/// `said`, or `other` where nothing is said.
fn given_or(said: Said, other: impl FnOnce() -> Said) -> Said {
    match said {
        Ok(None) => other(),
        said => said,
    }
}

/// `said`, or `other` where nothing is said or what is said is not known.
fn known_or(said: Said, other: impl FnOnce() -> Said) -> Said {
    match said {
        Err(text) => match other() {
            Ok(Some(number)) => Ok(Some(number)),
            _ => Err(text),
        },
        said => given_or(said, other),
    }
}

/// The number in `gpu:8`, `gpu:a100:8` and `nvme:1,gpu:8`.
fn count(text: &str) -> &str {
    let gpus = text.split(',').find(|part| part.starts_with("gpu")).unwrap_or(text);
    gpus.rsplit(':').next().unwrap_or(gpus).trim()
}

/// The last value of a launcher's flag: `--flag value`, `--flag=value`, or `-N4`.
fn value_of<'a>(launcher: &'a [String], flag: &str) -> Option<&'a str> {
    let mut found = None;
    for (index, word) in launcher.iter().enumerate() {
        if word == flag {
            found = launcher.get(index + 1).map(String::as_str);
        } else if let Some(value) = word.strip_prefix(flag).and_then(|rest| rest.strip_prefix('=')) {
            found = Some(value);
        } else if let Some(value) = word.strip_prefix(flag).filter(|_| !flag.starts_with("--"))
            && (is_unknown(value) || value.starts_with(|c: char| c.is_ascii_digit()))
        {
            found = Some(value);
        }
    }
    found
}

/// Sets the variables that SLURM would set for a script's `#SBATCH` lines, where they are not set.
pub(super) fn slurm(text: &str, environment: &mut Environment) {
    const DIRECTIVES: [(&[&str], &[&str]); 4] = [
        (&SCHEDULED_NODES, &SLURM_NODES),
        (&TASKS_PER_NODE, &SLURM_TASKS_PER_NODE),
        (&["--ntasks", "-n"], &SLURM_TASKS),
        (&GPUS_PER_NODE, &SLURM_GPUS_PER_NODE),
    ];
    for line in text.lines() {
        let Some(rest) = line.trim_start().strip_prefix("#SBATCH") else { continue };
        let words: Vec<_> = rest.split_whitespace().map(str::to_owned).collect();
        for (flags, variables) in DIRECTIVES {
            let Some(value) = flags.iter().find_map(|flag| value_of(&words, flag)) else { continue };
            if let Ok(value) = count(value).parse() {
                set(environment, variables, value);
            }
        }
    }
    let number = |name| environment.integer(name).and_then(|n| u64::try_from(n).ok());
    if let (Some(nodes), Some(tasks)) = (number(SLURM_NODES[0]), number(SLURM_TASKS_PER_NODE[0])) {
        set(environment, &SLURM_TASKS, nodes.saturating_mul(tasks));
    }
}

fn set(environment: &mut Environment, variables: &[&str], value: u64) {
    for &variable in variables {
        if environment.scalar(variable).is_none() {
            environment.variables.insert(variable.to_owned(), Variable::Scalar(value.to_string()));
        }
    }
}
