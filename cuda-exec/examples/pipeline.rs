//! One pipeline rank on the host device: random rows, real buffers, a plan for each micro-batch.
//!
//! `cargo run -p bagualu-exec --example pipeline [DEVICE_KB [HOST_KB]]`
//!
//! Prints what was done in each iteration. With little memory more is offloaded and recomputed; with less than the
//! least that any plan needs, it says how much that is.

use std::ffi::c_void;
use std::process::ExitCode;
use std::sync::Arc;

use bagualu_core::controller::{Controller, Gate, Settings};
use bagualu_core::cost::{Bytes, LayerModel, LayerStorage, OpModel, Rooflines, TensorModel, Time};
use bagualu_core::group::{GroupRows, RowThreshold};
use bagualu_core::layer::Resource;
use bagualu_core::provision::{Aim, Provision};
use bagualu_core::roofline::Knee;
use bagualu_core::schedule::{Event, Pipeline};
use bagualu_core::set::Set;
use bagualu_core::stage::StageModel;
use bagualu_exec::device::{Device, DeviceSlice, Stream, StreamUse};
use bagualu_exec::engine::{Engine, EngineConfig};
use bagualu_exec::host::{HostConfig, HostDevice};
use bagualu_exec::rank::{Counts, Rank};
use bagualu_exec::recompute::Again;
use bagualu_exec::store::{DeviceAllocator, Store};
use bagualu_model::{Buffers, Memory};

type Failure = Box<dyn std::error::Error>;

const LAYERS: usize = 4;
const MICRO_BATCHES: u32 = 8;
const BALANCED: u32 = 128;
/// Bytes of a row.
const ROW: u64 = 512;
const INPUT: usize = 0;
const HIDDEN: usize = 1;
const OUTPUT: usize = 2;

fn main() -> ExitCode {
    match pipeline() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pipeline: {error}");
            ExitCode::FAILURE
        }
    }
}

/// An experts' layer: input (64 rows, kept), a hidden tensor made from it, an output made from that.
fn layer() -> ([TensorModel; 3], [OpModel; 3]) {
    let routed = TensorModel { bytes: Bytes::per_row(ROW), offload: true, ..TensorModel::default() };
    let input = TensorModel { bytes: Bytes::fixed(64 * ROW), block_input: true, ..TensorModel::default() };
    let op = |reads: usize, makes: Set, work: u64| OpModel {
        reads: Set::one(reads),
        makes,
        saves: Set::one(reads),
        forward: Time { fixed_ns: 5_000, per_row_ps: 100_000 },
        backward: Time { fixed_ns: 10_000, per_row_ps: 200_000 },
        resource: Resource::Compute,
        collective: None,
        forward_work: Bytes::per_row(work),
        backward_work: Bytes::per_row(work),
    };
    let ops = [op(INPUT, Set::one(HIDDEN), 0), op(HIDDEN, Set::one(OUTPUT), 0), op(OUTPUT, Set::EMPTY, ROW)];
    ([input, routed, routed], ops)
}

