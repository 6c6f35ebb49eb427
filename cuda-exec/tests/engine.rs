//! The offload engine on the host device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use bagualu_exec::device::{Device, DeviceError, DeviceSlice, Stream, StreamUse};
use bagualu_exec::engine::{CopiedOut, Engine, EngineConfig, EngineError, Key, Reload, Ticket};
use bagualu_exec::host::{HostConfig, HostDevice};
use bagualu_exec::pool::{PoolConfig, PoolFull};

#[path = "common/twisted.rs"]
mod twisted;

use twisted::{Twist, Twisted};

fn host() -> HostDevice {
    HostDevice::open(HostConfig { device_bytes: Some(64 << 20), ..HostConfig::default() }).expect("a host")
}

fn twisted(twist: Twist) -> Arc<Twisted> {
    Arc::new(Twisted::new(host(), twist))
}

fn config() -> EngineConfig {
    EngineConfig { slots: 32, ..EngineConfig::new(1 << 20, 8) }
}

fn key(unit: u32, layer: u16, tensor: u16) -> Key {
    Key { unit, layer, tensor }
}

/// Bytes of the host device's own memory; no work may be under way on them.
fn bytes(of: DeviceSlice) -> &'static mut [u8] {
    let start = std::ptr::with_exposed_provenance_mut(of.address() as usize);
    // SAFETY: device memory of the host is memory of this process; these tests free it last and never share it.
    unsafe { std::slice::from_raw_parts_mut(start, of.bytes() as usize) }
}

fn pattern(seed: u8, length: u64) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

/// An engine, a compute stream and what holds that stream back.
struct Bench {
    device: Arc<dyn Device>,
    engine: Engine,
    compute: Stream,
}

impl Bench {
    fn new(device: Arc<dyn Device>, config: EngineConfig) -> Self {
        let engine = Engine::new(Arc::clone(&device), config).expect("an engine");
        let compute = device.create_stream(StreamUse::Compute).expect("a stream");
        Self { device, engine, compute }
    }

    fn on_host() -> Self {
        Self::new(Arc::new(host()), config())
    }

    fn filled(&self, seed: u8, length: u64) -> DeviceSlice {
        let memory = self.device.allocate(length).expect("memory");
        bytes(memory).copy_from_slice(&pattern(seed, length));
        memory
    }

    fn offload(&mut self, key: Key, from: DeviceSlice) -> Ticket {
        let reservation = self.engine.reserve(key, from.bytes()).expect("room");
        // SAFETY: the tests free no device memory before the device is dropped, after the engine.
        unsafe { self.engine.offload(from, self.compute, reservation) }.expect("submitted")
    }

    fn reload(&mut self, ticket: &Ticket, into: DeviceSlice) {
        // SAFETY: as in `offload`; nothing else uses `into`.
        unsafe { self.engine.reload(ticket, into, Some(self.compute)) }.expect("submitted");
    }

    fn copied_out(&mut self) -> Vec<Key> {
        let poll = || self.engine.poll_copied_out().expect("no loss").map(|copied| copied.key);
        std::iter::from_fn(poll).collect()
    }
}

/// A piece of work that ends when it is let go.
struct Gate(Sender<()>);

impl Gate {
    fn before(host: &HostDevice, stream: Stream) -> Self {
        let (open, closed): (_, Receiver<()>) = channel();
        // Dropping the sender opens it too.
        host.run(stream, move || {
            let _ = closed.recv();
        })
        .expect("submitted");
        Self(open)
    }

    fn open(self) {
        drop(self.0);
    }
}

#[test]
fn contents_come_back() {
    let mut bench = Bench::on_host();
    let lengths = [0u64, 1, 255, 256, 4_097, 70_001];
    let mut tickets = Vec::new();
    for (tensor, &length) in lengths.iter().enumerate() {
        let from = bench.filled(tensor as u8, length);
        tickets.push(bench.offload(key(0, 0, tensor as u16), from));
    }
    bench.engine.block_until_released(lengths.iter().sum()).expect("copies");
    assert_eq!(bench.copied_out().len(), lengths.len());
    for (tensor, (ticket, &length)) in tickets.into_iter().zip(&lengths).enumerate() {
        let into = bench.device.allocate(length).expect("memory");
        bench.reload(&ticket, into);
        bench.engine.wait(ticket, bench.compute).expect("waiting");
        bench.device.synchronize(bench.compute).expect("done");
        assert_eq!(bytes(into), pattern(tensor as u8, length), "{length} bytes");
    }
    bench.engine.drain().expect("done");
    let usage = bench.engine.usage();
    assert_eq!((usage.slots, usage.pool.taken, usage.leaving_bytes, usage.returning_bytes), (0, 0, 0, 0));
    assert!(usage.pool.high_water >= lengths.iter().sum());
}

