//! Real memory: under `RLIMIT_DATA` a process that keeps every saved tensor fails, and the same work under a plan passes, every word
//! exact.
//!
//! The limit counts private writable memory, as device memory of the host is, and not pinned memory, which is shared. Each case runs
//! in a process of its own: this program again, with the case in its environment.
#![cfg(target_os = "linux")]

use std::ffi::c_void;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bagualu_core::controller::{Controller, Gate, Settings};
use bagualu_core::cost::{Bytes, LayerModel, LayerStorage, OpModel, Rooflines, TensorModel, Time};
use bagualu_core::group::{GroupRows, RowThreshold};
use bagualu_core::layer::Resource;
use bagualu_core::provision::{Aim, Provision};
use bagualu_core::roofline::Knee;
use bagualu_core::schedule::{Event, Pipeline};
use bagualu_core::set::Set;
use bagualu_core::stage::StageModel;
use bagualu_exec::device::{Device, DeviceError, DeviceSlice, Stream, StreamUse};
use bagualu_exec::engine::{Engine, EngineConfig};
use bagualu_exec::host::{HostConfig, HostDevice};
use bagualu_exec::rank::Rank;
use bagualu_exec::recompute::Again;
use bagualu_exec::store::{DeviceAllocator, Store};
use bagualu_model::{Buffers, Memory};
use rustix::process::{Resource as Limited, Rlimit, getrlimit, setrlimit};

type Failure = Box<dyn std::error::Error>;

/// Bytes of a row, rows of a balanced layer: 2 MiB per routed tensor, 64 MiB and more in flight.
const ROW: u64 = 16 << 10;
const BALANCED: u32 = 128;
const INPUT_BYTES: u64 = 8 * ROW;
const LAYERS: usize = 4;
const MICRO_BATCHES: u32 = 8;
const INPUT: usize = 0;
const HIDDEN: usize = 1;
const OUTPUT: usize = 2;

/// D of the plan, and what the process may have beyond what it has at its start: D, stacks of threads and the heap.
const DEVICE_BYTES: u64 = 32 << 20;
const LIMIT_BYTES: u64 = DEVICE_BYTES + (8 << 20);

/// The case that a child is to run.
const CASE: &str = "BAGUALU_RLIMIT_CASE";

#[test]
fn keeping_everything_fails_and_the_plan_passes_under_one_limit() {
    if let Ok(case) = std::env::var(CASE) {
        // The child: what it prints is read by its parent.
        println!("{}", child(&case).unwrap_or_else(|error| format!("error: {error}")));
        return;
    }
    let kept = said(&run("keep"));
    assert!(kept.contains("bytes of device memory were asked for"), "all kept under the limit: {kept}");
    let unlimited = said(&run("keep without limit"));
    assert!(unlimited.starts_with("done: 0 wrong"), "all kept without a limit: {unlimited}");
    let planned = said(&run("plan"));
    assert!(planned.starts_with("done: 0 wrong"), "under the plan: {planned}");
    println!("kept: {kept}\nkept without limit: {unlimited}\nplanned: {planned}");
}

fn run(case: &str) -> Output {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program);
    child.args(["--exact", "keeping_everything_fails_and_the_plan_passes_under_one_limit", "--nocapture"]);
    child.env(CASE, case).output().expect("a child")
}

/// The line with which a child that lived to its end said how it went.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find(|line| line.starts_with("done: ") || line.starts_with("error: "));
    line.unwrap_or_else(|| panic!("no outcome: {text}")).to_owned()
}

fn child(case: &str) -> Result<String, Failure> {
    if case != "keep without limit" {
        let used = private_bytes().ok_or("no VmData in /proc/self/status")?;
        let limit = Rlimit { current: Some(used + LIMIT_BYTES), ..getrlimit(Limited::Data) };
        setrlimit(Limited::Data, limit)?;
    }
    let checked = match case {
        "plan" => planned()?,
        _ => kept()?,
    };
    Ok(format!("done: {} wrong of {checked} words", WRONG.load(Ordering::Relaxed)))
}

/// Private writable memory: what the limit counts.
fn private_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn schedule() -> Result<(Pipeline, Vec<Event>), Failure> {
    let pipeline = Pipeline::new(4, 0, MICRO_BATCHES);
    let mut events = vec![Event::Forward(0); 2 * MICRO_BATCHES as usize];
    pipeline.events(&mut events)?;
    Ok((pipeline, events))
}

