//! Named build-time limits.
//!
//! Each can be changed when the crate is built, by an environment variable of the name
//! `BAGUALU_` + the constant's (`BAGUALU_MAX_LAYERS=256 cargo build`). Exceeding one at run time is a
//! typed error, never a panic.

/// Tensors of one layer, saved or not. At most 64: sets of tensors are bit sets.
pub const MAX_TENSORS: usize = limit(option_env!("BAGUALU_MAX_TENSORS"), 64);
/// Operators of one layer. At most 64: sets of operators are bit sets.
pub const MAX_OPS: usize = limit(option_env!("BAGUALU_MAX_OPS"), 64);
/// Layers of one selection (a virtual stage of a pipeline rank).
pub const MAX_LAYERS: usize = limit(option_env!("BAGUALU_MAX_LAYERS"), 128);
/// Ranks of an expert-parallel group.
pub const MAX_EP_RANKS: usize = limit(option_env!("BAGUALU_MAX_EP_RANKS"), 256);
/// Operators of one chain of an interleaving problem.
pub const MAX_CHAIN: usize = limit(option_env!("BAGUALU_MAX_CHAIN"), 64);
/// Points of one layer's front of configurations; a longer one is thinned, with the loss stated.
pub const MAX_FRONT: usize = limit(option_env!("BAGUALU_MAX_FRONT"), 1024);
/// Independent parts of the layers of one selection.
pub const MAX_CLASSES: usize = limit(option_env!("BAGUALU_MAX_CLASSES"), 1024);
/// Points of all independent parts of one selection together.
pub const MAX_POINTS: usize = limit(option_env!("BAGUALU_MAX_POINTS"), 4096);
/// Edges of the convex hulls of one selection's fronts.
pub const MAX_EDGES: usize = limit(option_env!("BAGUALU_MAX_EDGES"), 2048);
/// Partial selections that the exact selector compares at a time.
pub const MAX_STATES: usize = limit(option_env!("BAGUALU_MAX_STATES"), 2048);
/// Partial selections that the exact selector remembers in all.
pub const MAX_NODES: usize = limit(option_env!("BAGUALU_MAX_NODES"), 16_384);

const _: () = assert!(MAX_TENSORS >= 1 && MAX_TENSORS <= 64, "BAGUALU_MAX_TENSORS must be 1 to 64");
const _: () = assert!(MAX_OPS >= 1 && MAX_OPS <= 64, "BAGUALU_MAX_OPS must be 1 to 64");
const _: () = assert!(MAX_CHAIN >= 1 && MAX_CHAIN <= 254, "BAGUALU_MAX_CHAIN must be 1 to 254");
const _: () = assert!(MAX_FRONT >= 1 && MAX_FRONT <= 65_535, "BAGUALU_MAX_FRONT must be 1 to 65535");
const _: () = assert!(MAX_STATES >= 1, "BAGUALU_MAX_STATES must be at least 1");

const fn limit(value: Option<&str>, default: usize) -> usize {
    let Some(text) = value else { return default };
    let bytes = text.as_bytes();
    assert!(!bytes.is_empty(), "a limit must be a positive whole number");
    let (mut n, mut i) = (0usize, 0);
    while i < bytes.len() {
        assert!(bytes[i].is_ascii_digit(), "a limit must be a positive whole number");
        n = n * 10 + (bytes[i] - b'0') as usize;
        i += 1;
    }
    n
}
