//! libFuzzer's entry to [`bagualu_fuzz::script`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bagualu_fuzz::script(data));