/// Reloads a tensor while its copy-out cannot even start.
fn reload_during_copy_out(device: Arc<Twisted>) -> bool {
    let length = 10_000;
    let mut bench = Bench::new(Arc::<Twisted>::clone(&device), config());
    let from = bench.filled(5, length);
    let gate = Gate::before(&device.host, bench.compute);
    let ticket = bench.offload(key(0, 0, 0), from);
    let into = bench.device.allocate(length).expect("memory");
    // Another stream than the one that is held back.
    let other = device.create_stream(StreamUse::Compute).expect("a stream");
    // SAFETY: `into` lives as long as the device.
    unsafe { bench.engine.reload(&ticket, into, None) }.expect("submitted");
    bench.engine.wait(ticket, other).expect("waiting");
    assert!(bench.engine.poll_copied_out().expect("no loss").is_none(), "the producer has not ended");
    // Time for a copy-in that does not wait.
    let back = device.back.lock().expect("no panic")[0];
    let end = device.create_event().expect("an event");
    device.record(end, back).expect("recorded");
    let soon = Instant::now() + Duration::from_millis(50);
    while Instant::now() < soon && !device.is_done(end).expect("no loss") {
        std::thread::yield_now();
    }
    gate.open();
    device.synchronize(other).expect("done");
    bench.engine.drain().expect("done");
    bytes(into) == pattern(5, length)
}

#[test]
fn a_reload_cannot_race_its_own_copy_out() {
    assert!(reload_during_copy_out(twisted(Twist::None)));
    assert!(!reload_during_copy_out(twisted(Twist::ReloadsDoNotWait)), "without the wait the race is seen");
}

#[test]
fn many_tensors_reordered() {
    for seed in 0..20u64 {
        let host = Arc::new(host());
        let mut bench = Bench::new(Arc::<HostDevice>::clone(&host), config());
        let other = host.create_stream(StreamUse::Compute).expect("a stream");
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let (mut gates, mut out) = (Vec::new(), Vec::new());
        for step in 0..30u8 {
            if next(3) == 0 {
                gates.push(Gate::before(&host, bench.compute));
            }
            let length = next(20_000);
            let from = bench.filled(step, length);
            out.push((step, length, bench.offload(key(0, 0, step.into()), from)));
            if next(4) == 0 && !gates.is_empty() {
                gates.swap_remove(next(gates.len() as u64) as usize).open();
            }
        }
        let mut back = Vec::new();
        while !out.is_empty() {
            let (seed, length, ticket) = out.swap_remove(next(out.len() as u64) as usize);
            let into = host.allocate(length).expect("memory");
            // SAFETY: `into` lives as long as the device.
            unsafe { bench.engine.reload(&ticket, into, None) }.expect("submitted");
            bench.engine.wait(ticket, other).expect("waiting");
            back.push((seed, length, into));
            if next(4) == 0 && !gates.is_empty() {
                gates.swap_remove(next(gates.len() as u64) as usize).open();
            }
        }
        gates.into_iter().for_each(Gate::open);
        host.synchronize(other).expect("done");
        for (seed, length, into) in back {
            assert_eq!(bytes(into), pattern(seed, length));
        }
        bench.engine.drain().expect("done");
        assert_eq!(bench.copied_out().len(), 30);
        assert_eq!(bench.engine.usage().pool.taken, 0);
    }
}

#[test]
fn a_full_pool_is_an_answer() {
    let pool = PoolConfig { cap_bytes: 1_024, slab_bytes: 0 };
    let mut bench = Bench::new(Arc::new(host()), EngineConfig { pool, ..config() });
    let first = bench.engine.reserve(key(0, 0, 0), 800).expect("room");
    let full = EngineError::Full(PoolFull { needed: 300, free: 0, cap: 1_024 });
    assert_eq!(bench.engine.reserve(key(0, 0, 1), 300).expect_err("full"), full);
    drop(first);
    let from = bench.filled(1, 300);
    let ticket = bench.offload(key(0, 0, 1), from);
    drop(ticket);
    assert!(bench.engine.usage().pool.taken > 0, "its copy-out may be under way");
    bench.engine.block_until_released(300).expect("a copy");
    assert_eq!(bench.engine.poll_copied_out(), Ok(Some(CopiedOut { key: key(0, 0, 1), bytes: 300 })));
    assert_eq!(bench.engine.usage().pool.taken, 0);
}

