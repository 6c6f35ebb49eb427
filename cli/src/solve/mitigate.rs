//! `bagualu solve mitigate`: Algorithm 2 on layers whose times are already evaluated (design §10).

use std::collections::BTreeMap;

use bagualu_core::layer::{
    CastTimes, Collectives, CopyTimes, Group, Layer, LayerError, LayerPlan, Op, Strategy, Tensor,
};
use bagualu_core::limits::{MAX_LAYERS, MAX_OPS, MAX_POINTS, MAX_TENSORS};
use bagualu_core::mitigate::{
    Config, Exact, ExactStorage, Limits, MitigateError, PaperGreedy, Problem, RatioGreedy, Selection,
    Selector,
};
use bagualu_core::set::Set;
use serde::{Deserialize, Serialize};

use super::read::{self, Count, Object, Word, present};
use crate::{Error, output};

/// How to select.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The fastest selection, with a proof
    #[default]
    Exact,
    /// Most bytes per added nanosecond, then undo what is no longer needed
    Ratio,
    /// The paper's greedy rule
    Paper,
}

/// A selection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Answer {
    /// What found it.
    pub method: Method,
    /// Device bytes held.
    pub bytes: u64,
    /// Time added to forward and backward.
    pub added_ns: u64,
    /// Whether none is faster.
    pub optimal: bool,
    /// The fastest is at most this much faster.
    pub gap_ns: u64,
    /// One for each saved tensor, in the order of the instance.
    pub strategies: Vec<Choice>,
}

/// What is done with one tensor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Choice {
    /// Its layer.
    pub layer: String,
    /// Its name.
    pub tensor: String,
    /// What is done with it.
    pub strategy: Strategy,
}

/// Solves the instance `json`.
pub fn solve(json: &[u8], method: Method) -> Result<Answer, Error> {
    let instance = Instance::parse(json)?;
    let layers = instance.layers()?;
    let limits = Limits { bytes: instance.limit_bytes, host_bytes: instance.host_limit_bytes };
    let problem = Problem { layers: &layers, limits, allow: instance.allow };
    let mut plans = vec![LayerPlan::KEEP; layers.len()];
    let selection = match method {
        Method::Exact => {
            Exact::new(&mut Box::new(ExactStorage::new()), Config::default()).select(&problem, &mut plans)
        }
        Method::Ratio => RatioGreedy.select(&problem, &mut plans),
        Method::Paper => PaperGreedy.select(&problem, &mut plans),
    };
    Ok(instance.answer(method, selection.map_err(refused)?, &layers, &plans))
}

/// The answer for people.
pub fn describe(answer: &Answer) -> String {
    let mut rows = output::table(["tensor", "layer", "strategy"]);
    for choice in &answer.strategies {
        let strategy = serde_json::to_value(choice.strategy).unwrap_or_default();
        rows.add_row([&choice.tensor, &choice.layer, strategy.as_str().unwrap_or_default()]);
    }
    let proof = match answer.optimal {
        true => "none is faster".to_owned(),
        false => format!("the fastest is at most {} faster", output::ns(answer.gap_ns)),
    };
    let (bytes, added) = (output::bytes(answer.bytes), output::ns(answer.added_ns));
    format!("{rows}\nheld {bytes}, added {added}; {proof}\n")
}

fn refused(error: MitigateError) -> Error {
    match error {
        MitigateError::Infeasible { least, limit } => {
            Error::infeasible("the strongest strategies hold", least, limit)
        }
        MitigateError::HostInfeasible { least, limit } => {
            Error::infeasible("within limit_bytes the least offloaded is", least, limit)
        }
        MitigateError::HostUndecided { found, limit } => Error::infeasible(
            "no selection within both limits was found, nor proven impossible; the least offloaded was",
            found,
            limit,
        ),
        MitigateError::OutOfCandidates { reached, limit } => {
            Error::infeasible("this method ran out of candidates (try --method exact) at", reached, limit)
        }
        MitigateError::FrontFull { .. } => {
            let problem = format!("more trade-offs than this build keeps ({MAX_POINTS})");
            Error::bad_input("layers", problem, "rebuild with BAGUALU_MAX_POINTS, or use --method ratio")
        }
        other => Error::bad_input("layers", other.to_string(), ""),
    }
}

