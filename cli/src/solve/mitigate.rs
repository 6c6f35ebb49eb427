//! `bagualu solve mitigate`: Algorithm 2 on layers whose times are already evaluated (design §10).

use std::collections::BTreeMap;

use bagualu_core::layer::{CastTimes, Collectives, CopyTimes, Group, Layer, LayerError, Op, Tensor};
use bagualu_core::limits::{MAX_LAYERS, MAX_OPS, MAX_TENSORS};
use bagualu_core::set::Set;
use serde::Deserialize;

use super::read::{self, Count, Object, present};
use crate::Error;

/// An instance as written.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Text {
    limit_bytes: Count,
    #[serde(default, deserialize_with = "present")]
    host_limit_bytes: Option<Count>,
    #[serde(default)]
    allow_collectives: Vec<Group>,
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
    collective: Option<Group>,
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
            allow: text.allow_collectives.into_iter().fold(Collectives::NONE, Collectives::with),
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
            collective: op.collective,
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
