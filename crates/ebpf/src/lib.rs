//! eBPF for all places: the log of the loader. `compile.rs` beside it is for build scripts.
//!
//! ```text
//!  places/*/src/**/NAME.bpf.c ─ build.rs, by compile.rs ─▶ NAME.bpf.o ─ libbpf ─▶ kernel
//!                                                                        └─ warnings ─▶ tracing
//! ```

/// Sends the loader's warnings to the log. By default libbpf writes them to standard error, where a thread waits if the reader of
/// the log stops.
pub fn log_by_tracing() {
    let warn = |_, text: String| tracing::warn!("libbpf: {}", text.trim_end());
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, warn)));
}
