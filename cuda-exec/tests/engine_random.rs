//! The engine under random commands, on a device whose copies come late: no byte is lost, nothing is left behind.

use std::sync::Arc;
use std::time::Duration;

use bagualu_exec::device::{Device, DeviceSlice, Stream, StreamUse};
use bagualu_exec::engine::{Engine, EngineConfig, EngineError, Key, Ticket};
use bagualu_exec::fault::{Faults, FaultyDevice};
use bagualu_exec::host::{HostConfig, HostDevice};
use bagualu_exec::pool::PoolConfig;
use proptest::prelude::*;

const CAP: u64 = 16_384;
const SLOTS: u32 = 12;
const UNITS: u32 = 3;

#[derive(Clone, Copy, Debug)]
enum Command {
    Offload { bytes: u64 },
    Reload { which: usize, ordered: bool },
    Wait { which: usize },
    Cancel { which: usize },
    Drop { which: usize },
    Poll,
    Announce { unit: u32 },
    Release { bytes: u64 },
    Drain,
}

fn command() -> impl Strategy<Value = Command> {
    let which = 0..64usize;
    prop_oneof![
        4 => (0..6_000u64).prop_map(|bytes| Command::Offload { bytes }),
        3 => (which.clone(), any::<bool>()).prop_map(|(which, ordered)| Command::Reload { which, ordered }),
        3 => which.clone().prop_map(|which| Command::Wait { which }),
        1 => which.clone().prop_map(|which| Command::Cancel { which }),
        1 => which.prop_map(|which| Command::Drop { which }),
        2 => Just(Command::Poll),
        1 => (0..UNITS).prop_map(|unit| Command::Announce { unit }),
        1 => (0..8_000u64).prop_map(|bytes| Command::Release { bytes }),
        1 => Just(Command::Drain),
    ]
}

/// A tensor that has not been waited for or given up.
struct Out {
    seed: u8,
    bytes: u64,
    ticket: Ticket,
    into: Option<DeviceSlice>,
}

struct Model {
    device: Arc<FaultyDevice<HostDevice>>,
    engine: Engine,
    compute: Stream,
    out: Vec<Out>,
    offloaded: u32,
    reported: u32,
    next: u8,
}

/// Device memory of the host is memory of this process; nothing here is freed before the device.
fn bytes(of: DeviceSlice) -> &'static mut [u8] {
    let start = std::ptr::with_exposed_provenance_mut(of.address() as usize);
    // SAFETY: each is touched only when no work on it is under way.
    unsafe { std::slice::from_raw_parts_mut(start, of.bytes() as usize) }
}

fn pattern(seed: u8, length: u64) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

impl Model {
    fn new(seed: u64) -> Self {
        let host = HostDevice::open(HostConfig::default()).expect("a host");
        let faults =
            Faults { seed, late_copies: 128, late_by: Duration::from_micros(200), ..Faults::default() };
        let device = Arc::new(FaultyDevice::new(host, faults).expect("a device"));
        let pool = PoolConfig { cap_bytes: CAP, slab_bytes: 4_096 };
        let config = EngineConfig { pool, slots: SLOTS, ..EngineConfig::new(CAP, UNITS) };
        let engine = Engine::new(Arc::<FaultyDevice<HostDevice>>::clone(&device), config).expect("an engine");
        let compute = device.create_stream(StreamUse::Compute).expect("a stream");
        Self { device, engine, compute, out: Vec::new(), offloaded: 0, reported: 0, next: 0 }
    }

