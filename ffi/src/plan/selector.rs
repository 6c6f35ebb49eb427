//! `bagualu_selector`: Algorithm 2 on its own.

use bagualu_core::layer::{Layer, LayerPlan, Op, Tensor};
use bagualu_core::limits::{MAX_LAYERS, MAX_OPS, MAX_TENSORS};
use bagualu_core::mitigate::{
    Config, Exact, ExactStorage, Limits, PaperGreedy, Problem, RatioGreedy, Selection, Selector, evaluate,
};

use crate::arguments::{config, config_or_default, elements, optional, out, out_struct, room, versioned};
use crate::boundary::boundary;
use crate::handle::{self, handle};
use crate::layer::{bagualu_layer, bagualu_layer_plan, collectives};
use crate::status::{Failure, bagualu_status};

/// Chooses a strategy for each saved tensor of a micro-batch so that all fit: Algorithm 2 of the paper.
///
/// Made by `bagualu_selector_new`, freed by `bagualu_selector_free`. One call at a time: it holds the working storage,
/// about 2 MiB; threads take one each.
pub struct bagualu_selector {
    _opaque: [u8; 0],
}

handle!(bagualu_selector, Object, 2);

/// A selector and its storage.
pub(crate) struct Object {
    method: Method,
    /// Tensors and operators of the layers at hand.
    tensors: Vec<Tensor>,
    ops: Vec<Op>,
    plans: Vec<LayerPlan>,
}

enum Method {
    Exact(Box<ExactStorage>, Config),
    Ratio,
    Paper,
}

/// The least added time, proven.
pub const BAGUALU_SELECTOR_EXACT: u32 = 0;
/// The most bytes for an added nanosecond first.
pub const BAGUALU_SELECTOR_RATIO: u32 = 1;
/// The paper's greedy rule.
pub const BAGUALU_SELECTOR_PAPER: u32 = 2;

/// How a selector searches. All zeros, or NULL in its place, is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_selector_config {
    /// sizeof(bagualu_selector_config), set by the caller.
    pub struct_size: usize,
    /// `BAGUALU_SELECTOR_…`.
    pub method: u32,
    /// Partial selections that the exact search keeps; 0: all it has room for.
    pub node_limit: u32,
    /// The exact search ends this close to the proven bound, millionths of the added time; 0: at the optimum.
    pub tolerance_ppm: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(bagualu_selector_config, reserved);

/// One selection: what the layers may hold.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_selection_limits {
    /// sizeof(bagualu_selection_limits), set by the caller.
    pub struct_size: usize,
    /// Device bytes of all layers together.
    pub bytes: u64,
    /// Host bytes of all offloaded tensors; UINT64_MAX for no limit.
    pub host_bytes: u64,
    /// Groups whose collectives a recomputation may run again: bits `1 << (group - 1)` of `bagualu_group`.
    pub allow_collectives: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(bagualu_selection_limits, reserved);

/// What a selection holds and costs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_selection {
    /// sizeof(bagualu_selection), set by the caller.
    pub struct_size: usize,
    /// Device bytes held.
    pub bytes: u64,
    /// Host bytes held.
    pub host_bytes: u64,
    /// Time added to forward and backward together, ns.
    pub added_ns: u64,
    /// At most this much of it could be saved, ns: proven.
    pub gap_ns: u64,
    /// 1 if no selection within the limits is better, else 0.
    pub optimal: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(bagualu_selection, reserved);

impl From<Selection> for bagualu_selection {
    fn from(selection: Selection) -> Self {
        let Selection { bytes, host_bytes, added_ns, optimal, gap_ns } = selection;
        Self { struct_size: 0, bytes, host_bytes, added_ns, gap_ns, optimal: optimal.into(), reserved: 0 }
    }
}

/// Makes a selector; `config` may be NULL.
///
/// Thread-safe. `*selector` is the caller's, to be freed by `bagualu_selector_free`.
///
/// # Safety
/// - `config` is NULL or a struct with its `struct_size` set; `selector` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_selector_new(
    config: *const bagualu_selector_config,
    selector: *mut *mut bagualu_selector,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (config, out) = unsafe { (config_or_default(config, "config")?, out(selector, "selector")?) };
        let method = match config.method {
            BAGUALU_SELECTOR_EXACT => {
                Method::Exact(Box::default(), search(config.node_limit, config.tolerance_ppm))
            }
            BAGUALU_SELECTOR_RATIO => Method::Ratio,
            BAGUALU_SELECTOR_PAPER => Method::Paper,
            other => return Err(Failure::value("method", other, "give a BAGUALU_SELECTOR_…")),
        };
        let object = Object { method, tensors: Vec::new(), ops: Vec::new(), plans: Vec::new() };
        out.set(handle::insert(object)?);
        Ok(())
    })
}

/// The exact search's limits; a node limit of 0 is the default.
pub(crate) fn search(node_limit: u32, tolerance_ppm: u32) -> Config {
    let default = Config::default();
    Config { node_limit: if node_limit == 0 { default.node_limit } else { node_limit }, tolerance_ppm }
}

/// Frees a selector; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_selector_free(selector: *mut bagualu_selector) -> bagualu_status {
    boundary(|| handle::remove(selector).map(drop))
}