/// An instance as written.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Text {
    limit_bytes: Count,
    #[serde(default, deserialize_with = "present")]
    host_limit_bytes: Option<Count>,
    #[serde(default)]
    allow_collectives: Vec<Word<Group>>,
    layers: Vec<Object<LayerText>>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct LayerText {
    name: String,
    tensors: Vec<Object<TensorText>>,
    ops: Vec<Object<OpText>>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct TensorText {
    name: String,
    bytes: Count,
    #[serde(default)]
    block_input: bool,
    #[serde(default, deserialize_with = "present")]
    producer: Option<String>,
    #[serde(default, deserialize_with = "present")]
    source: Option<String>,
    #[serde(default, deserialize_with = "present")]
    copy_out_ns: Option<Count>,
    #[serde(default, deserialize_with = "present")]
    copy_in_ns: Option<Count>,
    #[serde(default, deserialize_with = "present")]
    cast_ns: Option<Count>,
    #[serde(default, deserialize_with = "present")]
    uncast_ns: Option<Count>,
    #[serde(default, deserialize_with = "present")]
    quantized_bytes: Option<Count>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct OpText {
    name: String,
    #[serde(default)]
    reads: Vec<String>,
    #[serde(default)]
    makes: Vec<String>,
    #[serde(default)]
    saves: Vec<String>,
    #[serde(default)]
    forward_ns: Count,
    #[serde(default, deserialize_with = "present")]
    collective: Option<Word<Group>>,
}

/// A checked instance.
#[derive(Debug)]
pub struct Instance {
    /// Bytes that may be held on the device.
    pub limit_bytes: u64,
    /// Bytes that may be held on the host; `u64::MAX` where there is no limit.
    pub host_limit_bytes: u64,
    /// The collectives that a recomputation may run again.
    pub allow: Collectives,
    /// The layers.
    pub layers: Vec<NamedLayer>,
}

/// A layer with the names of its tensors.
#[derive(Debug)]
pub struct NamedLayer {
    /// Its name.
    pub name: String,
    /// The names of its tensors.
    pub names: Vec<String>,
    tensors: Vec<Tensor>,
    ops: Vec<Op>,
}

impl Instance {
    /// Reads and checks an instance.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let text: Text = read::parse(json)?;
        if text.layers.len() > MAX_LAYERS {
            let problem = format!("{} layers; this build takes {MAX_LAYERS}", text.layers.len());
            return Err(Error::bad_input("layers", problem, "rebuild with BAGUALU_MAX_LAYERS"));
        }
        unique("layers", text.layers.iter().map(|l| &l.0.name))?;
        let layers = text.layers.into_iter().enumerate();
        let instance = Self {
            limit_bytes: text.limit_bytes.0,
            host_limit_bytes: text.host_limit_bytes.map_or(u64::MAX, |c| c.0),
            allow: text.allow_collectives.iter().map(|c| c.0).fold(Collectives::NONE, Collectives::with),
            layers: layers
                .map(|(l, layer)| layer.0.check(&format!("layers[{l}]")))
                .collect::<Result<_, _>>()?,
        };
        instance.layers()?;
        Ok(instance)
    }

    /// The layers as the core takes them.
    pub fn layers(&self) -> Result<Vec<Layer<'_>>, Error> {
        let layers = self.layers.iter().enumerate();
        layers
            .map(|(l, layer)| {
                Layer::new(&layer.tensors, &layer.ops)
                    .map_err(|error| layer.refused(&format!("layers[{l}]"), error))
            })
            .collect()
    }
}

