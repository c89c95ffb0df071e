# `make` alone shows what there is. The work is done by cargo and by xtask, the project's own commands.
CARGO  ?= cargo
PREFIX ?= /usr/local
TO      = $(DESTDIR)$(PREFIX)
BUILT   = $(or $(CARGO_TARGET_DIR),target)/release
# For workspaces of their own: what they have in common with this one is built once.
BESIDE  = --target-dir $(or $(CARGO_TARGET_DIR),target)
# The project's own commands where nothing is measured: of the parts that the unit tests are built of anyway.
XTASK   = $(CARGO) build --quiet --workspace --bin xtask && $(BUILT)/../debug/xtask
# How much `make bench` measures: some of each case. `make bench GRID=` measures all of it, in more than seven hours.
GRID   ?= --short
# On which roads; docs/benchmarking.md says why these.
ROADS  ?= loopback,unix,bridge,millrace-loopback,millrace-bridge
# What was measured of another commit is not gone on with.
MEASURED = target/bench/$(or $(shell git describe --always --dirty 2>/dev/null),here)$(if $(strip $(GRID)),,-all)

.PHONY: help demo test test-all test-kubernetes check check-rest unit-tests bench bench-sockets peers softrss build install uninstall deb image

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 \t\2/p' $(MAKEFILE_LIST) | expand -t 24

demo: ## real programs over the kernel and over Millrace in turn, one table, under five minutes
	@$(CARGO) xtask demo

test: build ## every test suite in seeded samples, at most 20 minutes
	@$(XTASK) test

test-all: build ## every test suite in full; goes on where it stopped, and writes docs/results/full.md
	@$(XTASK) test --all

test-kubernetes: build ## a real cluster of one node, with deploy/kubernetes; builds the cluster's programs the first time, a quarter of an hour
	tests/kubernetes/run.py

check: check-rest ## format, lints, documentation, house rules, unit tests
	$(CARGO) test --workspace --lib --bin xtask --quiet

# What of `check` is in no test suite: who runs both, as continuous integration does, need not run unit tests twice.
check-rest:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --document-private-items --quiet
	$(XTASK) tidy
	$(CARGO) clippy --manifest-path tests/sequences/Cargo.toml $(BESIDE) --all-targets --quiet -- -D warnings
	$(CARGO) clippy --manifest-path tests/hostile/peer/Cargo.toml $(BESIDE) --all-targets --quiet -- -D warnings
	$(CARGO) clippy --manifest-path tests/channels/participant/Cargo.toml $(BESIDE) --all-targets --quiet -- -D warnings
	$(CARGO) clippy --manifest-path tests/fuzz/Cargo.toml $(BESIDE) --all-targets --quiet -- -D warnings
	$(CARGO) clippy --manifest-path crates/bench/peers/Cargo.toml $(BESIDE) --all-targets --quiet -- -D warnings
	$(CARGO) test --package millrace-preload --lib --features coverage --quiet
	$(CARGO) test --package millrace-wire --lib --features ahead --quiet
	if command -v cargo-deny >/dev/null; then $(CARGO) deny --log-level error check; fi

# What `make test` would compile first: beside the release build, most of which is one processor's work.
unit-tests:
	$(CARGO) test --workspace --no-run --quiet

bench: build ## every scenario of `millrace bench` on five roads; about an hour, as projected; goes on where it stopped; target/bench/COMMIT/report.html
	@$(BUILT)/millrace bench run $(GRID) --out $(MEASURED) --roads $(ROADS)

bench-sockets: ## every claim with its bar, measured, in ten rounds; about 35 minutes, as projected; keeps results, makes the documents' tables
	@$(CARGO) xtask bench-sockets

peers: softrss ## what channels, and the scheduler's hash, are measured against (millrace bench run channels, scheduler), beside the release build
	$(CARGO) build --release --manifest-path crates/bench/peers/Cargo.toml $(BESIDE)

# DPDK's hash is in a header. It may use all that this processor has, where ours is compiled for any.
softrss:
	@if ! pkg-config --exists libdpdk; then \
		echo "millrace-softrss, DPDK's hash, is left out: apt install libdpdk-dev gcc pkgconf"; \
	else \
		mkdir -p $(BUILT) && $(CC) -O3 $$(pkg-config --cflags libdpdk) -march=native -Wall -Wextra -o $(BUILT)/millrace-softrss \
			crates/bench/peers/softrss.c; \
	fi

