//! What a model is read from: a launch script, a config, a preset or flags, on a device.

use std::ffi::c_char;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use bagualu_model::read::{FORMATS, Format, read};
use bagualu_model::script::{Given, Launch, MAX_INPUT, from_flags, from_flags_over, to_flags};
use bagualu_model::{Device, MAX_DEVICE_FILE, Model, ModelError, Preset};

use crate::arguments::{elements, optional_text, texts, versioned};
use crate::status::{Failure, bagualu_status};

/// What a model is read from, and what is given beside it. Exactly one of `text`, `path` and `preset` is not NULL, or none
/// is and `flags` describe the model.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_model_config {
    /// sizeof(bagualu_model_config), set by the caller.
    pub struct_size: usize,
    /// A launch script, a Hugging Face config.json, a run's YAML or a list of flags.
    pub text: *const c_char,
    /// Bytes of `text`, which needs no NUL.
    pub text_length: usize,
    /// The path of such a file, UTF-8.
    pub path: *const c_char,
    /// The name of a preset (`glm-423b-a30b`, `deepseek-v3`, …).
    pub preset: *const c_char,
    /// The format, `script`, `hf`, `yaml` or `flags`; NULL: what the content says.
    pub format: *const c_char,
    /// Arguments of a script.
    pub arguments: *const *const c_char,
    /// How many.
    pub argument_count: usize,
    /// Variables of a script's environment, `NAME=VALUE`.
    pub variables: *const *const c_char,
    /// How many.
    pub variable_count: usize,
    /// Megatron's flags, one word each, over those of the file.
    pub flags: *const *const c_char,
    /// How many.
    pub flag_count: usize,
    /// Devices in all; 0: what the launcher or the preset says.
    pub gpus: u64,
    /// The name of a device preset; NULL: `dcu-64g`, unless there is a `device_path`.
    pub device: *const c_char,
    /// The path of a device file (TOML), UTF-8.
    pub device_path: *const c_char,
    /// Memory of the device, bytes; 0: the preset's.
    pub memory_bytes: u64,
    /// Memory set aside for fragmentation and workspace, bytes; 0: the preset's.
    pub margin_bytes: u64,
    /// Pinned host memory for each device, bytes; 0: the preset's.
    pub host_bytes: u64,
}

versioned!(bagualu_model_config);

/// Most words in one of the arrays.
const MOST_WORDS: usize = 1 << 16;

/// A configuration with everything copied.
pub(crate) struct Source {
    from: From,
    given: Given,
    format: Option<Format>,
    device: Device,
}

/// What describes the model.
enum From {
    Text(Vec<u8>),
    Preset(String),
    Flags,
}

impl Source {
    /// # Safety
    /// - Texts are NULL or end with NUL, `text` has its length, arrays are as long as their counts.
    pub(super) unsafe fn new(config: &bagualu_model_config) -> Result<Self, Failure> {
        // SAFETY: the contract of this function, for all of them.
        unsafe {
            let flags = words(config.flags, config.flag_count, "flags")?;
            let variables = words(config.variables, config.variable_count, "variables")?;
            // Everything that is said is checked before a file is opened.
            let format = optional_text(config.format, "format")?.map(format).transpose()?;
            let device = device(config)?;
            Ok(Self {
                from: from(config, !flags.is_empty())?,
                given: Given {
                    arguments: words(config.arguments, config.argument_count, "arguments")?,
                    variables: variables.into_iter().map(variable).collect::<Result<_, _>>()?,
                    flags,
                    gpus: (config.gpus > 0).then_some(config.gpus),
                },
                format,
                device,
            })
        }
    }

    /// A script's text on a device preset; no GPUs are those of its launcher.
    #[cfg(feature = "cxx")]
    pub(crate) fn script(text: &str, device: &str, gpus: u64) -> Result<Self, Failure> {
        let device = Device::named(device)
            .map_err(|error| Failure::new(bagualu_status::DeviceName, error.to_string()))?;
        let given = Given { gpus: (gpus > 0).then_some(gpus), ..Given::default() };
        Ok(Self { from: From::Text(text.as_bytes().to_vec()), given, format: None, device })
    }

    /// Reads the model, with what was said on the way.
    pub(crate) fn load(self) -> Result<(Model, Vec<String>), Failure> {
        let Launch { config, parallelism, settings, warnings, .. } = self.launch()?;
        let refused = |error: ModelError| Failure::new(bagualu_status::Model, error.to_string());
        let model = Model::new(&config, &parallelism, &self.device).map_err(refused)?;
        settings.check(&config, &parallelism).map_err(refused)?;
        Ok((model, warnings))
    }

