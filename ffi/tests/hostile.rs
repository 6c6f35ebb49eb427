//! Bad arguments: every function of the header with handles that are not its own and pointers that cannot be used.
//!
//! What a call gets is chosen by [`Mode`]; the tables below name each function once, and a test holds them against the
//! header.
#![allow(unused_unsafe, reason = "the tables call safe and unsafe functions in one way")]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

use bagualu_ffi::*;

/// What pointers are handed over.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Valid,
    Null,
    Misaligned,
    /// Structs whose size is too small.
    Small,
    /// Structs whose size no header has.
    Huge,
    /// Structs of a newer header that use a field we do not know; where they are written that is none of our business.
    Newer,
}

const MODES: [Mode; 6] = [Mode::Valid, Mode::Null, Mode::Misaligned, Mode::Small, Mode::Huge, Mode::Newer];

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Valid) };
    /// Whether the call took a struct, one that is read, and a pointer.
    static STRUCTS: Cell<bool> = const { Cell::new(false) };
    static READ: Cell<bool> = const { Cell::new(false) };
    static POINTERS: Cell<bool> = const { Cell::new(false) };
}

/// A struct that is read: with a size, all zeros else.
fn s<T>() -> *mut T {
    READ.set(true);
    o()
}

/// A struct that is written. It and what is behind it stay.
fn o<T>() -> *mut T {
    STRUCTS.set(true);
    POINTERS.set(true);
    let words = size_of::<T>() / 8;
    let memory = Box::leak(vec![0usize; words + 4].into_boxed_slice());
    memory[0] = match MODE.get() {
        Mode::Null => return null_mut(),
        Mode::Small => 7,
        Mode::Huge => usize::MAX / 2,
        Mode::Newer => {
            memory[words] = 1;
            size_of::<T>() + 8
        }
        Mode::Valid | Mode::Misaligned => size_of::<T>(),
    };
    place(memory.as_mut_ptr())
}

/// A plain value.
fn p<T>() -> *mut T {
    POINTERS.set(true);
    if MODE.get() == Mode::Null {
        return null_mut();
    }
    place(Box::leak(vec![0usize; size_of::<T>().div_ceil(8) + 1].into_boxed_slice()).as_mut_ptr())
}

fn place<T>(memory: *mut usize) -> *mut T {
    match MODE.get() {
        Mode::Misaligned => memory.cast::<u8>().wrapping_add(1).cast(),
        _ => memory.cast(),
    }
}

