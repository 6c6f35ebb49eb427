//! How a controller plans, as C says it.

use bagualu_core::controller::Settings;
use bagualu_core::provision::{Aim, Provision};
use bagualu_core::stage::Recompute;
use bagualu_model::Memory;

use super::budget::share;
use super::planned::Choices;
use super::selector::search;
use crate::arguments::{config, config_or_default, optional, own_size, versioned};
use crate::status::Failure;

/// How a controller plans. All zeros, or NULL in its place, is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_controller_config {
    /// sizeof(bagualu_controller_config), set by the caller.
    pub struct_size: usize,
    /// How memory is divided: `BAGUALU_SHARE_…`.
    pub share: u32,
    /// 1 if a forward and a backward run together, else 0.
    pub fused: u32,
    /// Partial selections that a plan's search keeps; 0: all there is room for.
    pub node_limit: u32,
    /// A plan's search ends this close to the proven bound, millionths of the added time; 0: 10000.
    pub tolerance_ppm: u32,
    /// Rows are planned in steps of this many; 0: a sixteenth of the balanced rows.
    pub row_granule: u32,
    /// Load up to which no dispatch should be split, thousandths of the balanced rows; 0: 2600.
    pub spike_permille: u32,
    /// Load up to which no whole MoE module should be recomputed, thousandths; 0: 1200.
    pub usual_permille: u32,
    /// 0.
    pub reserved: u32,
    /// Limits are planned for in steps of this many bytes; 0: a 1024th of the capacity.
    pub byte_granule: u64,
    /// Bytes held back for errors of the model.
    pub slack_bytes: u64,
    /// Trade-offs of layers remembered; 0: 64. At least two for each layer type.
    pub fronts: usize,
    /// Points of each; 0: 1024.
    pub points: usize,
    /// Plans remembered; 0: 1024.
    pub plans: usize,
    /// The static decisions that the group has agreed upon; NULL: this rank's own.
    pub provision: *const bagualu_provision,
}

versioned!(bagualu_controller_config, reserved);

/// Nothing is recomputed but what the plan says (`bagualu_provision`, `bagualu_decision`).
pub const BAGUALU_RECOMPUTE_LOCAL: u32 = 0;
/// The whole MoE module is recomputed, by decision of the group.
pub const BAGUALU_RECOMPUTE_WHOLE_MOE: u32 = 1;
/// Everything is recomputed whose recomputation needs a collective: static.
pub const BAGUALU_RECOMPUTE_FULL: u32 = 2;

/// What is decided once, before training. Ranks of an expert-parallel group run with the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_provision {
    /// sizeof(bagualu_provision), set by the caller.
    pub struct_size: usize,
    /// What is recomputed whatever the budget: `BAGUALU_RECOMPUTE_…`.
    pub recompute: u32,
    /// R*: a layer whose largest rows over the group exceed it is recomputed whole by all.
    pub row_threshold: u32,
    /// S*: above it the group splits the dispatch.
    pub dispatch_threshold: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes kept free for what operators need while they run, at S*.
    pub work_bytes: u64,
    /// What held tensors may take, bytes.
    pub capacity_bytes: u64,
}

versioned!(bagualu_provision, reserved);

/// What a controller is made with, and whether forwards and backwards are fused.
///
/// # Safety
/// - `from` is NULL or a struct with its `struct_size` set; so is its provision.
pub(crate) unsafe fn read_choices(
    from: *const bagualu_controller_config,
) -> Result<(Choices, bool), Failure> {
    // SAFETY: the contract of this function.
    let (given, provision) = unsafe {
        let given = config_or_default(from, "config")?;
        (given, optional(given.provision.cast_mut(), |provision| config(provision, "provision"))?)
    };
    let (settings, aim, memory) = (Settings::default(), Aim::default(), Memory::default());
    let or = |value: u32, default: u32| if value == 0 { default } else { value };
    let or_many = |value: usize, default: usize| if value == 0 { default } else { value };
    let choices = Choices {
        settings: Settings {
            share: share(given.share)?,
            selector: search(given.node_limit, or(given.tolerance_ppm, settings.selector.tolerance_ppm)),
            row_granule: given.row_granule,
            byte_granule: given.byte_granule,
            slack_bytes: given.slack_bytes,
        },
        aim: Aim { spike: or(given.spike_permille, aim.spike), usual: or(given.usual_permille, aim.usual) },
        memory: Memory {
            fronts: or_many(given.fronts, memory.fronts),
            points: or_many(given.points, memory.points),
            plans: or_many(given.plans, memory.plans),
        },
        provision: provision.map(|provision| provision.checked()).transpose()?,
    };
    Ok((choices, flag("fused", given.fused)?))
}

/// A number that is 0 or 1.
pub(super) fn flag(name: &str, value: u32) -> Result<bool, Failure> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Failure::value(name, other, "give 0 or 1")),
    }
}

impl From<Provision> for bagualu_provision {
    fn from(provision: Provision) -> Self {
        let Provision { recompute, row_threshold, dispatch_threshold, work_bytes, capacity_bytes } =
            provision;
        Self {
            struct_size: own_size::<Self>(),
            recompute: recompute as u32,
            row_threshold,
            dispatch_threshold,
            reserved: 0,
            work_bytes,
            capacity_bytes,
        }
    }
}

impl bagualu_provision {
    fn checked(&self) -> Result<Provision, Failure> {
        let recompute = match self.recompute {
            BAGUALU_RECOMPUTE_LOCAL => Recompute::Local,
            BAGUALU_RECOMPUTE_FULL => Recompute::Full,
            other => {
                return Err(Failure::value("recompute", other, "give BAGUALU_RECOMPUTE_LOCAL or …_FULL"));
            }
        };
        let Self { row_threshold, dispatch_threshold, work_bytes, capacity_bytes, .. } = *self;
        Ok(Provision { recompute, row_threshold, dispatch_threshold, work_bytes, capacity_bytes })
    }
}
