# The whole of it: `make test` before a commit, `make demo` to see it work.

CARGO ?= cargo
# Seconds per fuzz target.
FUZZ_SECONDS ?= 300

BAGUALU = $(CARGO) run --quiet --release --package bagualu --

.PHONY: all demo test lint docs no-std loom hip-table determinism memcheck header install bench fuzz clean

all:
	$(CARGO) build --release

# A GLM-423B launch script: planned, then replayed over the routing of a real model (expert popularity as among
# 8 ranks), then over the paper's spike process on devices of 60 GiB, where only the spike does not fit.
demo:
	$(BAGUALU) plan examples/glm-423b.sh
	$(BAGUALU) replay examples/glm-423b.sh --trace traces/olmoe_microbatches.csv --trace-groups 8 \
		--iterations 3 --static none --static selective --static full
	$(BAGUALU) replay examples/glm-423b.sh --trace spike --seed 17 --iterations 3 --memory 60 \
		--static none --static selective --static full --svg target/demo.svg
	@echo "The memory of the worst device is drawn in target/demo.svg."

# The tests come last, so that their summary ends the output.
test: lint docs no-std loom hip-table determinism
	$(CARGO) test --workspace --no-fail-fast

# A toolchain without rustfmt or clippy still tests; CI insists on both (.ci/run).
lint:
	@if $(CARGO) fmt --version >/dev/null 2>&1; then \
		$(CARGO) fmt --all --check && $(CARGO) fmt --manifest-path tests/no-std-probe/Cargo.toml --check \
			&& $(CARGO) fmt --manifest-path tests/hip-table/Cargo.toml --check; \
	else echo "fmt: skipped, no rustfmt (rustup component add rustfmt)"; fi
	@if $(CARGO) clippy --version >/dev/null 2>&1; then \
		$(CARGO) clippy --workspace --all-targets -- -D warnings; \
	else echo "clippy: skipped, no clippy (rustup component add clippy)"; fi

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

# The core without std and libc, and the control that std would be noticed.
no-std:
	$(CARGO) xtask no-std

# Every order of the threads behind a stream of the host device.
loom:
	$(CARGO) xtask loom

# The HIP functions against the installed headers; skipped, with a word why, where there are none.
hip-table:
	$(CARGO) xtask hip-table

# The answers pinned in tests/tests/{determinism,replay,fingerprints}.rs, in release; `test` checks them in debug.
determinism:
	$(CARGO) test --release --package bagualu-tests --test determinism --test replay --test fingerprints

# The C and C++ programs under AddressSanitizer and valgrind; part of `test`.
memcheck:
	$(CARGO) test --package bagualu-tests --test c_api memory -- --nocapture

# include/bagualu.h from the comments in ffi/src; `test` checks that it is what they say.
header:
	$(CARGO) xtask header

PREFIX ?= /usr/local
# The C and C++ libraries below PREFIX; packagers give DESTDIR.
install:
	$(CARGO) xtask install --prefix $(PREFIX) $(if $(DESTDIR),--destdir $(DESTDIR))

bench:
	$(CARGO) bench --package bagualu-benches

fuzz:
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(CARGO) xtask fuzz

clean:
	$(CARGO) clean