/// A function, and a call of it with a handle.
type Row<H> = (&'static str, Box<dyn Fn(*mut H) -> bagualu_status>);

macro_rules! rows {
    ($handle:ident: $($name:ident($($argument:expr),*);)*) => {{
        let rows: Vec<Row<$handle>> = vec![$((
            stringify!($name),
            // SAFETY: what cannot be checked is kept to: whatever pointers name is there, with zeros in it.
            Box::new(|handle: *mut $handle| unsafe { $name(handle, $($argument),*) }),
        ),)*];
        rows
    }};
}

macro_rules! functions {
    ($($name:ident($($argument:expr),*);)*) => {{
        let rows: Vec<Row<c_void>> = vec![$((
            stringify!($name),
            // SAFETY: as above.
            Box::new(|_: *mut c_void| unsafe { $name($($argument),*) }),
        ),)*];
        rows
    }};
}

const NOTHING: bagualu_memory = bagualu_memory { address: 0, bytes: 0 };
const KEY: bagualu_key = bagualu_key { unit: 0, layer: 0, tensor: 0 };

fn models() -> Vec<Row<bagualu_model>> {
    rows! { bagualu_model:
        bagualu_model_describe(o());
        bagualu_model_note(0, p());
        bagualu_model_rank(0, o());
        bagualu_model_type(0, o());
        bagualu_model_tensor(0, 0, p(), null_mut());
        bagualu_model_op(0, 0, p(), null_mut());
        bagualu_controller_from_model(0, null(), p());
    }
}

fn budgets() -> Vec<Row<bagualu_budget>> {
    rows! { bagualu_budget:
        bagualu_budget_forward(o());
        bagualu_budget_launch(0);
        bagualu_budget_release(null_mut());
        bagualu_budget_hold(0, 0);
        bagualu_budget_restart();
        bagualu_budget_read(o());
        bagualu_budget_headroom(0, p());
    }
}

fn selectors() -> Vec<Row<bagualu_selector>> {
    rows! { bagualu_selector: bagualu_selector_select(null(), 0, s(), null_mut(), o()); }
}

fn schedulers() -> Vec<Row<bagualu_scheduler>> {
    rows! { bagualu_scheduler: bagualu_scheduler_schedule(s(), null_mut(), 0, o()); }
}

fn controllers() -> Vec<Row<bagualu_controller>> {
    rows! { bagualu_controller:
        bagualu_controller_provision(o());
        bagualu_controller_events(null_mut(), 0, p());
        bagualu_controller_layers(0, null_mut(), 0, p());
        bagualu_controller_read(o());
        bagualu_controller_forward(0, o());
        bagualu_controller_to_gate(p());
        bagualu_controller_gate(0, s(), o());
        bagualu_controller_may_start(p());
        bagualu_controller_layer_done(p());
        bagualu_controller_forward_done(null());
        bagualu_controller_copied_out(0, 0);
        bagualu_controller_recover_early(0, p());
        bagualu_controller_backward(0);
        bagualu_controller_may_recover(0, p());
        bagualu_controller_recovered();
        bagualu_controller_backward_done();
        bagualu_controller_correct(o());
        bagualu_controller_decided(0, 0, o());
        bagualu_controller_restart();
        bagualu_controller_abandon();
    }
}

unsafe extern "C" fn nothing(_: *mut c_void) {}

fn devices() -> Vec<Row<bagualu_device>> {
    rows! { bagualu_device:
        bagualu_device_describe(o());
        bagualu_device_allocate(1, p());
        bagualu_device_release(NOTHING);
        bagualu_device_allocate_pinned(1, p());
        bagualu_device_release_pinned(NOTHING);
        bagualu_device_create_stream(0, p());
        bagualu_device_adopt_stream(null_mut(), p());
        bagualu_device_raw_stream(u64::MAX, p());
        bagualu_device_quantize(f32s(s()), NOTHING, NOTHING, NOTHING, u64::MAX);
        bagualu_device_dequantize(f32s(s()), NOTHING, NOTHING, NOTHING, u64::MAX);
        bagualu_device_destroy_stream(u64::MAX);
        bagualu_device_synchronize(u64::MAX);
        bagualu_device_create_event(p());
        bagualu_device_destroy_event(u64::MAX);
        bagualu_device_record(u64::MAX, u64::MAX);
        bagualu_device_stream_wait(u64::MAX, u64::MAX);
        bagualu_device_is_done(u64::MAX, p());
        bagualu_device_wait(u64::MAX);
        bagualu_device_copy_out(NOTHING, NOTHING, u64::MAX);
        bagualu_device_copy_in(NOTHING, NOTHING, u64::MAX);
        bagualu_device_launch(Some(nothing), null_mut(), u64::MAX);
        bagualu_engine_new({ let config = s::<bagualu_engine_config>(); units(config); config }, p());
    }
}

/// An engine of no units is refused before its device is looked at.
/// A cast that can be made, of one number.
fn f32s(cast: *mut bagualu_cast) -> *mut bagualu_cast {
    if matches!(MODE.get(), Mode::Valid) {
        // SAFETY: a whole struct, made by `s`.
        unsafe { (*cast).dtype = bagualu_dtype::F32 as u32 };
    }
    cast
}

fn collectives() -> Vec<Row<bagualu_collective>> {
    rows! { bagualu_collective:
        bagualu_collective_merge_profile(p(), 1, 0);
        bagualu_collective_agree_thresholds(p(), p(), 0);
        bagualu_collective_agree(0, 0);
    }
}

fn units(config: *mut bagualu_engine_config) {
    if matches!(MODE.get(), Mode::Valid) {
        // SAFETY: a whole struct, made by `s`.
        unsafe { (*config).units = 1 };
    }
}

fn engines() -> Vec<Row<bagualu_engine>> {
    rows! { bagualu_engine:
        bagualu_engine_warm(0);
        bagualu_engine_offload(KEY, NOTHING, 0, p());
        bagualu_engine_copied_out(p(), p(), p());
        bagualu_engine_block_until_released(1);
        bagualu_engine_announce(0);
        bagualu_engine_due(p(), p(), p());
        bagualu_engine_reload(0, NOTHING, null());
        bagualu_engine_wait(0, 0);
        bagualu_engine_cancel(0);
        bagualu_engine_drain();
        bagualu_engine_read(o());
    }
}

fn ranks() -> Vec<Row<bagualu_rank>> {
    rows! { bagualu_rank:
        bagualu_rank_begin_forward(0);
        bagualu_rank_to_gate();
        bagualu_rank_gate(s(), o());
        bagualu_rank_allocate(1, p());
        bagualu_rank_give_back(NOTHING);
        bagualu_rank_save(0, NOTHING, null());
        bagualu_rank_remember(0, 0, null(), 0);
        bagualu_rank_layer_done();
        bagualu_rank_end_forward(null());
        bagualu_rank_begin_backward(0);
        bagualu_rank_recover(0, None, null_mut());
        bagualu_rank_parts(0, p());
        bagualu_rank_recover_part(0, 0, None, null_mut());
        bagualu_rank_tensor(0, 0, p());
        bagualu_rank_layer_undone(0);
        bagualu_rank_end_backward();
        bagualu_rank_end_iteration();
        bagualu_rank_abandon();
        bagualu_rank_provision(o());
        bagualu_rank_count(o());
        bagualu_rank_read(o());
    }
}

/// Functions without a handle.
fn others() -> Vec<Row<c_void>> {
    functions! {
        bagualu_budget_new(0, 0, null(), 0, null(), null(), 0, p());
        bagualu_selector_new(null(), p());
        bagualu_layer_evaluate(p(), p(), 0, o());
        bagualu_layer_plan_strategies(p(), p(), 1);
        bagualu_layer_plan_strategy(p(), 0, p());
        bagualu_scheduler_new(null(), p());
        bagualu_chains_run(s(), null(), 0, o());
        bagualu_pipeline_events(s(), null_mut(), 0, p());
        bagualu_controller_from_stage(s(), s(), null(), p());
        bagualu_model_read(s(), p());
        bagualu_group_rows(p(), 1, 1, p(), 1);
        bagualu_group_decide(p(), 1, 0, 1, p(), p());
        bagualu_collective_threads(1, p());
        bagualu_collective_unique_id(BAGUALU_DEVICE_CUDA, null(), p());
        bagualu_collective_join(s(), p());
        bagualu_cast_measure(s(), o());
        bagualu_cast_quantize(s(), null(), 0, null_mut(), 0, null_mut(), 0);
        bagualu_cast_dequantize(s(), null(), 0, null(), 0, null_mut(), 0);
        bagualu_device_open(null(), p());
        bagualu_rank_from_model(null(), 0, s(), p());
        bagualu_rank_from_stage(s(), s(), s(), p());
        bagualu_library_limits(o());
    }
}

/// Calls that cannot fail.
const INFALLIBLE: [&str; 5] = [
    "bagualu_version",
    "bagualu_version_number",
    "bagualu_status_name",
    "bagualu_last_message",
    "bagualu_last_shortage",
];

fn message() -> String {
    // SAFETY: the text lasts until the next failure on this thread.
    unsafe { CStr::from_ptr(bagualu_last_message(null_mut())) }.to_str().expect("UTF-8").to_owned()
}

/// Calls every row in every mode with handles that are not its own.
fn refuse_all<H>(rows: &[Row<H>], freed: *mut H, foreign: *mut c_void, free: fn(*mut H) -> bagualu_status) {
    let invented = |bits: usize| std::ptr::without_provenance_mut::<H>(bits);
    for (name, call) in rows {
        for mode in MODES {
            MODE.set(mode);
            for flag in [&STRUCTS, &READ, &POINTERS] {
                flag.set(false);
            }
            let found = call(null_mut());
            let expected = match (mode, STRUCTS.get(), POINTERS.get()) {
                (Mode::Small | Mode::Huge, true, _) => bagualu_status::StructSize,
                (Mode::Newer, ..) if READ.get() => bagualu_status::StructSize,
                (Mode::Misaligned, _, true) => bagualu_status::Misaligned,
                _ => bagualu_status::NullPointer,
            };
            assert_eq!(found, expected, "{name} with {mode:?}: {}", message());
            assert!(!message().is_empty());
        }
        MODE.set(Mode::Valid);
        assert_eq!(call(freed), bagualu_status::FreedHandle, "{name}: {}", message());
        assert_eq!(call(foreign.cast()), bagualu_status::WrongHandle, "{name}: {}", message());
        for bits in [1, usize::MAX, freed.addr() | 1 << 62, freed.addr() + 5] {
            assert_eq!(call(invented(bits)), bagualu_status::InvalidHandle, "{name}: {}", message());
        }
    }
    assert_eq!(free(freed), bagualu_status::FreedHandle);
    assert_eq!(free(foreign.cast()), bagualu_status::WrongHandle);
    assert_eq!(free(null_mut()), bagualu_status::Ok);
}

fn a_selector() -> *mut bagualu_selector {
    let mut selector = null_mut();
    // SAFETY: valid pointers.
    assert_eq!(unsafe { bagualu_selector_new(null(), &mut selector) }, bagualu_status::Ok);
    selector
}

/// A freed handle of each kind without making its object: slot 0 of generation 0, once another was there.
fn freed<H>(make: impl FnOnce() -> *mut H, free: fn(*mut H) -> bagualu_status) -> *mut H {
    let handle = make();
    assert_eq!(free(handle), bagualu_status::Ok, "{}", message());
    handle
}

fn made<H>(make: impl FnOnce(*mut *mut H) -> bagualu_status) -> *mut H {
    let mut handle = null_mut();
    assert_eq!(make(&mut handle), bagualu_status::Ok, "{}", message());
    handle
}

fn sized<T>() -> T {
    MODE.set(Mode::Valid);
    // SAFETY: a whole struct; any bytes are one.
    unsafe { s::<T>().read() }
}

fn a_device() -> *mut bagualu_device {
    let config = bagualu_device_config { kind: BAGUALU_DEVICE_HOST, ..sized() };
    // SAFETY: valid pointers.
    made(|out| unsafe { bagualu_device_open(&config, out) })
}

/// One layer type with a tensor of 100 bytes; what stands behind it stays.
fn a_stage() -> bagualu_stage {
    let tensor = Box::leak(Box::new(bagualu_tensor_type {
        bytes: bagualu_bytes { fixed: 100, per_row: 0 },
        flags: BAGUALU_TENSOR_OFFLOAD,
        ..Default::default()
    }));
    let op = Box::leak(Box::new(bagualu_op_type { saves: 1, ..Default::default() }));
    let kind =
        bagualu_layer_type { tensors: tensor, tensor_count: 1, ops: op, op_count: 1, ..unsized_zero() };
    let chunk = bagualu_chunk { types: Box::leak(Box::new(0u16)), count: 1 };
    bagualu_stage {
        types: Box::leak(Box::new(kind)),
        type_count: 1,
        chunks: Box::leak(Box::new(chunk)),
        chunk_count: 1,
        device_bytes: 1_000,
        balanced_rows: 1,
        ..sized()
    }
}

/// A plain struct of zeros.
fn unsized_zero<T>() -> T {
    MODE.set(Mode::Valid);
    // SAFETY: a whole value; zeros are one.
    unsafe { p::<T>().read() }
}

fn a_pipeline() -> bagualu_pipeline {
    bagualu_pipeline { ranks: 1, micro_batches: 1, ..sized() }
}

#[test]
fn handles_and_pointers_are_refused_by_every_function() {
    let selector = a_selector();
    let foreign = selector.cast();
    let (stage, pipeline) = (a_stage(), a_pipeline());
    let device = a_device();
    // SAFETY: valid pointers throughout.
    unsafe {
        let budget = freed(
            || made(|out| bagualu_budget_new(1, 0, null(), 0, null(), null(), 0, out)),
            |h| bagualu_budget_free(h),
        );
        refuse_all(&budgets(), budget, foreign, |h| bagualu_budget_free(h));
        let scheduler =
            freed(|| made(|out| bagualu_scheduler_new(null(), out)), |h| bagualu_scheduler_free(h));
        refuse_all(&schedulers(), scheduler, foreign, |h| bagualu_scheduler_free(h));
        let config = bagualu_model_config { preset: c"mixtral-8x7b".as_ptr(), ..sized() };
        let model = freed(|| made(|out| bagualu_model_read(&config, out)), |h| bagualu_model_free(h));
        refuse_all(&models(), model, foreign, |h| bagualu_model_free(h));
        let make = |out| bagualu_controller_from_stage(&stage, &pipeline, null(), out);
        let controller = freed(|| made(make), |h| bagualu_controller_free(h));
        refuse_all(&controllers(), controller, foreign, |h| bagualu_controller_free(h));
        let config = bagualu_engine_config { units: 1, slots: 1, ..sized() };
        let engine =
            freed(|| made(|out| bagualu_engine_new(device, &config, out)), |h| bagualu_engine_free(h));
        refuse_all(&engines(), engine, foreign, |h| bagualu_engine_free(h));
        let mut compute = 0;
        assert_eq!(bagualu_device_create_stream(device, 0, &mut compute), bagualu_status::Ok);
        let config = bagualu_rank_config { device, compute, ..sized() };
        let rank = freed(
            || made(|out| bagualu_rank_from_stage(&stage, &pipeline, &config, out)),
            |h| bagualu_rank_free(h),
        );
        refuse_all(&ranks(), rank, foreign, |h| bagualu_rank_free(h));
        refuse_all(&devices(), freed(|| device, |h| bagualu_device_free(h)), foreign, |h| {
            bagualu_device_free(h)
        });
        let alone = freed(|| made(|out| bagualu_collective_threads(1, out)), |h| bagualu_collective_free(h));
        refuse_all(&collectives(), alone, foreign, |h| bagualu_collective_free(h));
        let old = freed(a_selector, |h| bagualu_selector_free(h));
        let other = made(|out| bagualu_scheduler_new(null(), out));
        refuse_all(&selectors(), old, other.cast(), |h| bagualu_selector_free(h));
        assert_eq!(bagualu_scheduler_free(other), bagualu_status::Ok);
        assert_eq!(bagualu_selector_free(selector), bagualu_status::Ok);
    }
}

#[test]
fn pointers_are_refused_by_functions_without_a_handle() {
    for (name, call) in others() {
        for mode in MODES {
            MODE.set(mode);
            STRUCTS.set(false);
            READ.set(false);
            let found = call(null_mut());
            match mode {
                Mode::Null => assert_eq!(found, bagualu_status::NullPointer, "{name}: {}", message()),
                // What it writes are bytes, which lie right anywhere.
                Mode::Misaligned if name == "bagualu_collective_unique_id" => {
                    assert_ne!(found, bagualu_status::Panic, "{name}: {}", message())
                }
                Mode::Misaligned => assert_eq!(found, bagualu_status::Misaligned, "{name}: {}", message()),
                Mode::Valid => assert_ne!(found, bagualu_status::Panic, "{name}: {}", message()),
                Mode::Newer if !READ.get() => {
                    assert_ne!(found, bagualu_status::Panic, "{name}: {}", message())
                }
                _ if STRUCTS.get() => assert_eq!(found, bagualu_status::StructSize, "{name}: {}", message()),
                _ => assert_ne!(found, bagualu_status::Panic, "{name}: {}", message()),
            }
        }
    }
}

#[test]
fn the_tables_name_every_function_of_the_header() {
    let header = include_str!("../../include/bagualu.h");
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("bagualu_"))
        .collect();
    fn names<H>(rows: Vec<Row<H>>) -> impl Iterator<Item = &'static str> {
        rows.into_iter().map(|row| row.0)
    }
    let frees = [
        "bagualu_model_free",
        "bagualu_budget_free",
        "bagualu_selector_free",
        "bagualu_scheduler_free",
        "bagualu_controller_free",
        "bagualu_device_free",
        "bagualu_engine_free",
        "bagualu_rank_free",
        "bagualu_collective_free",
    ];
    let tabled: BTreeSet<&str> = names(models())
        .chain(names(budgets()))
        .chain(names(selectors()))
        .chain(names(schedulers()))
        .chain(names(controllers()))
        .chain(names(devices()))
        .chain(names(collectives()))
        .chain(names(engines()))
        .chain(names(ranks()))
        .chain(names(others()))
        .chain(INFALLIBLE)
        .chain(frees)
        .collect();
    assert_eq!(tabled, declared);
}

