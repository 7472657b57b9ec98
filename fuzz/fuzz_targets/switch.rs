#![no_main]
#![allow(missing_docs, reason = "see the library")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_fuzz::switch::run(data));
