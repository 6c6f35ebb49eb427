//! What a call came to: a status, and for a failure a message.

use std::ffi::c_char;
use std::ops::Deref;

mod convert;

/// What a call came to: 0, or a number from 8200 on, which neither errno nor a bool is. Numbers stay for good; those of
/// a status that is given up are not used again. What it was exactly is in `bagualu_last_message`.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum bagualu_status {
    /// Done.
    Ok = 0,

    /// A pointer is NULL that must not be.
    NullPointer = 8200,
    /// A handle was never returned by this library.
    InvalidHandle = 8201,
    /// A handle was freed.
    FreedHandle = 8202,
    /// A handle of one object where another's is needed.
    WrongHandle = 8203,
    /// Another thread is in a call on the same object, or this one is, through a callback.
    Busy = 8204,
    /// `struct_size` is not that of the struct, or the struct says what this version does not know.
    StructSize = 8205,
    /// A string or path is not UTF-8.
    NotUtf8 = 8206,
    /// A count is too large for what can be, or for this build.
    Count = 8207,
    /// A buffer is too small for the result.
    BufferTooSmall = 8208,
    /// A value is outside what its field takes.
    InvalidValue = 8209,
    /// A pointer is not aligned as its type is.
    Misaligned = 8210,
    /// Sums of bytes or times pass 64 bits.
    Overflow = 8211,
    /// An index names nothing.
    NoSuchIndex = 8212,
    /// An error in the library itself; the objects of that call can only be freed. Please report it.
    Panic = 8213,

    /// A launch script, config or list of flags cannot be read.
    Read = 8220,
    /// What was read is no model that can be built.
    Model = 8221,
    /// A device is neither a preset nor described by the file given.
    DeviceName = 8222,
    /// A file cannot be opened or read.
    File = 8223,

    /// Nothing fits: `bagualu_last_shortage` says what would have to.
    Infeasible = 8240,
    /// The device would do, the host memory for offloading does not.
    HostInfeasible = 8241,
    /// Nothing within the limits was found, nor proven not to exist.
    Undecided = 8242,
    /// The greedy rule ran out of candidates; use the exact one.
    OutOfCandidates = 8243,
    /// A layer's tensors and operators do not go together.
    BadLayer = 8244,
    /// A rank's layers do not go together.
    BadStage = 8245,
    /// A pipeline or a list of events is no schedule.
    BadSchedule = 8246,
    /// An order or a merge is not one of the problem's.
    BadOrder = 8247,
    /// Ranks of a group do not agree.
    Disagreement = 8248,

    /// The call is not the one that the schedule has next.
    OutOfOrder = 8260,
    /// An operator cannot start even after every copy-out: something holds more than its limit.
    Starved = 8261,
    /// More bytes are said to be copied out than there are.
    NotPending = 8262,
    /// A backward ended before its unit's copies did.
    StillLeaving = 8263,
    /// A unit is not between its forward and its backward.
    NotInFlight = 8264,

    /// A library that the device needs is not on this machine.
    DeviceAbsent = 8280,
    /// There is no device of this number.
    NoSuchDevice = 8281,
    /// Device memory is used up.
    OutOfMemory = 8282,
    /// Host memory could not be allocated or pinned.
    OutOfPinnedMemory = 8283,
    /// A stream, event or memory that the device does not have (any more).
    NoSuchStream = 8284,
    /// Source and destination do not go together.
    Mismatch = 8285,
    /// The device cannot do this.
    Unsupported = 8286,
    /// The device's library reported an error.
    Driver = 8287,
    /// Work under way was lost; what it wrote is undefined.
    Lost = 8288,

    /// The engine's host memory is used up: keep the tensor, or offload something else.
    PoolFull = 8300,
    /// Every place of the engine for a tensor is taken.
    NoSlot = 8301,
    /// A ticket was used up before, or is none of this engine's.
    TicketSpent = 8302,
    /// The call does not fit what was done with the ticket.
    TicketState = 8303,
    /// No copies are under way that would free the bytes.
    NothingLeaving = 8304,
    /// A tensor or these buffers cannot be cast.
    BadCast = 8305,
    /// A hook failed.
    Hook = 8306,
    /// A step must wait for the pass beside it, which only the program can run on.
    Waits = 8307,
    /// A saved tensor is not there, not as its model says, or was not saved.
    BadTensor = 8308,

    /// A rank of the group did not come in time.
    TimedOut = 8320,
    /// A rank left the group: it was freed, or its process is gone.
    RankLeft = 8321,
    /// An earlier call of this group failed, here or on another rank; make a new one.
    GroupBroken = 8322,
}

/// The name of a status, as in the header (`BAGUALU_STATUS_INFEASIBLE`); `BAGUALU_STATUS_UNKNOWN` for any other number.
///
/// The text is static. Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_status_name(status: u32) -> *const c_char {
    let found = NAMES.iter().find(|(known, _)| *known as u32 == status);
    found.map_or(c"BAGUALU_STATUS_UNKNOWN", |(_, name)| name).as_ptr()
}

macro_rules! names {
    ($($status:ident $name:literal)*) => {
        /// Every status and its name; the match below fails to build where one lacks.
        pub(crate) const NAMES: &[(bagualu_status, &std::ffi::CStr)] = &[$((bagualu_status::$status, $name),)*];
        const _: fn(bagualu_status) = |status| match status {
            $(bagualu_status::$status => (),)*
        };
    };
}

