//! Arguments from C: pointers with counts, strings, structs that may be of another version.
//!
//! What can be checked is checked: null, alignment, counts whose bytes overflow, struct sizes, UTF-8. That the memory
//! is there is the caller's word, the one safety contract of this module.

use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, align_of, size_of};
use std::slice;

use crate::status::{Failure, bagualu_status};

/// Bytes by which a struct of a newer header may be longer than ours.
const MOST_GROWTH: usize = 4_096;

/// A struct passed by pointer whose first field, a `size_t`, is its size in the caller's header.
///
/// # Safety
/// - The type is `repr(C)`, its first field is a `usize`, and any bytes are a value of it.
pub unsafe trait Versioned: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// Its size when it was first published: no caller's is smaller.
    const FIRST_SIZE: usize;

    /// Its `reserved`, which must be 0 so that it can be given a meaning later; 0 where it has none.
    fn reserved(&self) -> u32;
}

/// Declares that a struct is [`Versioned`], that all of it was there from the start, and that it has a field `reserved`
/// if so.
macro_rules! versioned {
    ($name:ident $(, $reserved:ident)?) => {
        const _: () = assert!(::core::mem::offset_of!($name, struct_size) == 0);
        // SAFETY: `repr(C)` with integers and raw pointers only; the size's place is checked above.
        unsafe impl $crate::arguments::Versioned for $name {
            const NAME: &'static str = stringify!($name);
            const FIRST_SIZE: usize = ::core::mem::size_of::<Self>();

            fn reserved(&self) -> u32 {
                0 $(| self.$reserved)?
            }
        }
    };
}
pub(crate) use versioned;

/// A struct's own size, where its fields are filled in here.
pub(crate) const fn own_size<T>() -> usize {
    size_of::<T>()
}

/// Reads a struct of the caller's version. What an older one lacks is 0; what a newer one has beyond ours must be 0.
///
/// # Safety
/// - `from` is null, or its `struct_size` bytes may be read.
pub unsafe fn config<T: Versioned>(from: *const T, argument: &str) -> Result<T, Failure> {
    check_pointer(from, argument)?;
    // SAFETY: not null, aligned for `T`, which begins with this field.
    let size = unsafe { from.cast::<usize>().read() };
    check_size::<T>(size, argument)?;
    let bytes = from.cast::<u8>();
    for at in size_of::<T>()..size {
        // SAFETY: inside `struct_size`.
        if unsafe { bytes.add(at).read() } != 0 {
            return Err(newer::<T>(argument));
        }
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: as many bytes as both have; any bytes are a `T`, zeros too.
    let value = unsafe {
        bytes.copy_to_nonoverlapping(value.as_mut_ptr().cast(), size.min(size_of::<T>()));
        value.assume_init()
    };
    check_reserved(argument, value.reserved())?;
    Ok(value)
}

/// That a field without a meaning is 0.
pub fn check_reserved(argument: &str, value: u32) -> Result<(), Failure> {
    match value {
        0 => Ok(()),
        other => Err(Failure::value(&format!("{argument}.reserved"), other, "set it to 0")),
    }
}

/// As [`config`]; NULL is all zeros, that is all defaults.
///
/// # Safety
/// As for [`config`].
pub unsafe fn config_or_default<T: Versioned>(from: *const T, argument: &str) -> Result<T, Failure> {
    if from.is_null() {
        // SAFETY: any bytes are a `T`.
        return Ok(unsafe { MaybeUninit::zeroed().assume_init() });
    }
    // SAFETY: the contract of this function.
    unsafe { config(from, argument) }
}

/// Where one result goes, checked before anything is done.
#[derive(Debug)]
pub struct Out<T> {
    to: *mut T,
    /// Bytes of the caller's version.
    size: usize,
}

/// A place for one plain value.
///
/// # Safety
/// - `to` is null, or may be written until the [`Out`] has been.
pub unsafe fn out<T: Copy>(to: *mut T, argument: &str) -> Result<Out<T>, Failure> {
    check_pointer(to, argument)?;
    Ok(Out { to, size: size_of::<T>() })
}

/// A place for a struct of the caller's version.
///
/// # Safety
/// - `to` is null, or its `struct_size` bytes may be read and, until the [`Out`] has been, written.
pub unsafe fn out_struct<T: Versioned>(to: *mut T, argument: &str) -> Result<Out<T>, Failure> {
    check_pointer(to, argument)?;
    // SAFETY: not null, aligned for `T`, which begins with this field.
    let size = unsafe { to.cast::<usize>().read() };
    check_size::<T>(size, argument)?;
    Ok(Out { to, size })
}

impl<T: Copy> Out<T> {
    /// Writes the plain value.
    pub fn set(self, value: T) {
        // SAFETY: `out` was promised a place for it.
        unsafe { self.to.write(value) };
    }
}

impl<T: Versioned> Out<T> {
    /// Writes what the caller's version has of `value`, and zeros behind ours; `struct_size` stays the caller's.
    pub fn set_struct(self, value: T) {
        let (own, first) = (size_of::<T>(), size_of::<usize>());
        let to = self.to.cast::<u8>();
        // SAFETY: inside `struct_size`, which `out_struct` was promised; `value` is on our stack.
        unsafe {
            let from = (&raw const value).cast::<u8>();
            from.add(first).copy_to_nonoverlapping(to.add(first), self.size.min(own) - first);
            if self.size > own {
                to.add(own).write_bytes(0, self.size - own);
            }
        }
    }
}

/// What `read` makes of a pointer, or none of NULL.
pub fn optional<T, R>(
    pointer: *mut T,
    read: impl FnOnce(*mut T) -> Result<R, Failure>,
) -> Result<Option<R>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    read(pointer).map(Some)
}

