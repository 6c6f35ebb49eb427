//! Handles: what C holds in place of objects.
//!
//! A handle has the type of a pointer and is none: it is a number made of the object's kind, its slot in a
//! table of that kind and the slot's generation, so that a handle which was freed, belongs to another kind of object or
//! was never made is told apart without reading memory. A slot is locked while a call works on its object: two calls on
//! one object at once are an error ([`Busy`](bagualu_status::Busy)), not a race, and a panic closes it for good.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::status::{Failure, bagualu_status};

mod lock;

use lock::{Denied, TryLock};

const SLOT_BITS: u32 = 24;
const KIND_BITS: u32 = 7;
const MOST_SLOTS: u32 = 1 << SLOT_BITS;
/// Slots of the first chunk of a table; every other chunk is twice the one before.
const FIRST_CHUNK: u32 = 64;
/// Enough chunks for all slots.
const CHUNKS: usize = 19;
/// A slot whose generation reaches this is not used again.
const LAST_GENERATION: u32 = (1 << 31) - 1;

const _: () = assert!(size_of::<usize>() == 8, "handles take 64 bits");

/// A C type whose pointers are handles.
pub(crate) trait Handle: Sized + 'static {
    /// What stands behind it.
    type Object: Send + Sync;
    /// The name for messages.
    const NAME: &'static str;
    /// Its number, from 1.
    const KIND: usize;

    /// Where its objects are.
    fn table() -> &'static Table<Self::Object>;
}

/// Declares the handles of a C type.
macro_rules! handle {
    ($handle:ident, $object:ty, $kind:literal) => {
        impl $crate::handle::Handle for $handle {
            type Object = $object;
            const NAME: &'static str = stringify!($handle);
            const KIND: usize = $kind;

            fn table() -> &'static $crate::handle::Table<$object> {
                static TABLE: $crate::handle::Table<$object> = $crate::handle::Table::new();
                &TABLE
            }
        }
    };
}
pub(crate) use handle;

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// Made when needed, never moved or freed, so that finding a slot takes no lock.
    chunks: [Chunk<T>; CHUNKS],
    free: Mutex<Free>,
}

type Chunk<T> = OnceLock<Box<[TryLock<Slot<T>>]>>;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    object: Option<Box<T>>,
}

#[derive(Debug)]
struct Free {
    slots: Vec<u32>,
    /// The first slot never used.
    next: u32,
}

/// Makes a handle for `object`.
pub(crate) fn insert<H: Handle>(object: H::Object) -> Result<*mut H, Failure> {
    let table = H::table();
    let index = table.reserve()?;
    let slot = table.slot_or_new(index);
    let mut object = Some(Box::new(object));
    let generation = loop {
        // Free: nobody else has a handle of this generation, and who tries a stale one is gone at once.
        let placed = slot.write(|slot| {
            slot.object = object.take();
            slot.generation
        });
        match placed {
            Ok(generation) => break generation,
            Err(_) => std::hint::spin_loop(),
        }
    };
    let bits = (generation as usize) << (SLOT_BITS + KIND_BITS) | H::KIND << SLOT_BITS | index as usize;
    Ok(std::ptr::without_provenance_mut(bits))
}

/// Calls `body` with the object; other calls that only read it may run beside.
#[inline]
pub(crate) fn with<H: Handle, R>(
    handle: *const H,
    body: impl FnOnce(&H::Object) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let parts = Parts::of(handle)?;
    let called = parts.slot::<H>()?.read(|slot| match &slot.object {
        Some(object) if slot.generation == parts.generation => body(object),
        _ => Err(parts.gone::<H>(slot.generation)),
    });
    called.unwrap_or_else(|denied| Err(locked::<H>(denied)))
}

/// Calls `body` with the object, which no other call may use meanwhile.
#[inline]
pub(crate) fn with_mut<H: Handle, R>(
    handle: *mut H,
    body: impl FnOnce(&mut H::Object) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let parts = Parts::of(handle)?;
    let called = parts.slot::<H>()?.write(|slot| match &mut slot.object {
        Some(object) if slot.generation == parts.generation => body(object),
        _ => Err(parts.gone::<H>(slot.generation)),
    });
    called.unwrap_or_else(|denied| Err(locked::<H>(denied)))
}

