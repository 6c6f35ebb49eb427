//! Numbers of streams and events, of whatever device.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Backend, DeviceError};

/// Low bits of a number: the slot. The bits above are a serial that the process never gives twice, so a number that was
/// removed, or is another device's, is not found.
const SLOT_BITS: u32 = 24;

/// The next serial. 40 bits last for 34 years at a thousand a second.
static SERIAL: AtomicU64 = AtomicU64::new(1);

/// A new number, which is not 0, for what is kept in `slot`.
pub(crate) fn number_for(slot: usize, backend: Backend) -> Result<u64, DeviceError> {
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let number = serial << SLOT_BITS | slot as u64;
    if slot >> SLOT_BITS != 0 || number >> SLOT_BITS != serial {
        let what = "more streams or events than there are numbers for; keep them and use them again";
        return Err(DeviceError::Unsupported { backend, what });
    }
    Ok(number)
}

/// The slot of what has `number`, if it is there.
pub(crate) const fn slot(number: u64) -> usize {
    (number & ((1 << SLOT_BITS) - 1)) as usize
}
