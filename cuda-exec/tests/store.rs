//! The store without a controller: strategies chosen by hand, and what it refuses.

use std::cell::RefCell;
use std::error::Error;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bagualu_core::cost::{Bytes, LayerModel, OpModel, Rooflines, TensorModel, Time};
use bagualu_core::layer::{LayerPlan, Resource, Strategy};
use bagualu_core::roofline::Knee;
use bagualu_core::schedule::Pipeline;
use bagualu_core::set::Set;
use bagualu_core::stage::StageModel;
use bagualu_exec::device::{ALIGNMENT, Device, DeviceError, DeviceSlice, Stream, StreamUse};
use bagualu_exec::engine::{Engine, EngineConfig, EngineError};
use bagualu_exec::fp8::{Block, Cast, CastShape, Format, Overflow, Scaling, Source};
use bagualu_exec::host::{HostConfig, HostDevice};
use bagualu_exec::pool::PoolConfig;
use bagualu_exec::recompute::{Again, NoHook};
use bagualu_exec::store::{Allocator, DeviceAllocator, Left, OpenError, Saved, Store, StoreError};

const BYTES: u64 = 2_048;
const HOST: u64 = 1 << 20;

/// x (kept) → a → b → c; d from a and b. An unsaved tensor lies between b and c.
const X: usize = 0;
const A: usize = 1;
const B: usize = 2;
const BETWEEN: usize = 3;
const C: usize = 4;
const D: usize = 5;

fn tensors() -> [TensorModel; 6] {
    let narrow = Some(Bytes::fixed(BYTES / 2 + BYTES / 64));
    let saved = TensorModel {
        bytes: Bytes::fixed(BYTES),
        offload: true,
        quantized: narrow,
        ..TensorModel::default()
    };
    let x = TensorModel { block_input: true, offload: false, quantized: None, ..saved };
    [x, saved, saved, TensorModel::default(), saved, saved]
}

fn ops() -> [OpModel; 6] {
    let op = |reads: &[usize], makes: usize, saves: usize| OpModel {
        reads: reads.iter().copied().collect(),
        makes: Set::one(makes),
        saves: Set::one(saves),
        forward: Time::default(),
        backward: Time::default(),
        resource: Resource::Compute,
        collective: None,
        forward_work: Bytes::default(),
        backward_work: Bytes::default(),
    };
    let last = OpModel { makes: Set::EMPTY, saves: Set::one(C) | Set::one(D), ..op(&[C, D], 0, 0) };
    [op(&[X], A, X), op(&[A], B, A), op(&[B], BETWEEN, B), op(&[BETWEEN], C, C), op(&[A, B], D, D), last]
}

/// Everything that a store needs, for `test`.
fn with_store(test: impl FnOnce(&mut Store<'_>, &Arc<HostDevice>)) {
    with_allocator(|host| Box::new(DeviceAllocator::new(Arc::<HostDevice>::clone(host))), test);
}

fn with_allocator(
    allocator: impl FnOnce(&Arc<HostDevice>) -> Box<dyn Allocator>,
    test: impl FnOnce(&mut Store<'_>, &Arc<HostDevice>),
) {
    let (tensors, ops) = (tensors(), ops());
    let types =
        [LayerModel { tensors: &tensors, ops: &ops, moe: Set::EMPTY, experts: Set::EMPTY, routed: false }];
    let host = Arc::new(HostDevice::open(HostConfig::default()).expect("a host"));
    let compute = host.create_stream(StreamUse::Compute).expect("a stream");
    let allocator = allocator(&host);
    let config = EngineConfig { slots: 64, ..EngineConfig::new(HOST + 64 * ALIGNMENT, 4) };
    let mut store = open(&host, &types, config, allocator, compute).expect("a store");
    test(&mut store, &host);
    host.synchronize(compute).expect("no work was lost");
    drop(store);
    assert_eq!((host.device_usage().bytes, host.pinned_usage().bytes), (0, 0), "all is given back");
}

fn open<'c>(
    host: &Arc<HostDevice>,
    types: &'c [LayerModel<'c>],
    config: EngineConfig,
    allocator: Box<dyn Allocator>,
    compute: Stream,
) -> Result<Store<'c>, OpenError> {
    const CHUNKS: &[&[u16]] = &[&[0, 0]];
    let knee = Knee { size_bytes: 1, bytes_per_s: 1_000_000_000 };
    let stage = StageModel {
        types,
        chunks: CHUNKS,
        rooflines: Rooflines { copy_out: knee, copy_in: knee, cast: knee, uncast: knee },
        balanced_rows: 1,
        device_bytes: 1 << 30,
        host_bytes: HOST,
        fused: false,
    };
    let device: Arc<dyn Device> = Arc::<HostDevice>::clone(host);
    let engine = Engine::new(device, config).expect("an engine");
    Store::new(stage, Pipeline::new(2, 0, 4), engine, allocator, compute)
}

