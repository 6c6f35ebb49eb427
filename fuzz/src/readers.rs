//! The readers of Hugging Face configs, YAML and flag lists on any bytes: a launch or one error. What holds for
//! a launch of a script holds for theirs.

use bagualu_model::read::{Format, read};
use bagualu_model::script::Given;

use crate::script::check;

/// A Hugging Face `config.json`.
pub fn hf_config(data: &[u8]) {
    reads(data, Format::HuggingFace);
}

/// A run's YAML.
pub fn yaml(data: &[u8]) {
    reads(data, Format::Yaml);
}

/// A list of flags.
pub fn flag_list(data: &[u8]) {
    reads(data, Format::Flags);
}

fn reads(data: &[u8], format: Format) {
    let given = Given { gpus: Some(8), ..Given::default() };
    match read(data, Some(format), &given) {
        Ok(launch) => check(&launch),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    // The content decides without reading on.
    let _ = Format::of(data);
}