#[test]
fn host_memory_is_held_until_its_copy_in_has_ended() {
    let host = Arc::new(host());
    let pool = PoolConfig { cap_bytes: 1_024, slab_bytes: 0 };
    let mut bench = Bench::new(Arc::<HostDevice>::clone(&host), EngineConfig { pool, ..config() });
    let from = bench.filled(3, 1_024);
    let ticket = bench.offload(key(0, 0, 0), from);
    bench.engine.drain().expect("done");
    assert_eq!(bench.copied_out(), [key(0, 0, 0)]);
    let other = host.create_stream(StreamUse::Compute).expect("a stream");
    let into = host.allocate(1_024).expect("memory");
    let gate = Gate::before(&host, other);
    // SAFETY: `into` lives as long as the device.
    unsafe { bench.engine.reload(&ticket, into, Some(other)) }.expect("submitted");
    bench.engine.wait(ticket, bench.compute).expect("waiting");
    let full = EngineError::Full(PoolFull { needed: 1, free: 0, cap: 1_024 });
    assert_eq!(bench.engine.reserve(key(0, 0, 1), 1).expect_err("its copy-in cannot have ended"), full);
    gate.open();
    assert_eq!(bench.engine.block_until_arrived(), Ok(true));
    assert_eq!(bench.engine.block_until_arrived(), Ok(false));
    drop(bench.engine.reserve(key(0, 0, 1), 1_024).expect("free again"));
    assert_eq!(bytes(into), pattern(3, 1_024));
}

#[test]
fn no_pinned_memory_is_an_error_and_the_engine_goes_on() {
    let mut bench = Bench::new(twisted(Twist::NoPinnedMemory), config());
    let error = EngineError::Device(DeviceError::OutOfPinnedMemory { bytes: 1 << 20 });
    assert_eq!(bench.engine.reserve(key(0, 0, 0), 5).expect_err("no memory"), error);
    assert_eq!(bench.engine.poll_copied_out(), Ok(None));
    assert_eq!(bench.engine.usage().slots, 0);
}

#[test]
fn reloads_are_due_last_saved_first_within_the_window() {
    let config = EngineConfig { window_bytes: 250, window_tensors: 2, ..config() };
    let mut bench = Bench::new(Arc::new(host()), config);
    let keys = [key(1, 0, 0), key(0, 0, 0), key(1, 0, 3), key(1, 1, 0), key(0, 1, 0)];
    let mut tickets: Vec<_> = keys.iter().map(|&key| (key, bench.filled(0, 100))).collect::<Vec<_>>();
    let mut tickets: Vec<_> = tickets.drain(..).map(|(key, from)| (key, bench.offload(key, from))).collect();
    assert_eq!(bench.engine.poll_reload(), Ok(None), "nothing is announced");
    bench.engine.announce(1).expect("a unit");
    bench.engine.announce(0).expect("a unit");
    let mut order = Vec::new();
    let mut returning: Vec<Ticket> = Vec::new();
    while !tickets.is_empty() {
        let due = bench.engine.poll_reload().expect("no loss");
        assert_eq!(due, bench.engine.poll_reload().expect("no loss"), "asked twice");
        let Some(Reload { key, bytes: 100 }) = due else {
            assert_eq!(returning.len(), 2, "the window is full");
            bench.engine.wait(returning.remove(0), bench.compute).expect("waiting");
            continue;
        };
        let at = tickets.iter().position(|(k, _)| *k == key).expect("a ticket");
        let (_, ticket) = tickets.swap_remove(at);
        let into = bench.device.allocate(100).expect("memory");
        bench.reload(&ticket, into);
        returning.push(ticket);
        order.push(key);
    }
    assert_eq!(order, [keys[3], keys[2], keys[0], keys[4], keys[1]]);
    assert_eq!(bench.engine.poll_reload(), Ok(None));
    returning.drain(..).for_each(|ticket| bench.engine.wait(ticket, bench.compute).expect("waiting"));
    let from = bench.filled(0, 100);
    let _ticket = bench.offload(keys[0], from);
    bench.engine.announce(1).expect("a unit");
    assert!(bench.engine.poll_reload().expect("no loss").is_some());
    bench.engine.withdraw(1);
    assert_eq!(bench.engine.poll_reload(), Ok(None));
}