    fn launch(&self) -> Result<Launch, Failure> {
        let refused = |error: &dyn ToString| Failure::new(bagualu_status::Read, error.to_string());
        let given = &self.given;
        match &self.from {
            From::Text(text) => read(text, self.format, given).map_err(|error| refused(&error)),
            From::Flags => {
                let Some(gpus) = given.gpus else {
                    return Err(Failure::value("gpus", 0, "give the number of devices"));
                };
                from_flags(&given.flags, gpus).map_err(|error| refused(&error))
            }
            From::Preset(name) => {
                let preset = Preset::named(name, given.gpus).map_err(|error| refused(&error))?;
                let base = to_flags(&preset.config, &preset.parallelism);
                let launch = from_flags_over(&base, &given.flags, preset.parallelism.gpus);
                let mut launch = launch.map_err(|error| refused(&error))?;
                // As on the command line: the micro-batches of a rank stay unless the batch is given.
                if !given.flags.iter().any(|flag| flag == "--global-batch-size") {
                    launch.parallelism.repeat(preset.parallelism.micro_batches());
                }
                Ok(launch)
            }
        }
    }
}

/// # Safety
/// - As for [`texts`].
unsafe fn words(from: *const *const c_char, count: usize, field: &str) -> Result<Vec<String>, Failure> {
    if count > MOST_WORDS {
        let message = format!("{count} {field}; at most {MOST_WORDS} are read");
        return Err(Failure::new(bagualu_status::Count, message));
    }
    // SAFETY: the contract of this function.
    unsafe { texts(from, count, field) }
}

/// # Safety
/// - Texts are NULL or end with NUL, `text` has its length.
unsafe fn from(config: &bagualu_model_config, flags: bool) -> Result<From, Failure> {
    // SAFETY: the contract of this function.
    let (path, preset) =
        unsafe { (optional_text(config.path, "path")?, optional_text(config.preset, "preset")?) };
    Ok(match (config.text.is_null(), path, preset) {
        (false, None, None) => {
            // A length that is refused anyway is refused before the text is touched: it may be wrong.
            let length = config.text_length;
            if length > MAX_INPUT {
                let message = format!("text_length is {length} bytes; at most {MAX_INPUT} are read");
                return Err(Failure::new(bagualu_status::Count, message));
            }
            // SAFETY: the contract of this function.
            From::Text(unsafe { elements(config.text.cast::<u8>(), length, "text") }?.to_vec())
        }
        (true, Some(path), None) => From::Text(contents(path, MAX_INPUT)?),
        (true, None, Some(name)) => From::Preset(name.to_owned()),
        (true, None, None) if flags => From::Flags,
        _ => {
            let message = "give one of text, path and preset, or flags that describe the model";
            return Err(Failure::new(bagualu_status::InvalidValue, message));
        }
    })
}

fn format(name: &str) -> Result<Format, Failure> {
    Format::named(name).ok_or_else(|| {
        let known = FORMATS.map(|(name, _)| name).join(", ");
        Failure::value("format", format_args!("{name:?}"), &format!("give one of {known}"))
    })
}

fn variable(text: String) -> Result<(String, String), Failure> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Failure::value("variables", format_args!("{text:?}"), "give NAME=VALUE")),
    }
}

/// # Safety
/// - Texts are NULL or end with NUL.
unsafe fn device(config: &bagualu_model_config) -> Result<Device, Failure> {
    // SAFETY: the contract of this function.
    let (name, path) = unsafe {
        (optional_text(config.device, "device")?, optional_text(config.device_path, "device_path")?)
    };
    let refused = |error: &dyn ToString| Failure::new(bagualu_status::DeviceName, error.to_string());
    let mut device = match (name, path) {
        (Some(_), Some(_)) => {
            let message = "device and device_path are both given; drop one";
            return Err(Failure::new(bagualu_status::InvalidValue, message));
        }
        (None, Some(path)) => {
            let text = contents(path, MAX_DEVICE_FILE)?;
            let name = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or(path);
            Device::from_toml(&text, name).map_err(|error| refused(&error))?
        }
        (name, None) => Device::named(name.unwrap_or("dcu-64g")).map_err(|error| refused(&error))?,
    };
    let sizes = [
        (config.memory_bytes, &mut device.memory_bytes),
        (config.margin_bytes, &mut device.margin_bytes),
        (config.host_bytes, &mut device.host_bytes),
    ];
    for (given, bytes) in sizes {
        if given > 0 {
            *bytes = given;
        }
    }
    Ok(device)
}

/// A file's bytes: one more than `most` where it is longer, which its reader refuses.
fn contents(path: &str, most: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(most as u64 + 1).read_to_end(&mut bytes)) {
        Ok(_) => Ok(bytes),
        Err(error) => {
            let message = format!("{path}: cannot be read: {error}; give a file that can");
            Err(Failure::new(bagualu_status::File, message))
        }
    }
}
