//! `bagualu_model`: a model on its ranks, and what can be asked of it.

use std::ffi::{CString, c_char};
use std::ptr;

use ::bagualu_model::{LayerType, Model, Stage};

use crate::arguments::{config, optional, out, out_struct, own_size, versioned};
use crate::boundary::boundary;
use crate::handle::{self, handle};
use crate::layer::{
    BAGUALU_TENSOR_BLOCK_INPUT, BAGUALU_TENSOR_HAS_SOURCE, BAGUALU_TENSOR_OFFLOAD, BAGUALU_TENSOR_QUANTIZE,
    bagualu_op_type, bagualu_tensor_type, group_number,
};
use crate::status::{Failure, bagualu_status};

mod source;

pub(crate) use source::Source;
pub use source::bagualu_model_config;

/// A model on its ranks: layer types, stages, micro-batches, bytes.
///
/// Made by `bagualu_model_read`, freed by `bagualu_model_free`. It never changes: any number of threads may use it at once.
/// Texts that it hands out are its own, and go with it.
pub struct bagualu_model {
    _opaque: [u8; 0],
}

handle!(bagualu_model, Object, 5);

/// A model, and what was said on the way.
pub(crate) struct Object {
    pub(crate) model: Model,
    notes: Vec<CString>,
    types: Vec<Names>,
}

/// The names of a layer type, as C takes them.
struct Names {
    name: CString,
    tensors: Vec<CString>,
    ops: Vec<CString>,
}

/// What a model has.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_model_info {
    /// sizeof(bagualu_model_info), set by the caller.
    pub struct_size: usize,
    /// Pipeline ranks.
    pub ranks: u32,
    /// Model chunks of a rank.
    pub chunks: u32,
    /// Micro-batches of an iteration.
    pub micro_batches: u32,
    /// Tokens of a micro-batch that a rank routes.
    pub tokens: u32,
    /// Rows that a rank's experts receive when all receive equally many, with all that padding may add.
    pub balanced_rows: u32,
    /// The most rows they can receive.
    pub most_rows: u32,
    /// Kinds of layers.
    pub types: u32,
    /// Notes (`bagualu_model_note`).
    pub notes: u32,
}

versioned!(bagualu_model_info);

/// What a pipeline rank has, bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_rank_info {
    /// sizeof(bagualu_rank_info), set by the caller.
    pub struct_size: usize,
    /// Device bytes for activations: memory less margin and static bytes.
    pub device_bytes: u64,
    /// Host bytes for offloaded tensors.
    pub host_bytes: u64,
    /// Weights, gradients, optimizer state and buffers.
    pub static_bytes: u64,
}

versioned!(bagualu_rank_info);

/// A kind of layer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_type_info {
    /// sizeof(bagualu_type_info), set by the caller.
    pub struct_size: usize,
    /// `moe`, `dense`, `embedding`, `output`, …; the model's.
    pub name: *const c_char,
    /// Tensors.
    pub tensors: u32,
    /// Operators.
    pub ops: u32,
    /// The set of tensors that some operator saves.
    pub saved: u64,
    /// The set of tensors that exist only because of routed rows.
    pub moe: u64,
    /// The set of operators that are the rank's own experts'.
    pub experts: u64,
    /// 1 if its rows come from a router, else 0.
    pub routed: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(bagualu_type_info, reserved);

/// Reads a model. Files are read, never run.
///
/// Thread-safe. Everything is copied. `*model` is the caller's, to be freed by `bagualu_model_free`.
///
/// # Safety
/// - `config` is NULL or a struct with its `struct_size` set; its texts are NULL or end with NUL, `text` has `text_length`
///   bytes, arrays are as long as their counts; `model` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_model_read(
    config: *const bagualu_model_config,
    model: *mut *mut bagualu_model,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (out, source) = unsafe {
            let out = out(model, "model")?;
            (out, Source::new(&self::config(config, "config")?)?)
        };
        let (model, notes) = source.load()?;
        let types = model.types.iter().map(Names::new).collect();
        let notes = notes.iter().map(|note| c_text(note)).collect();
        out.set(handle::insert(Object { model, notes, types })?);
        Ok(())
    })
}

/// Frees a model; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_model_free(model: *mut bagualu_model) -> bagualu_status {
    boundary(|| handle::remove(model).map(drop))
}

/// Writes what a model has.
///
/// # Safety
/// - `info` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_model_describe(
    model: *const bagualu_model,
    info: *mut bagualu_model_info,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(info, "info") }?;
        out.set_struct(handle::with(model, |object| {
            let model = &object.model;
            Ok(bagualu_model_info {
                struct_size: own_size::<bagualu_model_info>(),
                ranks: model.stages.len() as u32,
                chunks: model.pipeline(0).chunks,
                micro_batches: model.micro_batches,
                tokens: model.tokens,
                balanced_rows: model.rows_at(1_000),
                most_rows: model.most_rows,
                types: model.types.len() as u32,
                notes: object.notes.len() as u32,
            })
        })?);
        Ok(())
    })
}