impl Instance {
    fn answer(&self, method: Method, found: Selection, layers: &[Layer<'_>], plans: &[LayerPlan]) -> Answer {
        let mut strategies = Vec::new();
        for ((named, layer), plan) in self.layers.iter().zip(layers).zip(plans) {
            strategies.extend(layer.saved().iter().map(|t| Choice {
                layer: named.name.clone(),
                tensor: named.names[t].clone(),
                strategy: plan.strategy(t),
            }));
        }
        let Selection { bytes, added_ns, optimal, gap_ns, .. } = found;
        Answer { method, bytes, added_ns, optimal, gap_ns, strategies }
    }
}

impl LayerText {
    fn check(self, path: &str) -> Result<NamedLayer, Error> {
        if self.tensors.len() > MAX_TENSORS {
            let error = LayerError::TooManyTensors { count: self.tensors.len() };
            return Err(Error::bad_input(format!("{path}.tensors"), error.to_string(), ""));
        }
        if self.ops.len() > MAX_OPS {
            let error = LayerError::TooManyOps { count: self.ops.len() };
            return Err(Error::bad_input(format!("{path}.ops"), error.to_string(), ""));
        }
        let tensors = unique(&format!("{path}.tensors"), self.tensors.iter().map(|t| &t.0.name))?;
        unique(&format!("{path}.ops"), self.ops.iter().map(|o| &o.0.name))?;
        let names = Names { tensors };
        let ops = self.ops.iter().enumerate();
        let layer = NamedLayer {
            ops: ops.map(|(o, op)| names.op(&op.0, &format!("{path}.ops[{o}]"))).collect::<Result<_, _>>()?,
            tensors: (self.tensors.iter().enumerate())
                .map(|(t, tensor)| names.tensor(&tensor.0, &format!("{path}.tensors[{t}]")))
                .collect::<Result<_, _>>()?,
            names: self.tensors.iter().map(|t| t.0.name.clone()).collect(),
            name: self.name.clone(),
        };
        self.check_producers(path, &layer)?;
        layer.check_sources(path)?;
        Ok(layer)
    }

    /// A tensor may say who makes it; then that must be so.
    fn check_producers(&self, path: &str, layer: &NamedLayer) -> Result<(), Error> {
        for (t, Object(tensor)) in self.tensors.iter().enumerate() {
            let Some(producer) = &tensor.producer else { continue };
            let field = || format!("{path}.tensors[{t}].producer");
            let Some(op) = self.ops.iter().position(|o| o.0.name == *producer) else {
                return Err(Error::bad_input(
                    field(),
                    format!("no op {producer:?}"),
                    "name an op of the layer",
                ));
            };
            if !layer.ops[op].makes.contains(t) {
                let problem = format!("op {producer:?} does not make {:?}", tensor.name);
                return Err(Error::bad_input(
                    field(),
                    problem,
                    "name the op that lists it in makes, or nothing",
                ));
            }
        }
        Ok(())
    }
}

impl NamedLayer {
    /// A cast copy has an original.
    fn check_sources(&self, path: &str) -> Result<(), Error> {
        for (t, name) in self.names.iter().enumerate() {
            let (mut at, mut steps) = (t, 0);
            while let Some(source) = self.tensors[at].source {
                (at, steps) = (source as usize, steps + 1);
                if steps > self.tensors.len() {
                    let field = format!("{path}.tensors[{t}].source");
                    let problem = format!("{name:?} is a copy of a copy of itself");
                    return Err(Error::bad_input(field, problem, "leave the original without a source"));
                }
            }
        }
        Ok(())
    }

