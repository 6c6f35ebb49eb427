//! What `plan` and `replay` run on: a launch script, a model's config, a preset or flags, on a device.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bagualu_model::read::{FORMATS, Format, ReadError, read};
use bagualu_model::script::{FLAGS, Given, Launch, from_flags, from_flags_over, to_flags};
use bagualu_model::settings::ActivationSettings;
use bagualu_model::{Device, MAX_DEVICE_FILE, MODELS, Model, ModelError, Preset};
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::Error;
use crate::names::Names;

const GIB: u64 = 1 << 30;
/// Bytes read of a script: the longest that is accepted, and one that tells a longer one.
const MAX_SCRIPT: u64 = bagualu_model::script::MAX_INPUT as u64 + 1;
/// Largest number of GiB that an option takes.
const MAX_GIB: u64 = 1 << 20;
/// Decimals of a number of GiB at most: to a MiB, about.
const GIB_DECIMALS: usize = 3;

/// The model, its distribution and its device.
#[derive(clap::Args, Clone, Debug)]
pub struct Input {
    /// A launch script or a model's config.json, `-` for standard input; it is read, never run
    #[arg(value_name = "FILE")]
    script: Option<PathBuf>,
    /// The format of FILE, instead of the one that its content decides
    #[arg(long, value_name = "FORMAT", requires = "script", value_parser = FORMATS.map(|(name, _)| name))]
    format: Option<String>,
    /// A preset: a row of the paper's Table II (glm-423b-a30b …) or a public model (deepseek-v3 …), also by its
    /// Hugging Face id
    #[arg(long, value_name = "NAME", hide_possible_values = true,
        value_parser = Names(|| MODELS.to_vec()))]
    model: Option<String>,
    /// The device: a preset (dcu-64g is the paper's), or a TOML file: a path with a / or the ending .toml
    #[arg(long, value_name = "NAME|FILE", default_value = "dcu-64g", value_parser = Names(|| Device::names().collect()))]
    device: String,
    /// Devices in all, if the launcher does not say or to plan for another number
    #[arg(long, value_name = "N", overrides_with = "gpus")]
    gpus: Option<u64>,
    /// Memory of the device, GiB (62.5 is one), instead of the preset's
    #[arg(long, value_name = "GIB", allow_negative_numbers = true)]
    memory: Option<String>,
    /// Memory set aside for fragmentation and workspace, GiB, instead of the preset's
    #[arg(long, value_name = "GIB", allow_negative_numbers = true)]
    margin: Option<String>,
    /// Pinned host memory for each device, GiB, instead of the preset's
    #[arg(long, value_name = "GIB", allow_negative_numbers = true)]
    host: Option<String>,
    /// An argument of the script ($1, $2, …); may be repeated
    #[arg(long = "arg", value_name = "VALUE", allow_hyphen_values = true)]
    arguments: Vec<String>,
    /// A variable of the script's environment; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE")]
    variables: Vec<String>,
    #[command(flatten)]
    flags: MegatronFlags,
    /// What the script says, once it is read: standard input can be read only once.
    #[arg(skip)]
    content: OnceLock<Vec<u8>>,
}

/// A model, and what was said about it on the way.
#[derive(Debug)]
pub struct Loaded {
    /// The model on its ranks.
    pub model: Model,
    /// Where it comes from: the script's path, the preset's name, or `flags`.
    pub source: String,
    /// Its own settings of activation memory, which a plan replaces.
    pub settings: ActivationSettings,
    /// Flags that cannot change memory.
    pub ignored: Vec<String>,
    /// Recompute and offload settings that are replaced.
    pub replaced: Vec<String>,
    /// What may change memory and is not modelled, or could not be read.
    pub warnings: Vec<String>,
}

impl Input {
    /// Reads everything and builds the model.
    pub fn load(&self) -> Result<Loaded, Error> {
        let device = self.device()?;
        let (launch, source) = self.launch()?;
        let Launch { config, parallelism, settings, ignored, replaced, warnings, .. } = launch;
        let refused = |error: ModelError| Error::bad_input(&source, error.to_string(), "");
        let model = Model::new(&config, &parallelism, &device).map_err(refused)?;
        settings.check(&config, &parallelism).map_err(refused)?;
        Ok(Loaded { model, source, settings, ignored, replaced, warnings })
    }

