//! The order in which a rank runs an iteration: event by event, or, with
//! `--overlap-moe-expert-parallel-comm`, a forward layer by layer beside a backward.
//!
//! Megatron splits a chunk into layers and a layer into nodes, and runs the nodes of layer i of the forward between
//! those of the i-th last layer of the backward, in an order that is fixed (`models/common/model_chunk_schedule_plan.py`,
//! 0.14 to 0.19; nodes as in `models/gpt/fine_grained_callables.py`). `--ep-overlap-early-attn-memory-release` runs
//! attention's backward earlier, when less of the forward is there: what is counted here bounds it too.

use std::ops::Range;

use bagualu_core::schedule::{Event, Pipeline, ScheduleError};

use crate::{LayerRef, LayerType};

/// What a rank runs at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Forward(u32),
    Backward(u32),
    Both { forward: u32, backward: u32 },
}

impl Step {
    /// The unit whose forward it runs.
    pub fn forward(self) -> Option<u32> {
        match self {
            Self::Forward(unit) | Self::Both { forward: unit, .. } => Some(unit),
            Self::Backward(_) => None,
        }
    }

    /// The unit whose backward it runs.
    pub fn backward(self) -> Option<u32> {
        match self {
            Self::Backward(unit) | Self::Both { backward: unit, .. } => Some(unit),
            Self::Forward(_) => None,
        }
    }
}

/// The steps of an iteration: under overlap, each forward after the warm-up together with the backward behind it.
pub(super) fn steps(pipeline: &Pipeline) -> Result<Vec<Step>, ScheduleError> {
    let mut events = vec![Event::Forward(0); 2 * pipeline.units()? as usize];
    let events = pipeline.events(&mut events)?;
    let warm_up = pipeline.warm_up()? as usize;
    let mut steps: Vec<Step> = Vec::with_capacity(events.len());
    for (at, &event) in events.iter().enumerate() {
        match (event, steps.last_mut()) {
            (Event::Backward(backward), Some(step)) if pipeline.overlap && at > warm_up => match *step {
                Step::Forward(forward) => *step = Step::Both { forward, backward },
                _ => steps.push(Step::Backward(backward)),
            },
            (Event::Backward(unit), _) => steps.push(Step::Backward(unit)),
            (Event::Forward(unit), _) => steps.push(Step::Forward(unit)),
        }
    }
    Ok(steps)
}

/// A layer's nodes, in program order. The last is the norm behind a depth of multi-token prediction.
const PRE_DISPATCH: usize = 0;
const DISPATCH: usize = 1;
const MLP: usize = 2;
const COMBINE: usize = 3;
const POST: usize = 4;

/// The operators of a chunk by node, counted through its layers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Nodes {
    /// Where the first layer begins: the embedding is before it.
    begin: usize,
    /// Where each node of each layer begins, and where the last one ends.
    layers: Vec<[usize; 6]>,
    /// Where the chunk ends: output layers and loss are behind the last layer.
    end: usize,
}

impl Nodes {
    pub fn new(types: &[LayerType], layers: &[LayerRef]) -> Self {
        let mut nodes = Self::default();
        // The joint of multi-token prediction, which is part of the layer behind it.
        let mut joint = None;
        for layer in layers {
            let layer = &types[layer.layer_type];
            let at = nodes.end;
            nodes.end += layer.ops.len();
            let predicts = joint.is_some();
            match (layer.name, nodes.layers.last_mut()) {
                ("embedding", _) => nodes.begin = nodes.end,
                ("mtp", _) => joint = Some(at),
                ("moe" | "dense", _) => {
                    let [dispatch, mlp, combine] = cuts(layer).map(|cut| at + cut);
                    let bounds = [joint.unwrap_or(at), dispatch, mlp, combine, nodes.end, nodes.end];
                    nodes.layers.push(bounds);
                }
                // Behind the model's last layer it is part of combine.
                ("final_norm", Some(bounds)) => {
                    bounds[POST] = if predicts { bounds[POST] } else { nodes.end };
                    bounds[POST + 1] = nodes.end;
                    joint = None;
                }
                _ => {}
            }
        }
        nodes
    }

    fn before(&self) -> Range<usize> {
        0..self.begin
    }

    fn behind(&self) -> Range<usize> {
        self.layers.last().map_or(self.begin, |bounds| bounds[POST + 1])..self.end
    }

    fn node(&self, layer: usize, node: usize) -> Range<usize> {
        self.layers[layer][node]..self.layers[layer][node + 1]
    }
}

/// Where dispatch, what is behind it, and combine begin.
fn cuts(layer: &LayerType) -> [usize; 3] {
    let end = layer.ops.len();
    let op = |name| layer.op(name).unwrap_or(end);
    match layer.routed {
        true => [op("dispatch"), (op("dispatch") + 1).min(end), op("combine")],
        false => [op("ln2"), op("ln2"), end],
    }
}

/// Operators of the forward, or of the backward, of one of two chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Forward(Range<usize>),
    Backward(Range<usize>),
}

