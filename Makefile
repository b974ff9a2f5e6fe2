# make demo       a bare machine to a first job done
# make test       what CI runs
# make test-full  the same tests with the big numbers
# make bench      every measure beside its peers but P3, a fresh clone to a first job (ONLY=P3; ONLY=S1,G2 for some)
# make check      quick: formatting, lints, the plan of the house

CARGO ?= cargo
.PHONY: demo test test-full bench check build program runtime quick

check:
	$(CARGO) fmt --all --check
	$(CARGO) xtask deps
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

test:
	./scripts/test

test-full:
	BELLJAR_TEST_FULL=1 ./scripts/test

bench:
	./scripts/bench $(ONLY)

demo:
	./scripts/demo

# What is installed for good. The end of a build is one thread's work: the runtime is built by what it leaves idle.
build:
	@$(MAKE) --no-print-directory --jobs=2 program runtime

program:
	$(CARGO) build --locked --release --package belljar

runtime:
	nice -n 19 $(CARGO) build --locked --profile runtime --package belljar-runtime

# The same for a first look: two programs of the same parts, so that each is built once.
quick:
	$(CARGO) build --locked --profile quick --package belljar --package belljar-runtime