/// Takes the object out, also after a panic; NULL is nothing. Its handle is refused from now on.
pub(crate) fn remove<H: Handle>(handle: *mut H) -> Result<Option<Box<H::Object>>, Failure> {
    if handle.is_null() {
        return Ok(None);
    }
    let parts = Parts::of(handle)?;
    let taken = parts.slot::<H>()?.mend(|slot| {
        if slot.generation != parts.generation || slot.object.is_none() {
            return Err(parts.gone::<H>(slot.generation));
        }
        slot.generation += 1;
        Ok((slot.object.take(), slot.generation < LAST_GENERATION))
    });
    let (object, reusable) = taken.unwrap_or_else(|denied| Err(locked::<H>(denied)))?;
    if reusable {
        H::table().free().slots.push(parts.index);
    }
    Ok(object)
}

/// What a handle's bits say.
struct Parts {
    generation: u32,
    index: u32,
}

impl Parts {
    #[inline]
    fn of<H: Handle>(handle: *const H) -> Result<Self, Failure> {
        let bits = handle.addr();
        let kind = bits >> SLOT_BITS & ((1 << KIND_BITS) - 1);
        let generation = bits >> (SLOT_BITS + KIND_BITS);
        if kind != H::KIND || generation >= LAST_GENERATION as usize {
            return Err(refused::<H>(bits, kind));
        }
        Ok(Self { generation: generation as u32, index: bits as u32 & (MOST_SLOTS - 1) })
    }

    #[inline]
    fn slot<H: Handle>(&self) -> Result<&'static TryLock<Slot<H::Object>>, Failure> {
        H::table().slot(self.index).ok_or_else(|| refused::<H>(0, H::KIND))
    }

    #[cold]
    fn gone<H: Handle>(&self, generation: u32) -> Failure {
        if self.generation >= generation {
            return refused::<H>(0, H::KIND);
        }
        let message = format!("the {} was freed; use no handle after it is freed", H::NAME);
        Failure::new(bagualu_status::FreedHandle, message)
    }
}

#[cold]
fn refused<H: Handle>(bits: usize, kind: usize) -> Failure {
    let name = H::NAME;
    if bits == 0 && kind == 0 {
        let message = format!("the {name} is NULL; give one that this library has returned");
        return Failure::new(bagualu_status::NullPointer, message);
    }
    if kind != H::KIND && (1..=crate::MOST_KIND).contains(&kind) {
        let message =
            format!("a handle of another kind of object is given for a {name}; check the arguments");
        return Failure::new(bagualu_status::WrongHandle, message);
    }
    let message = format!("no {name} has this handle; give one that this library has returned");
    Failure::new(bagualu_status::InvalidHandle, message)
}

#[cold]
fn locked<H: Handle>(denied: Denied) -> Failure {
    let name = H::NAME;
    match denied {
        Denied::Busy => Failure::new(
            bagualu_status::Busy,
            format!("another call on this {name} is under way; call it from one thread at a time"),
        ),
        Denied::Broken => Failure::new(
            bagualu_status::Panic,
            format!("an earlier call on this {name} ended in an error of the library; free it"),
        ),
    }
}

