//! Compiles the eBPF programs of `src/ebpf/`, and one for tests.

#[path = "../ebpf/compile.rs"]
mod compile;

fn main() {
    compile::programs("src/ebpf", &["drops", "probe", "steer"]);
    compile::programs("src/tests", &["counter"]);
}
