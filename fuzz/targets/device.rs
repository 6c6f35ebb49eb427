//! libFuzzer's entry to [`bagualu_fuzz::device`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bagualu_fuzz::device(data));
