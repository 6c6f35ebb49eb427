//! Instances of Algorithm 2 from the layer tables of real models.

use bagualu_core::cost::LayerStorage;
use bagualu_core::layer::{Collectives, Layer, LayerPlan, Op, Tensor};
use bagualu_core::mitigate::{Limits, MitigateError, Problem, Selection, Selector};
use bagualu_model::{Device, Model, Preset};

/// A layer of an instance, by value.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its tensors.
    pub tensors: Vec<Tensor>,
    /// Its operators.
    pub ops: Vec<Op>,
    /// Names of the tensors.
    pub tensor_names: Vec<&'static str>,
    /// Names of the operators.
    pub op_names: Vec<&'static str>,
}

/// The layers of a micro-batch at known rows.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The layers.
    pub layers: Vec<Table>,
    /// Bytes with nothing mitigated.
    pub full_bytes: u64,
    /// Fewest bytes that any selection holds.
    pub least_bytes: u64,
}

impl Stage {
    /// MoE layers of a preset on a device, one for each load (in thousandths of the balanced rows).
    pub fn new(model: &str, device: &str, loads_permille: &[u32]) -> Self {
        let preset = Preset::named(model, None).expect("a preset");
        let device = Device::named(device).expect("a device");
        let model = Model::new(&preset.config, &preset.parallelism, &device).expect("a model");
        let kind = model.types.iter().find(|kind| kind.routed).expect("a routed layer");
        let layers = loads_permille.iter().map(|&load| {
            let mut storage = LayerStorage::new();
            let layer = kind.model().at(model.rows_at(load), &device.rooflines(), &mut storage);
            let layer = layer.expect("a layer");
            Table {
                tensors: layer.tensors().to_vec(),
                ops: layer.ops().to_vec(),
                tensor_names: kind.tensor_names.clone(),
                op_names: kind.op_names.clone(),
            }
        });
        let mut stage = Self { layers: layers.collect(), full_bytes: 0, least_bytes: 0 };
        stage.full_bytes = stage.borrow().iter().map(Layer::full_bytes).sum();
        let nothing = stage.problem(&stage.borrow(), 0, |problem| {
            let mut plans = vec![LayerPlan::KEEP; problem.layers.len()];
            bagualu_core::mitigate::RatioGreedy.select(problem, &mut plans)
        });
        stage.least_bytes = match nothing {
            Err(MitigateError::Infeasible { least, .. }) => least,
            other => panic!("no layer holds nothing: {other:?}"),
        };
        stage
    }

    /// The layers as the core takes them.
    pub fn borrow(&self) -> Vec<Layer<'_>> {
        self.layers.iter().map(|l| Layer::new(&l.tensors, &l.ops).expect("a layer")).collect()
    }

    /// A limit at so many thousandths of the way from the fewest bytes to all.
    pub fn limit(&self, permille: u64) -> u64 {
        self.least_bytes + (self.full_bytes - self.least_bytes) / 1_000 * permille
    }

    /// Runs on `layers` within `bytes`, with no host limit and local recomputation only.
    pub fn problem<T>(&self, layers: &[Layer<'_>], bytes: u64, run: impl FnOnce(&Problem<'_>) -> T) -> T {
        let limits = Limits { bytes, host_bytes: u64::MAX };
        run(&Problem { layers, limits, allow: Collectives::NONE })
    }

    /// The selection of `selector` within `bytes`.
    pub fn select(&self, selector: &mut impl Selector, bytes: u64) -> Result<Selection, MitigateError> {
        let layers = self.borrow();
        let mut plans = vec![LayerPlan::KEEP; layers.len()];
        self.problem(&layers, bytes, |problem| selector.select(problem, &mut plans))
    }
}

/// Loads drawn from 1 to 2.6 by a fixed linear congruence, the same on every machine.
pub fn loads(seed: u64, layers: usize) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1_000 + ((state >> 33) % 1_601) as u32
    };
    (0..layers).map(|_| next()).collect()
}
