//! Flags to distribution, with Megatron's defaults (`megatron/training/arguments.py`).

use super::ScriptError;
use super::build::Reader;
use crate::layout;
use crate::{
    Fp8, Fp8Recipe, GradientType, Layout, Libraries, ModelConfig, Optimizer, Parallelism, RowPadding,
};

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
        let layout = self.layout()?;
        let experts = self.or("--num-experts", 0)? > 0;
        let mut parallelism = Parallelism {
            gpus,
            tp,
            sequence_parallel: self.flags.switch("--sequence-parallel") && tp > 1,
            cp,
            ep,
            etp: 1,
            pp,
            chunks: self.chunks(pp, layers, &layout)?,
            group_size: self.small("--microbatch-group-size-per-virtual-pipeline-stage", pp)?,
            overlap_ep: self.flags.switch("--overlap-moe-expert-parallel-comm"),
            micro_batch,
            global_batch: 0,
            precision: self.precision(),
            gradients: self.gradients()?,
            fp16: self.flags.switch("--fp16"),
            distributed_optimizer: self.flags.switch("--use-distributed-optimizer"),
            optimizer: self.optimizer()?,
            fused_gradients: !self.flags.switch("--no-gradient-accumulation-fusion"),
            libraries: self.libraries(experts)?,
            fp8: self.fp8()?,
            row_padding: self.row_padding()?,
            fp8_activation_store: self.flags.switch("--activation-func-fp8-input-store"),
            layout,
        };
        parallelism.etp = self.or("--expert-tensor-parallel-size", if experts { tp } else { 1 })?;
        // Megatron's default is one micro-batch for each data-parallel rank.
        let one_each = micro_batch.saturating_mul(parallelism.dp().max(1));
        parallelism.global_batch = self.or("--global-batch-size", one_each)?;
        Ok(parallelism)
    }

    /// Which libraries run the layers.
    fn libraries(&self, experts: bool) -> Result<Libraries, ScriptError> {
        Ok(Libraries {
            transformer_engine: self.text("--transformer-impl")? != Some("local"),
            grouped_gemm: experts && self.flags.switch("--moe-grouped-gemm"),
        })
    }

    /// V: from the layout, from the layers of a virtual stage, or given as it is.
    fn chunks(&self, pp: u32, layers: u32, layout: &Layout) -> Result<u32, ScriptError> {
        let per_stage = self.number::<u64>(PER_STAGE)?;
        let counted = match layout {
            Layout::Stages(stages) => return self.listed_chunks(pp, stages.len()),
            Layout::Ends { .. } if per_stage.is_some() => return Err(self.conflict(PER_STAGE, &ENDS)),
            Layout::Ends { .. } => 0,
            Layout::Even { embedding, loss } => u64::from(layers) + u64::from(*embedding) + u64::from(*loss),
        };
        let Some(per_stage) = per_stage else { return self.small(VIRTUAL_STAGES, 1) };
        let stages = u64::from(pp).checked_mul(per_stage).and_then(|one_each| counted.checked_div(one_each));
        match stages.and_then(|chunks| u32::try_from(chunks).ok()) {
            Some(chunks) if u64::from(chunks) * u64::from(pp) * per_stage == counted => Ok(chunks),
            _ => Err(self.bad(PER_STAGE, "a divisor of the layers of a pipeline rank")),
        }
    }

    /// V of a layout with so many stages.
    fn listed_chunks(&self, pp: u32, stages: usize) -> Result<u32, ScriptError> {
        let chunks = stages / pp as usize;
        if chunks * pp as usize != stages {
            return Err(ScriptError::Stages { stages, pp });
        }
        match self.number::<usize>(VIRTUAL_STAGES)? {
            Some(given) if given != chunks => {
                Err(self.bad(VIRTUAL_STAGES, "the stages of the layout over PP, or leave it out"))
            }
            _ => u32::try_from(chunks).map_err(|_| self.bad(LAYOUT, "fewer stages")),
        }
    }

    /// The type of the gradient buffer: FP32 with BF16 and FP32, that of the parameters with FP16.
    fn gradients(&self) -> Result<GradientType, ScriptError> {
        const MAIN: &str = "--main-grads-dtype";
        let narrow = match self.text(MAIN)? {
            None | Some("fp32") => false,
            Some("bf16" | "fp16") => self.flags.switch(AWARE),
            Some(_) => return Err(self.bad(MAIN, "fp32, bf16 or fp16")),
        };
        let wide = self.flags.switch("--accumulate-allreduce-grads-in-fp32");
        let half = self.flags.switch("--fp16") && !wide;
        Ok(if self.flags.switch("--grad-reduce-in-bf16") || half || (narrow && !wide) {
            GradientType::Bf16
        } else {
            GradientType::Fp32
        })
    }

    /// Megatron keeps state in other types only with its precision-aware optimizer, and all of it in FP32 where
    /// a part is on the host (`hybrid_optimizer.py`).
    fn optimizer(&self) -> Result<Optimizer, ScriptError> {
        const OFFLOAD: &str = "--optimizer-cpu-offload";
        let (aware, host) = (self.flags.switch(AWARE), self.flags.switch(OFFLOAD));
        for (given, flag, other) in [(host, OFFLOAD, AWARE), (aware, AWARE, "--use-distributed-optimizer")] {
            if given && !self.flags.switch(other) {
                return Err(ScriptError::Needs { flag, other });
            }
        }
        let bytes = |name| match self.text(name)? {
            Some("fp32") | None => Ok(4),
            Some("bf16" | "fp16") => Ok(2),
            Some("fp8") => Ok(1),
            Some(_) => Err(self.bad(name, "fp32, bf16, fp16 or fp8")),
        };
        let [main, first, second] =
            [bytes("--main-params-dtype")?, bytes("--exp-avg-dtype")?, bytes("--exp-avg-sq-dtype")?];
        let (main, first, second) = match (host, aware) {
            (false, true) => (if main == 4 { self.main_remainder()? } else { main }, first, second),
            _ => (4, 4, 4),
        };
        let moments = match self.text("--optimizer")? {
            Some("sgd") if self.number::<f64>("--sgd-momentum")?.unwrap_or(0.9) == 0.0 => [0, 0],
            // One moment: the momentum.
            Some(kind) if kind == "sgd" || kind == "lion" || kind.contains("muon") => [4, 0],
            _ => [first, second],
        };
        let host_permille = match host {
            true => self.fraction("--optimizer-offload-fraction")?,
            false => 0,
        };
        Ok(Optimizer {
            main_bytes: main,
            first_moment_bytes: moments[0],
            second_moment_bytes: moments[1],
            host_permille,
        })
    }

    /// Bytes that Transformer Engine's optimizer keeps of an FP32 parameter beside a BF16 one: the other half of
    /// it (`store_param_remainders`). Beside FP16 it keeps all of it, and so it does beside an FP8 one, which has
    /// no such half. With a recipe of FP8 other than delayed, in use or not, Megatron holds them itself, in FP32
    /// (`optimizer_config.py`).
    fn main_remainder(&self) -> Result<u64, ScriptError> {
        let delayed = matches!(self.text("--fp8-recipe")?, None | Some("delayed"));
        let in_fp8 = self.flags.switch("--fp8-format") && self.flags.switch("--fp8-param-gather");
        Ok(if self.flags.switch("--bf16") && delayed && !in_fp8 { 2 } else { 4 })
    }

    fn fp8(&self) -> Result<Option<Fp8>, ScriptError> {
        const GATHER: &str = "--fp8-param-gather";
        let parameters = self.flags.switch(GATHER);
        for other in ["--fp8-format", "--use-distributed-optimizer"] {
            if parameters && !self.flags.switch(other) {
                return Err(ScriptError::Needs { flag: GATHER, other });
            }
        }
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
        Ok(Some(Fp8 { recipe, parameters }))
    }

    /// What Megatron rounds an expert's rows up to in FP8 training (`moe_utils.py`, `moe/experts.py`).
    fn row_padding(&self) -> Result<RowPadding, ScriptError> {
        let Some(fp8) = self.fp8()? else { return Ok(RowPadding::default()) };
        let multiple = match fp8.recipe {
            _ if self.flags.switch("--use-transformer-engine-op-fuser") => 256,
            Fp8Recipe::Mxfp8 => 32,
            Fp8Recipe::Delayed | Fp8Recipe::Tensorwise | Fp8Recipe::Blockwise => 16,
        };
        Ok(RowPadding { multiple, by_router: self.flags.switch("--moe-router-padding-for-quantization") })
    }

    fn layout(&self) -> Result<Layout, ScriptError> {
        if let Some(text) = self.text(LAYOUT)? {
            let others = [&ENDS[..], &COUNTED, &[PER_STAGE]].concat();
            if others.iter().any(|other| self.flags.switch(other)) {
                return Err(self.conflict(LAYOUT, &others));
            }
            return layout::parse(text).map(Layout::Stages).map_err(|expected| self.bad(LAYOUT, expected));
        }
        let [first, last] = [self.number(ENDS[0])?, self.number(ENDS[1])?];
        if first.is_none() && last.is_none() {
            let [embedding, loss] = COUNTED.map(|flag| self.flags.switch(flag));
            return Ok(Layout::Even { embedding, loss });
        }
        match COUNTED.iter().any(|flag| self.flags.switch(flag)) {
            true => Err(self.conflict(if first.is_some() { ENDS[0] } else { ENDS[1] }, &COUNTED)),
            false => Ok(Layout::Ends { first, last }),
        }
    }

    /// How a dispatcher other than the one modelled differs; no matter where no rows leave the rank.
    pub fn dispatcher(
        &self,
        config: &ModelConfig,
        parallelism: &Parallelism,
    ) -> Result<Option<String>, ScriptError> {
        const DISPATCHER: &str = "--moe-token-dispatcher-type";
        let kind = self.text(DISPATCHER)?.unwrap_or("allgather");
        if parallelism.overlap_ep && !matches!(kind, "alltoall" | "flex") {
            let expected = "alltoall or flex with --overlap-moe-expert-parallel-comm";
            return Err(ScriptError::BadValue { flag: DISPATCHER, value: kind.to_owned(), expected });
        }
        let alone = parallelism.ep == 1 && parallelism.etp == 1;
        if config.moe.is_none() || kind == "alltoall" || alone {
            return Ok(None);
        }
        Ok(Some(format!("{DISPATCHER} is {kind}: dispatch is modelled as all-to-all")))
    }

    /// How a shared expert beside dispatch differs from the one modelled.
    pub fn shared_overlap(&self, parallelism: &Parallelism) -> Result<Option<String>, ScriptError> {
        const SHARED: &str = "--moe-shared-expert-overlap";
        if !self.flags.switch(SHARED) {
            return Ok(None);
        }
        if parallelism.overlap_ep {
            let (other, rule) = ("--overlap-moe-expert-parallel-comm", "another overlap of dispatch");
            return Err(ScriptError::Conflict { flag: SHARED, other, rule });
        }
        Ok(Some(format!("{SHARED}: the shared expert is modelled before the routed ones")))
    }

    /// `flag`, which is given, with the first of `others` that is.
    fn conflict(&self, flag: &'static str, others: &[&'static str]) -> ScriptError {
        let other = others.iter().copied().find(|other| self.flags.switch(other)).unwrap_or_default();
        ScriptError::Conflict { flag, other, rule: "which also divides the layers" }
    }
}

const AWARE: &str = "--use-precision-aware-optimizer";
const LAYOUT: &str = "--pipeline-model-parallel-layout";
const PER_STAGE: &str = "--num-layers-per-virtual-pipeline-stage";
const VIRTUAL_STAGES: &str = "--num-virtual-stages-per-pipeline-rank";
const ENDS: [&str; 2] = ["--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"];
const COUNTED: [&str; 2] =
    ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"];
