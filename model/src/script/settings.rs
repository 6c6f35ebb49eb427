//! Flags to Megatron's own settings of activation memory, with its defaults and older names.

use super::ScriptError;
use super::build::Reader;
use crate::settings::{ActivationSettings, Method, Offload, OffloadModule, Recompute, RecomputeModule};

const GRANULARITY: &str = "--recompute-granularity";
const LAYERS: &str = "--recompute-num-layers";
const METHOD: &str = "--recompute-method";
const MODULES: &str = "--recompute-modules";
const OFFLOADED: &str = "--offload-modules";

impl Reader<'_> {
    /// The settings that a plan replaces.
    pub fn settings(&self) -> Result<ActivationSettings, ScriptError> {
        Ok(ActivationSettings { recompute: self.recompute()?, offload: self.offload()? })
    }

    fn recompute(&self) -> Result<Recompute, ScriptError> {
        let oldest = self.flags.switch("--checkpoint-activations");
        let moe = self.flags.switch("--moe-layer-recompute");
        // As in Megatron, the switch overrules the granularity.
        let granularity = match self.flags.switch("--recompute-activations") {
            true => Some("selective"),
            false => self.text(GRANULARITY)?,
        };
        match granularity {
            Some("full") if moe => {
                Err(self.bad(GRANULARITY, "selective: --moe-layer-recompute does not go with full"))
            }
            Some("full") => self.full(),
            Some("selective") => self.selective(moe),
            Some(_) => Err(self.bad(GRANULARITY, "full or selective")),
            None if moe => self.selective(moe),
            None if oldest => Ok(Recompute::Full {
                method: Method::Uniform,
                layers: self.small("--checkpoint-num-layers", 1)?,
            }),
            None => Ok(Recompute::None),
        }
    }

    fn full(&self) -> Result<Recompute, ScriptError> {
        let method = match self.text(METHOD)? {
            Some("uniform") => Method::Uniform,
            Some("block") => Method::Block,
            Some(_) => return Err(self.bad(METHOD, "uniform or block")),
            None => return Err(ScriptError::Missing { flag: METHOD }),
        };
        let layers = self.number(LAYERS)?.ok_or(ScriptError::Missing { flag: LAYERS })?;
        Ok(Recompute::Full { method, layers: self.positive(LAYERS, layers)? })
    }

    fn selective(&self, moe: bool) -> Result<Recompute, ScriptError> {
        for flag in [LAYERS, METHOD] {
            if self.flags.switch(flag) {
                return Err(self.bad(flag, "nothing there: it belongs to full recomputation"));
            }
        }
        let mut modules = Vec::new();
        for word in self.flags.list(MODULES, self.environment)? {
            let module = RecomputeModule::ALL.into_iter().find(|module| module.name() == word);
            modules.push(module.ok_or_else(|| self.no_module(MODULES, word))?);
        }
        if !self.flags.switch(MODULES) {
            modules.push(RecomputeModule::CoreAttn);
        }
        if moe {
            modules.push(RecomputeModule::Moe);
        }
        modules.sort_unstable();
        modules.dedup();
        if modules.contains(&RecomputeModule::MoeAct) && !self.flags.switch("--moe-grouped-gemm") {
            return Err(self.bad_list(MODULES, "them without moe_act, which needs --moe-grouped-gemm"));
        }
        let shared = self.or("--moe-shared-expert-intermediate-size", 0)? > 0;
        if modules.contains(&RecomputeModule::SharedExperts)
            && shared
            && self.flags.switch("--moe-shared-expert-overlap")
        {
            let expected = "them without shared_experts, or drop --moe-shared-expert-overlap";
            return Err(self.bad_list(MODULES, expected));
        }
        Ok(Recompute::Selective(modules))
    }

    fn offload(&self) -> Result<Option<Offload>, ScriptError> {
        if !self.flags.switch("--fine-grained-activation-offloading") {
            return Ok(None);
        }
        let mut modules = Vec::new();
        for word in self.flags.list(OFFLOADED, self.environment)? {
            let module = OffloadModule::ALL.into_iter().find(|module| module.name() == word);
            modules.push(module.ok_or_else(|| self.no_module(OFFLOADED, word))?);
        }
        modules.sort_unstable();
        modules.dedup();
        let fused = modules.contains(&OffloadModule::FusedGroupMlp);
        if fused && !self.flags.switch("--use-transformer-engine-op-fuser") {
            return Err(self.bad_list(
                OFFLOADED,
                "them without fused_group_mlp, which needs --use-transformer-engine-op-fuser",
            ));
        }
        let default = Offload::default();
        Ok(Some(Offload {
            modules,
            least_elements: self.or("--min-offloaded-tensor-size", default.least_elements)?,
            delta_bytes: self.or("--delta-offload-bytes-across-pp-ranks", default.delta_bytes)?,
            fraction_permille: self.fraction("--activation-offload-fraction")?,
        }))
    }

    /// Like `bad`, with all values of a list.
    fn bad_list(&self, flag: &'static str, expected: &'static str) -> ScriptError {
        let value = self.flags.list(flag, self.environment).unwrap_or_default().join(" ");
        ScriptError::BadValue { flag, value, expected }
    }

    /// Megatron-core 0.19 and later name modules of layers that are not modelled, among others.
    fn no_module(&self, flag: &'static str, word: &str) -> ScriptError {
        let expected = match (flag, word) {
            (_, "gdn_norm_out" | "gdp_in_proj" | "gdp_qkv" | "mhc") => {
                "a module of attention, MLP or MoE: gated delta nets and hyper-connections are not modelled"
            }
            (MODULES, _) => "core_attn, moe_act, layernorm, mla_up_proj, mlp, moe or shared_experts",
            _ => {
                "attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act or fused_group_mlp"
            }
        };
        ScriptError::BadValue { flag, value: word.to_owned(), expected }
    }
}