    fn step(&mut self, command: Command) {
        match command {
            Command::Offload { bytes } => self.offload(bytes),
            Command::Reload { which, ordered } => self.reload(which, ordered),
            Command::Wait { which } => self.wait(which),
            Command::Cancel { which } => {
                if let Some(out) = self.take(which) {
                    self.engine.cancel(out.ticket).expect("given up");
                }
            }
            Command::Drop { which } => drop(self.take(which)),
            Command::Poll => self.poll(),
            Command::Announce { unit } => {
                self.engine.announce(unit).expect("a unit");
                let due = self.engine.poll_reload().expect("no loss");
                let held = |bytes| self.out.iter().any(|out| out.into.is_none() && out.bytes == bytes);
                assert!(due.is_none_or(|reload| held(reload.bytes)), "{due:?} is nobody's");
            }
            Command::Release { bytes } => {
                let leaving = self.engine.usage().leaving_bytes;
                match self.engine.block_until_released(bytes) {
                    Ok(()) => assert!(leaving >= bytes),
                    Err(EngineError::NothingLeaving { .. }) => assert!(leaving < bytes || leaving == 0),
                    Err(error) => panic!("{error}"),
                }
            }
            Command::Drain => self.engine.drain().expect("no loss"),
        }
    }

    fn offload(&mut self, length: u64) {
        let key = Key { unit: u32::from(self.next) % UNITS, layer: 0, tensor: self.next.into() };
        let reservation = match self.engine.reserve(key, length) {
            Ok(reservation) => reservation,
            Err(EngineError::Full(full)) => {
                assert!(full.needed.next_multiple_of(256) > full.free, "{full:?}");
                return;
            }
            Err(EngineError::NoSlot { slots }) => return assert_eq!(self.engine.usage().slots, slots),
            Err(error) => panic!("{error}"),
        };
        let seed = self.next;
        self.next = self.next.wrapping_add(1);
        let from = self.device.allocate(length).expect("memory");
        bytes(from).copy_from_slice(&pattern(seed, length));
        // SAFETY: device memory lives as long as the device here.
        let ticket = unsafe { self.engine.offload(from, self.compute, reservation) }.expect("submitted");
        self.offloaded += 1;
        self.out.push(Out { seed, bytes: length, ticket, into: None });
    }

    fn reload(&mut self, which: usize, ordered: bool) {
        let count = self.out.len();
        let Some(out) = self.out.get_mut(which % count.max(1)) else { return };
        let into = self.device.allocate(out.bytes).expect("memory");
        // SAFETY: as in `offload`; nothing else uses `into`.
        let reloaded = unsafe { self.engine.reload(&out.ticket, into, ordered.then_some(self.compute)) };
        match out.into {
            None => {
                reloaded.expect("submitted");
                out.into = Some(into);
            }
            Some(_) => assert!(matches!(reloaded, Err(EngineError::OutOfOrder { .. })), "reloaded twice"),
        }
    }

    fn wait(&mut self, which: usize) {
        let Some(Out { seed, bytes: length, ticket, into }) = self.take(which) else { return };
        let waited = self.engine.wait(ticket, self.compute);
        let Some(into) = into else {
            return assert!(matches!(waited, Err(EngineError::OutOfOrder { .. })), "never reloaded");
        };
        waited.expect("waiting");
        self.device.synchronize(self.compute).expect("no loss");
        assert_eq!(bytes(into), pattern(seed, length));
    }

    fn poll(&mut self) {
        while self.engine.poll_copied_out().expect("no loss").is_some() {
            self.reported += 1;
        }
    }

    fn take(&mut self, which: usize) -> Option<Out> {
        (!self.out.is_empty()).then(|| self.out.swap_remove(which % self.out.len()))
    }

    /// Nothing is left once all has been given up and has ended.
    fn end(mut self) {
        self.out.clear();
        self.engine.drain().expect("no loss");
        self.poll();
        assert_eq!(self.reported, self.offloaded, "each copy-out is reported once");
        let usage = self.engine.usage();
        assert_eq!((usage.slots, usage.leaving_bytes, usage.returning_bytes, usage.pool.taken), (0, 0, 0, 0));
        assert_eq!(usage.pool.largest_free, usage.pool.pinned.min(4_096), "slabs are whole again");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_commands_lose_nothing(
        seed in any::<u64>(),
        commands in prop::collection::vec(command(), 1..60),
    ) {
        let mut model = Model::new(seed);
        commands.into_iter().for_each(|command| model.step(command));
        model.end();
    }
}