#[test]
fn one_reload_is_due_whatever_its_size() {
    let mut bench =
        Bench::new(Arc::new(host()), EngineConfig { window_bytes: 10, window_tensors: 0, ..config() });
    let from = bench.filled(0, 100);
    let _ticket = bench.offload(key(2, 0, 0), from);
    bench.engine.announce(2).expect("a unit");
    assert_eq!(bench.engine.poll_reload(), Ok(Some(Reload { key: key(2, 0, 0), bytes: 100 })));
}

#[test]
fn tickets_are_used_once() {
    let mut bench = Bench::on_host();
    let from = bench.filled(9, 512);
    let raw = bench.offload(key(0, 0, 0), from).into_raw();
    let ticket = bench.engine.ticket(raw).expect("alive");
    bench.reload(&ticket, from);
    let again = bench.engine.ticket(raw).expect("alive");
    bench.engine.wait(ticket, bench.compute).expect("waiting");
    let stale = EngineError::Stale { slot: raw as u32 };
    assert_eq!(bench.engine.ticket(raw).expect_err("used up"), stale);
    bench.engine.drain().expect("done");
    assert_eq!(bench.copied_out(), [key(0, 0, 0)]);
    // The slot serves another tensor now: the stale ticket reaches nothing, not even by being dropped.
    let other = bench.offload(key(1, 0, 0), from);
    assert_eq!(bench.engine.wait(again, bench.compute), Err(stale));
    bench.reload(&other, from);
    bench.engine.wait(other, bench.compute).expect("untouched");
}

#[test]
fn a_ticket_of_another_engine_reaches_nothing() {
    let (mut one, mut other) = (Bench::on_host(), Bench::on_host());
    let (from, same) = (one.filled(1, 256), other.filled(2, 256));
    let raw = one.offload(key(0, 0, 0), from).into_raw();
    let its_own = other.offload(key(0, 0, 0), same);
    assert_eq!(other.engine.ticket(raw).expect_err("another's"), EngineError::Stale { slot: raw as u32 });
    other.reload(&its_own, same);
    drop(one.engine.ticket(raw).expect("its own"));
}

#[test]
fn a_tensor_may_be_shorter_than_reserved_and_lie_in_pieces() {
    let pool = PoolConfig { cap_bytes: 2_048, slab_bytes: 256 };
    let mut bench = Bench::new(Arc::new(host()), EngineConfig { pool, ..config() });
    for length in [0, 1, 255, 256, 257, 1_000, 1_999] {
        let from = bench.filled(length as u8, length);
        let reservation = bench.engine.reserve(key(0, 0, 0), 2_000).expect("room");
        // SAFETY: device memory lives as long as the device here.
        let ticket = unsafe { bench.engine.offload(from, bench.compute, reservation) }.expect("submitted");
        let into = bench.device.allocate(length).expect("memory");
        bench.reload(&ticket, into);
        bench.engine.wait(ticket, bench.compute).expect("waiting");
        bench.device.synchronize(bench.compute).expect("done");
        assert_eq!(bytes(into), pattern(length as u8, length));
        bench.engine.drain().expect("done");
        assert_eq!(bench.engine.poll_copied_out(), Ok(Some(CopiedOut { key: key(0, 0, 0), bytes: length })));
    }
    let from = bench.filled(1, 2_001);
    let reservation = bench.engine.reserve(key(0, 0, 0), 2_000).expect("room");
    // SAFETY: refused before anything is submitted.
    let refused = unsafe { bench.engine.offload(from, bench.compute, reservation) };
    assert_eq!(refused.expect_err("too long"), EngineError::Length { tensor: 2_000, named: 2_001 });
}

#[test]
fn calls_out_of_order_are_refused() {
    let mut bench = Bench::on_host();
    let from = bench.filled(9, 512);
    let short = from.part(0, 500).expect("a part");
    let ticket = bench.offload(key(0, 0, 0), from);
    // SAFETY: refused before anything is submitted, and `short` lives as long as the device.
    let refused = unsafe { bench.engine.reload(&ticket, short, None) };
    assert_eq!(refused, Err(EngineError::Length { tensor: 512, named: 500 }));
    bench.reload(&ticket, from);
    // SAFETY: as above.
    let refused = unsafe { bench.engine.reload(&ticket, from, None) };
    assert!(matches!(refused, Err(EngineError::OutOfOrder { call: "reload", .. })));
    let early = bench.offload(key(0, 0, 1), from);
    assert!(matches!(
        bench.engine.wait(early, bench.compute),
        Err(EngineError::OutOfOrder { call: "wait", .. })
    ));
    assert_eq!(
        bench.engine.reserve(key(8, 0, 0), 1).expect_err("no unit"),
        EngineError::NoSuchUnit { unit: 8, units: 8 }
    );
    assert!(matches!(bench.engine.announce(8), Err(EngineError::NoSuchUnit { .. })));
    bench.engine.cancel(ticket).expect("given up");
    bench.engine.drain().expect("done");
    assert_eq!(bench.copied_out().len(), 2);
    assert_eq!(bench.engine.block_until_released(1), Err(EngineError::NothingLeaving { bytes: 1 }));
    assert_eq!(bench.engine.usage().slots, 0);
}