impl<T> Table<T> {
    /// An empty table.
    pub const fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Free { slots: Vec::new(), next: 0 }),
        }
    }

    fn reserve(&self) -> Result<u32, Failure> {
        let mut free = self.free();
        if let Some(index) = free.slots.pop() {
            return Ok(index);
        }
        if free.next >= MOST_SLOTS {
            let message = format!("{MOST_SLOTS} objects of one kind are there; free some");
            return Err(Failure::new(bagualu_status::Count, message));
        }
        free.next += 1;
        Ok(free.next - 1)
    }

    fn slot_or_new(&self, index: u32) -> &TryLock<Slot<T>> {
        let (chunk, offset) = place(index);
        let slot = || TryLock::new(Slot { generation: 0, object: None });
        let new = || (0..FIRST_CHUNK << chunk).map(|_| slot()).collect();
        &self.chunks[chunk].get_or_init(new)[offset]
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&TryLock<Slot<T>>> {
        let (chunk, offset) = place(index);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Chunk of a slot and place in it.
#[inline]
fn place(index: u32) -> (usize, usize) {
    let chunk = (index / FIRST_CHUNK + 1).ilog2();
    (chunk as usize, (index - FIRST_CHUNK * ((1 << chunk) - 1)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Word;
    struct Other;
    handle!(Word, u32, 90);
    handle!(Other, String, 1);

    fn status<R>(result: Result<R, Failure>) -> bagualu_status {
        result.err().expect("refused").status
    }

    #[test]
    fn slots_fill_chunks_without_gaps() {
        let mut expected = (0, 0);
        for index in 0..1 << 16 {
            assert_eq!(place(index), expected);
            expected.1 += 1;
            if expected.1 == (FIRST_CHUNK << expected.0) as usize {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(place(MOST_SLOTS - 1).0 < CHUNKS);
    }

    #[test]
    fn freed_foreign_and_invented_handles_are_told_apart() {
        let word = insert::<Word>(7).expect("room");
        let read = |handle| with::<Word, _>(handle, |&word| Ok(word));
        assert_eq!(read(word), Ok(7));
        assert_eq!(with_mut(word, |word| Ok(std::mem::replace(word, 8))), Ok(7));
        assert_eq!(status(with::<Other, _>(word.cast(), |_| Ok(()))), bagualu_status::InvalidHandle);
        let other = insert::<Other>(String::new()).expect("room");
        assert_eq!(status(read(other.cast())), bagualu_status::WrongHandle);
        assert_eq!(remove(word).map(|object| object.map(|word| *word)), Ok(Some(8)));
        assert_eq!(status(read(word)), bagualu_status::FreedHandle);
        assert_eq!(status(remove(word)), bagualu_status::FreedHandle);
        let again = insert::<Word>(9).expect("room");
        assert_ne!(word, again);
        assert_eq!((status(read(word)), read(again)), (bagualu_status::FreedHandle, Ok(9)));
        assert_eq!(status(read(std::ptr::null())), bagualu_status::NullPointer);
        for bits in [
            1usize,
            usize::MAX,
            90 << SLOT_BITS | 0xff_ffff,
            again.addr() + (1 << 31),
            again.addr() | 1 << 63,
        ] {
            let found = status(read(std::ptr::without_provenance(bits)));
            assert_eq!(found, bagualu_status::InvalidHandle, "{bits:x}");
        }
        assert_eq!(remove::<Word>(std::ptr::null_mut()), Ok(None));
    }

    #[test]
    fn an_object_in_use_is_busy() {
        let word = insert::<Word>(1).expect("room");
        let inside = with_mut(word, |_| {
            assert_eq!(status(with(word, |_| Ok(()))), bagualu_status::Busy);
            assert_eq!(status(remove(word)), bagualu_status::Busy);
            Ok(())
        });
        assert_eq!(inside, Ok(()));
        let beside = with(word, |_| with(word, |&word| Ok(word)));
        assert_eq!(beside, Ok(1));
        remove(word).expect("there");
    }

    #[test]
    fn after_a_panic_an_object_can_only_be_freed() {
        let word = insert::<Word>(1).expect("room");
        let status_of_panic: bagualu_status =
            crate::boundary::boundary(|| with_mut(word, |_| -> Result<(), Failure> { panic!("planted") }));
        assert_eq!(status_of_panic, bagualu_status::Panic);
        assert_eq!(status(with(word, |_| Ok(()))), bagualu_status::Panic);
        assert_eq!(remove(word).map(|object| object.is_some()), Ok(true));
        let next = insert::<Word>(2).expect("room");
        assert_eq!(with(next, |&word| Ok(word)), Ok(2));
        remove(next).expect("there");
    }
}
