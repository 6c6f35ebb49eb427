//! Which layers each virtual stage of the pipeline runs.
//!
//! The rules are those of Megatron's `transformer_block.py` (`get_num_layers_to_build`),
//! `transformer_config.py` and `pipeline_parallel_layer_layout.py`.

mod text;

use crate::config::MAX_LAYERS;
use crate::parallel::{divides, in_range, unsupported};
use crate::{ModelConfig, ModelError, Parallelism};

pub(crate) use text::{parse, text};

/// Which layers a virtual stage runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Equally many; embedding and loss each count as a layer where so given
    /// (`--account-for-embedding-in-pipeline-split`, `--account-for-loss-in-pipeline-split`).
    Even {
        /// Whether the embedding counts.
        embedding: bool,
        /// Whether the loss counts.
        loss: bool,
    },
    /// So many on the first and on the last pipeline rank, the others equally
    /// (`--decoder-first-pipeline-num-layers`, `--decoder-last-pipeline-num-layers`).
    Ends {
        /// Layers of the first rank, over all its chunks.
        first: Option<u32>,
        /// Layers of the last rank, over all its chunks.
        last: Option<u32>,
    },
    /// As listed, in the order of the virtual stages: chunk · PP + rank
    /// (`--pipeline-model-parallel-layout`).
    Stages(Vec<StageLayout>),
}

impl Default for Layout {
    fn default() -> Self {
        Self::Even { embedding: false, loss: false }
    }
}

/// What one virtual stage runs; nothing at all is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StageLayout {
    /// The embedding.
    pub embedding: bool,
    /// Transformer layers.
    pub layers: u32,
    /// Layers of multi-token prediction.
    pub mtp: u32,
    /// Output layer and loss; without multi-token prediction the final norm too.
    pub loss: bool,
}

impl Parallelism {
    /// What every virtual stage runs, in their order: stage chunk · PP + rank. Their layers are numbered in
    /// that order.
    pub fn stage_layouts(&self, config: &ModelConfig) -> Result<Vec<StageLayout>, ModelError> {
        let stages = u64::from(self.pp) * u64::from(self.chunks);
        // The embedding and the loss may each have a stage of their own.
        in_range("pp·chunks", stages, 1, MAX_LAYERS + 2)?;
        let mut layouts = match &self.layout {
            Layout::Stages(layouts) => {
                self.check_listed(config, layouts)?;
                return Ok(layouts.clone());
            }
            Layout::Even { embedding, loss } => self.even(config, *embedding, *loss)?,
            Layout::Ends { first, last } => self.ends(config, *first, *last)?,
        };
        if let Some(first) = layouts.first_mut() {
            first.embedding = true;
        }
        if let Some(last) = layouts.last_mut() {
            (last.mtp, last.loss) = (config.mtp_layers, true);
        }
        Ok(layouts)
    }

    fn even(
        &self,
        config: &ModelConfig,
        embedding: bool,
        loss: bool,
    ) -> Result<Vec<StageLayout>, ModelError> {
        let stages = self.pp * self.chunks;
        let counted = config.layers.saturating_add(u32::from(embedding) + u32::from(loss));
        if !counted.is_multiple_of(stages) {
            return Err(ModelError::Uneven {
                layers: config.layers,
                counted,
                pp: self.pp,
                chunks: self.chunks,
                layout: balanced(config, stages).map(|layouts| text(&layouts)),
            });
        }
        let mut layouts =
            vec![StageLayout { layers: counted / stages, ..StageLayout::default() }; stages as usize];
        if let (true, Some(first)) = (embedding, layouts.first_mut()) {
            first.layers -= 1;
        }
        if let (true, Some(last)) = (loss, layouts.last_mut()) {
            last.layers -= 1;
        }
        Ok(layouts)
    }

