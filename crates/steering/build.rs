//! Compiles the eBPF programs of `src/ebpf/`.

#[path = "../ebpf/compile.rs"]
mod compile;

fn main() {
    compile::programs("src/ebpf", &["drops", "probe", "steer"]);
}