fn bytes(of: DeviceSlice) -> &'static mut [u8] {
    let start = std::ptr::with_exposed_provenance_mut(of.address() as usize);
    // SAFETY: device memory of the host is this process's; the tests touch it when no work is under way.
    unsafe { std::slice::from_raw_parts_mut(start, of.bytes() as usize) }
}

fn plan(strategies: &[(usize, Strategy)]) -> LayerPlan {
    let mut plan = LayerPlan::KEEP;
    for &(tensor, strategy) in strategies {
        plan.assign(tensor, strategy);
    }
    plan
}

fn cast() -> Cast {
    let shape = CastShape::flat(BYTES / 2, Scaling::Blocks(Block::default()), Source::Bf16).expect("a shape");
    Cast { shape, format: Format::E4m3, overflow: Overflow::Saturate }
}

fn filled(store: &mut Store<'_>, tensor: usize) -> DeviceSlice {
    let memory = store.allocate(BYTES).expect("memory");
    bytes(memory).fill(tensor as u8 + 1);
    memory
}

fn save(store: &mut Store<'_>, tensor: usize, saved: impl Into<Saved>) -> Result<(), StoreError> {
    // SAFETY: memory of the store's allocator, written before.
    unsafe { store.save(0, 0, tensor, saved.into()) }
}

fn forward(store: &mut Store<'_>, plan: LayerPlan) {
    store.enter(0, 0, 1, plan, 1).expect("entered");
    for tensor in [X, A, B, C, D] {
        let memory = filled(store, tensor);
        save(store, tensor, Saved::with_cast(memory, cast())).expect("saved");
    }
}

fn settle(store: &mut Store<'_>) -> Vec<Left> {
    store.settle(0, 0).expect("settled");
    let mut left = Vec::new();
    while store.engine().usage().leaving_bytes > 0 {
        store.block_until_released(1).expect("a copy");
        while let Some(one) = store.poll_copied_out().expect("no loss") {
            left.push(one);
        }
    }
    left
}

#[test]
fn producers_run_before_their_readers_each_once() {
    with_store(|store, _| {
        let dropped = [A, B, C, D].map(|tensor| (tensor, Strategy::Recompute));
        forward(store, plan(&dropped));
        for op in 0..5 {
            store.remember(0, 0, op, 100 + op as u64, &[op as u8; 5]).expect("remembered");
        }
        assert_eq!(settle(store), []);
        assert!([A, B, C, D].iter().all(|&tensor| store.tensor(0, 0, tensor).is_none()));
        let ran = RefCell::new(Vec::new());
        let mut hook = |again: &Again<'_>| {
            assert_eq!((again.payload, again.rng), (100 + again.op as u64, &[again.op as u8; 5][..]));
            assert_eq!((again.unit, again.layer, again.rows, again.part), (0, 0, 1, None));
            assert!(again.tensor(X).is_some() && again.tensor(BETWEEN).is_none());
            let makes = [A, B, BETWEEN, C, D][again.op];
            assert_eq!(again.tensor(makes).is_some(), makes != BETWEEN, "an output's memory");
            ran.borrow_mut().push(again.op);
            Ok(())
        };
        store.recover(0, 0, &mut hook).expect("recovered");
        let ran = ran.into_inner();
        assert_eq!(ran.len(), 5, "{ran:?}");
        let place = |op: usize| ran.iter().position(|&ran| ran == op).expect("it ran");
        assert!(place(0) < place(1) && place(1) < place(2) && place(2) < place(3) && place(1) < place(4));
        store.release(0, 0).expect("released");
    });
}