    /// What is launched, and where it comes from.
    pub fn launch(&self) -> Result<(Launch, String), Error> {
        self.check_script_options()?;
        if let (Some(path), Some(name)) = (&self.script, &self.model) {
            let problem = format!("{name} is given beside {}, which has a model of its own", path.display());
            let fix = format!(
                "drop one of them; for {name} with the file's distribution give --model and its flags"
            );
            return Err(Error::bad_input("--model", problem, fix));
        }
        Ok(match (&self.script, &self.model) {
            (Some(path), _) => (self.script(path)?, path.display().to_string()),
            (None, Some(name)) => (self.preset(name)?, name.clone()),
            (None, None) => (self.direct()?, "flags".to_owned()),
        })
    }

    /// The same with more of Megatron's flags behind the others, on so many devices.
    pub fn with(&self, flags: &[String], gpus: u64) -> Self {
        let mut input = Self { gpus: Some(gpus), ..self.clone() };
        input.flags.0.extend_from_slice(flags);
        input
    }

    /// The same options for another model: a preset, or the launch script or config at a path.
    pub fn instead(&self, what: &str, preset: bool) -> Self {
        let (script, model) = if preset { (None, Some(what.to_owned())) } else { (Some(what.into()), None) };
        // A preset has no use for a script's arguments and variables.
        let (arguments, variables) = match preset {
            true => Default::default(),
            false => (self.arguments.clone(), self.variables.clone()),
        };
        Self { script, model, arguments, variables, content: OnceLock::new(), ..self.clone() }
    }

    /// The option parser's own rule gives way where another option excludes the script.
    fn check_script_options(&self) -> Result<(), Error> {
        let given = [("--arg", self.arguments.first()), ("--env", self.variables.first())];
        match given.into_iter().find_map(|(option, value)| value.map(|value| (option, value))) {
            Some((option, value)) if self.script.is_none() => {
                let problem = format!("{value:?} is given without a script");
                Err(Error::bad_input(option, problem, format!("give a launch script or drop {option}")))
            }
            _ => Ok(()),
        }
    }

    fn device(&self) -> Result<Device, Error> {
        let mut device = match is_path(&self.device) {
            true => device_file(Path::new(&self.device))?,
            false => Device::named(&self.device).map_err(|error| {
                Error::bad_input("--device", error.to_string(), "or the path of a .toml file")
            })?,
        };
        let sizes = [
            ("--memory", &self.memory, &mut device.memory_bytes),
            ("--margin", &self.margin, &mut device.margin_bytes),
            ("--host", &self.host, &mut device.host_bytes),
        ];
        for (option, text, bytes) in sizes {
            let Some(text) = text else { continue };
            *bytes = gib(text).ok_or_else(|| {
                let fix = format!(
                    "give a number from 0 to {MAX_GIB} with at most {GIB_DECIMALS} decimals, as 62.5"
                );
                Error::bad_input(option, format!("{text:?} is no number of GiB"), fix)
            })?;
        }
        Ok(device)
    }

    fn script(&self, path: &Path) -> Result<Launch, Error> {
        let text = match self.content.get() {
            Some(text) => text,
            None => {
                let text = contents(path)?;
                self.content.get_or_init(|| text)
            }
        };
        let variable = |text: &String| match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(Error::bad_input("--env", format!("{text:?} has no ="), "give NAME=VALUE")),
        };
        let given = Given {
            arguments: self.arguments.clone(),
            variables: self.variables.iter().map(variable).collect::<Result<_, _>>()?,
            flags: self.flags.0.clone(),
            gpus: self.gpus,
        };
        let format = self.format.as_deref().and_then(Format::named);
        read(text, format, &given).map_err(|error| refused(&path.display().to_string(), &error))
    }

    /// A preset with the user's flags over it; the micro-batches of a rank stay unless the batch is given.
    fn preset(&self, name: &str) -> Result<Launch, Error> {
        let preset = Preset::named(name, self.gpus)
            .map_err(|error| Error::bad_input("--model", error.to_string(), ""))?;
        let base = to_flags(&preset.config, &preset.parallelism);
        let mut launch = from_flags_over(&base, &self.flags.0, preset.parallelism.gpus)
            .map_err(|error| refused(name, &error.into()))?;
        if !self.flags.0.iter().any(|flag| flag == "--global-batch-size") {
            launch.parallelism.repeat(preset.parallelism.micro_batches());
        }
        Ok(launch)
    }

    fn direct(&self) -> Result<Launch, Error> {
        if self.flags.0.is_empty() {
            let fix = "give a launch script, --model NAME, or Megatron's flags (--num-layers …)";
            return Err(Error::bad_input("input", "no model", fix));
        }
        let Some(gpus) = self.gpus else {
            return Err(Error::bad_input("--gpus", "not given", "give the number of devices"));
        };
        from_flags(&self.flags.0, gpus).map_err(|error| refused("flags", &error.into()))
    }
}