#[test]
fn counts_that_nothing_can_have_are_refused() {
    let (mut budget, mut controller) = (null_mut(), null_mut());
    let (event, floor) = (bagualu_event::default(), 1u64);
    let (stage, pipeline) = (a_stage(), a_pipeline());
    // SAFETY: one element each; larger counts are refused before the second is read.
    unsafe {
        for count in [usize::MAX, usize::MAX / 8, 1 << 40] {
            let found = bagualu_budget_new(1, 0, &event, count, &floor, null(), 1, &mut budget);
            assert_eq!(found, bagualu_status::Count, "{count}: {}", message());
            let bad = bagualu_stage { type_count: count, ..stage };
            let found = bagualu_controller_from_stage(&bad, &pipeline, null(), &mut controller);
            assert_eq!(found, bagualu_status::Count, "{}", message());
            let layer = bagualu_layer { tensor_count: count, ..unsized_zero() };
            let plan = bagualu_layer_plan::default();
            let found = bagualu_layer_evaluate(&layer, &plan, 0, &mut sized());
            assert_eq!(found, bagualu_status::Count, "{}", message());
            let mut chains: bagualu_chains = sized();
            chains.counts[2] = count;
            assert_eq!(bagualu_chains_run(&chains, null(), 0, &mut sized()), bagualu_status::Count);
            let words = bagualu_model_config { flag_count: count, ..sized() };
            assert_eq!(bagualu_model_read(&words, &mut null_mut()), bagualu_status::Count);
        }
        let long = bagualu_pipeline { micro_batches: u32::MAX / 2, ..pipeline };
        let found = bagualu_controller_from_stage(&stage, &long, null(), &mut controller);
        assert_eq!(found, bagualu_status::Count, "{}", message());
        for config in [
            bagualu_controller_config { fronts: usize::MAX, ..sized() },
            bagualu_controller_config { points: usize::MAX, ..sized() },
            bagualu_controller_config { plans: usize::MAX, ..sized() },
        ] {
            let found = bagualu_controller_from_stage(&stage, &pipeline, &config, &mut controller);
            assert_eq!(found, bagualu_status::Count, "{}", message());
        }
        let config = bagualu_scheduler_config { states: u32::MAX, ..sized() };
        assert_eq!(bagualu_scheduler_new(&config, &mut null_mut()), bagualu_status::InvalidValue);
        let sizes = [u64::MAX, u64::MAX];
        let cast = bagualu_cast { dtype: 10, dimensions: 2, sizes: sizes.as_ptr(), ..sized() };
        assert_eq!(bagualu_cast_measure(&cast, &mut sized()), bagualu_status::BadCast, "{}", message());
        let cast = bagualu_cast { dimensions: u32::MAX, ..cast };
        assert_eq!(bagualu_cast_measure(&cast, &mut sized()), bagualu_status::Count, "{}", message());
    }
    assert!(budget.is_null() && controller.is_null());
}

