# `make up` serves a disk, `make test` passes every test. Both install what is missing and can be run again.
.PHONY: up test test-long lint bench fmt

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
	cargo build --release --locked -p levee
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo test --locked --workspace --no-fail-fast
	tests/clients/run

# The same with many more seeds in the simulated world, and larger models.
test-long:
	@scripts/setup test
	LEVEE_SEEDS=20000 LEVEE_BOUNDS=large cargo test --locked --workspace --no-fail-fast

lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

bench:
	@scripts/setup test
	cargo build --release --locked -p levee
	bench/compare

fmt:
	cargo fmt --all