/// Selects: writes a plan for each of `layer_count` layers into `plans`, and what they hold and cost into `selection`
/// (may be NULL).
///
/// `BAGUALU_STATUS_INFEASIBLE` and its like if nothing fits; `bagualu_last_shortage` then has the bytes.
///
/// # Safety
/// - `layers` is NULL or as long as its count, with arrays as long as theirs; `plans` is NULL or has room for as many, apart from
///   all else; structs have their `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_selector_select(
    selector: *mut bagualu_selector,
    layers: *const bagualu_layer,
    layer_count: usize,
    limits: *const bagualu_selection_limits,
    plans: *mut bagualu_layer_plan,
    selection: *mut bagualu_selection,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (layers, limits, plans, out) = unsafe {
            let plans = room(plans, layer_count, "plans")?;
            let out = optional(selection, |to| out_struct(to, "selection"))?;
            (elements(layers, layer_count, "layers")?, config(limits, "limits")?, plans, out)
        };
        let found = handle::with_mut(selector, |object| {
            // SAFETY: the contract of this function.
            unsafe { object.take(layers) }?;
            let found = object.select(layers, &limits)?;
            plans.write(object.plans.iter().map(|&plan| plan.into()));
            Ok(found)
        })?;
        if let Some(out) = out {
            out.set_struct(found.into());
        }
        Ok(())
    })
}

impl Object {
    /// Copies the layers' tensors and operators, and makes room for their plans.
    ///
    /// # Safety
    /// - Every layer's arrays are NULL or as long as their counts.
    unsafe fn take(&mut self, layers: &[bagualu_layer]) -> Result<(), Failure> {
        if layers.len() > MAX_LAYERS {
            let message = format!("{} layers; this build takes {MAX_LAYERS}", layers.len());
            return Err(Failure::new(bagualu_status::Count, message));
        }
        self.tensors.clear();
        self.ops.clear();
        for (at, layer) in layers.iter().enumerate() {
            // SAFETY: the contract of this function.
            let (tensors, ops) = unsafe { parts(layer) }.map_err(|failure| failure.within("layers", at))?;
            for tensor in tensors {
                self.tensors.push(Tensor::try_from(tensor).map_err(|failure| failure.within("layers", at))?);
            }
            for op in ops {
                self.ops.push(Op::try_from(op).map_err(|failure| failure.within("layers", at))?);
            }
        }
        self.plans.clear();
        self.plans.resize(layers.len(), LayerPlan::KEEP);
        Ok(())
    }

    fn select(
        &mut self,
        counts: &[bagualu_layer],
        limits: &bagualu_selection_limits,
    ) -> Result<Selection, Failure> {
        let (mut tensors, mut ops) = (&*self.tensors, &*self.ops);
        let mut layers = Vec::with_capacity(counts.len());
        for (at, count) in counts.iter().enumerate() {
            let (own, rest) = tensors.split_at(count.tensor_count);
            let (own_ops, rest_ops) = ops.split_at(count.op_count);
            layers.push(Layer::new(own, own_ops).map_err(|error| Failure::from(error).within("layers", at))?);
            (tensors, ops) = (rest, rest_ops);
        }
        let problem = Problem {
            layers: &layers,
            limits: Limits { bytes: limits.bytes, host_bytes: limits.host_bytes },
            allow: collectives(limits.allow_collectives)?,
        };
        let plans = &mut self.plans;
        Ok(match &mut self.method {
            Method::Exact(storage, config) => Exact::new(storage, *config).select(&problem, plans)?,
            Method::Ratio => RatioGreedy.select(&problem, plans)?,
            Method::Paper => PaperGreedy.select(&problem, plans)?,
        })
    }
}

/// What a plan of one layer holds and costs; `selection.optimal` is 0.
///
/// `BAGUALU_STATUS_INVALID_VALUE` if the layer does not offer it.
///
/// Thread-safe.
///
/// # Safety
/// - `layer` is NULL or a layer with arrays as long as their counts; `plan` is NULL or a plan; `selection` is NULL or a
///   struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_layer_evaluate(
    layer: *const bagualu_layer,
    plan: *const bagualu_layer_plan,
    allow_collectives: u32,
    selection: *mut bagualu_selection,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (out, plan, (tensors, ops)) = unsafe {
            let layer = elements(layer, 1, "layer")?;
            let out = out_struct(selection, "selection")?;
            (out, elements(plan, 1, "plan")?, parts(&layer[0])?)
        };
        let tensors = tensors.iter().map(Tensor::try_from).collect::<Result<Vec<_>, _>>()?;
        let ops = ops.iter().map(Op::try_from).collect::<Result<Vec<_>, _>>()?;
        let layer = Layer::new(&tensors, &ops)?;
        let point = evaluate(&layer, &plan[0].into(), collectives(allow_collectives)?)
            .map_err(|refused| Failure::new(bagualu_status::InvalidValue, refused.to_string()))?;
        out.set_struct(bagualu_selection {
            struct_size: 0,
            bytes: point.bytes,
            host_bytes: point.host_bytes,
            added_ns: point.added_ns,
            gap_ns: point.added_ns,
            optimal: 0,
            reserved: 0,
        });
        Ok(())
    })
}

/// The arrays of a layer, of which there are no more than a layer can have.
///
/// # Safety
/// - They are NULL or as long as their counts while they are used.
unsafe fn parts(
    layer: &bagualu_layer,
) -> Result<(&[crate::layer::bagualu_tensor], &[crate::layer::bagualu_op]), Failure> {
    let bagualu_layer { tensors, tensor_count, ops, op_count } = *layer;
    for (name, count, most) in [("tensor_count", tensor_count, MAX_TENSORS), ("op_count", op_count, MAX_OPS)]
    {
        if count > most {
            let message = format!("{name} is {count}; this build takes {most}");
            return Err(Failure::new(bagualu_status::Count, message));
        }
    }
    // SAFETY: the contract of this function.
    unsafe { Ok((elements(tensors, tensor_count, "tensors")?, elements(ops, op_count, "ops")?)) }
}
