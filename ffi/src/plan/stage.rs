//! A pipeline rank described by C arrays.

use bagualu_core::cost::{OpModel, TensorModel};
use bagualu_core::limits::{MAX_LAYERS, MAX_OPS, MAX_TENSORS};
use bagualu_core::schedule::Pipeline;
use bagualu_core::set::Set;

use super::planned::{Description, LayerTable};
use super::schedule::events_of;
use crate::arguments::{check_reserved, elements, versioned};
use crate::layer::{bagualu_layer_type, bagualu_rooflines};
use crate::status::{Failure, bagualu_status};

/// Most layer types of a rank, and most chunks.
const MOST_TYPES: usize = 1 << 10;

/// The layers of a model chunk.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_chunk {
    /// The type of each layer, in program order.
    pub types: *const u16,
    /// How many layers.
    pub count: usize,
}

/// A pipeline rank: its layers and its device. Equal on all ranks of an expert-parallel group. All arrays are read during
/// the call and copied.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_stage {
    /// sizeof(bagualu_stage), set by the caller.
    pub struct_size: usize,
    /// Layer types.
    pub types: *const bagualu_layer_type,
    /// How many.
    pub type_count: usize,
    /// The model chunks: as many as the pipeline has.
    pub chunks: *const bagualu_chunk,
    /// How many.
    pub chunk_count: usize,
    /// The device's copies and casts.
    pub rooflines: bagualu_rooflines,
    /// Device bytes for activations: its memory less weights, gradients, optimizer state, buffers and margin.
    pub device_bytes: u64,
    /// Host bytes for offloaded tensors.
    pub host_bytes: u64,
    /// Rows that this rank's experts receive when all receive equally many; at least 1.
    pub balanced_rows: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(bagualu_stage, reserved);

impl Description {
    /// A rank as C describes it.
    ///
    /// # Safety
    /// - All arrays are NULL or as long as their counts, and those in them.
    pub(crate) unsafe fn of_stage(
        stage: &bagualu_stage,
        pipeline: Pipeline,
        fused: bool,
    ) -> Result<Self, Failure> {
        at_most("type_count", stage.type_count, MOST_TYPES)?;
        at_most("chunk_count", stage.chunk_count, MOST_TYPES)?;
        // SAFETY: the contract of this function.
        let (kinds, parts) = unsafe {
            let kinds = elements(stage.types, stage.type_count, "types")?;
            (kinds, elements(stage.chunks, stage.chunk_count, "chunks")?)
        };
        let (mut types, mut chunks) = (Vec::new(), Vec::new());
        for (at, kind) in kinds.iter().enumerate() {
            // SAFETY: the contract of this function.
            types.push(unsafe { layer_table(kind) }.map_err(|failure| failure.within("types", at))?);
        }
        for (at, chunk) in parts.iter().enumerate() {
            // SAFETY: the contract of this function.
            chunks.push(unsafe { layers(chunk) }.map_err(|failure| failure.within("chunks", at))?);
        }
        Ok(Self {
            types,
            chunks,
            rooflines: stage.rooflines.into(),
            balanced_rows: stage.balanced_rows,
            device_bytes: stage.device_bytes,
            host_bytes: stage.host_bytes,
            fused,
            events: events_of(&pipeline)?,
            pipeline,
        })
    }
}

/// # Safety
/// - The type's arrays are NULL or as long as their counts.
unsafe fn layer_table(kind: &bagualu_layer_type) -> Result<LayerTable, Failure> {
    at_most("tensor_count", kind.tensor_count, MAX_TENSORS)?;
    at_most("op_count", kind.op_count, MAX_OPS)?;
    check_reserved("types", kind.reserved)?;
    if kind.routed > 1 {
        return Err(Failure::value("routed", kind.routed, "give 0 or 1"));
    }
    // SAFETY: the contract of this function.
    let (tensors, ops) = unsafe {
        let tensors = elements(kind.tensors, kind.tensor_count, "tensors")?;
        (tensors, elements(kind.ops, kind.op_count, "ops")?)
    };
    Ok(LayerTable {
        tensors: tensors.iter().map(TensorModel::try_from).collect::<Result<_, _>>()?,
        ops: ops.iter().map(OpModel::try_from).collect::<Result<_, _>>()?,
        moe: Set::from_bits(kind.moe),
        experts: Set::from_bits(kind.experts),
        routed: kind.routed == 1,
    })
}

/// # Safety
/// - The chunk's array is NULL or as long as its count.
unsafe fn layers(chunk: &bagualu_chunk) -> Result<Vec<u16>, Failure> {
    at_most("count", chunk.count, MAX_LAYERS)?;
    // SAFETY: the contract of this function.
    unsafe { elements(chunk.types, chunk.count, "types") }.map(<[u16]>::to_vec)
}

fn at_most(name: &str, count: usize, most: usize) -> Result<(), Failure> {
    if count <= most {
        return Ok(());
    }
    Err(Failure::new(bagualu_status::Count, format!("{name} is {count}; this build takes {most}")))
}