#[test]
fn slots_are_bounded_and_come_back() {
    let mut bench = Bench::new(Arc::new(host()), EngineConfig { slots: 2, ..config() });
    let from = bench.filled(1, 64);
    let tickets = [0, 1].map(|tensor| bench.offload(key(0, 0, tensor), from));
    assert_eq!(
        bench.engine.reserve(key(0, 0, 2), 1).expect_err("none left"),
        EngineError::NoSlot { slots: 2 }
    );
    bench.engine.drain().expect("done");
    assert_eq!(bench.copied_out().len(), 2);
    std::thread::spawn(move || drop(tickets)).join().expect("dropped elsewhere");
    let _again = bench.engine.reserve(key(0, 0, 2), 1).expect("both are free");
}

#[test]
fn dropping_everything_under_way_waits_for_it() {
    let host = Arc::new(host());
    let mut bench = Bench::new(Arc::<HostDevice>::clone(&host), config());
    let from = bench.filled(1, 100_000);
    let gate = Gate::before(&host, bench.compute);
    let ticket = bench.offload(key(0, 0, 0), from);
    bench.reload(&ticket, from);
    drop(ticket);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        gate.open();
    });
    drop(bench);
    opener.join().expect("opened");
    assert_eq!(bytes(from), pattern(1, 100_000));
    assert_eq!(host.pinned_usage().bytes, 0, "the pool is unpinned");
}

/// Ends the lane of copies out by a producer that panics once a copy behind it was submitted.
fn lose(bench: &mut Bench, host: &HostDevice) -> EngineError {
    let from = bench.filled(1, 1_000);
    let gate = Gate::before(host, bench.compute);
    host.run(bench.compute, || std::panic::resume_unwind(Box::new(()))).expect("submitted");
    let _ticket = bench.offload(key(7, 0, 0), from);
    gate.open();
    bench.engine.block_until_released(1).expect_err("lost")
}

#[test]
fn lost_copies_end_the_engine_with_a_typed_error() {
    let host = Arc::new(host());
    let mut bench = Bench::new(Arc::<HostDevice>::clone(&host), config());
    let lost = lose(&mut bench, &host);
    assert!(matches!(lost, EngineError::Lost(_)), "{lost:?}");
    assert_eq!(bench.engine.poll_copied_out(), Err(lost.clone()));
    assert_eq!(bench.engine.reserve(key(0, 0, 0), 1).expect_err("lost"), lost);
    assert_eq!(bench.engine.drain(), Err(lost));
    drop(bench);
}

#[test]
fn an_engine_that_lost_copies_out_waits_for_those_in() {
    let host = Arc::new(host());
    let mut bench = Bench::new(Arc::<HostDevice>::clone(&host), config());
    let from = bench.filled(7, 50_000);
    let ticket = bench.offload(key(0, 0, 0), from);
    bench.engine.drain().expect("done");
    assert_eq!(bench.copied_out(), [key(0, 0, 0)]);
    let into = bench.filled(0, 50_000);
    let other = host.create_stream(StreamUse::Compute).expect("a stream");
    let gate = Gate::before(&host, other);
    // SAFETY: `into` lives as long as the device.
    unsafe { bench.engine.reload(&ticket, into, Some(other)) }.expect("submitted");
    let lost = lose(&mut bench, &host);
    assert!(matches!(lost, EngineError::Lost(_)), "{lost:?}");
    let opened = Arc::new(AtomicBool::new(false));
    let opener = std::thread::spawn({
        let opened = Arc::clone(&opened);
        move || {
            std::thread::sleep(Duration::from_millis(50));
            opened.store(true, Ordering::SeqCst);
            gate.open();
        }
    });
    drop(bench);
    assert!(opened.load(Ordering::SeqCst), "the copy in was still under way");
    assert_eq!(bytes(into), pattern(7, 50_000));
    opener.join().expect("opened");
}
