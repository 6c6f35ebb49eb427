//! What recomputation leaves behind where there are experts.
//!
//! A dispatcher keeps the router's probabilities until the next micro-batch runs through it (`self.probs`, Megatron's
//! `moe/token_dispatcher.py`). Where a checkpoint ran the router again, autograd's graph leads from them to the inputs
//! that the checkpoint detached (`CheckpointFunction` in `tensor_parallel/random.py`), each with its gradient: two
//! hidden states for each unit of full recomputation, or for each layer whose module `moe` is recomputed, and twice as many
//! for a depth of multi-token prediction, which has two inputs. `scripts/saved-bytes/left_behind.py` counts them.

use super::curve::Setting;
use super::offload::Layers;

/// The most bytes that dispatchers of a rank hold of micro-batches that are done. The unit that runs holds none.
pub(super) fn left_behind(chunks: &[Layers<'_>]) -> u64 {
    let units = chunks.iter().flat_map(|layers| (0..layers.len()).map(|at| behind(layers, at)));
    let units: Vec<_> = units.filter(|&bytes| bytes > 0).collect();
    let all = units.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
    all - units.iter().min().unwrap_or(&0)
}

/// What is left of the unit that begins with the layer at `at`.
fn behind(layers: &[Setting<'_>], at: usize) -> u64 {
    let first = &layers[at];
    let left = match &first.unit {
        Some(unit) if unit.start == at => layers[unit.clone()].iter().any(|layer| layer.layer.routed),
        Some(_) => false,
        None => routes_again(first),
    };
    let inputs = ["input", "embedding_out"].into_iter().filter_map(|name| first.layer.tensor(name));
    let bytes = inputs.map(|tensor| first.layer.tensors[tensor].bytes.fixed);
    // Input and gradient.
    if left { bytes.fold(0u64, u64::saturating_add).saturating_mul(2) } else { 0 }
}

fn routes_again(setting: &Setting<'_>) -> bool {
    let again = |op| setting.recomputed.replays.iter().any(|replay| replay.ops.contains(op));
    setting.layer.routed && setting.layer.op("router").is_some_and(again)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::super::recompute::Recomputed;
    use super::*;
    use crate::settings::RecomputeModule;
    use crate::{Device, LayerType, Model, Preset};

    /// Layers of these kinds, in units of full recomputation.
    fn full<'a>(layers: &[&'a LayerType], units: &[Range<usize>]) -> Layers<'a> {
        let unit = |at| units.iter().find(|unit| unit.contains(&at)).cloned();
        let layers = layers.iter().enumerate().map(|(at, layer)| {
            let unit = unit(at);
            let first = unit.as_ref().is_some_and(|unit| unit.start == at);
            Setting { layer, recomputed: Recomputed::full(layer, first), unit }
        });
        layers.collect()
    }

    #[test]
    fn input_and_gradient_of_each_unit_but_the_one_that_runs() {
        let preset = Preset::named("deepseek-v3", None).expect("a preset");
        let device = Device::named("h100-80g").expect("a device");
        let model = Model::new(&preset.config, &preset.parallelism, &device).expect("a model");
        let kind = |name| model.types.iter().find(|layer| layer.name == name).expect("a layer type");
        let (dense, moe, mtp) = (kind("dense"), kind("moe"), kind("mtp"));
        let both = 2 * (2 * u64::from(model.tokens) * preset.config.hidden);
        let of = |chunks: &[Layers<'_>]| left_behind(chunks);
        let three = || full(&[moe; 3], &[0..1, 1..2, 2..3]);
        assert_eq!(of(&[three()]), 2 * both);
        assert_eq!(of(&[three(), three()]), 5 * both);
        // Two layers a unit have one input.
        assert_eq!(of(&[full(&[moe; 4], &[0..2, 2..4])]), both);
        assert_eq!(of(&[full(&[dense; 4], &[0..1, 1..2, 2..3, 3..4])]), 0);
        assert_eq!(of(&[full(&[dense, moe, dense, moe], &[0..2, 2..4])]), both);
        // The last unit has a depth of multi-token prediction and two inputs.
        assert_eq!(of(&[full(&[moe, mtp, moe], &[0..1, 1..3])]), 2 * both);
        let module = |module| {
            let recomputed = || Recomputed::selective(moe, &[module], true);
            let setting = || Setting { layer: moe, recomputed: recomputed(), unit: None };
            of(&[vec![setting(), setting()]])
        };
        assert_eq!(module(RecomputeModule::Moe), both);
        assert_eq!(module(RecomputeModule::SharedExperts), 0);
        assert_eq!(module(RecomputeModule::Layernorm), 0);
    }
}
