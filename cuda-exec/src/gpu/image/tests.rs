//! Images that are whole, and the same ones cut short at every byte.

use super::{BUNDLE, check};

/// ELF with a segment and a section of `contents`, and a section of device memory. The tables lie behind them.
fn elf(contents: &[u8]) -> Vec<u8> {
    let (data, length) = (64, contents.len() as u64);
    let segments = data + length;
    let sections = segments + 56;
    let mut image = b"\x7fELF\x02\x01\x01".to_vec();
    image.resize(64, 0);
    image[32..40].copy_from_slice(&segments.to_le_bytes());
    image[40..48].copy_from_slice(&sections.to_le_bytes());
    for (at, number) in [(54, 56_u16), (56, 1), (58, 64), (60, 2)] {
        image[at..at + 2].copy_from_slice(&number.to_le_bytes());
    }
    image.extend_from_slice(contents);
    for number in [0, data, 0, 0, length, 1 << 40, 0] {
        image.extend_from_slice(&u64::to_le_bytes(number));
    }
    for (kind, length) in [(1_u64, length), (8, 1 << 40)] {
        for number in [kind << 32, 0, 0, data, length, 0, 0, 0] {
            image.extend_from_slice(&number.to_le_bytes());
        }
    }
    image
}

fn fat_binary(contents: &[u8]) -> Vec<u8> {
    let mut image = 0xba55_ed50_u32.to_le_bytes().to_vec();
    image.extend_from_slice(&[1, 0, 16, 0]);
    image.extend_from_slice(&(contents.len() as u64).to_le_bytes());
    image.extend_from_slice(contents);
    image
}

/// The host's part, which is empty, and a device's.
fn bundle(object: &[u8]) -> Vec<u8> {
    let names = ["host-x86_64", "hip-amdgcn"];
    let start = 32 + names.iter().map(|name| 24 + name.len() as u64).sum::<u64>();
    let mut image = [BUNDLE, &2_u64.to_le_bytes()].concat();
    for (name, bytes) in names.into_iter().zip([0, object.len() as u64]) {
        for number in [start, bytes, name.len() as u64] {
            image.extend_from_slice(&number.to_le_bytes());
        }
        image.extend_from_slice(name.as_bytes());
    }
    image.extend_from_slice(object);
    image
}

#[test]
fn an_image_that_ends_early_is_refused() {
    let object = elf(b"the kernels");
    for whole in [object.clone(), fat_binary(&object), bundle(&object), elf(b"")] {
        assert_eq!(check(&whole), Ok(()));
        let behind = [&whole[..], &[0; 9]].concat();
        assert_eq!(check(&behind), Ok(()), "what is behind it does no harm");
        for length in 0..whole.len() {
            // Cut within its name, it may be text, which zeros end.
            let name = if whole.starts_with(BUNDLE) { BUNDLE.len() } else { 4 };
            let text = (1..name).contains(&length) && std::str::from_utf8(&whole[..length]).is_ok();
            assert_eq!(check(&whole[..length]).is_ok(), text, "{length} bytes");
        }
    }
}

#[test]
fn what_it_says_of_itself_is_not_trusted() {
    let whole = elf(b"the kernels");
    let last = whole.len();
    // Offsets and lengths near the end of the numbers; a table of too many, or of too short, headers.
    let lies: [(usize, &[u8]); 7] = [
        (32, &[0xff; 8]),
        (40, &[0xff; 8]),
        (54, &[1, 0]),
        (56, &[0xff, 0xff]),
        (60, &[0xff, 0xff]),
        (last - 128 + 24, &[0xff; 8]),
        (4, &[1]),
    ];
    for (at, lie) in lies {
        let mut image = whole.clone();
        image[at..at + lie.len()].copy_from_slice(lie);
        assert!(check(&image).is_err(), "at {at}");
    }
    let mut count = bundle(&whole);
    count[24..32].fill(0xff);
    assert!(check(&count).is_err());
}

#[test]
fn text_is_ptx_and_other_bytes_are_nothing() {
    assert_eq!(check(b".version 8.0\n.target sm_90\n"), Ok(()));
    for other in [&b""[..], b".version\0 8.0", b"\xff\xfe", b"CCOB\x02\0\x01\0"] {
        assert!(check(other).is_err(), "{other:?}");
    }
}
