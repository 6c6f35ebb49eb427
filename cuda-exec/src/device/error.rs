//! What can go wrong on a device.

use std::fmt;

use super::Backend;

/// Why a device refuses a call, or what has become of its work.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// A library that the backend needs is not on this machine, or lacks a function.
    Absent {
        /// The backend asked for.
        backend: Backend,
        /// The library, or the function in it.
        library: &'static str,
        /// What loading it said.
        reason: String,
    },
    /// There is a library but no device of this number.
    NoSuchDevice {
        /// The number asked for.
        ordinal: u32,
        /// Devices there are.
        devices: u32,
    },
    /// Device memory is used up.
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes free, where known.
        free: u64,
    },
    /// Host memory could not be allocated or pinned.
    OutOfPinnedMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// A stream or an event that this device does not have (any more).
    NoSuchHandle {
        /// `"stream"` or `"event"`.
        kind: &'static str,
        /// Its number.
        handle: u64,
    },
    /// Source and destination of a copy or a cast do not go together.
    Mismatch {
        /// What was to be done.
        call: &'static str,
        /// Bytes of the source.
        from: u64,
        /// Bytes of the destination, or those that the source would need.
        to: u64,
    },
    /// The backend cannot do this.
    Unsupported {
        /// The backend.
        backend: Backend,
        /// What was asked for, and what does instead.
        what: &'static str,
    },
    /// The library reported an error.
    Library {
        /// The function called.
        call: &'static str,
        /// Its status.
        code: i64,
        /// What the library says of it.
        message: String,
    },
    /// Work under way was lost: its thread has ended, or the device has failed. Contents of its destinations are undefined.
    Lost {
        /// What was under way.
        what: String,
    },
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { backend, library, reason } => {
                write!(
                    f,
                    "{backend:?}: {library} is not usable here ({reason}); install it, or use the host device"
                )
            }
            Self::NoSuchDevice { ordinal, devices } => {
                write!(f, "device {ordinal} was asked for, and there are {devices}; count from 0")
            }
            Self::OutOfMemory { bytes, free } => {
                write!(f, "{bytes} bytes of device memory were asked for, and {free} are free")
            }
            Self::OutOfPinnedMemory { bytes } => write!(
                f,
                "{bytes} bytes of host memory for copies could not be had; give the pool a smaller cap or the process more memory"
            ),
            Self::NoSuchHandle { kind, handle } => {
                write!(f, "{kind} {handle} is not one of this device; it may have been destroyed")
            }
            Self::Mismatch { call, from, to } => {
                write!(f, "{call}: {from} bytes do not go with {to}; give both the same length")
            }
            Self::Unsupported { backend, what } => write!(f, "{backend:?} cannot do this: {what}"),
            Self::Library { call, code, message } => write!(f, "{call} returned {code}: {message}"),
            Self::Lost { what } => write!(f, "{what} was lost; what it wrote is undefined"),
        }
    }
}

impl std::error::Error for DeviceError {}