/// `count` elements to be read.
///
/// # Safety
/// - `from` is null, or `count` initialised elements may be read for as long as the slice is used, and nobody writes them.
pub unsafe fn elements<'a, T>(from: *const T, count: usize, argument: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check_pointer(from, argument)?;
    check_count::<T>(count, argument)?;
    // SAFETY: not null, aligned, no overflow; the elements are there by the contract above.
    Ok(unsafe { slice::from_raw_parts(from, count) })
}

/// Room for results, checked before anything is done. It need not hold values yet, so it is written by pointer: no
/// reference to it is made.
#[derive(Debug)]
pub struct Room<T> {
    to: *mut T,
    count: usize,
}

/// Room for `count` elements.
///
/// # Safety
/// - `to` is null, or `count` elements may be written until the [`Room`] has been.
pub unsafe fn room<T: Copy>(to: *mut T, count: usize, argument: &str) -> Result<Room<T>, Failure> {
    if count > 0 {
        check_pointer(to, argument)?;
        check_count::<T>(count, argument)?;
    }
    Ok(Room { to, count })
}

impl<T: Copy> Room<T> {
    /// For how many elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Writes the values, as many as there is room for.
    pub fn write(self, values: impl IntoIterator<Item = T>) {
        for (at, value) in (0..self.count).zip(values) {
            // SAFETY: one of the elements that `room` was promised.
            unsafe { self.to.add(at).write(value) };
        }
    }

    /// The elements as a slice of zeros, for callees that write slices.
    ///
    /// # Safety
    /// - Zeros are a `T`, and nobody else uses the elements while the slice is used.
    pub unsafe fn zeroed<'a>(self) -> &'a mut [T] {
        if self.count == 0 {
            return &mut [];
        }
        // SAFETY: `room` was promised the elements, and has checked the pointer; zeros are values.
        unsafe {
            self.to.write_bytes(0, self.count);
            slice::from_raw_parts_mut(self.to, self.count)
        }
    }
}

/// Refuses buffers that overlap: name, address and bytes of each.
pub fn apart(buffers: &[(&str, usize, usize)]) -> Result<(), Failure> {
    for (at, &(one, first, bytes)) in buffers.iter().enumerate() {
        for &(other, second, others) in &buffers[..at] {
            let empty = bytes == 0 || others == 0;
            if !empty && first < second.saturating_add(others) && second < first.saturating_add(bytes) {
                let message = format!("{other} and {one} overlap; give buffers of their own");
                return Err(Failure::new(bagualu_status::InvalidValue, message));
            }
        }
    }
    Ok(())
}

/// A string that ends with NUL.
///
/// # Safety
/// - `from` is null, or a string that ends with NUL and stays as it is while the result is used.
pub unsafe fn text<'a>(from: *const c_char, argument: &str) -> Result<&'a str, Failure> {
    check_pointer(from, argument)?;
    // SAFETY: not null, and ends with NUL by the contract above.
    let bytes = unsafe { CStr::from_ptr(from) };
    bytes.to_str().map_err(|error| {
        let message = format!("{argument} is not UTF-8 (byte {}); give UTF-8", error.valid_up_to());
        Failure::new(bagualu_status::NotUtf8, message)
    })
}

/// As [`text`]; NULL is none.
///
/// # Safety
/// As for [`text`].
pub unsafe fn optional_text<'a>(from: *const c_char, argument: &str) -> Result<Option<&'a str>, Failure> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: the contract of this function.
    unsafe { text(from, argument) }.map(Some)
}

/// `count` strings that end with NUL.
///
/// # Safety
/// - As for [`elements`], and each is as for [`text`].
pub unsafe fn texts(
    from: *const *const c_char,
    count: usize,
    argument: &str,
) -> Result<Vec<String>, Failure> {
    // SAFETY: the contract of this function.
    let pointers = unsafe { elements(from, count, argument) }?;
    pointers
        .iter()
        .enumerate()
        // SAFETY: the contract of this function.
        .map(|(at, &pointer)| unsafe { text(pointer, &format!("{argument}[{at}]")) }.map(str::to_owned))
        .collect()
}

