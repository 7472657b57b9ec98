# `make` lists the targets. Each says, first, what it needs; scripts/setup gets it.

# Ordinary users run the end-to-end tests as root of a user namespace, which may
# make network namespaces and taps; nothing outside of it is theirs.
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo unshare --user --map-root-user --)
PYTEST := $(AS_ROOT) $(CURDIR)/.venv/bin/pytest tests
PYTHON := tests scripts/test scripts/nightly scripts/fuzz scripts/licences scripts/modules scripts/prose scripts/sources bench bench/run
BINARY := target/release/tidegate

# What is built is run, tested and packaged from here, wherever cargo puts other projects.
unexport CARGO_TARGET_DIR

# Tools in ~/.cargo/bin are found even by a shell that does not know of them.
export PATH := $(PATH):$(HOME)/.cargo/bin

# A Python module, in a workspace of its own.
NATIVE := --locked --manifest-path controller/native/Cargo.toml --target-dir target/native

.DEFAULT_GOAL := help
# Files of tests that run nothing but Python.
QUICK := $(addprefix tests/tools/test_,bench.py bench_stacks.py deny.py rates.py reliability.py soak.py)

.PHONY: help setup guest demo native check nightly test lab lint lint-rust lint-rest fmt bench bench-quick instructions soak fuzz miri reliability deb deb-controller build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## find what is missing to build, demo, test and lint; install it as root
	@scripts/setup

build:
	@scripts/setup build
	cargo build --release --locked

demo: ## voice against bulk traffic on one 1 Gbit/s egress: a plain FIFO, then contracts (no root; builds, then 20 s)
	@scripts/setup demo
	cargo build --release --locked
	$(BINARY) demo $(ARGS)

native: ## the arithmetic of paths as a Python module, for the controller and its tests
	cargo build $(NATIVE)
	cp target/native/debug/libtidegate_native.so controller/src/tidegate_native.abi3.so

check: ## between two edits, under 3 minutes on a warm build: formatting, ruff, mypy, unit tests of crates and tools
	@scripts/setup build test
	cargo fmt --all --check
	.venv/bin/ruff check --quiet --config tests/pyproject.toml $(PYTHON)
	cd tests && ../.venv/bin/mypy . ../scripts/test
	.venv/bin/pytest -q $(QUICK)
	ulimit -n 16384; PROPTEST_CASES=32 cargo test --workspace --lib --locked

test: ## what CI runs after lint: unit and property tests, then end to end; without tests marked nightly (40 minutes)
	@scripts/setup build test
	@scripts/test $(PYTEST)

lab: build ## the guest tests alone
	@scripts/setup test
	$(PYTEST) -m lab $(ARGS)

lint: ## formatting, clippy, ruff, mypy, shellcheck, cargo-deny; no warnings
	@scripts/setup lint
	@$(MAKE) --no-print-directory --jobs --output-sync=target lint-rust lint-rest

lint-rust:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features tidegate-switch/test-clock,tidegate-switch/measure,tidegate-place-switch/measure,tidegate-steering/guest-tests --locked -- -D warnings
	cargo fmt --manifest-path controller/native/Cargo.toml --check
	cargo clippy $(NATIVE) -- -D warnings

# While clippy waits for a crate that many others need, processors are idle; cargo-deny may be built first. `--jobs`
# has no number: with one, cargo would share it.
lint-rest:
	.venv/bin/ruff check --config tests/pyproject.toml $(PYTHON)
	.venv/bin/ruff format --config tests/pyproject.toml --check $(PYTHON)
	cd tests && ../.venv/bin/mypy . ../scripts/test
	cd tests && ../.venv/bin/mypy ../bench ../bench/run
	cd controller && ../.venv/bin/ruff check . && ../.venv/bin/ruff format --check . && ../.venv/bin/mypy src tests bench
	cd tests && ../.venv/bin/mypy ../scripts/fuzz && ../.venv/bin/mypy ../scripts/nightly && ../.venv/bin/mypy ../scripts/modules && ../.venv/bin/mypy ../scripts/prose && ../.venv/bin/mypy ../scripts/licences
	shellcheck -x scripts/setup scripts/deb scripts/deb-controller scripts/tidegate-controller scripts/deny scripts/earlier scripts/guest .ci/run $(addprefix packaging/,postinst prerm postrm) $(addprefix packaging/controller/,postinst prerm postrm)
	shellcheck -s dash tests/lab/init.sh
	@scripts/setup deny
	@scripts/deny
	scripts/licences
	scripts/modules --check
	scripts/prose --check

fmt: ## format Rust and Python
	cargo fmt --all
	cargo fmt --manifest-path controller/native/Cargo.toml
	cd controller && ../.venv/bin/ruff check --fix --quiet . && ../.venv/bin/ruff format .
	.venv/bin/ruff check --config tests/pyproject.toml --fix --quiet $(PYTHON)
	.venv/bin/ruff format --config tests/pyproject.toml $(PYTHON)

bench: build ## Tidegate beside its peers, as root: docs/performance.md, target/bench/results.json
	@scripts/setup demo bench
	bench/run --page $(ARGS)

bench-quick: build ## the same in two minutes, rough: target/bench/quick/results.json
	@scripts/setup demo bench
	bench/run --quick --out target/bench/quick $(ARGS)

instructions: ## the hot path's instructions a frame beside the stored ones; ARGS=--update stores them
	@scripts/setup build test
	bench/run --scene instructions $(ARGS)

# Hours; also fractions.
HOURS := 1

soak: build ## hours of churn, HOURS=n (1): are memory, descriptors, threads and rates as before?
	@scripts/setup test
	$(AS_ROOT) bench/run --scene soak --hours $(HOURS) $(ARGS)

reliability: ## docs/reliability.md from target/reliability; ARGS=--measure measures first: all (hours), or parts
	bench/run --scene reliability $(ARGS)

fuzz: ## each fuzz target for SECONDS=60, with a nightly compiler; target/fuzz/results.json
	@scripts/setup fuzz
	scripts/fuzz $(or $(SECONDS),60) $(TARGETS)

# What needs neither guest memory nor system calls, and is `unsafe` or shared between threads.
MIRI := worker::crossing worker::lending::exchange slots:: fdb::tests::a_contract_holds_while_others_learn_and_sweep link::vhost::arrivals link::pool virtio::tests::writer

miri: ## frames between workers, slots, arrivals, pools, spans under Miri, with a nightly compiler (minutes)
	@scripts/setup fuzz
	rustup component add --toolchain nightly miri rust-src
	PROPTEST_CASES=2 MIRIFLAGS=-Zmiri-disable-isolation \
		cargo +nightly miri test -p tidegate-switch --lib --target-dir target/miri --locked -- $(MIRI)

nightly: build ## what is too long for test, as root: PARTS="fuzz soak ..." or all (scripts/nightly --list); hours
	@scripts/setup test bench fuzz
	AS_ROOT="$(AS_ROOT)" scripts/nightly $(PARTS)

guest: ## the guest's program, static: a path to copy into guests as /usr/bin/tidegate
	@scripts/setup build
	scripts/guest

deb: build ## dist/tidegate_VERSION_ARCH.deb
	@scripts/setup deb
	scripts/deb

# Crates outside of the module's workspace are compiled by their whole path, which tells where it was built.
deb-controller: ## dist/tidegate-controller_VERSION_ARCH.deb, with the Python packages it needs; needs CPython 3.11
	@scripts/setup build controller
	RUSTFLAGS="--remap-path-prefix=$(CURDIR)/=" cargo build --release $(NATIVE)
	scripts/deb-controller
