//! Megatron's own settings of activation memory, and what they make of an iteration.
//!
//! A plan replaces them, so that the user can compare: [`Configured`] says what the settings that a script
//! gives would hold, peak at and cost. Settings are static: equal for all micro-batches, whatever their rows.
//! Rules and meanings are those of Megatron-core 0.14 to 0.19 (`transformer_config.py`); the file of each
//! mechanism says where it is in Megatron.

mod configured;
mod curve;
mod left_behind;
mod modules;
mod offload;
mod overlap;
mod recompute;
mod reload;

pub use configured::{Configured, SettingsError};
pub use modules::{OffloadModule, RecomputeModule};

use std::borrow::Cow;
use std::fmt;

use crate::parallel::unsupported;
use crate::{Fp8Recipe, LayerType, Model, ModelConfig, ModelError, Parallelism};

/// What a script says about activation memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActivationSettings {
    /// Recomputation.
    pub recompute: Recompute,
    /// Fine-grained offloading (`--fine-grained-activation-offloading`).
    pub offload: Option<Offload>,
}

impl Default for ActivationSettings {
    /// Everything is kept.
    fn default() -> Self {
        Self { recompute: Recompute::None, offload: None }
    }
}

/// Megatron's recomputation (`--recompute-granularity`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Recompute {
    /// None.
    #[default]
    None,
    /// Whole layers.
    Full {
        /// Which layers (`--recompute-method`).
        method: Method,
        /// Layers of a unit, or of a stage (`--recompute-num-layers`).
        layers: u32,
    },
    /// Parts of every layer (`--recompute-modules`), each once.
    Selective(Vec<RecomputeModule>),
}

/// Which layers full recomputation runs again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// All; of so many layers in a row only the first one's input is kept.
    Uniform,
    /// The first so many of each virtual stage.
    Block,
}

/// Megatron's fine-grained offloading.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offload {
    /// Whose saved tensors are offloaded (`--offload-modules`), each once.
    pub modules: Vec<OffloadModule>,
    /// Elements of the smallest tensor that is (`--min-offloaded-tensor-size`).
    pub least_elements: u64,
    /// Bytes that each pipeline rank offloads less than the one before
    /// (`--delta-offload-bytes-across-pp-ranks`).
    pub delta_bytes: u64,
    /// Share of the groups that are offloaded, in thousandths (`--activation-offload-fraction`).
    pub fraction_permille: u32,
}

impl Default for Offload {
    /// Megatron's defaults.
    fn default() -> Self {
        Self { modules: Vec::new(), least_elements: 1 << 20, delta_bytes: 0, fraction_permille: 1_000 }
    }
}

impl ActivationSettings {
    /// Whether everything is kept.
    pub fn keeps_all(&self) -> bool {
        self.recompute == Recompute::None && self.offload.is_none()
    }

    /// Checks Megatron's rules between these settings, the shape and its distribution.
    pub fn check(&self, config: &ModelConfig, parallelism: &Parallelism) -> Result<(), ModelError> {
        match &self.recompute {
            Recompute::None => {}
            Recompute::Full { method, layers } => check_full(*method, *layers, config, parallelism)?,
            Recompute::Selective(modules) => check_selective(modules, config, parallelism)?,
        }
        match &self.offload {
            Some(offload) => self.check_offload(offload, parallelism),
            None => Ok(()),
        }
    }

    fn recomputes(&self, module: RecomputeModule) -> bool {
        matches!(&self.recompute, Recompute::Selective(modules) if modules.contains(&module))
    }