# Programs by themselves: what they are made of is then compiled once, for the linker alone, and serves both of them.
build:
	$(CARGO) build --release --package millrace-cli
	$(CARGO) rustc --release --package millrace-cli --bin millrace-static --features static -- \
		-C target-feature=+crt-static -C strip=symbols
	$(CARGO) build --release --package millrace-preload --package millrace-channel-c

# Everything that is installed, by the name that it has below PREFIX; `uninstall` removes just that.
INSTALLED = lib/libmillrace.so lib/libmillrace.so.0 lib/pkgconfig/millrace.pc include/millrace.h \
	share/doc/millrace/python/millrace.py bin/millrace lib/millrace/millrace-static lib/millrace/libmillrace_preload.so lib/systemd/system/millrace.service \
	share/doc/millrace/agent.toml share/doc/millrace/switch.toml share/doc/millrace/ppf.toml share/bash-completion/completions/millrace share/zsh/site-functions/_millrace \
	share/fish/vendor_completions.d/millrace.fish share/man/man1/millrace.1 share/man/man1/millrace-*.1

install: build ## to PREFIX (/usr/local)
	install -D --mode=755 $(BUILT)/millrace $(TO)/bin/millrace
	install -D --mode=755 $(BUILT)/millrace-static $(TO)/lib/millrace/millrace-static
	install -D --mode=644 $(BUILT)/libmillrace_preload.so $(TO)/lib/millrace/libmillrace_preload.so
	install -D --mode=644 $(BUILT)/libmillrace.so $(TO)/lib/libmillrace.so.0
	ln -sf libmillrace.so.0 $(TO)/lib/libmillrace.so
	install -D --mode=644 crates/channel-c/include/millrace.h $(TO)/include/millrace.h
	install -d $(TO)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(shell $(BUILT)/millrace --version | cut -d " " -f 2)|' crates/channel-c/millrace.pc.in \
		> $(TO)/lib/pkgconfig/millrace.pc
	install -D --mode=644 crates/channel-c/python/millrace.py $(TO)/share/doc/millrace/python/millrace.py
	install -D --mode=644 crates/agent/agent.toml $(TO)/share/doc/millrace/agent.toml
	install -D --mode=644 crates/switch/switch.toml $(TO)/share/doc/millrace/switch.toml
	install -D --mode=644 crates/ppf/ppf.toml $(TO)/share/doc/millrace/ppf.toml
	install -d $(TO)/lib/systemd/system $(TO)/share/bash-completion/completions $(TO)/share/zsh/site-functions \
		$(TO)/share/fish/vendor_completions.d
	sed 's|@PREFIX@|$(PREFIX)|' deploy/systemd/millrace.service.in > $(TO)/lib/systemd/system/millrace.service
	$(BUILT)/millrace completions bash > $(TO)/share/bash-completion/completions/millrace
	$(BUILT)/millrace completions zsh > $(TO)/share/zsh/site-functions/_millrace
	$(BUILT)/millrace completions fish > $(TO)/share/fish/vendor_completions.d/millrace.fish
	$(BUILT)/millrace manual $(TO)/share/man/man1

uninstall: ## from PREFIX
	rm -f $(addprefix $(TO)/,$(INSTALLED))
	rmdir --ignore-fail-on-non-empty $(TO)/lib/millrace $(TO)/share/doc/millrace/python $(TO)/share/doc/millrace 2>/dev/null || true

deb: build ## a Debian package, target/package/millrace_VERSION_ARCHITECTURE.deb
	deploy/debian/build.sh target/package

image: build ## the agent's image, target/package/millrace-image-VERSION.tar (OCI), with its bill of materials
	for program in millrace-device-plugin millrace-cluster; do \
		$(CARGO) rustc --profile xtask --package $$program --bin $$program -- -C target-feature=+crt-static -C strip=symbols && \
		ln -f $(BUILT)/../xtask/$$program $(BUILT)/$$program || exit; done
	deploy/image/build.sh target/package
