# `make up` serves a disk, `make test` passes every test. Both install what is missing and can be run again.
.PHONY: up test test-cluster test-long lint bench fmt built checked

# Where `make up` keeps its store, and the volume that it makes there.
DIR ?= levee-data
VOLUME ?= demo
SIZE ?= 10G

up:
	@scripts/setup build
	cargo build --release --locked -p levee
	@exec target/release/levee up --dir $(DIR) --volume $(VOLUME) --size $(SIZE)

test:
	@scripts/setup test
	@$(MAKE) -j2 built checked
	@! grep -q acked-before-durable target/release/levee || (echo "target/release/levee has seeded bugs in it"; false)
	cargo test --locked --workspace --features lab/seeded-bugs --no-fail-fast
	MIMALLOC_PURGE_DELAY=-1 target/release/levee lab verify --minutes 2
	bench/instructions
	tests/clients/run

# Several servers over a real Ceph and a real etcd, which it installs, starts and ends; needs root.
test-cluster:
	@scripts/setup cluster
	tests/cluster/run

# What `make test` compiles: two cargos side by side, which share the processors (hence the +), since the last crates of each keep
# one busy only.
built:
	+cargo build --release --locked -p levee

checked:
	+cargo clippy --locked --workspace --all-targets --features levee/seeded-bugs -- -D warnings
	+cargo test --locked --workspace --features lab/seeded-bugs --no-run

# The same with many more seeds in the simulated world, larger models, and every seeded bug (docs/TESTING.md) from three
# starts. What knows the bugs is built apart: nothing of it may come near target/release/levee.
test-long:
	@scripts/setup test
	LEVEE_SEEDS=20000 LEVEE_BOUNDS=large cargo test --locked --workspace --features lab/seeded-bugs --no-fail-fast
	cargo build --release --locked -p levee --features seeded-bugs --target-dir target/seeded-bugs
	target/seeded-bugs/release/levee lab bugs

lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets --features levee/seeded-bugs -- -D warnings

bench:
	@scripts/setup bench
	cargo build --release --locked -p levee
	bench/compare

fmt:
	cargo fmt --all