/// What was said when the model was read: what may change memory and is not modelled. `text` receives one sentence,
/// the model's; notes count from 0 (`bagualu_model_info.notes`).
///
/// # Safety
/// - `text` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_model_note(
    model: *const bagualu_model,
    note: usize,
    text: *mut *const c_char,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out(text, "text") }?;
        out.set(handle::with(model, |object| Ok(at("note", &object.notes, note)?.as_ptr()))?);
        Ok(())
    })
}

/// Writes what pipeline rank `rank` has.
///
/// # Safety
/// - `info` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_model_rank(
    model: *const bagualu_model,
    rank: usize,
    info: *mut bagualu_rank_info,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(info, "info") }?;
        out.set_struct(handle::with(model, |object| {
            let stage: &Stage = at("rank", &object.model.stages, rank)?;
            Ok(bagualu_rank_info {
                struct_size: own_size::<bagualu_rank_info>(),
                device_bytes: object.model.room(stage),
                host_bytes: object.model.host_room(stage),
                static_bytes: stage.static_bytes.total(),
            })
        })?);
        Ok(())
    })
}

/// Writes what a kind of layer has.
///
/// # Safety
/// - `info` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_model_type(
    model: *const bagualu_model,
    layer_type: usize,
    info: *mut bagualu_type_info,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(info, "info") }?;
        out.set_struct(handle::with(model, |object| {
            let (kind, names) = object.layer_type(layer_type)?;
            Ok(bagualu_type_info {
                struct_size: own_size::<bagualu_type_info>(),
                name: names.name.as_ptr(),
                tensors: kind.tensors.len() as u32,
                ops: kind.ops.len() as u32,
                saved: kind.ops.iter().fold(0, |set, op| set | op.saves.bits()),
                moe: kind.moe.bits(),
                experts: kind.experts.bits(),
                routed: kind.routed.into(),
                reserved: 0,
            })
        })?);
        Ok(())
    })
}

/// Writes a tensor of a kind of layer; `name`, which may be NULL, receives its name, the model's.
///
/// # Safety
/// - Pointers are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_model_tensor(
    model: *const bagualu_model,
    layer_type: usize,
    tensor: usize,
    info: *mut bagualu_tensor_type,
    name: *mut *const c_char,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (out, name) = unsafe {
            let name = optional(name, |name| out(name, "name"))?;
            (out(info, "info")?, name)
        };
        out.set(handle::with(model, |object| {
            let (kind, names) = object.layer_type(layer_type)?;
            let found = at("tensor", &kind.tensors, tensor)?;
            if let Some(name) = name {
                name.set(names.tensors.get(tensor).map_or(ptr::null(), |name| name.as_ptr()));
            }
            let flags = [
                (found.block_input, BAGUALU_TENSOR_BLOCK_INPUT),
                (found.offload, BAGUALU_TENSOR_OFFLOAD),
                (found.quantized.is_some(), BAGUALU_TENSOR_QUANTIZE),
                (found.source.is_some(), BAGUALU_TENSOR_HAS_SOURCE),
            ];
            Ok(bagualu_tensor_type {
                bytes: found.bytes.into(),
                quantized: found.quantized.unwrap_or_default().into(),
                flags: flags.into_iter().filter(|flag| flag.0).fold(0, |all, flag| all | flag.1),
                source: found.source.unwrap_or(0).into(),
            })
        })?);
        Ok(())
    })
}

/// Writes an operator of a kind of layer; `name`, which may be NULL, receives its name, the model's.
///
/// # Safety
/// - Pointers are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_model_op(
    model: *const bagualu_model,
    layer_type: usize,
    op: usize,
    info: *mut bagualu_op_type,
    name: *mut *const c_char,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (out, name) = unsafe {
            let name = optional(name, |name| out(name, "name"))?;
            (out(info, "info")?, name)
        };
        out.set(handle::with(model, |object| {
            let (kind, names) = object.layer_type(layer_type)?;
            let found = at("op", &kind.ops, op)?;
            if let Some(name) = name {
                name.set(names.ops.get(op).map_or(ptr::null(), |name| name.as_ptr()));
            }
            Ok(bagualu_op_type {
                reads: found.reads.bits(),
                makes: found.makes.bits(),
                saves: found.saves.bits(),
                forward: found.forward.into(),
                backward: found.backward.into(),
                forward_work: found.forward_work.into(),
                backward_work: found.backward_work.into(),
                resource: found.resource as u32,
                collective: group_number(found.collective),
            })
        })?);
        Ok(())
    })
}

impl Object {
    fn layer_type(&self, index: usize) -> Result<(&LayerType, &Names), Failure> {
        Ok((at("layer_type", &self.model.types, index)?, at("layer_type", &self.types, index)?))
    }
}

fn at<'a, T>(field: &str, all: &'a [T], index: usize) -> Result<&'a T, Failure> {
    all.get(index).ok_or_else(|| Failure::index(field, index, all.len()))
}

impl Names {
    fn new(kind: &LayerType) -> Self {
        let all = |names: &[&str]| names.iter().map(|name| c_text(name)).collect();
        Self { name: c_text(kind.name), tensors: all(&kind.tensor_names), ops: all(&kind.op_names) }
    }
}

/// The text as C takes it.
fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}
