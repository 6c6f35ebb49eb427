//! Calls out of order and stages that make no sense are typed errors, never a panic.

use bagualu_core::budget::BudgetError;
use bagualu_core::controller::{Controller, ControllerError, Gate, Settings};
use bagualu_core::cost::{Bytes, LayerModel, LayerStorage, OpModel, Rooflines, TensorModel, Time};
use bagualu_core::group::GroupDecision;
use bagualu_core::layer::Resource;
use bagualu_core::ledger::Admission;
use bagualu_core::provision::{Aim, Provision};
use bagualu_core::roofline::Knee;
use bagualu_core::schedule::{Event, Pipeline};
use bagualu_core::set::Set;
use bagualu_core::stage::{StageError, StageModel};
use bagualu_model::Buffers;

const KNEE: Knee = Knee { size_bytes: 10, bytes_per_s: 1_000_000_000 };
const GATE: Gate =
    Gate { rows: 4, group: GroupDecision { whole_moe: false, dispatch_chunks: 1 }, granted: None };

/// A block input of 10 bytes and a saved tensor of 100 that may only be offloaded.
fn tensors() -> [TensorModel; 2] {
    let tensor = |bytes| TensorModel { bytes: Bytes::fixed(bytes), ..Default::default() };
    [TensorModel { block_input: true, ..tensor(10) }, TensorModel { offload: true, ..tensor(100) }]
}

fn ops() -> [OpModel; 1] {
    [OpModel {
        reads: Set::one(0),
        makes: Set::EMPTY,
        saves: Set::one(1),
        forward: Time { fixed_ns: 1, per_row_ps: 0 },
        backward: Time { fixed_ns: 1, per_row_ps: 0 },
        resource: Resource::Compute,
        collective: None,
        forward_work: Bytes::fixed(0),
        backward_work: Bytes::fixed(0),
    }]
}

fn stage<'a>(types: &'a [LayerModel<'a>], chunks: &'a [&'a [u16]]) -> StageModel<'a> {
    StageModel {
        types,
        chunks,
        rooflines: Rooflines { copy_out: KNEE, copy_in: KNEE, cast: KNEE, uncast: KNEE },
        balanced_rows: 4,
        device_bytes: 1_000,
        host_bytes: 1_000,
        fused: false,
    }
}

/// Runs `check` on the controller of a rank of one layer.
fn controlled<T>(
    pipeline: Pipeline,
    events: &[Event],
    spare_units: usize,
    check: impl FnOnce(Result<Controller<'_>, ControllerError>) -> T,
) -> T {
    let (tensors, ops) = (tensors(), ops());
    let types =
        [LayerModel { tensors: &tensors, ops: &ops, moe: Set::EMPTY, experts: Set::EMPTY, routed: true }];
    let stage = stage(&types, &[&[0]]);
    let mut buffers = Buffers::new(&stage, pipeline.units().expect("units") as usize + spare_units);
    let (units, layer) = buffers.scratch();
    let provision =
        Provision::solve(&stage, &pipeline, &[], Aim::default(), units, layer).expect("it is small");
    let provision = Provision { capacity_bytes: 250, ..provision };
    check(Controller::new(stage, pipeline, events, provision, Settings::default(), buffers.storage()))
}

fn forward(controller: &mut Controller<'_>, unit: u32, measured: Option<u64>) {
    controller.handle_forward(unit).expect("in order");
    controller.handle_layer(0, GATE).expect("in order");
    assert_eq!(controller.poll_layer(), Ok(Admission::Run));
    controller.handle_layer_done().expect("in order");
    controller.handle_forward_done(measured).expect("in order");
}

#[test]
fn an_event_of_a_unit_outside_the_pipeline_is_refused() {
    let events = [Event::Forward(0), Event::Forward(1)];
    controlled(Pipeline::new(1, 0, 1), &events, 1, |controller| {
        let refused = BudgetError::NoSuchUnit { at: 1, unit: 1, count: 1 };
        assert_eq!(controller.expect_err("unit 1 of 1"), ControllerError::Budget(refused));
    });
}

#[test]
fn a_backward_waits_for_the_end_of_its_own_forward() {
    let events = [Event::Forward(0), Event::Backward(0)];
    controlled(Pipeline::new(1, 0, 1), &events, 0, |controller| {
        let mut controller = controller.expect("a rank");
        controller.handle_forward(0).expect("in order");
        let early = controller.handle_backward(0);
        assert_eq!(early, Err(ControllerError::OutOfOrder { call: "handle_backward" }));
    });
}

#[test]
fn a_correction_spares_the_backward_under_way() {
    let events = [Event::Forward(0), Event::Forward(1), Event::Backward(1), Event::Backward(0)];
    controlled(Pipeline::new(2, 0, 2), &events, 0, |controller| {
        let mut controller = controller.expect("a rank");
        forward(&mut controller, 0, None);
        forward(&mut controller, 1, Some(400));
        controller.handle_backward(1).expect("in order");
        let correction = controller.poll_correction().expect("in order").expect("unit 0 keeps 100 bytes");
        assert_eq!((correction.unit, correction.bytes), (0, 100));
        assert_eq!(controller.poll_correction(), Ok(None), "nothing else may leave");
        controller.handle_backward_done().expect("none of its copies is pending");
    });
}

#[test]
fn a_correction_takes_no_more_than_was_measured() {
    let events = [Event::Forward(0), Event::Forward(1), Event::Backward(0), Event::Backward(1)];
    controlled(Pipeline::new(2, 0, 2), &events, 0, |controller| {
        let mut controller = controller.expect("a rank");
        forward(&mut controller, 0, Some(400));
        forward(&mut controller, 1, Some(20));
        let correction = controller.poll_correction().expect("a choice").expect("unit 0 keeps 400 bytes");
        assert_eq!((correction.unit, correction.bytes), (0, 100));
    });
}

#[test]
fn experts_are_operators_of_their_type() {
    let (tensors, ops) = (tensors(), ops());
    let experts = Set::one(0) | Set::one(7);
    let types = [LayerModel { tensors: &tensors, ops: &ops, moe: Set::EMPTY, experts, routed: true }];
    assert_eq!(stage(&types, &[&[0]]).check(), Err(StageError::NoSuchExpert { kind: 0, op: 7 }));
}

#[test]
fn an_unchecked_stage_names_the_type_it_lacks() {
    let (stage, mut storage) = (stage(&[], &[&[3]]), LayerStorage::new());
    let missing = StageError::NoSuchKind { kind: 3 };
    assert_eq!(stage.floor(0, &mut storage), Err(missing));
    assert_eq!(stage.full(0, 4, &mut storage), Err(missing));
    assert_eq!(stage.work(4, &mut storage), Err(missing));
    assert_eq!(stage.least_line(3, bagualu_core::stage::Recompute::Local, &mut storage), Err(missing));
}