#[test]
fn inputs_of_a_recomputed_tensor_come_back_before_it() {
    with_store(|store, host| {
        let strategies = [
            (A, Strategy::Offload),
            (B, Strategy::Quantize),
            (D, Strategy::Recompute),
            (C, Strategy::Recompute),
        ];
        forward(store, plan(&strategies));
        assert_eq!(settle(store), [Left { unit: 0, bytes: BYTES }]);
        let compute = store.compute();
        let host = Arc::clone(host);
        let mut hook = move |again: &Again<'_>| {
            // Everything submitted so far has ended: the inputs are there.
            host.synchronize(compute)?;
            if again.op == 4 {
                assert!(bytes(again.tensor(A).expect("back")).iter().all(|&byte| byte == A as u8 + 1));
                assert!(again.tensor(B).is_some());
            }
            Ok(())
        };
        store.recover(0, 0, &mut hook).expect("recovered");
        store.release(0, 0).expect("released");
    });
}

#[test]
fn what_is_offloaded_after_all_does_not_come_back_early() {
    with_store(|store, host| {
        forward(store, plan(&[(A, Strategy::Offload)]));
        assert_eq!(settle(store), [Left { unit: 0, bytes: BYTES }]);
        assert!(store.can_come_back(0));
        store.announce(0).expect("a unit");
        store.offload_after_all(0, 0, Set::one(B) | Set::one(C)).expect("both are kept");
        assert!(!store.can_come_back(0), "something leaves");
        store.poll_reloads().expect("nothing is due");
        assert_eq!(store.engine().usage().returning_bytes, 0);
        let again = store.offload_after_all(0, 0, Set::one(A)).expect_err("it is away");
        assert!(matches!(again, StoreError::OutOfOrder { .. }), "{again}");
        store.drain().expect("done");
        while store.poll_copied_out().expect("no loss").is_some() {}
        store.announce(0).expect("a unit");
        store.poll_reloads().expect("all are due");
        assert_eq!(store.engine().usage().returning_bytes, 3 * BYTES);
        store.recover(0, 0, &mut NoHook).expect("recovered");
        host.synchronize(store.compute()).expect("done");
        for tensor in [A, B, C] {
            assert_eq!(bytes(store.tensor(0, 0, tensor).expect("back")), [tensor as u8 + 1; BYTES as usize]);
        }
        store.release(0, 0).expect("released");
    });
}

#[test]
fn a_tensor_smaller_than_its_model_is_counted_as_the_model_says() {
    with_store(|store, host| {
        store.enter(0, 0, 1, plan(&[(A, Strategy::Offload), (C, Strategy::Offload)]), 1).expect("entered");
        for (tensor, length) in [(X, BYTES), (A, 100), (B, BYTES), (C, 0), (D, 7)] {
            let memory = store.allocate(length).expect("memory");
            bytes(memory).fill(tensor as u8 + 1);
            save(store, tensor, memory).expect("saved");
        }
        store.settle(0, 0).expect("settled");
        store.drain().expect("done");
        for _ in [A, C] {
            let left = store.poll_copied_out().expect("no loss");
            assert_eq!(left, Some(Left { unit: 0, bytes: BYTES }));
        }
        store.recover(0, 0, &mut NoHook).expect("recovered");
        host.synchronize(store.compute()).expect("done");
        assert_eq!(bytes(store.tensor(0, 0, A).expect("back")), [A as u8 + 1; 100]);
        assert_eq!(store.tensor(0, 0, C).expect("back").bytes(), 0);
        store.release(0, 0).expect("released");
    });
}

#[test]
fn a_quantised_tensor_comes_back_within_half_a_step() {
    with_store(|store, host| {
        store.enter(0, 0, 1, plan(&[(B, Strategy::Quantize)]), 1).expect("entered");
        let mut original = Vec::new();
        for tensor in [X, A, B, C, D] {
            let memory = filled(store, tensor);
            if tensor == B {
                let mut random = 7u32;
                for number in bytes(memory).chunks_exact_mut(2) {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let value = ((random >> 8) as f32 / (1 << 24) as f32 - 0.5) * 6.0;
                    number.copy_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes());
                }
                original = bytes(memory).to_vec();
            }
            save(store, tensor, Saved::with_cast(memory, cast())).expect("saved");
        }
        let wide = host.device_usage().bytes;
        settle(store);
        host.synchronize(store.compute()).expect("cast");
        store.recover(0, 0, &mut NoHook).expect("recovered");
        host.synchronize(store.compute()).expect("cast back");
        assert!(wide >= 5 * BYTES);
        let value = |pair: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
        let back = bytes(store.tensor(0, 0, B).expect("back"));
        let mut inexact = 0;
        for (block, original) in back.chunks(256).zip(original.chunks(256)) {
            let most = original.chunks_exact(2).map(|pair| value(pair).abs()).fold(0.0, f32::max);
            for (back, original) in block.chunks_exact(2).zip(original.chunks_exact(2)) {
                let (back, original) = (value(back), value(original));
                // Three bits of significand: a sixteenth; the least step of a block is 2^-9 / 224 of its largest.
                let within = (original.abs() / 16.0).max(most / 224.0 / 512.0);
                assert!((back - original).abs() <= within, "{original} came back as {back}");
                inexact += u32::from(back != original);
            }
        }
        assert!(inexact > 100, "it was cast");
        store.release(0, 0).expect("released");
    });
}