fn check_pointer<T>(pointer: *const T, argument: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        let message = format!("{argument} is NULL; give a valid pointer");
        return Err(Failure::new(bagualu_status::NullPointer, message));
    }
    if !pointer.is_aligned() {
        let message = format!("{argument} is not aligned to {} bytes", align_of::<T>());
        return Err(Failure::new(bagualu_status::Misaligned, message));
    }
    Ok(())
}

fn check_count<T>(count: usize, argument: &str) -> Result<(), Failure> {
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
        _ => {
            let message = format!("{count} elements of {argument} pass the address space; give fewer");
            Err(Failure::new(bagualu_status::Count, message))
        }
    }
}

fn check_size<T: Versioned>(size: usize, argument: &str) -> Result<(), Failure> {
    if size > size_of::<T>() + MOST_GROWTH {
        return Err(newer::<T>(argument));
    }
    if size < T::FIRST_SIZE {
        let message = format!(
            "{argument}: struct_size is {size}, and {} has at least {} bytes; set it to sizeof({0})",
            T::NAME,
            T::FIRST_SIZE
        );
        return Err(Failure::new(bagualu_status::StructSize, message));
    }
    Ok(())
}

fn newer<T: Versioned>(argument: &str) -> Failure {
    let message = format!(
        "{argument} uses fields of {} that library {} does not know; use the header that belongs to it",
        T::NAME,
        env!("CARGO_PKG_VERSION")
    );
    Failure::new(bagualu_status::StructSize, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Settings {
        struct_size: usize,
        a: u64,
        b: u64,
    }

    // SAFETY: `repr(C)`, integers only, the size first.
    unsafe impl Versioned for Settings {
        const NAME: &'static str = "settings";
        /// As if `b` had come later.
        const FIRST_SIZE: usize = 16;

        fn reserved(&self) -> u32 {
            0
        }
    }

    fn read(words: &[u64]) -> Result<Settings, bagualu_status> {
        // SAFETY: `struct_size` is at most the words' bytes, or refused before they are read.
        unsafe { config(words.as_ptr().cast::<Settings>(), "settings") }.map_err(|failure| failure.status)
    }

    #[test]
    fn older_structs_are_taken_and_newer_ones_where_they_say_nothing_new() {
        assert_eq!(read(&[24, 1, 2]), Ok(Settings { struct_size: 24, a: 1, b: 2 }));
        assert_eq!(read(&[16, 1]), Ok(Settings { struct_size: 16, a: 1, b: 0 }));
        assert_eq!(read(&[32, 1, 2, 0]), Ok(Settings { struct_size: 32, a: 1, b: 2 }));
        assert_eq!(read(&[32, 1, 2, 3]), Err(bagualu_status::StructSize));
        assert_eq!(read(&[8]), Err(bagualu_status::StructSize));
        assert_eq!(read(&[u64::MAX]), Err(bagualu_status::StructSize));
    }

    #[test]
    fn results_are_cut_or_filled_up() {
        let value = Settings { struct_size: 0, a: 5, b: 6 };
        for (mut words, expected) in [([16u64, 9, 9, 9], [16, 5, 9, 9]), ([32, 9, 9, 9], [32, 5, 6, 0])] {
            // SAFETY: as many words as `struct_size` says.
            let out = unsafe { out_struct(words.as_mut_ptr().cast::<Settings>(), "out") }.expect("valid");
            out.set_struct(value);
            assert_eq!(words, expected);
        }
    }

    #[test]
    fn room_need_not_hold_values() {
        let mut words = [MaybeUninit::<u64>::uninit(); 3];
        // SAFETY: there are three.
        let room = unsafe { room(words.as_mut_ptr().cast::<u64>(), 3, "words") }.expect("valid");
        assert_eq!(room.count(), 3);
        room.write(5..);
        // SAFETY: written above.
        assert_eq!(words.map(|word| unsafe { word.assume_init() }), [5, 6, 7]);
    }

    #[test]
    fn buffers_that_overlap_are_refused() {
        assert_eq!(apart(&[("a", 100, 10), ("b", 110, 10), ("c", 90, 10), ("d", 105, 0)]), Ok(()));
        for (address, bytes) in [(109, 1), (91, 10), (100, 10), (0, usize::MAX), (usize::MAX, usize::MAX)] {
            let found = apart(&[("a", 100, 10), ("b", address, bytes)]);
            assert_eq!(found.is_err(), address < 110, "{address}");
        }
    }

    #[test]
    fn counts_and_alignment_are_checked() {
        let word = [0u64; 2];
        let status = |result: Result<&[u64], Failure>| result.expect_err("refused").status;
        // SAFETY: all are refused before anything is read.
        unsafe {
            assert_eq!(status(elements(word.as_ptr(), usize::MAX, "x")), bagualu_status::Count);
            assert_eq!(status(elements(std::ptr::null(), 1, "x")), bagualu_status::NullPointer);
            let odd = word.as_ptr().cast::<u8>().add(1).cast::<u64>();
            assert_eq!(status(elements(odd, 1, "x")), bagualu_status::Misaligned);
            assert!(elements::<u64>(std::ptr::null(), 0, "x").is_ok_and(<[u64]>::is_empty));
        }
    }
}