#[test]
fn texts_and_paths_that_are_not_utf_8_are_refused() {
    let bad = c"/tmp/\xff".as_ptr();
    let words = [c"--bf16".as_ptr(), bad];
    // SAFETY: texts that end with NUL, arrays of their counts.
    unsafe {
        let configs = [
            bagualu_model_config { path: bad, ..sized() },
            bagualu_model_config { preset: bad, ..sized() },
            bagualu_model_config { format: bad, path: c"x".as_ptr(), ..sized() },
            bagualu_model_config { device: bad, preset: c"mixtral-8x7b".as_ptr(), ..sized() },
            bagualu_model_config { device_path: bad, preset: c"mixtral-8x7b".as_ptr(), ..sized() },
            bagualu_model_config { flags: words.as_ptr(), flag_count: 2, ..sized() },
        ];
        for config in configs {
            let mut model = null_mut();
            assert_eq!(bagualu_model_read(&config, &mut model), bagualu_status::NotUtf8, "{}", message());
            assert!(model.is_null());
        }
        assert!(message().starts_with("flags[1] is not UTF-8 (byte 5)"), "{}", message());
        let tier = bagualu_device_config { kind: BAGUALU_DEVICE_HOST, host_tier: bad, ..sized() };
        assert_eq!(bagualu_device_open(&tier, &mut null_mut()), bagualu_status::NotUtf8);
    }
}

#[test]
fn two_threads_on_one_object_find_it_busy_or_free() {
    let events = [bagualu_event { unit: 0, backward: 0 }, bagualu_event { unit: 0, backward: 1 }];
    // SAFETY: valid pointers.
    let budget = made(|out| unsafe { bagualu_budget_new(9, 0, events.as_ptr(), 2, &1, null(), 1, out) });
    let bits = budget.expose_provenance();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let budget = std::ptr::with_exposed_provenance_mut(bits);
                for _ in 0..2_000 {
                    // SAFETY: `freed` may be null.
                    let calls = unsafe {
                        [
                            bagualu_budget_restart(budget),
                            bagualu_budget_launch(budget, 3),
                            bagualu_budget_release(budget, null_mut()),
                        ]
                    };
                    for status in calls {
                        let allowed = [bagualu_status::Ok, bagualu_status::Busy, bagualu_status::OutOfOrder];
                        assert!(allowed.contains(&status), "{status:?}: {}", message());
                    }
                }
            });
        }
    });
    assert_eq!(bagualu_budget_free(budget), bagualu_status::Ok);
}
