//! The settings in which two runs differ, by flag.

use bagualu_model::script::to_flags;
use bagualu_model::settings::{ActivationSettings, Method, Offload, Recompute};
use bagualu_model::{ModelConfig, Parallelism};
use serde::Serialize;

use crate::plan::Plan;

/// A setting that differs, by Megatron's flag.
#[derive(Serialize)]
pub struct Setting {
    pub flag: String,
    /// Absent where the flag is not given.
    pub a: Option<Given>,
    pub b: Option<Given>,
}

/// What is given for a flag.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Given {
    /// The flag alone: `true`.
    Switch(bool),
    Value(String),
}

/// Settings in the order of A's flags, then those that only B has.
pub fn settings(a: &Plan, b: &Plan) -> Vec<Setting> {
    let (a, b) = (flags(a), flags(b));
    let find = |flags: &Flags, name: &str| {
        flags.iter().find(|(flag, _)| flag == name).map(|(_, given)| given.clone())
    };
    let only_b = b.iter().filter(|(flag, _)| find(&a, flag).is_none());
    a.iter()
        .chain(only_b)
        .map(|(flag, _)| Setting { flag: flag.clone(), a: find(&a, flag), b: find(&b, flag) })
        .filter(|setting| setting.a != setting.b)
        .collect()
}

/// The settings of a run by flag: Megatron's, and the number of devices.
fn flags(plan: &Plan) -> Flags {
    let model = &plan.loaded.model;
    let mut flags = distribution_flags(&model.config, &model.parallelism);
    flags.append(&mut activation_flags(&plan.loaded.settings));
    flags
}

/// Flags with what is given for them.
pub type Flags = Vec<(String, Given)>;

/// Those of shape and distribution.
pub fn distribution_flags(config: &ModelConfig, parallelism: &Parallelism) -> Flags {
    let gpus = ("--gpus".to_owned(), Given::Value(parallelism.gpus.to_string()));
    let mut flags = vec![gpus];
    let words = to_flags(config, parallelism);
    let mut words = words.into_iter().peekable();
    while let Some(flag) = words.next() {
        let given = match words.next_if(|word| !word.starts_with("--")) {
            Some(value) => Given::Value(value),
            None => Given::Switch(true),
        };
        flags.push((flag, given));
    }
    flags
}

/// Megatron's own settings of activation memory, those at its defaults left out.
fn activation_flags(settings: &ActivationSettings) -> Flags {
    let mut flags = Flags::new();
    let mut value = |flag: &str, value: String| flags.push((flag.to_owned(), Given::Value(value)));
    const GRANULARITY: &str = "--recompute-granularity";
    match &settings.recompute {
        Recompute::None => {}
        Recompute::Full { method, layers } => {
            let method = match method {
                Method::Uniform => "uniform",
                Method::Block => "block",
            };
            value(GRANULARITY, "full".to_owned());
            value("--recompute-method", method.to_owned());
            value("--recompute-num-layers", layers.to_string());
        }
        Recompute::Selective(modules) => {
            value(GRANULARITY, "selective".to_owned());
            value("--recompute-modules", names(modules));
        }
    }
    if let Some(Offload { modules, least_elements, delta_bytes, fraction_permille }) = &settings.offload {
        let default = Offload::default();
        value("--offload-modules", names(modules));
        for (flag, given, usual) in [
            ("--min-offloaded-tensor-size", *least_elements, default.least_elements),
            ("--delta-offload-bytes-across-pp-ranks", *delta_bytes, default.delta_bytes),
        ] {
            if given != usual {
                value(flag, given.to_string());
            }
        }
        if *fraction_permille != default.fraction_permille {
            let fraction = f64::from(*fraction_permille) / 1_000.0;
            value("--activation-offload-fraction", fraction.to_string());
        }
        flags.push(("--fine-grained-activation-offloading".to_owned(), Given::Switch(true)));
    }
    flags
}

fn names(modules: &[impl ToString]) -> String {
    modules.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