/// A decimal number of GiB in bytes, rounded down.
fn gib(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > GIB_DECIMALS {
        return None;
    }
    let thousandths: u64 = format!("{whole}{decimals:0<GIB_DECIMALS$}").parse().ok()?;
    (thousandths <= MAX_GIB * 1_000).then(|| (u128::from(thousandths) * u128::from(GIB) / 1_000) as u64)
}

fn refused(field: &str, error: &ReadError) -> Error {
    Error::bad_input(field, error.to_string(), "")
}

fn contents(path: &Path) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    let result = match path.to_str() {
        Some("-") => io::stdin().take(MAX_SCRIPT).read_to_end(&mut text),
        _ => File::open(path).and_then(|file| file.take(MAX_SCRIPT).read_to_end(&mut text)),
    };
    match result {
        Ok(_) => Ok(text),
        Err(error) => {
            let fix = "give a file that can be read, or - for standard input";
            Err(Error::bad_input(path.display().to_string(), format!("cannot be read: {error}"), fix))
        }
    }
}

/// A preset's name has neither a separator nor an ending.
fn is_path(device: &str) -> bool {
    device.contains(['/', std::path::MAIN_SEPARATOR]) || device.ends_with(".toml")
}

fn device_file(path: &Path) -> Result<Device, Error> {
    let shown = path.display().to_string();
    // One byte more than is accepted tells a longer file.
    let mut bytes = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_DEVICE_FILE as u64 + 1).read_to_end(&mut bytes));
    if let Err(error) = read {
        return Err(Error::bad_input(
            shown,
            format!("cannot be read: {error}"),
            "give a TOML file of a device",
        ));
    }
    let name = path.file_stem().map_or_else(|| shown.clone(), |stem| stem.to_string_lossy().into_owned());
    Device::from_toml(&bytes, &name).map_err(|error| Error::bad_input(shown, error.to_string(), ""))
}

/// The largest load there is, in thousandths: one rank receives every row of its expert-parallel group. None
/// for a model without routed rows.
pub fn largest_load(model: &Model) -> Option<u32> {
    let received = model.most_rows - model.padding_rows.min(model.most_rows);
    let permille = (u64::from(received) * 1_000).checked_div(model.balanced_rows.into())?;
    Some(u32::try_from(permille).unwrap_or(u32::MAX))
}

/// Megatron's own flags, by their own names, each an option of the command.
#[derive(Clone, Debug, Default)]
struct MegatronFlags(Vec<String>);

impl clap::Args for MegatronFlags {
    fn augment_args(command: Command) -> Command {
        command.args(FLAGS.iter().map(|flag| {
            let arg = Arg::new(flag.name)
                .long(flag.name.trim_start_matches('-'))
                .help(flag.help)
                .help_heading("Megatron's flags, over those of the script or preset")
                .hide_short_help(true);
            // Of a repeated flag the last counts, as in Megatron.
            let arg = arg.overrides_with(flag.name);
            match flag.value {
                Some(value) => arg.value_name(value).allow_hyphen_values(true),
                None => arg.action(ArgAction::SetTrue),
            }
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for MegatronFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Vec::new();
        for flag in FLAGS {
            match flag.value {
                Some(_) => {
                    if let Some(value) = matches.get_one::<String>(flag.name) {
                        flags.extend([flag.name.to_owned(), value.clone()]);
                    }
                }
                None if matches.get_flag(flag.name) => flags.push(flag.name.to_owned()),
                None => {}
            }
        }
        Ok(Self(flags))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gib_are_decimal_numbers() {
        assert_eq!((gib("64"), gib("0")), (Some(64 << 30), Some(0)));
        assert_eq!(
            (gib("62.3"), gib("0.5"), gib("1.125")),
            (Some(66_894_115_635), Some(1 << 29), Some(9 << 27))
        );
        assert_eq!(gib("1048576"), Some(1 << 50));
        for bad in
            ["", "-1", "NaN", "inf", "1e3", "1.", ".5", "1.2345", "1048576.001", "99999999999999999999", "٣"]
        {
            assert_eq!(gib(bad), None, "{bad}");
        }
    }
}