    fn ends(
        &self,
        config: &ModelConfig,
        first: Option<u32>,
        last: Option<u32>,
    ) -> Result<Vec<StageLayout>, ModelError> {
        let most = u64::from(config.layers);
        for (field, given) in [(FIRST, first), (LAST, last)] {
            if let Some(layers) = given {
                in_range(field, layers.into(), 1, most)?;
                divides(field, layers.into(), "chunks", self.chunks.into(), PER_CHUNK)?;
            }
        }
        let named = u32::from(first.is_some()) + u32::from(last.is_some());
        let between = self.pp.saturating_sub(named);
        if named > self.pp {
            let rule = "one pipeline rank cannot be given layers both as the first and as the last";
            return Err(unsupported(LAST, last.unwrap_or(0), rule, "raise PP or give neither"));
        }
        let given = first.unwrap_or(0).saturating_add(last.unwrap_or(0));
        let rest = config.layers.checked_sub(given).filter(|&rest| (rest == 0) == (between == 0));
        let Some(rest) = rest else {
            let rule =
                "the ranks between the first and the last must have layers, and all layers must have a rank";
            return Err(unsupported(
                "layers of the first and last rank",
                given,
                rule,
                "change them, PP or the layers",
            ));
        };
        let middle = match between {
            0 => 0,
            _ => {
                divides(
                    "layers between the first and the last rank",
                    rest.into(),
                    "their ranks",
                    between.into(),
                    ENDS,
                )?;
                rest / between
            }
        };
        divides("layers of a middle rank", middle.into(), "chunks", self.chunks.into(), PER_CHUNK)?;
        let of_rank = |rank| match (first, last) {
            (Some(first), _) if rank == 0 => first,
            (_, Some(last)) if rank == self.pp - 1 => last,
            _ => middle,
        };
        let per_chunk = |rank| StageLayout { layers: of_rank(rank) / self.chunks, ..StageLayout::default() };
        Ok((0..self.chunks).flat_map(|_| (0..self.pp).map(per_chunk)).collect())
    }

    /// A listed layout runs every layer once, in order.
    fn check_listed(&self, config: &ModelConfig, layouts: &[StageLayout]) -> Result<(), ModelError> {
        let wrong =
            |value: String, rule, fix| Err(ModelError::Unsupported { field: LAYOUT, value, rule, fix });
        let shown = || text(layouts);
        let stages = layouts.len() as u64;
        if stages != u64::from(self.pp) * u64::from(self.chunks) {
            let value = format!("{stages} stages for pp·chunks = {}·{}", self.pp, self.chunks);
            return wrong(
                value,
                "it lists every virtual stage once",
                "give PP·V stages, with | between them",
            );
        }
        let last = layouts.len().saturating_sub(1);
        let ends =
            layouts.iter().enumerate().all(|(at, s)| s.embedding == (at == 0) && s.loss == (at == last));
        if !ends {
            let rule = "the embedding is on the first virtual stage and the loss on the last, each once";
            return wrong(shown(), rule, "begin with E and end with L");
        }
        for (what, field, given) in [
            ("layers (t)", u64::from(config.layers), sum(layouts, |s| s.layers)),
            ("layers of multi-token prediction (m)", config.mtp_layers.into(), sum(layouts, |s| s.mtp)),
        ] {
            if field != given {
                let value = format!("{} with {given} {what} for a model with {field}", shown());
                return wrong(value, "it lists every layer once", "list as many as the model has");
            }
        }
        let Some(mtp) = layouts.iter().position(|s| s.mtp > 0) else { return Ok(()) };
        if layouts[mtp + 1..].iter().any(|s| s.mtp > 0 || s.layers > 0) {
            let rule = "all layers of multi-token prediction are on one stage, behind all transformer layers";
            return wrong(shown(), rule, "put every m on the last stage with t or behind it");
        }
        if mtp < layouts.len() - self.pp as usize {
            let rule = "multi-token prediction is in the last chunk of its rank";
            return wrong(shown(), rule, "put every m on one of the last PP stages");
        }
        Ok(())
    }
}

const FIRST: &str = "decoder_first_pipeline_num_layers";
const LAST: &str = "decoder_last_pipeline_num_layers";
const LAYOUT: &str = "pipeline_model_parallel_layout";
const PER_CHUNK: &str = "every chunk of a rank takes equally many layers; change V or the layers of the rank";
const ENDS: &str = "change PP or the layers of the first and last rank, or give a layout";

fn sum(layouts: &[StageLayout], part: fn(&StageLayout) -> u32) -> u64 {
    layouts.iter().map(|stage| u64::from(part(stage))).sum()
}

/// Layers as evenly as they go over `stages`, the ends first to have fewer; none where a stage would be empty.
fn balanced(config: &ModelConfig, stages: u32) -> Option<Vec<StageLayout>> {
    let (each, more) = (config.layers / stages, config.layers % stages);
    if each == 0 {
        return None;
    }
    // The stage of the embedding is the last to get one more, that of the loss the last but one.
    let gets = |at: u32| at > 0 && at <= more;
    let mut layouts: Vec<_> = (0..stages)
        .map(|at| StageLayout { layers: each + u32::from(gets(at)), ..StageLayout::default() })
        .collect();
    layouts.first_mut()?.embedding = true;
    let last = layouts.last_mut()?;
    (last.mtp, last.loss) = (config.mtp_layers, true);
    Some(layouts)
}
