//! Flags to distribution, with Megatron's defaults (`megatron/training/arguments.py`).

use super::ScriptError;
use super::build::Reader;
use crate::{Fp8, Fp8Recipe, GradientType, Layout, ModelConfig, Optimizer, Parallelism};

impl Reader<'_> {
    /// The distribution over `gpus` devices of a model with `layers` layers.
    pub fn parallelism(&self, gpus: u64, layers: u32) -> Result<Parallelism, ScriptError> {
        let ranks = |name| self.positive(name, self.or(name, 1)?);
        let tp = ranks("--tensor-model-parallel-size")?;
        let cp = ranks("--context-parallel-size")?;
        let ep = ranks("--expert-model-parallel-size")?;
        const PIPELINE: &str = "--pipeline-model-parallel-size";
        let pp = self.positive(PIPELINE, self.small(PIPELINE, 1)?)?;
        let micro_batch = self.positive("--micro-batch-size", self.needed("--micro-batch-size")?)?;
        let mut parallelism = Parallelism {
            gpus,
            tp,
            sequence_parallel: self.flags.switch("--sequence-parallel") && tp > 1,
            cp,
            ep,
            etp: 1,
            pp,
            chunks: self.chunks(pp, layers)?,
            group_size: self.small("--microbatch-group-size-per-virtual-pipeline-stage", pp)?,
            overlap_ep: self.flags.switch("--overlap-moe-expert-parallel-comm"),
            micro_batch,
            global_batch: 0,
            precision: self.precision(),
            gradients: if self.flags.switch("--grad-reduce-in-bf16") {
                GradientType::Bf16
            } else {
                GradientType::Fp32
            },
            distributed_optimizer: self.flags.switch("--use-distributed-optimizer"),
            optimizer: self.optimizer()?,
            fp8: self.fp8()?,
            fp8_activation_store: self.flags.switch("--activation-func-fp8-input-store"),
            layout: self.layout()?,
        };
        let experts = self.number::<u64>("--num-experts")?.is_some();
        parallelism.etp = self.or("--expert-tensor-parallel-size", if experts { tp } else { 1 })?;
        // Megatron's default is one micro-batch for each data-parallel rank.
        let one_each = micro_batch.saturating_mul(parallelism.dp().max(1));
        parallelism.global_batch = self.or("--global-batch-size", one_each)?;
        Ok(parallelism)
    }

    /// V, from the layers of a virtual stage or given as it is.
    fn chunks(&self, pp: u32, layers: u32) -> Result<u32, ScriptError> {
        const PER_STAGE: &str = "--num-layers-per-virtual-pipeline-stage";
        let Some(per_stage) = self.number::<u64>(PER_STAGE)? else {
            return self.small("--num-virtual-stages-per-pipeline-rank", 1);
        };
        let on_rank = u64::from(layers.checked_div(pp).unwrap_or(0));
        match on_rank.checked_div(per_stage) {
            Some(chunks) if chunks > 0 && chunks * per_stage == on_rank => Ok(chunks as u32),
            _ => Err(self.bad(PER_STAGE, "a divisor of the layers of a pipeline rank")),
        }
    }

    /// Megatron keeps state in other types only with its precision-aware optimizer.
    fn optimizer(&self) -> Result<Optimizer, ScriptError> {
        let aware = self.flags.switch("--use-precision-aware-optimizer");
        let bytes = |name| match self.text(name)? {
            Some("fp32") | None => Ok(4),
            _ if !aware => Ok(4),
            Some("bf16" | "fp16") => Ok(2),
            Some("fp8") => Ok(1),
            Some(_) => Err(self.bad(name, "fp32, bf16, fp16 or fp8")),
        };
        let moments = match self.text("--optimizer")? {
            Some("sgd") => [0, 0],
            // Muon's one moment is its momentum.
            Some(kind) if kind.contains("muon") => [4, 0],
            _ => [bytes("--exp-avg-dtype")?, bytes("--exp-avg-sq-dtype")?],
        };
        let host_permille = match self.flags.switch("--optimizer-cpu-offload") {
            true => self.permille("--optimizer-offload-fraction", 1_000)?.unwrap_or(1_000),
            false => 0,
        };
        Ok(Optimizer {
            main_bytes: bytes("--main-params-dtype")?,
            first_moment_bytes: moments[0],
            second_moment_bytes: moments[1],
            host_permille,
        })
    }

    fn fp8(&self) -> Result<Option<Fp8>, ScriptError> {
        match self.text("--fp8-format")? {
            None => return Ok(None),
            Some("e4m3" | "hybrid") => {}
            Some(_) => return Err(self.bad("--fp8-format", "e4m3 or hybrid")),
        }
        let recipe = match self.text("--fp8-recipe")? {
            None | Some("delayed") => Fp8Recipe::Delayed,
            Some("tensorwise") => Fp8Recipe::Tensorwise,
            Some("blockwise") => Fp8Recipe::Blockwise,
            Some("mxfp8") => Fp8Recipe::Mxfp8,
            Some(_) => return Err(self.bad("--fp8-recipe", "delayed, tensorwise, blockwise or mxfp8")),
        };
        Ok(Some(Fp8 { recipe, parameters: self.flags.switch("--fp8-param-gather") }))
    }

    fn layout(&self) -> Result<Layout, ScriptError> {
        let first = self.number("--decoder-first-pipeline-num-layers")?;
        let last = self.number("--decoder-last-pipeline-num-layers")?;
        if first.is_some() || last.is_some() {
            return Ok(Layout::Ends { first, last });
        }
        Ok(Layout::Even {
            embedding: self.flags.switch("--account-for-embedding-in-pipeline-split"),
            loss: self.flags.switch("--account-for-loss-in-pipeline-split"),
        })
    }

    /// How a dispatcher other than the one modelled differs; no matter where no rows leave the rank.
    pub fn dispatcher(
        &self,
        config: &ModelConfig,
        parallelism: &Parallelism,
    ) -> Result<Option<String>, ScriptError> {
        const DISPATCHER: &str = "--moe-token-dispatcher-type";
        let kind = self.text(DISPATCHER)?.unwrap_or("allgather");
        if config.moe.is_none() || kind == "alltoall" || parallelism.ep * parallelism.etp == 1 {
            return Ok(None);
        }
        Ok(Some(format!("{DISPATCHER} is {kind}: dispatch is modelled as all-to-all")))
    }
}
