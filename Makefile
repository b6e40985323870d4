# The README uses `make demo` and `make test`; the other targets are for daily work.
# The cache (compiled dependencies, Python environment) is outside the checkout. It is not in the home folder, because
# tests run the binary as another user, who may not enter it.

CACHE ?= $(or $(XDG_CACHE_HOME),/var/tmp/straightway-$(shell id -un))
export CARGO_TARGET_DIR ?= $(CACHE)/target
export CARGO_TERM_COLOR ?= auto
# The times of the parts of `make test`.
PARTS = $(CACHE)/parts
STRAIGHTWAY = $(CARGO_TARGET_DIR)/release/straightway

.PHONY: demo test audit test-rgw check docs site build wheel release setup claim bench bench-planner bench-weights clean

## Builds the program, then moves real data and shows the receipts: about a minute after the build.
demo: build
	@STRAIGHTWAY="$(STRAIGHTWAY)" demo/run

## Installs the dependencies of the tests and runs all tests. On a bare machine it takes about three minutes to install
## PyTorch and the packages that load and save through Straightway (transformers, accelerate, lightning, diffusers,
## sentence-transformers, jax), and another minute for vLLM and SGLang. They stay in the cache. If a package cannot be
## installed, its tests are skipped with a reason.
test: setup claim
	@rm -f "$(PARTS)"
	tools/part "$(PARTS)" format cargo fmt --all --check
	tools/part "$(PARTS)" lints cargo clippy --workspace --all-targets -- -D warnings
	tools/part "$(PARTS)" "Rust: build" cargo test -q --workspace --no-run
	tools/part "$(PARTS)" "Rust: tests" tools/test
	tools/part "$(PARTS)" "Python: build, types and tests" tools/test-python "$(CACHE)"
	tools/part "$(PARTS)" "documentation site" tools/site "$(CACHE)"
	@tools/part "$(PARTS)"

## Checks the dependencies with cargo-deny: licences, bans, sources and known advisories. It installs cargo-deny if it is
## missing, which takes a few minutes, and needs the network for the advisories. `make test` checks licences and sources
## without it.
audit:
	tools/deny "$(CACHE)"

## The tests of S3, of stores and of checkpoints in buckets, on a second kind of server: Ceph's object gateway. Takes
## about four minutes. Skipped with a reason if Ceph cannot be installed.
test-rgw: claim
	cargo test -q -p straightway-s3 -p straightway-io -p straightway-checkpoint --no-run
	tools/rgw sh -c 'cargo test -q -p straightway-s3 --test s3 && cargo test -q -p straightway-io --test conformance s3 \
		&& cargo test -q -p straightway-checkpoint --test checkpoint s3' || [ $$? = 77 ]

## For the inner loop: formatting, lints, the quick tests, and those of the command, of the documents and of the tables that
## Python repeats (`tidy`).
check: claim
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test -q -p straightway-core -p straightway-sys -p straightway-io -p straightway-copy -p straightway-weights -p straightway-checkpoint
	cargo test -q -p straightway-cli --lib --test cli --test docs --test doctor --test plan
	cargo test -q -p straightway --test tidy

## Writes the generated pages of docs/: the doctor's checks and the command reference.
docs: build
	"$(STRAIGHTWAY)" doctor --checks >docs/doctor.md
	tools/command-reference "$(STRAIGHTWAY)" >docs/commands.md

## Builds docs/ as a site into dist/site, with every link checked.
site:
	tools/site "$(CACHE)" dist/site

build: claim
	cargo build --release -p straightway-cli

## Builds the Python package, for Python 3.10 and later, into dist/.
wheel: claim
	tools/wheel "$$(tools/venv "$(CACHE)/venv")" dist --release

## Builds the published files into dist/: wheels for glibc 2.28 and later and the sdist, each tested in a clean
## environment. A wheel for another architecture is audited but not run.
release: claim
	tools/release "$(CACHE)" dist

setup:
	tools/setup

claim:
	tools/claim

## Compares Straightway with fio and writes bench/results/. Needs fio, root (to drop caches) and a quiet machine.
bench: build
	tools/setup fio
	STRAIGHTWAY="$(STRAIGHTWAY)" python3 bench/fio.py

## Compares the speed of the simulators and the cluster planner with their bars, each on one core: about three minutes.
bench-planner: build
	STRAIGHTWAY="$(STRAIGHTWAY)" python3 bench/planner.py

## Compares the loaders in host memory, which needs no GPU. With a GPU: see bench/README.md.
bench-weights: wheel
	"$(CACHE)/venv/bin/pip" install -q --force-reinstall --no-deps dist/straightway-*.whl
	"$(CACHE)/venv/bin/python" bench/peers.py --device cpu --bytes 4000000000

clean:
	rm -rf "$(CACHE)"