#[test]
fn a_failing_hook_is_called_once_and_its_error_handed_on() {
    with_store(|store, _| {
        forward(store, plan(&[(A, Strategy::Recompute), (B, Strategy::Recompute)]));
        settle(store);
        let calls = RefCell::new(0);
        let mut hook = |_: &Again<'_>| {
            *calls.borrow_mut() += 1;
            Err("the kernel is missing".into())
        };
        let error = store.recover(0, 0, &mut hook).expect_err("it fails");
        assert!(matches!(error, StoreError::Hook { unit: 0, layer: 0, op: 0, .. }), "{error:?}");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("the kernel is missing"));
        assert!(error.to_string().contains("operator 0 of layer 0 of unit 0"), "{error}");
        let again = store.recover(0, 0, &mut hook).expect_err("not twice");
        assert!(matches!(again, StoreError::OutOfOrder { call: "recover", .. }), "{again}");
        assert_eq!(calls.into_inner(), 1);
        store.abandon();
        forward(store, LayerPlan::KEEP);
        settle(store);
        let error = store.recover(0, 1, &mut NoHook).expect_err("not entered");
        assert!(matches!(error, StoreError::OutOfOrder { layer: 1, .. }), "{error}");
    });
}

#[test]
fn what_does_not_fit_the_model_is_refused() {
    with_store(|store, _| {
        let quantized = plan(&[(A, Strategy::Quantize), (D, Strategy::Recompute)]);
        store.enter(0, 0, 1, quantized, 1).expect("entered");
        let error = store.enter(0, 0, 1, quantized, 1).expect_err("entered before");
        assert!(matches!(error, StoreError::OutOfOrder { call: "enter", .. }), "{error}");
        let memory = filled(store, A);
        let larger = DeviceSlice::new(memory.address(), BYTES + 1);
        let refused = |error: StoreError| error.to_string();
        assert!(
            refused(save(store, X, larger).expect_err("too large")).contains("2049 bytes and its model 2048")
        );
        let error = save(store, A, memory).expect_err("no shape");
        assert!(matches!(error, StoreError::NoShape { tensor: A, bytes: BYTES, shape: 0 }), "{error}");
        let short = CastShape::flat(8, Scaling::Blocks(Block::default()), Source::Bf16).expect("a shape");
        let error =
            save(store, A, Saved::with_cast(memory, Cast { shape: short, ..cast() })).expect_err("short");
        assert!(matches!(error, StoreError::NoShape { shape: 16, .. }), "{error}");
        let scales = Scaling::Blocks(Block { rows: 1, columns: 16 });
        let shape = CastShape::flat(BYTES / 2, scales, Source::Bf16).expect("a shape");
        let error =
            save(store, A, Saved::with_cast(memory, Cast { shape, ..cast() })).expect_err("more scales");
        assert!(matches!(error, StoreError::Larger { bytes: 1_280, model: 1_056, .. }), "{error}");
        save(store, A, Saved::with_cast(memory, cast())).expect("saved");
        let error = save(store, A, memory).expect_err("saved twice");
        assert!(matches!(error, StoreError::OutOfOrder { call: "save", .. }), "{error}");
        for unknown in [BETWEEN, 6, 63, 64, usize::MAX] {
            let error = save(store, unknown, memory).expect_err("no such tensor");
            assert!(matches!(error, StoreError::NoSuchTensor { .. }), "{error}");
        }
        let error = store.settle(0, 0).expect_err("not all are there");
        assert!(matches!(error, StoreError::NotSaved { tensor: X }), "{error}");
        for tensor in [X, B, C] {
            let memory = filled(store, tensor);
            save(store, tensor, memory).expect("saved, as nothing has changed");
        }
        store.settle(0, 0).expect("all are there");
    });
}

