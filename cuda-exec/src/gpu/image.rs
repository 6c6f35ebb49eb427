//! Whether a file of kernels is whole: the libraries are told where it starts, not where it ends, and go by what it says itself.
//!
//! Lengths are compared here; what the kernels do, and what a crafted file makes of a library, is not.

/// Zeros behind an image: one ends PTX, and the libraries compare the head with longer ones (`__CLANG_OFFLOAD_BUNDLE__`).
pub(super) const ZEROS: usize = 64;

/// That `image` is PTX, a cubin, a fat binary, a code object or a bundle of them, and as long as it says. Otherwise, what is
/// wrong with it.
pub(super) fn check(image: &[u8]) -> Result<(), &'static str> {
    const FAT_BINARY: &[u8] = &0xba55_ed50_u32.to_le_bytes();
    if image.starts_with(ELF) {
        elf(image).ok_or("it ends early; build it again")
    } else if image.starts_with(BUNDLE) {
        bundle(image).ok_or("it ends early; build it again")
    } else if image.starts_with(FAT_BINARY) {
        fat_binary(image).ok_or("it ends early; build it again")
    } else if !image.is_empty() && !image.contains(&0) && std::str::from_utf8(image).is_ok() {
        Ok(())
    } else {
        Err("not PTX, a cubin of 64 bits, a fat binary, a code object or a bundle that is not compressed")
    }
}

const ELF: &[u8] = b"\x7fELF";
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";

/// ELF of 64 bits, little-endian: all its headers, and what they say is in the file.
fn elf(image: &[u8]) -> Option<()> {
    const CLASS_64_LITTLE: [u8; 2] = [2, 1];
    if image.get(4..6)? != CLASS_64_LITTLE {
        return None;
    }
    let segments = Table { first: long(image, 32)?, entry: short(image, 54)?, count: short(image, 56)? };
    let sections = Table { first: long(image, 40)?, entry: short(image, 58)?, count: short(image, 60)? };
    // Beyond these the count is elsewhere.
    if segments.count == 0xffff || (sections.count == 0 && sections.first != 0) {
        return None;
    }
    for segment in segments.of(image, 56) {
        inside(image, long(segment?, 8)?, long(segment?, 32)?)?;
    }
    for section in sections.of(image, 64) {
        if !takes_no_room(word(section?, 4)?) {
            inside(image, long(section?, 24)?, long(section?, 32)?)?;
        }
    }
    Some(())
}

/// Kinds of sections whose length is that in memory: `SHT_NOBITS`; of cubins, memory of the device, of a thread and of a block.
const fn takes_no_room(kind: u32) -> bool {
    matches!(kind, 8 | 0x7000_0007 | 0x7000_0009 | 0x7000_000a)
}

/// Headers one after another.
struct Table {
    first: u64,
    entry: u16,
    count: u16,
}

impl Table {
    /// Each of them, `None` if it is not whole or shorter than `least`.
    fn of<'a>(&self, image: &'a [u8], least: u16) -> impl Iterator<Item = Option<&'a [u8]>> {
        let (first, entry) = (self.first, self.entry);
        (0..u64::from(self.count)).map(move |i| {
            let offset = first.checked_add(i * u64::from(entry))?;
            (entry >= least).then(|| inside(image, offset, entry.into()))?
        })
    }
}

/// `__CudaFatBinary`: a head that says how long it is itself, and what follows it.
fn fat_binary(image: &[u8]) -> Option<()> {
    inside(image, short(image, 6)?.into(), long(image, 8)?).map(drop)
}

/// Clang's bundle: a count, then offset, length and name of each code object.
fn bundle(image: &[u8]) -> Option<()> {
    let mut at = 32_u64;
    for _ in 0..long(image, BUNDLE.len() as u64)? {
        let entry = inside(image, at, 24)?;
        let object = inside(image, long(entry, 0)?, long(entry, 8)?)?;
        if object.starts_with(ELF) {
            elf(object)?;
        }
        let name = long(entry, 16)?;
        inside(image, at + 24, name)?;
        at = at.checked_add(24)?.checked_add(name)?;
    }
    Some(())
}

fn inside(image: &[u8], offset: u64, bytes: u64) -> Option<&[u8]> {
    let end = usize::try_from(offset.checked_add(bytes)?).ok()?;
    image.get(usize::try_from(offset).ok()?..end)
}

fn short(image: &[u8], offset: u64) -> Option<u16> {
    Some(u16::from_le_bytes(inside(image, offset, 2)?.try_into().ok()?))
}

fn word(image: &[u8], offset: u64) -> Option<u32> {
    Some(u32::from_le_bytes(inside(image, offset, 4)?.try_into().ok()?))
}

fn long(image: &[u8], offset: u64) -> Option<u64> {
    Some(u64::from_le_bytes(inside(image, offset, 8)?.try_into().ok()?))
}

#[cfg(all(test, not(loom)))]
mod tests;