    fn refused(&self, path: &str, error: LayerError) -> Error {
        let name = |t: usize| self.names.get(t).map_or("", |n| n.as_str());
        match error {
            LayerError::TwoProducers { tensor, first, second } => Error::bad_input(
                format!("{path}.ops[{second}].makes"),
                format!("{:?} is already made by ops[{first}]", name(tensor)),
                "let one op make it",
            ),
            LayerError::Cycle { op } => Error::bad_input(
                format!("{path}.ops[{op}].reads"),
                "a cycle: it waits for a tensor made from its own output",
                "let reads name only tensors made before",
            ),
            LayerError::Overflow { tensor } => Error::bad_input(
                format!("{path}.tensors[{tensor}]"),
                "the layer's bytes or times up to here pass 2^64",
                "give smaller numbers",
            ),
            LayerError::OpOverflow { op } => Error::bad_input(
                format!("{path}.ops[{op}].forward_ns"),
                "the layer's times up to here pass 2^64",
                "give smaller numbers",
            ),
            other => Error::bad_input(path, other.to_string(), ""),
        }
    }
}

/// The names of a layer.
struct Names {
    tensors: BTreeMap<String, usize>,
}

impl Names {
    fn tensor_index(&self, name: &str, field: impl FnOnce() -> String) -> Result<usize, Error> {
        self.tensors.get(name).copied().ok_or_else(|| {
            Error::bad_input(field(), format!("no tensor {name:?}"), "name a tensor of the same layer")
        })
    }

    fn set(&self, names: &[String], field: &str) -> Result<Set, Error> {
        let names = names.iter().enumerate();
        names.map(|(i, name)| self.tensor_index(name, || format!("{field}[{i}]"))).collect()
    }

    fn op(&self, op: &OpText, path: &str) -> Result<Op, Error> {
        Ok(Op {
            reads: self.set(&op.reads, &format!("{path}.reads"))?,
            makes: self.set(&op.makes, &format!("{path}.makes"))?,
            saves: self.set(&op.saves, &format!("{path}.saves"))?,
            forward_ns: op.forward_ns.0,
            collective: op.collective.map(|c| c.0),
        })
    }

    fn tensor(&self, tensor: &TensorText, path: &str) -> Result<Tensor, Error> {
        let source = tensor.source.as_deref();
        let source = source.map(|name| self.tensor_index(name, || format!("{path}.source"))).transpose()?;
        Ok(Tensor {
            bytes: tensor.bytes.0,
            block_input: tensor.block_input,
            copy: tensor.copy(path)?,
            cast: tensor.cast(path)?,
            // Below MAX_TENSORS, which is at most 64.
            source: source.map(|s| s as u8),
        })
    }
}

impl TensorText {
    fn copy(&self, path: &str) -> Result<Option<CopyTimes>, Error> {
        match (self.copy_out_ns, self.copy_in_ns) {
            (None, None) => Ok(None),
            (Some(out), Some(back)) => Ok(Some(CopyTimes { out_ns: out.0, in_ns: back.0 })),
            (Some(_), None) => Err(half(path, "copy_out_ns", "copy_in_ns")),
            (None, Some(_)) => Err(half(path, "copy_in_ns", "copy_out_ns")),
        }
    }

    fn cast(&self, path: &str) -> Result<Option<CastTimes>, Error> {
        let fields = [
            ("cast_ns", self.cast_ns),
            ("uncast_ns", self.uncast_ns),
            ("quantized_bytes", self.quantized_bytes),
        ];
        match fields.map(|f| f.1) {
            [None, None, None] => Ok(None),
            [Some(cast), Some(uncast), Some(bytes)] => {
                Ok(Some(CastTimes { cast_ns: cast.0, uncast_ns: uncast.0, bytes: bytes.0 }))
            }
            _ => {
                let name = |given: bool| fields.iter().find(|f| f.1.is_some() == given).map_or("", |f| f.0);
                Err(half(path, name(true), name(false)))
            }
        }
    }
}

fn half(path: &str, given: &str, missing: &str) -> Error {
    Error::bad_input(format!("{path}.{given}"), format!("given without {missing}"), "give both or neither")
}

/// The index of each name.
fn unique<'a>(path: &str, names: impl Iterator<Item = &'a String>) -> Result<BTreeMap<String, usize>, Error> {
    let mut indices = BTreeMap::new();
    for (index, name) in names.enumerate() {
        if let Some(first) = indices.insert(name.clone(), index) {
            let problem = format!("{name:?} is also the name of {path}[{first}]");
            return Err(Error::bad_input(format!("{path}[{index}].name"), problem, "give each its own name"));
        }
    }
    Ok(indices)
}

#[cfg(test)]
mod tests;