#[test]
fn places_that_do_not_exist_are_refused() {
    with_store(|store, _| {
        for (unit, layer) in [(0, 2), (4, 0), (u32::MAX, 0), (0, usize::MAX)] {
            let errors = [
                store.enter(unit, layer, 1, LayerPlan::KEEP, 1),
                store.remember(unit, layer, 0, 0, &[]),
                store.settle(unit, layer),
                store.recover(unit, layer, &mut NoHook),
                store.recover_part(unit, layer, 0, &mut NoHook),
                store.release(unit, layer),
                store.offload_after_all(unit, layer, Set::EMPTY),
                store.parts(unit, layer).map(|_| ()),
            ];
            for error in errors {
                let error = error.expect_err("no such place");
                assert!(matches!(error, StoreError::NoSuchLayer { .. }), "{error}");
            }
            assert_eq!(store.tensor(unit, layer, 0), None);
            assert!(!store.can_come_back(unit) || unit < 4);
        }
        assert!(matches!(store.announce(4), Err(StoreError::Engine(_))));
        store.enter(0, 0, 1, LayerPlan::KEEP, 1).expect("entered");
        assert!(matches!(store.remember(0, 0, 6, 0, &[]), Err(StoreError::OutOfOrder { .. })));
    });
}

#[test]
fn an_engine_smaller_than_the_planner_was_told_is_refused() {
    let (tensors, ops) = (tensors(), ops());
    let types =
        [LayerModel { tensors: &tensors, ops: &ops, moe: Set::EMPTY, experts: Set::EMPTY, routed: false }];
    let host = Arc::new(HostDevice::open(HostConfig::default()).expect("a host"));
    let compute = host.create_stream(StreamUse::Compute).expect("a stream");
    // Two units in flight, of two layers with four tensors that may be offloaded.
    let needed = HOST + 16 * ALIGNMENT;
    let enough = EngineConfig { slots: 16, ..EngineConfig::new(needed, 4) };
    let open = |config| {
        let allocator = Box::new(DeviceAllocator::new(Arc::<HostDevice>::clone(&host)));
        open(&host, &types, config, allocator, compute)
    };
    drop(open(enough).expect("just enough"));
    for cap in [HOST / 2, HOST, needed - ALIGNMENT] {
        let pool = PoolConfig { cap_bytes: cap, ..enough.pool };
        let error = open(EngineConfig { pool, ..enough }).expect_err("too small");
        assert_eq!(error, OpenError::PoolTooSmall { cap, host_bytes: HOST, needed });
    }
    let error = open(EngineConfig { slots: 15, ..enough }).expect_err("too few");
    assert_eq!(error, OpenError::EngineTooSmall { what: "slots", given: 15, needed: 16 });
    let error = open(EngineConfig { units: 3, ..enough }).expect_err("too few");
    assert_eq!(error, OpenError::EngineTooSmall { what: "units", given: 3, needed: 4 });
}

#[test]
fn steps_out_of_order_are_refused_and_change_nothing() {
    with_store(|store, host| {
        let out_of_order = |result: Result<(), StoreError>| match result {
            Err(StoreError::OutOfOrder { .. }) => {}
            other => panic!("{other:?}"),
        };
        out_of_order(store.release(0, 0));
        forward(store, plan(&[(A, Strategy::Offload)]));
        out_of_order(store.release(0, 0));
        out_of_order(store.recover(0, 0, &mut NoHook));
        let gate = gate(host, store.compute());
        store.settle(0, 0).expect("settled");
        out_of_order(store.settle(0, 0));
        // Its copy out is under way.
        out_of_order(store.recover(0, 0, &mut NoHook));
        out_of_order(store.release(0, 0));
        drop(gate);
        store.drain().expect("done");
        assert_eq!(store.poll_copied_out().expect("no loss"), Some(Left { unit: 0, bytes: BYTES }));
        out_of_order(store.release(0, 0));
        assert!(store.tensor(0, 0, B).is_some(), "nothing was freed");
        store.recover(0, 0, &mut NoHook).expect("recovered");
        out_of_order(store.recover(0, 0, &mut NoHook));
        host.synchronize(store.compute()).expect("done");
        assert_eq!(bytes(store.tensor(0, 0, A).expect("back")), [A as u8 + 1; BYTES as usize]);
        store.release(0, 0).expect("released");
        out_of_order(store.release(0, 0));
    });
}