fn pipeline() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1).map(|kilobytes| kilobytes.parse::<u64>());
    let device_bytes = arguments.next().transpose()?.unwrap_or(2_400) * 1_000;
    let host_bytes = arguments.next().transpose()?.unwrap_or(1_000) * 1_000;

    // What the rank runs, and its place in the pipeline.
    let (tensors, ops) = layer();
    let (moe, experts) = ([HIDDEN, OUTPUT].into_iter().collect(), Set::first(ops.len()));
    let types = [LayerModel { tensors: &tensors, ops: &ops, moe, experts, routed: true }];
    let chunk: &[u16] = &[0; LAYERS];
    let copies = Knee { size_bytes: 4_096, bytes_per_s: 16_000_000_000 };
    let rooflines = Rooflines { copy_out: copies, copy_in: copies, cast: copies, uncast: copies };
    let stage = StageModel {
        types: &types,
        chunks: &[chunk],
        rooflines,
        balanced_rows: BALANCED,
        device_bytes,
        host_bytes,
        fused: false,
    };
    let schedule = Pipeline::new(4, 0, MICRO_BATCHES);
    let mut events = vec![Event::Forward(0); 2 * MICRO_BATCHES as usize];
    schedule.events(&mut events)?;

    // Its controller, and the device that it decides for.
    let memory = Memory { fronts: 16, points: 256, plans: 64 };
    let mut buffers = Buffers::remembering(&stage, MICRO_BATCHES as usize, memory);
    let mut scratch = Box::<LayerStorage>::default();
    let provision =
        Provision::solve(&stage, &schedule, &events, Aim::default(), buffers.scratch().0, &mut scratch)?;
    let controller =
        Controller::new(stage, schedule, &events, provision, Settings::default(), buffers.storage())?;
    let config = HostConfig { device_bytes: Some(device_bytes), ..HostConfig::default() };
    let host = Arc::new(HostDevice::open(config)?);
    let device: Arc<dyn Device> = Arc::<HostDevice>::clone(&host);
    let compute = device.create_stream(StreamUse::Compute)?;
    let engine = Engine::new(Arc::clone(&device), EngineConfig::for_rank(&stage, &events))?;
    let allocator = Box::new(DeviceAllocator::new(Arc::clone(&device)));
    let store = Store::new(stage, schedule, engine, allocator, compute)?;
    let mut rank = Rank::new(controller, store, &events);

    println!(
        "{device_bytes} bytes of device memory, {host_bytes} of host memory, {LAYERS} layers of {BALANCED} rows"
    );
    let mut random = 1;
    for iteration in 0..6 {
        let before = rank.counts();
        host.forget_peaks();
        for &event in &events {
            match event {
                Event::Forward(unit) => forward(&mut rank, &*device, compute, &provision, unit, &mut random)?,
                Event::Backward(unit) => backward(&mut rank, &device, compute, unit)?,
            }
        }
        rank.end_iteration()?;
        device.synchronize(compute)?;
        report(iteration, before, rank.counts(), host.device_usage().peak);
    }
    let pinned = rank.store().engine().usage().pool.high_water;
    println!("host memory in use at most: {pinned} bytes");
    Ok(())
}

fn report(iteration: u32, before: Counts, now: Counts, peak: u64) {
    println!(
        "iteration {iteration}: {} tensors offloaded ({} bytes), {} recomputed, {} plans changed at the gate, {} waits, \
         {} units back early, at most {peak} bytes on the device",
        now.offloaded - before.offloaded,
        now.offloaded_bytes - before.offloaded_bytes,
        now.recomputed - before.recomputed,
        now.replanned - before.replanned,
        now.waits - before.waits,
        now.early - before.early,
    );
}

fn forward(
    rank: &mut Rank<'_>,
    device: &dyn Device,
    compute: Stream,
    provision: &Provision,
    unit: u32,
    random: &mut u64,
) -> Result<(), Failure> {
    rank.begin_forward(unit)?;
    for layer in 0..LAYERS {
        rank.to_gate()?;
        let input = rank.allocate(64 * ROW)?;
        submit(device, compute, Work::Fill { byte: seed(unit, layer), out: input })?;
        let rows = draw(random);
        let group = RowThreshold::new(provision).decide(&GroupRows::new(&[rows])?);
        let decision = rank.gate(Gate { rows, group, granted: None })?;
        // SAFETY: the rank's own memory, written by the compute stream before anything reads it.
        unsafe { rank.save(INPUT, input)? };
        let parts = decision.dispatch_chunks.max(decision.expert_chunks);
        experts(rank, device, compute, input, rows, parts, decision.plan.recompute)?;
        rank.layer_done()?;
    }
    Ok(rank.end_forward(None)?)
}

