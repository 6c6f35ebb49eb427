//! Layer tables: the operators of one layer, what each saves for backward, its work and its time.
//!
//! One file for each part of a Megatron layer. Every saved tensor is one storage of
//! `megatron/core`'s own list, checked there with saved-tensor hooks; letters are those of
//! `shape.rs`.

mod attention;
mod builder;
mod ends;
pub(crate) mod fp8;
mod mla;
mod mlp;
mod moe;
mod mtp;
mod qkv;
mod source;

use bagualu_core::cost::{LayerModel, OpModel, TensorModel};
use bagualu_core::set::Set;

use crate::ModelError;
use crate::shape::{Rates, Shape};
use builder::Builder;

/// What Megatron runs and saves for one kind of layer, as a function of the routed rows.
#[derive(Clone, Debug)]
pub struct LayerType {
    /// `moe`, `dense`, `embedding` or `output`; with multi-token prediction `mtp`, `final_norm` and `head`, which
    /// are in place of `output`.
    pub name: &'static str,
    /// Its tensors, saved or not.
    pub tensors: Vec<TensorModel>,
    /// Names of the tensors.
    pub tensor_names: Vec<&'static str>,
    /// Its operators in program order.
    pub ops: Vec<OpModel>,
    /// Names of the operators.
    pub op_names: Vec<&'static str>,
    /// Tensors that exist only because of routed rows.
    pub moe: Set,
    /// The experts' own operators, which a rank may run in row chunks.
    pub experts: Set,
    /// Whether its rows come from a router.
    pub routed: bool,
}

impl LayerType {
    /// The type as the core takes it.
    pub fn model(&self) -> LayerModel<'_> {
        LayerModel {
            tensors: &self.tensors,
            ops: &self.ops,
            moe: self.moe,
            experts: self.experts,
            routed: self.routed,
        }
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<usize> {
        self.tensor_names.iter().position(|&n| n == name)
    }

    /// The operator called `name`.
    pub fn op(&self, name: &str) -> Option<usize> {
        self.op_names.iter().position(|&n| n == name)
    }

    /// A transformer layer with experts.
    pub(crate) fn moe(shape: &Shape, rates: &Rates) -> Result<Self, ModelError> {
        let mut b = Builder::new("moe", shape, rates);
        let residual = attention::attention(&mut b);
        moe::experts(&mut b, residual);
        b.finish()
    }

    /// A transformer layer with a dense MLP.
    pub(crate) fn dense(shape: &Shape, rates: &Rates) -> Result<Self, ModelError> {
        let mut b = Builder::new("dense", shape, rates);
        let residual = attention::attention(&mut b);
        mlp::dense(&mut b, residual);
        b.finish()
    }

    /// The embedding, at the beginning of the first virtual stage.
    pub(crate) fn embedding(shape: &Shape, rates: &Rates) -> Result<Self, ModelError> {
        let mut b = Builder::new("embedding", shape, rates);
        ends::embedding(&mut b);
        b.finish()
    }

    /// The joint of hidden state and embedding that begins a depth of multi-token prediction.
    pub(crate) fn mtp(shape: &Shape, rates: &Rates) -> Result<Self, ModelError> {
        let mut b = Builder::new("mtp", shape, rates);
        mtp::mtp(&mut b);
        b.finish()
    }

    /// The norm behind the last layer and behind each depth of multi-token prediction.
    pub(crate) fn final_norm(shape: &Shape, rates: &Rates) -> Result<Self, ModelError> {
        let mut b = Builder::new("final_norm", shape, rates);
        mtp::final_norm(&mut b);
        b.finish()
    }

    /// Output layer and loss, once for the model and once for each depth of multi-token prediction.
    pub(crate) fn head(shape: &Shape, rates: &Rates) -> Result<Self, ModelError> {
        let mut b = Builder::new("head", shape, rates);
        ends::head(&mut b);
        b.finish()
    }

    /// Final norm, output layer and loss, at the end of the last virtual stage.
    pub(crate) fn output(shape: &Shape, rates: &Rates) -> Result<Self, ModelError> {
        let mut b = Builder::new("output", shape, rates);
        ends::output(&mut b);
        b.finish()
    }
}
