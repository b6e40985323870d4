# The two commands of the README are `make demo` and `make test`; the rest is for daily work.
# What takes long to make (compiled dependencies) is kept outside the checkout, and made where missing. Not in
# the home folder: tests run the binary as another user, who may not enter there.

CACHE ?= $(or $(XDG_CACHE_HOME),/var/tmp/straightway-$(shell id -un))
export CARGO_TARGET_DIR ?= $(CACHE)/target
export CARGO_TERM_COLOR ?= auto
# How long each part of `make test` took.
PARTS = $(CACHE)/parts
STRAIGHTWAY = $(CARGO_TARGET_DIR)/release/straightway

.PHONY: demo test test-rgw check build wheel release setup claim bench bench-planner bench-weights clean

## Builds, then moves real bytes and shows the receipts: about a minute after the build.
demo: build
	@STRAIGHTWAY="$(STRAIGHTWAY)" demo/run

## Installs what the tests need and runs them all. On a bare machine PyTorch and the packages that load and save by
## Straightway (transformers, accelerate, lightning, diffusers, sentence-transformers, jax) take about three minutes
## to install; they are kept. The tests of those that cannot be installed are skipped with a reason.
test: setup claim
	@rm -f "$(PARTS)"
	tools/part "$(PARTS)" format cargo fmt --all --check
	tools/part "$(PARTS)" lints cargo clippy --workspace --all-targets -- -D warnings
	tools/part "$(PARTS)" "dependencies" tools/deny "$(CACHE)"
	tools/part "$(PARTS)" "Rust: build" cargo test -q --workspace --no-run
	tools/part "$(PARTS)" "Rust: tests" tools/test
	tools/part "$(PARTS)" "Python: build, types and tests" tools/test-python "$(CACHE)"
	@tools/part "$(PARTS)"

## The tests of S3, of stores and of checkpoints in buckets on a second kind of server, Ceph's object gateway, in some four
## minutes; skipped with a reason where Ceph cannot be installed.
test-rgw: claim
	cargo test -q -p straightway-s3 -p straightway-io -p straightway-pipeline --no-run
	tools/rgw sh -c 'cargo test -q -p straightway-s3 --test s3 && cargo test -q -p straightway-io --test conformance s3 \
		&& cargo test -q -p straightway-pipeline --test checkpoint s3' || [ $$? = 77 ]

## The inner loop: formatted, linted, and the quick tests.
check: claim
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test -q -p straightway-core -p straightway-sys -p straightway-io -p straightway-pipeline

build: claim
	cargo build --release -p straightway-cli

## The Python package, for Python 3.10 and later, into dist/.
wheel: claim
	tools/wheel "$$(tools/venv "$(CACHE)/venv")" dist --release

## What is published, into dist/: wheels for glibc 2.28 and later and the sdist, each tested in a clean environment.
release: claim
	tools/release "$(CACHE)" dist

setup:
	tools/setup

claim:
	tools/claim

## The figures in bench/results/: needs fio, root (to drop caches) and a quiet machine.
bench: build
	tools/setup fio
	STRAIGHTWAY="$(STRAIGHTWAY)" python3 bench/fio.py

## The simulators and the planner against their bars, each on one core: about three minutes.
bench-planner: build
	STRAIGHTWAY="$(STRAIGHTWAY)" python3 bench/planner.py

## The loaders side by side in host memory, which needs no GPU. With one: see bench/README.md.
bench-weights: wheel
	"$(CACHE)/venv/bin/pip" install -q --force-reinstall --no-deps dist/straightway-*.whl
	"$(CACHE)/venv/bin/python" bench/peers.py --device cpu --bytes 4000000000

clean:
	rm -rf "$(CACHE)"