/// One iteration with every tensor kept. Returns the words looked at.
fn kept() -> Result<u64, Failure> {
    let device = HostDevice::open(HostConfig::default())?;
    let compute = device.create_stream(StreamUse::Compute)?;
    let (_, events) = schedule()?;
    let mut held: Vec<Vec<[DeviceSlice; 3]>> = vec![Vec::new(); MICRO_BATCHES as usize];
    let (mut random, mut checked) = (1, 0);
    for event in events {
        match event {
            Event::Forward(unit) => {
                for layer in 0..LAYERS {
                    let bytes = u64::from(draw(&mut random)) * ROW;
                    let input = device.allocate(INPUT_BYTES)?;
                    let tensors = [input, device.allocate(bytes)?, device.allocate(bytes)?];
                    experts(&device, compute, unit, layer, tensors)?;
                    held[unit as usize].push(tensors);
                }
            }
            Event::Backward(unit) => {
                for (layer, tensors) in held[unit as usize].drain(..).enumerate().rev() {
                    checked += expect(&device, compute, unit, layer, tensors)?;
                    device.synchronize(compute)?;
                    // SAFETY: the stream has run empty.
                    tensors.into_iter().try_for_each(|memory| unsafe { device.free(memory) })?;
                }
            }
        }
    }
    Ok(checked)
}

/// Three iterations of the same under a plan for D bytes. Returns the words looked at.
fn planned() -> Result<u64, Failure> {
    let (tensors, ops) = layer();
    let (moe, experts) = ([HIDDEN, OUTPUT].into_iter().collect(), Set::first(ops.len()));
    let types = [LayerModel { tensors: &tensors, ops: &ops, moe, experts, routed: true }];
    let chunk: &[u16] = &[0; LAYERS];
    let copies = Knee { size_bytes: 4_096, bytes_per_s: 4_000_000_000 };
    let stage = StageModel {
        types: &types,
        chunks: &[chunk],
        rooflines: Rooflines { copy_out: copies, copy_in: copies, cast: copies, uncast: copies },
        balanced_rows: BALANCED,
        device_bytes: DEVICE_BYTES,
        host_bytes: 128 << 20,
        fused: false,
    };
    let (pipeline, events) = schedule()?;
    let memory = Memory { fronts: 16, points: 256, plans: 64 };
    let mut buffers = Buffers::remembering(&stage, MICRO_BATCHES as usize, memory);
    let mut scratch = Box::<LayerStorage>::default();
    let provision =
        Provision::solve(&stage, &pipeline, &events, Aim::default(), buffers.scratch().0, &mut scratch)?;
    let controller =
        Controller::new(stage, pipeline, &events, provision, Settings::default(), buffers.storage())?;
    // No capacity is simulated: the limit of the process is all there is.
    let device: Arc<dyn Device> = Arc::new(HostDevice::open(HostConfig::default())?);
    let compute = device.create_stream(StreamUse::Compute)?;
    let engine = Engine::new(Arc::clone(&device), EngineConfig::for_rank(&stage, &events))?;
    let allocator = Box::new(DeviceAllocator::new(Arc::clone(&device)));
    let store = Store::new(stage, pipeline, engine, allocator, compute)?;
    let mut rank = Rank::new(controller, store, &events);
    let (mut random, mut checked) = (1, 0);
    for _ in 0..3 {
        for &event in &events {
            match event {
                Event::Forward(unit) => forward(&mut rank, &*device, compute, &provision, unit, &mut random)?,
                Event::Backward(unit) => checked += backward(&mut rank, &device, compute, unit)?,
            }
        }
        rank.end_iteration()?;
        device.synchronize(compute)?;
    }
    let offloaded = rank.counts().offloaded_bytes;
    if offloaded < DEVICE_BYTES {
        return Err(format!("only {offloaded} bytes were offloaded: the limit does not bind").into());
    }
    Ok(checked)
}

/// An experts' layer: input (kept), a hidden tensor made from it, an output made from that.
fn layer() -> ([TensorModel; 3], [OpModel; 3]) {
    let routed = TensorModel { bytes: Bytes::per_row(ROW), offload: true, ..TensorModel::default() };
    let input = TensorModel { bytes: Bytes::fixed(INPUT_BYTES), block_input: true, ..TensorModel::default() };
    let op = |reads: usize, makes: Set| OpModel {
        reads: Set::one(reads),
        makes,
        saves: Set::one(reads),
        forward: Time { fixed_ns: 1_000_000, per_row_ps: 100_000_000 },
        backward: Time { fixed_ns: 2_000_000, per_row_ps: 200_000_000 },
        resource: Resource::Compute,
        collective: None,
        forward_work: Bytes::fixed(0),
        backward_work: Bytes::fixed(0),
    };
    let ops = [op(INPUT, Set::one(HIDDEN)), op(HIDDEN, Set::one(OUTPUT)), op(OUTPUT, Set::EMPTY)];
    ([input, routed, routed], ops)
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
        let input = rank.allocate(INPUT_BYTES)?;
        let rows = draw(random);
        let group = RowThreshold::new(provision).decide(&GroupRows::new(&[rows])?);
        let decision = rank.gate(Gate { rows, group, granted: None })?;
        if decision.dispatch_chunks.max(decision.expert_chunks) > 1 {
            return Err("this test's rows are not so many that they must be split".into());
        }
        let bytes = u64::from(rows) * ROW;
        let tensors = [input, rank.allocate(bytes)?, rank.allocate(bytes)?];
        experts(device, compute, unit, layer, tensors)?;
        for (tensor, memory) in tensors.into_iter().enumerate() {
            // SAFETY: the rank's own memory, written by the compute stream before anything reads it.
            unsafe { rank.save(tensor, memory)? };
        }
        rank.layer_done()?;
    }
    Ok(rank.end_forward(None)?)
}