#[test]
fn a_tensor_without_bytes_that_leaves_is_waited_for() {
    with_store(|store, host| {
        store.enter(0, 0, 1, plan(&[(C, Strategy::Offload)]), 1).expect("entered");
        for (tensor, length) in [(X, BYTES), (A, BYTES), (B, BYTES), (C, 0), (D, BYTES)] {
            let memory = store.allocate(length).expect("memory");
            save(store, tensor, memory).expect("saved");
        }
        let gate = gate(host, store.compute());
        store.settle(0, 0).expect("settled");
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(gate);
        });
        store.block_until_released(BYTES).expect("it frees what its model says");
        assert_eq!(store.poll_copied_out().expect("no loss"), Some(Left { unit: 0, bytes: BYTES }));
        let error = store.block_until_released(BYTES).expect_err("nothing is leaving");
        let none = EngineError::NothingLeaving { bytes: BYTES };
        assert!(matches!(&error, StoreError::Engine(engine) if *engine == none), "{error}");
        opener.join().expect("opened");
    });
}

/// Hands out at once what was given back, whatever the streams: as an allocator of one stream may.
#[derive(Debug)]
struct Recycling {
    host: Arc<HostDevice>,
    all: Vec<DeviceSlice>,
    free: Vec<DeviceSlice>,
}

impl Allocator for Recycling {
    fn allocate(&mut self, bytes: u64, _stream: Stream) -> Result<DeviceSlice, DeviceError> {
        if let Some(at) = self.free.iter().rposition(|memory| memory.bytes() == bytes) {
            return Ok(self.free.swap_remove(at));
        }
        let memory = self.host.allocate(bytes)?;
        self.all.push(memory);
        Ok(memory)
    }

    unsafe fn free(&mut self, memory: DeviceSlice, _stream: Stream) -> Result<(), DeviceError> {
        self.free.push(memory);
        Ok(())
    }
}

impl Drop for Recycling {
    fn drop(&mut self) {
        for memory in self.all.drain(..) {
            // SAFETY: allocated here, and all work has ended before the store is dropped.
            unsafe { self.host.free(memory) }.expect("its own");
        }
    }
}

#[test]
fn copies_in_wait_for_the_compute_stream_unless_the_allocator_minds_streams() {
    let recycling = |host: &Arc<HostDevice>| -> Box<dyn Allocator> {
        Box::new(Recycling { host: Arc::clone(host), all: Vec::new(), free: Vec::new() })
    };
    with_allocator(recycling, |store, host| {
        forward(store, plan(&[(A, Strategy::Offload)]));
        settle(store);
        let block = filled(store, 98);
        let gate = gate(host, store.compute());
        let read = Arc::new(Mutex::new(Vec::new()));
        let reader = Arc::clone(&read);
        host.run(store.compute(), move || reader.lock().expect("whole").extend_from_slice(bytes(block)))
            .expect("submitted");
        // SAFETY: the compute stream alone uses it.
        unsafe { store.free(block) }.expect("given back");
        store.recover(0, 0, &mut NoHook).expect("recovered");
        assert_eq!(store.tensor(0, 0, A), Some(block), "handed out again");
        // Time for a copy in that does not wait.
        std::thread::sleep(Duration::from_millis(50));
        drop(gate);
        host.synchronize(store.compute()).expect("done");
        assert_eq!(*read.lock().expect("whole"), [99; BYTES as usize]);
        assert_eq!(bytes(block), [A as u8 + 1; BYTES as usize]);
        store.release(0, 0).expect("released");
    });
}

/// A piece of work that ends when the sender is dropped.
fn gate(host: &HostDevice, stream: Stream) -> mpsc::Sender<()> {
    let (open, closed) = mpsc::channel();
    host.run(stream, move || {
        let _ = closed.recv();
    })
    .expect("submitted");
    open
}

#[test]
fn dropping_a_store_with_copies_under_way_is_safe() {
    with_store(|store, _| {
        forward(store, plan(&[(A, Strategy::Offload), (B, Strategy::Offload)]));
        store.settle(0, 0).expect("settled");
        let early = store.release(0, 0).expect_err("copies are under way, or have not been reported");
        assert!(matches!(early, StoreError::OutOfOrder { call: "release", .. }), "{early}");
    });
}
