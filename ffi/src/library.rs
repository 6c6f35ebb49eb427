//! The library itself: its version and the limits it was built with.

use std::ffi::c_char;

use bagualu_core::limits;

use crate::arguments::{out_struct, versioned};
use crate::boundary::boundary;
use crate::status::bagualu_status;

/// Major version of the header: a program built with another one must be built again.
pub const BAGUALU_VERSION_MAJOR: u32 = 0;
/// Minor version of the header.
pub const BAGUALU_VERSION_MINOR: u32 = 1;
/// Patch version of the header.
pub const BAGUALU_VERSION_PATCH: u32 = 0;

/// The version of the library that is loaded, as `"0.1.0"`.
///
/// The text is static. Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_version() -> *const c_char {
    const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    TEXT.as_ptr().cast()
}

/// The same as a number: major · 1000000 + minor · 1000 + patch.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_version_number() -> u32 {
    BAGUALU_VERSION_MAJOR * 1_000_000 + BAGUALU_VERSION_MINOR * 1_000 + BAGUALU_VERSION_PATCH
}

/// How large problems may be in this build.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_build_limits {
    /// sizeof(bagualu_build_limits), set by the caller.
    pub struct_size: usize,
    /// Tensors of a layer.
    pub tensors: usize,
    /// Operators of a layer.
    pub ops: usize,
    /// Layers of a selection, and of a model chunk of a rank.
    pub layers: usize,
    /// Ranks of an expert-parallel group.
    pub ep_ranks: usize,
    /// Operators of one chain of a scheduling problem.
    pub chain: usize,
}

versioned!(bagualu_build_limits);

/// Writes the limits of this build.
///
/// Thread-safe.
///
/// # Safety
/// - `out` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_library_limits(out: *mut bagualu_build_limits) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let out = unsafe { out_struct(out, "out") }?;
        out.set_struct(bagualu_build_limits {
            struct_size: 0,
            tensors: limits::MAX_TENSORS,
            ops: limits::MAX_OPS,
            layers: limits::MAX_LAYERS,
            ep_ranks: limits::MAX_EP_RANKS,
            chain: limits::MAX_CHAIN,
        });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_version_of_the_package() {
        let parts = [BAGUALU_VERSION_MAJOR, BAGUALU_VERSION_MINOR, BAGUALU_VERSION_PATCH];
        assert_eq!(parts.map(|p| p.to_string()).join("."), env!("CARGO_PKG_VERSION"));
        assert_eq!(bagualu_version_number(), 1_000);
    }
}