    /// The layers of `model` as they save under these settings.
    ///
    /// So that one copy leaves and not several, experts whose first linear layer is offloaded save its input
    /// itself in FP8 training, except with MXFP8 (Megatron's `moe/experts.py`).
    fn layer_types<'m>(&self, model: &'m Model) -> Cow<'m, [LayerType]> {
        let recipe = model.parallelism.fp8.map(|fp8| fp8.recipe);
        let offloaded = self.offload.as_ref().is_some_and(|o| o.modules.contains(&OffloadModule::ExpertFc1));
        if !offloaded || matches!(recipe, None | Some(Fp8Recipe::Mxfp8)) {
            return Cow::Borrowed(&model.types);
        }
        let original = |layer: &LayerType| match layer.routed {
            true => layer.saving_original_input("fc1").unwrap_or_else(|| layer.clone()),
            false => layer.clone(),
        };
        Cow::Owned(model.types.iter().map(original).collect())
    }

    fn check_offload(&self, offload: &Offload, parallelism: &Parallelism) -> Result<(), ModelError> {
        use OffloadModule::{AttnProj, CoreAttn, ExpertFc1, FusedGroupMlp, MoeAct};
        let refused =
            |module: OffloadModule, rule, fix| Err(unsupported("offload_modules", module, rule, fix));
        let given = |module| offload.modules.contains(&module);
        let inside = [ExpertFc1, MoeAct, FusedGroupMlp].into_iter().find(|&module| given(module));
        if offload.fraction_permille > 1_000 {
            let (value, most) = (offload.fraction_permille.into(), 1_000);
            return Err(ModelError::OutOfRange {
                field: "activation_offload_fraction ‰",
                value,
                least: 0,
                most,
            });
        }
        if offload.modules.is_empty() {
            let (rule, fix) = ("Megatron asks for at least one", "give --offload-modules");
            return Err(unsupported("offload_modules", "empty", rule, fix));
        }
        if !parallelism.libraries.transformer_engine {
            let rule = "fine-grained offloading needs Transformer Engine";
            return Err(unsupported("transformer_impl", "local", rule, "drop --transformer-impl local"));
        }
        if matches!(self.recompute, Recompute::Full { .. }) {
            let (rule, fix) = ("full recomputation saves nothing inside a layer", "drop one of the two");
            return Err(unsupported("offload_modules", "given", rule, fix));
        }
        if given(AttnProj) && !given(CoreAttn) {
            let rule = "its input is the output of core_attn, whose backward needs it too";
            return refused(AttnProj, rule, "add core_attn");
        }
        if given(ExpertFc1) && parallelism.fp8.is_some_and(|fp8| fp8.recipe == Fp8Recipe::Delayed) {
            let rule = "Transformer Engine cannot save its input itself with delayed FP8 scales";
            return refused(ExpertFc1, rule, "give another --fp8-recipe, or drop it");
        }
        if let (Some(module), true) = (inside, self.recomputes(RecomputeModule::Moe)) {
            let rule = "it is inside moe, which is recomputed";
            return refused(module, rule, "drop it, or moe of --recompute-modules");
        }
        if given(FusedGroupMlp) && (given(ExpertFc1) || given(MoeAct)) {
            let rule = "it offloads all that expert_fc1 and moe_act do";
            return refused(FusedGroupMlp, rule, "drop expert_fc1 and moe_act");
        }
        Ok(())
    }
}

impl fmt::Display for ActivationSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.recompute {
            Recompute::None => f.write_str("no recomputation")?,
            Recompute::Full { method: Method::Uniform, layers } => {
                write!(f, "full recomputation, uniform, {layers}")?
            }
            Recompute::Full { method: Method::Block, layers } => {
                write!(f, "full recomputation, block, {layers}")?
            }
            Recompute::Selective(modules) => write!(f, "selective recomputation of {}", names(modules))?,
        }
        match &self.offload {
            None => Ok(()),
            Some(offload) => write!(f, "; offloading of {}", names(&offload.modules)),
        }
    }
}

fn names(modules: &[impl ToString]) -> String {
    match modules {
        [] => "nothing".to_owned(),
        modules => modules.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    }
}

fn check_full(
    method: Method,
    layers: u32,
    config: &ModelConfig,
    parallelism: &Parallelism,
) -> Result<(), ModelError> {
    if layers == 0 || layers > config.layers {
        let (value, most) = (layers.into(), config.layers.into());
        return Err(ModelError::OutOfRange { field: "recompute_num_layers", value, least: 1, most });
    }
    if method == Method::Uniform && layers > 1 && config.mtp_layers > 0 {
        let rule = "multi-token prediction is recomputed by single layers";
        return Err(unsupported("recompute_num_layers", layers, rule, "give 1"));
    }
    if parallelism.overlap_ep {
        let rule = "it does not go with --overlap-moe-expert-parallel-comm";
        return Err(unsupported("recompute_granularity", "full", rule, "give selective"));
    }
    Ok(())
}

fn check_selective(
    modules: &[RecomputeModule],
    config: &ModelConfig,
    parallelism: &Parallelism,
) -> Result<(), ModelError> {
    use RecomputeModule::{Layernorm, MlaUpProj, Moe, MoeAct};
    let refused =
        |module: RecomputeModule, rule, fix| Err(unsupported("recompute_modules", module, rule, fix));
    let given = |module| modules.contains(&module);
    if given(MlaUpProj) && config.mla.is_none() {
        return refused(MlaUpProj, "it is a module of multi-latent attention", "drop it");
    }
    if given(Moe) && parallelism.overlap_ep {
        return refused(Moe, "it does not go with --overlap-moe-expert-parallel-comm", "drop it");
    }
    let delayed = parallelism.fp8.is_some_and(|fp8| fp8.recipe == Fp8Recipe::Delayed);
    match [MoeAct, Layernorm].into_iter().find(|&module| delayed && given(module)) {
        Some(module) => {
            refused(module, "delayed FP8 scales cannot be found twice", "give another --fp8-recipe")
        }
        None => Ok(()),
    }
}