fn backward(
    rank: &mut Rank<'_>,
    device: &Arc<dyn Device>,
    compute: Stream,
    unit: u32,
) -> Result<u64, Failure> {
    let again = Arc::clone(device);
    let mut hook = move |op: &Again<'_>| {
        let tensors = op.tensor(op.op).zip(op.tensor(op.op + 1));
        let (from, out) = tensors.ok_or("an operator lacks its tensors")?;
        Ok(submit(&*again, op.stream, Work::AddOne { from, out })?)
    };
    let mut checked = 0;
    rank.begin_backward(unit)?;
    for layer in (0..LAYERS).rev() {
        rank.recover(layer, &mut hook)?;
        let tensors = [rank.tensor(layer, INPUT)?, rank.tensor(layer, HIDDEN)?, rank.tensor(layer, OUTPUT)?];
        checked += expect(&**device, compute, unit, layer, tensors)?;
        rank.layer_undone(layer)?;
    }
    rank.end_backward()?;
    Ok(checked)
}

/// The forward operators of a layer.
fn experts(
    device: &dyn Device,
    compute: Stream,
    unit: u32,
    layer: usize,
    [input, hidden, output]: [DeviceSlice; 3],
) -> Result<(), DeviceError> {
    submit(device, compute, Work::Fill { seed: seed(unit, layer), out: input })?;
    submit(device, compute, Work::AddOne { from: input, out: hidden })?;
    submit(device, compute, Work::AddOne { from: hidden, out: output })
}

/// The backward operator of a layer: it looks at every word. Returns how many there are.
fn expect(
    device: &dyn Device,
    compute: Stream,
    unit: u32,
    layer: usize,
    tensors: [DeviceSlice; 3],
) -> Result<u64, DeviceError> {
    for (more, found) in (0..).zip(tensors) {
        submit(device, compute, Work::Expect { seed: seed(unit, layer).wrapping_add(more), found })?;
    }
    Ok(tensors.iter().map(|tensor| tensor.bytes() / 8).sum())
}

fn seed(unit: u32, layer: usize) -> u64 {
    (u64::from(unit) << 8 | layer as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Around the balanced rows, with a spike now and then.
fn draw(random: &mut u64) -> u32 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    match *random >> 60 {
        0 => BALANCED * 2,
        _ => BALANCED / 2 + (*random >> 33) as u32 % BALANCED,
    }
}

/// Stand-ins for operators. Word `i` of an input is its seed plus `i`; each tensor made from it is one more.
enum Work {
    Fill { seed: u64, out: DeviceSlice },
    AddOne { from: DeviceSlice, out: DeviceSlice },
    Expect { seed: u64, found: DeviceSlice },
}

static WRONG: AtomicU64 = AtomicU64::new(0);

const INPUT_WORDS: u64 = INPUT_BYTES / 8;

fn submit(device: &dyn Device, stream: Stream, work: Work) -> Result<(), DeviceError> {
    let data = Box::into_raw(Box::new(work)).cast::<c_void>();
    // SAFETY: `operate` takes the box, once.
    unsafe { device.launch(operate, data, stream) }
}

/// # Safety
/// - `data` is a box of `Work` on memory that the stream may use.
unsafe extern "C-unwind" fn operate(data: *mut c_void) {
    // SAFETY: the box of `submit`.
    match *unsafe { Box::from_raw(data.cast::<Work>()) } {
        Work::Fill { seed, out } => (0..).zip(words(out)).for_each(|(i, word)| *word = seed.wrapping_add(i)),
        Work::AddOne { from, out } => {
            let from = words(from).iter().cycle();
            words(out).iter_mut().zip(from).for_each(|(out, from)| *out = from.wrapping_add(1));
        }
        Work::Expect { seed, found } => {
            let expected = |i: u64| seed.wrapping_add(i % INPUT_WORDS);
            let wrong = (0..).zip(words(found)).filter(|(i, word)| **word != expected(*i)).count();
            WRONG.fetch_add(wrong as u64, Ordering::Relaxed);
        }
    }
}

/// A tensor's words: device memory of the host is memory of this process.
fn words(of: DeviceSlice) -> &'static mut [u64] {
    let start = std::ptr::with_exposed_provenance_mut(of.address() as usize);
    // SAFETY: it is kept for the work of one stream, whose operators run one after another; rows are whole words.
    unsafe { std::slice::from_raw_parts_mut(start, of.bytes() as usize / 8) }
}