names! {
    Ok c"BAGUALU_STATUS_OK"
    NullPointer c"BAGUALU_STATUS_NULL_POINTER"
    InvalidHandle c"BAGUALU_STATUS_INVALID_HANDLE"
    FreedHandle c"BAGUALU_STATUS_FREED_HANDLE"
    WrongHandle c"BAGUALU_STATUS_WRONG_HANDLE"
    Busy c"BAGUALU_STATUS_BUSY"
    StructSize c"BAGUALU_STATUS_STRUCT_SIZE"
    NotUtf8 c"BAGUALU_STATUS_NOT_UTF8"
    Count c"BAGUALU_STATUS_COUNT"
    BufferTooSmall c"BAGUALU_STATUS_BUFFER_TOO_SMALL"
    InvalidValue c"BAGUALU_STATUS_INVALID_VALUE"
    Misaligned c"BAGUALU_STATUS_MISALIGNED"
    Overflow c"BAGUALU_STATUS_OVERFLOW"
    NoSuchIndex c"BAGUALU_STATUS_NO_SUCH_INDEX"
    Panic c"BAGUALU_STATUS_PANIC"
    Read c"BAGUALU_STATUS_READ"
    Model c"BAGUALU_STATUS_MODEL"
    DeviceName c"BAGUALU_STATUS_DEVICE_NAME"
    File c"BAGUALU_STATUS_FILE"
    Infeasible c"BAGUALU_STATUS_INFEASIBLE"
    HostInfeasible c"BAGUALU_STATUS_HOST_INFEASIBLE"
    Undecided c"BAGUALU_STATUS_UNDECIDED"
    OutOfCandidates c"BAGUALU_STATUS_OUT_OF_CANDIDATES"
    BadLayer c"BAGUALU_STATUS_BAD_LAYER"
    BadStage c"BAGUALU_STATUS_BAD_STAGE"
    BadSchedule c"BAGUALU_STATUS_BAD_SCHEDULE"
    BadOrder c"BAGUALU_STATUS_BAD_ORDER"
    Disagreement c"BAGUALU_STATUS_DISAGREEMENT"
    OutOfOrder c"BAGUALU_STATUS_OUT_OF_ORDER"
    Starved c"BAGUALU_STATUS_STARVED"
    NotPending c"BAGUALU_STATUS_NOT_PENDING"
    StillLeaving c"BAGUALU_STATUS_STILL_LEAVING"
    NotInFlight c"BAGUALU_STATUS_NOT_IN_FLIGHT"
    DeviceAbsent c"BAGUALU_STATUS_DEVICE_ABSENT"
    NoSuchDevice c"BAGUALU_STATUS_NO_SUCH_DEVICE"
    OutOfMemory c"BAGUALU_STATUS_OUT_OF_MEMORY"
    OutOfPinnedMemory c"BAGUALU_STATUS_OUT_OF_PINNED_MEMORY"
    NoSuchStream c"BAGUALU_STATUS_NO_SUCH_STREAM"
    Mismatch c"BAGUALU_STATUS_MISMATCH"
    Unsupported c"BAGUALU_STATUS_UNSUPPORTED"
    Driver c"BAGUALU_STATUS_DRIVER"
    Lost c"BAGUALU_STATUS_LOST"
    PoolFull c"BAGUALU_STATUS_POOL_FULL"
    NoSlot c"BAGUALU_STATUS_NO_SLOT"
    TicketSpent c"BAGUALU_STATUS_TICKET_SPENT"
    TicketState c"BAGUALU_STATUS_TICKET_STATE"
    NothingLeaving c"BAGUALU_STATUS_NOTHING_LEAVING"
    BadCast c"BAGUALU_STATUS_BAD_CAST"
    Hook c"BAGUALU_STATUS_HOOK"
    Waits c"BAGUALU_STATUS_WAITS"
    BadTensor c"BAGUALU_STATUS_BAD_TENSOR"
    TimedOut c"BAGUALU_STATUS_TIMED_OUT"
    RankLeft c"BAGUALU_STATUS_RANK_LEFT"
    GroupBroken c"BAGUALU_STATUS_GROUP_BROKEN"
}

/// Why a call failed. One word, so that calls that do not fail carry little.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure(Box<Details>);

/// What is known of a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Details {
    /// The kind.
    pub status: bagualu_status,
    /// The sentence for the user.
    pub message: String,
    /// Bytes needed and available, where that is why.
    pub shortage: Option<(u64, u64)>,
}

impl Deref for Failure {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.0
    }
}

impl Failure {
    /// A failure without a shortage.
    #[cold]
    pub fn new(status: bagualu_status, message: impl Into<String>) -> Self {
        Self(Box::new(Details { status, message: message.into(), shortage: None }))
    }

    /// A value outside what a field takes; `fix` says what it takes.
    pub fn value(field: &str, value: impl std::fmt::Display, fix: &str) -> Self {
        Self::new(bagualu_status::InvalidValue, format!("{field} is {value}; {fix}"))
    }

    /// An index that names nothing.
    pub fn index(field: &str, index: usize, count: usize) -> Self {
        let message = format!("{field} is {index} and there are {count}; count from 0");
        Self::new(bagualu_status::NoSuchIndex, message)
    }

    /// A buffer that is too small.
    pub fn buffer(argument: &str, needed: usize, given: usize) -> Self {
        let message = format!("{argument} has room for {given}; {needed} are needed");
        Self::new(bagualu_status::BufferTooSmall, message)
    }

    /// The same, in an element of an array.
    pub fn within(mut self, array: &str, at: usize) -> Self {
        self.0.message = format!("{array}[{at}]: {}", self.0.message);
        self
    }

    /// What is known of it.
    pub fn into_details(self) -> Details {
        *self.0
    }

    fn short(status: bagualu_status, error: &impl ToString, needed: u64, available: u64) -> Self {
        let shortage = Some((needed, available));
        Self(Box::new(Details { status, message: error.to_string(), shortage }))
    }
}