/// Runs the experts in row chunks and saves what they make. What is dropped never exists whole.
fn experts(
    rank: &mut Rank<'_>,
    device: &dyn Device,
    compute: Stream,
    input: DeviceSlice,
    rows: u32,
    parts: u32,
    dropped: Set,
) -> Result<(), Failure> {
    let bytes = |rows: u32| u64::from(rows) * ROW;
    let mut whole = [None; 2];
    for (whole, tensor) in whole.iter_mut().zip([HIDDEN, OUTPUT]) {
        if !dropped.contains(tensor) {
            let memory = rank.allocate(bytes(rows))?;
            *whole = Some(memory);
            // SAFETY: as for the input.
            unsafe { rank.save(tensor, memory)? };
        }
    }
    let size = rows.div_ceil(parts);
    for part in 0..parts {
        let first = (part * size).min(rows);
        let count = size.min(rows - first);
        let mut from = input;
        let mut temporary = [None; 2];
        for (whole, temporary) in whole.iter().zip(&mut temporary) {
            let out = match whole.and_then(|whole| whole.part(bytes(first), bytes(count))) {
                Some(out) => out,
                None => *temporary.insert(rank.allocate(bytes(count))?),
            };
            submit(device, compute, Work::AddOne { from, out })?;
            from = out;
        }
        for memory in temporary.into_iter().flatten() {
            // SAFETY: the rank's own, used on the compute stream alone.
            unsafe { rank.free(memory)? };
        }
    }
    Ok(())
}

fn backward(
    rank: &mut Rank<'_>,
    device: &Arc<dyn Device>,
    compute: Stream,
    unit: u32,
) -> Result<(), Failure> {
    // Operator 0 makes tensor 1 from tensor 0, operator 1 tensor 2 from tensor 1.
    let again = Arc::clone(device);
    let mut hook = move |op: &Again<'_>| {
        let tensors = op.tensor(op.op).zip(op.tensor(op.op + 1));
        let (from, out) = tensors.ok_or("an operator lacks its tensors")?;
        Ok(submit(&*again, op.stream, Work::AddOne { from, out })?)
    };
    rank.begin_backward(unit)?;
    for layer in (0..LAYERS).rev() {
        rank.recover(layer, &mut hook)?;
        let parts = rank.parts(layer)?;
        for part in 0..parts {
            if parts > 1 {
                rank.recover_part(layer, part, &mut hook)?;
            }
            for (tensor, more) in [(INPUT, 0), (HIDDEN, 1), (OUTPUT, 2)] {
                let byte = seed(unit, layer).wrapping_add(more);
                submit(&**device, compute, Work::Expect { byte, found: rank.tensor(layer, tensor)? })?;
            }
        }
        rank.layer_undone(layer)?;
    }
    Ok(rank.end_backward()?)
}

fn seed(unit: u32, layer: usize) -> u8 {
    (unit as u8).wrapping_mul(31).wrapping_add(layer as u8 * 7)
}

/// Around the balanced rows, with a spike now and then.
fn draw(random: &mut u64) -> u32 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    match *random >> 60 {
        0 => BALANCED * 5 / 2,
        _ => BALANCED / 2 + (*random >> 33) as u32 % BALANCED,
    }
}

/// Stand-ins for operators.
enum Work {
    Fill { byte: u8, out: DeviceSlice },
    AddOne { from: DeviceSlice, out: DeviceSlice },
    Expect { byte: u8, found: DeviceSlice },
}

fn submit(device: &dyn Device, stream: Stream, work: Work) -> Result<(), bagualu_exec::device::DeviceError> {
    let data = Box::into_raw(Box::new(work)).cast::<c_void>();
    // SAFETY: `run` takes the box, once.
    unsafe { device.launch(run, data, stream) }
}

unsafe extern "C-unwind" fn run(data: *mut c_void) {
    // SAFETY: the box of `submit`.
    match *unsafe { Box::from_raw(data.cast::<Work>()) } {
        Work::Fill { byte, out } => bytes(out).fill(byte),
        Work::AddOne { from, out } => {
            let byte = bytes(from).first().map_or(0, |byte| byte.wrapping_add(1));
            bytes(out).fill(byte);
        }
        // A panic here ends the stream: the next call reports it as lost.
        Work::Expect { byte, found } => assert!(bytes(found).iter().all(|&b| b == byte), "wrong contents"),
    }
}

/// A tensor's bytes: device memory of the host is memory of this process.
fn bytes(of: DeviceSlice) -> &'static mut [u8] {
    let start = std::ptr::with_exposed_provenance_mut(of.address() as usize);
    // SAFETY: the rank keeps it for the work of one stream, whose operators run one after another.
    unsafe { std::slice::from_raw_parts_mut(start, of.bytes() as usize) }
}
