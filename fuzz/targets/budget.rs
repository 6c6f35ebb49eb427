//! libFuzzer's entry to [`bagualu_fuzz::budget`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bagualu_fuzz::budget(data));