/// Operators, and those of the other chunk beside which they may run: what these need while they run is there too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Turn {
    pub part: Part,
    pub beside: Option<Part>,
}

/// Megatron's order of a forward and a backward that run together.
///
/// A node's communication runs beside the computation next to it, and what one chunk hands on to its next node is there
/// while the other has its turn: both are within the work of the collective beside.
pub(super) fn merge(forward: &Nodes, backward: &Nodes) -> Vec<Turn> {
    use Part::{Backward, Forward};
    let mut turns = Vec::new();
    let mut turn = |part, beside| turns.push(Turn { part, beside });
    turn(Forward(forward.before()), None);
    turn(Backward(backward.behind()), None);
    let (ahead, back) = (forward.layers.len(), backward.layers.len());
    for layer in 0..ahead.max(back) {
        let f = |node| (layer < ahead).then(|| Forward(forward.node(layer, node)));
        let b = |node| (layer < back).then(|| Backward(backward.node(back - 1 - layer, node)));
        let order = [
            (b(POST), f(COMBINE)),
            (b(COMBINE), f(COMBINE)),
            (f(PRE_DISPATCH), b(COMBINE)),
            (b(MLP), f(DISPATCH)),
            (f(DISPATCH), b(DISPATCH)),
            (b(DISPATCH), f(DISPATCH)),
            (f(MLP), b(DISPATCH)),
            (f(COMBINE), b(DISPATCH)),
            (b(PRE_DISPATCH), f(COMBINE)),
            (f(POST), None),
        ];
        for (part, beside) in order {
            if let Some(part) = part {
                turn(part, beside);
            }
        }
    }
    turn(Forward(forward.behind()), None);
    turn(Backward(backward.before()), None);
    turns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Model, Preset};

    fn pipeline(ranks: u32, chunks: u32, overlap: bool) -> Pipeline {
        Pipeline { overlap, ..Pipeline::new(ranks, 0, 4).interleaved(chunks) }
    }

    #[test]
    fn a_forward_runs_beside_a_backward_once_the_pipeline_is_full() {
        let without = steps(&pipeline(1, 1, false)).expect("steps");
        assert_eq!(without[..3], [Step::Forward(0), Step::Backward(0), Step::Forward(1)]);
        let both = |forward, backward| Step::Both { forward, backward };
        let alone = steps(&pipeline(1, 1, true)).expect("steps");
        assert_eq!(alone, [Step::Forward(0), both(1, 0), both(2, 1), both(3, 2), Step::Backward(3)]);
        let interleaved = steps(&pipeline(2, 2, true)).expect("steps");
        // Chunks of two micro-batches take turns: 2·1 + 1·2 + 1 forwards alone.
        assert_eq!(interleaved[..5], [0, 1, 4, 5, 2].map(Step::Forward));
        assert_eq!(interleaved[5..8], [both(3, 4), both(6, 5), both(7, 0)]);
        assert_eq!(interleaved[8..], [1, 6, 7, 2, 3].map(Step::Backward));
    }

    /// A dense and a MoE layer beside the same two: the columns of `TransformerLayerSchedulePlan.run`.
    #[test]
    fn the_order_of_nodes_is_megatrons() {
        let preset = Preset::named("glm-188b-a20b", None).expect("a preset");
        let device = Device::named("dcu-64g").expect("a preset");
        let model = Model::new(&preset.config, &preset.parallelism, &device).expect("a model");
        let find = |name| model.types.iter().position(|layer| layer.name == name);
        let moe = find("moe").expect("a MoE layer");
        let layers =
            [LayerRef { layer_type: moe, number: Some(0) }, LayerRef { layer_type: moe, number: Some(1) }];
        let nodes = Nodes::new(&model.types, &layers);
        let count = model.types[moe].ops.len();
        let name = |op: usize| model.types[moe].op_names[op % count];
        let turns: Vec<_> = merge(&nodes, &nodes)
            .into_iter()
            .filter_map(|turn| match turn.part {
                Part::Forward(ops) => (!ops.is_empty()).then(|| ("F", name(ops.start), ops)),
                Part::Backward(ops) => (!ops.is_empty()).then(|| ("B", name(ops.start), ops)),
            })
            .collect();
        let of_one_layer: Vec<_> = turns[..8].iter().map(|(side, first, _)| (*side, *first)).collect();
        let mlp = if model.types[moe].op("etp_gather").is_some() { "etp_gather" } else { "sort" };
        assert_eq!(
            of_one_layer,
            [
                ("B", "combine"),
                ("F", "ln1"),
                ("B", mlp),
                ("F", "dispatch"),
                ("B", "dispatch"),
                ("F", mlp),
                ("F", "combine"),
                ("B", "ln1"),
            ]
        );
        // Every operator once, forward in order and backward in reverse.
        let of = |side| turns.iter().filter(move |turn| turn.0 == side).map(|turn| turn.2.clone());
        assert!(of("F").flatten().eq(0..2 * count));
        assert!(of("B").flat_map(|ops| ops.rev()).eq((0..2 * count).rev()));
    }
}
