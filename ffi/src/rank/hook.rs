//! Operators that run again, as functions of C.

use std::array;
use std::ffi::c_void;

use bagualu_core::limits::MAX_TENSORS;
use bagualu_exec::recompute::{Again, Hook, HookError};

use crate::arguments::own_size;
use crate::device::bagualu_memory;
use crate::status::NAMES;

/// An operator that is to run again.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_again {
    /// The size of what the library filled in.
    pub struct_size: usize,
    /// The stream to submit it to.
    pub stream: u64,
    /// What `bagualu_rank_remember` left for it; 0 where nothing was.
    pub payload: u64,
    /// State of the random numbers at the forward, during the call; NULL where none was left.
    pub rng: *const u8,
    /// Bytes of `rng`.
    pub rng_bytes: usize,
    /// Where the layer's saved tensors lie, by their index, during the call: inputs that are back, and outputs to be written.
    pub tensors: *const bagualu_memory,
    /// Elements of `tensors`.
    pub tensor_count: usize,
    /// The set of tensors that are on the device now (bit `1 << index`). The others are not saved, are made again later
    /// or not at all, or come by another part of a split dispatch.
    pub there: u64,
    /// The unit.
    pub unit: u32,
    /// Its layer.
    pub layer: u32,
    /// The operator of the layer's type.
    pub op: u32,
    /// The layer's rows.
    pub rows: u32,
    /// Which part of a split dispatch.
    pub part: u32,
    /// How many parts there are; 0 for the whole layer.
    pub parts: u32,
}

/// Runs an operator again: submits it to `again->stream` and returns `BAGUALU_STATUS_OK`, or any other number to end the
/// recovery. It may call functions of the device, not of the rank.
pub type bagualu_hook = Option<unsafe extern "C" fn(user: *mut c_void, again: *const bagualu_again) -> u32>;

/// A program's function as a hook.
pub(super) struct Hooked {
    pub function: bagualu_hook,
    pub user: *mut c_void,
}

impl Hook for Hooked {
    fn run(&mut self, again: &Again<'_>) -> Result<(), HookError> {
        let Some(function) = self.function else {
            let (op, layer) = (again.op, again.layer);
            return Err(
                format!("operator {op} of layer {layer} is to run again, and no hook was given").into()
            );
        };
        let found: [_; MAX_TENSORS] = array::from_fn(|tensor| again.tensor(tensor));
        let tensors = found.map(|memory| memory.map_or_else(bagualu_memory::default, Into::into));
        let there = found.iter().enumerate().filter(|(_, memory)| memory.is_some());
        let (part, parts) = again.part.unwrap_or_default();
        let described = bagualu_again {
            struct_size: own_size::<bagualu_again>(),
            stream: again.stream.number(),
            payload: again.payload,
            rng: if again.rng.is_empty() { std::ptr::null() } else { again.rng.as_ptr() },
            rng_bytes: again.rng.len(),
            tensors: tensors.as_ptr(),
            tensor_count: tensors.len(),
            there: there.fold(0, |set, (tensor, _)| set | 1 << tensor),
            unit: again.unit,
            layer: again.layer as u32,
            op: again.op as u32,
            rows: again.rows,
            part,
            parts,
        };
        // SAFETY: whoever called `bagualu_rank_recover` lets it be called so, and it does not throw.
        match unsafe { function(self.user, &raw const described) } {
            0 => Ok(()),
            status => {
                let known = NAMES.iter().find(|(known, _)| *known as u32 == status);
                let name = known
                    .map_or("a status of the program's", |(_, name)| name.to_str().unwrap_or("a status"));
                Err(format!("the hook returned {status} ({name})").into())
            }
        }
    }
}
