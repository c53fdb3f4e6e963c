# idempotency_enforcer: build, install, demonstrate, test. `make help` lists the targets.

EXTENSION := idempotency_enforcer
VERSION   := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)

# Where rustup puts cargo, and Debian the programs of administrators: PATH may lack both.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

# The PostgreSQL to build for: make PG_CONFIG=/path/to/pg_config ... A path given in either way is used as it is, and
# no PostgreSQL is installed.
GIVEN     := $(PG_CONFIG)
override PG_CONFIG := $(shell PG_CONFIG='$(GIVEN)' tools/pg_config)
PG_MAJOR  := $(if $(PG_CONFIG),$(shell '$(PG_CONFIG)' --version 2>/dev/null | sed -n 's/^PostgreSQL \([0-9]*\).*/\1/p'))
pg_dir     = $(shell '$(PG_CONFIG)' --$(1))

# One target directory a major version, and one spelling of the path: cargo rebuilds pgrx when either changes.
TARGET    := target/pg$(PG_MAJOR)
export PGRX_PG_CONFIG_PATH := $(PG_CONFIG)
CARGO_FLAGS := --release --lib --locked --no-default-features --features pg$(PG_MAJOR) --target-dir $(TARGET)
TESTS     := --package $(EXTENSION)_tests --locked --target-dir target/tests

LIBRARY   := $(TARGET)/release/lib$(EXTENSION).so
SCRIPT    := $(TARGET)/$(EXTENSION)--$(VERSION).sql
CONTROL   := $(TARGET)/$(EXTENSION).control
# The install script is the files that src/lib.rs lists, in its order.
SQL_FILES := $(shell grep -o 'sql/[a-z_]*[.]sql' src/lib.rs)
SOURCES   := $(shell find src -name '*.rs') $(SQL_FILES) Cargo.toml Cargo.lock

PKGLIBDIR  = $(DESTDIR)$(call pg_dir,pkglibdir)
EXTDIR     = $(DESTDIR)$(call pg_dir,sharedir)/extension
# `install` and not `cp`: a server may have the old library loaded. -C leaves a file that is the same already alone.
INSTALL    = $(AS_ROOT) install -C
# sudo, where this user may not write into the PostgreSQL's directories.
AS_ROOT    = $(shell for d in '$(PKGLIBDIR)' '$(EXTDIR)'; do \
                 while [ ! -e "$$d" ]; do d=$$(dirname "$$d"); done; [ -w "$$d" ] || { echo sudo; break; }; done)

# Quiet lines that call this file again, once what was missing is there.
AGAIN     := $(MAKE) --no-print-directory

.PHONY: all install uninstall demo stop test installcheck lint bench clean help
.PHONY: check check-rust build-demo run-demo run-tests unit suite

all: check $(LIBRARY) $(SCRIPT) $(CONTROL)

help:
	@echo 'make demo          install what is missing, build, and see a duplicate payment become a replay'
	@echo 'make stop          stop the PostgreSQL that the demonstration started'
	@echo 'make test          install what is missing, build, and run all tests'
	@echo 'make               build for the PostgreSQL of the pg_config on the PATH'
	@echo 'make install       ... and install into it, with sudo if needed (honours DESTDIR)'
	@echo 'make uninstall     remove what make install installed'
	@echo 'make installcheck  test the server that PGHOST, PGPORT and PGUSER name, where it is installed'
	@echo 'make lint          formatter, clippy, and pgspot on the install script'
	@echo 'make bench         what a call costs beside the same written by hand, as ratios'
	@echo 'make clean         stop and remove all that was built and started here'
	@echo 'Another PostgreSQL (14 to 18): make TARGET PG_CONFIG=/path/to/pg_config'

check:
	@tools/check postgresql '$(PG_CONFIG)'

check-rust:
	@tools/check rust

# A real file with real prerequisites, so that `make` and then `sudo make install` builds nothing as root.
$(LIBRARY): $(SOURCES) | check
	@tools/check rust
	cargo build $(CARGO_FLAGS)
	@touch $@

$(SCRIPT): $(SQL_FILES) src/lib.rs Cargo.toml Makefile
	@mkdir -p $(@D)
	{ printf '%s\n' '\echo Use "CREATE EXTENSION $(EXTENSION)" to load this file. \quit'; cat $(SQL_FILES); } > $@

$(CONTROL): $(EXTENSION).control Cargo.toml
	@mkdir -p $(@D)
	sed 's/@CARGO_VERSION@/$(VERSION)/' $< > $@

install: all
	@$(if $(AS_ROOT),tools/check sudo '$(EXTDIR)')
	$(AS_ROOT) install -d '$(PKGLIBDIR)' '$(EXTDIR)'
	$(INSTALL) -m 755 $(LIBRARY) '$(PKGLIBDIR)/$(EXTENSION).so'
	$(INSTALL) -m 644 $(SCRIPT) $(CONTROL) '$(EXTDIR)/'

uninstall: check
	$(AS_ROOT) rm -f '$(PKGLIBDIR)/$(EXTENSION).so' '$(EXTDIR)/$(EXTENSION).control' '$(EXTDIR)/$(EXTENSION)'--*.sql

demo: check-rust
	@PG_CONFIG='$(GIVEN)' tools/setup
	@$(AGAIN) -j2 install build-demo
	@$(AGAIN) run-demo

build-demo:
	cargo build --quiet --bin demo $(TESTS)

run-demo: export PG_CONFIG := $(PG_CONFIG)
run-demo:
	@target/tests/debug/demo "$$(tools/demo-directory $(PG_MAJOR))"

stop:
	@tools/demo-stop

test: check-rust
	@PG_CONFIG='$(GIVEN)' tools/setup --tests
	@$(AGAIN) run-tests

run-tests: install
	@$(AGAIN) unit
	@$(AGAIN) lint
	@$(AGAIN) suite

unit: check check-rust
	cargo test $(CARGO_FLAGS)

suite: export PG_CONFIG := $(PG_CONFIG)
# They wait for servers more than they compute.
suite: export RUST_TEST_THREADS ?= 4
suite: export CLIENT_PYTHON := $(CURDIR)/target/venv/bin/python
suite: export CLIENT_NODE_MODULES := $(CURDIR)/target/node/node_modules
suite: check check-rust target/venv/.made target/node/.made
	cargo test $(TESTS)

bench: export PG_CONFIG := $(PG_CONFIG)
bench: install
	cargo bench --quiet $(TESTS)

lint: check check-rust $(SCRIPT) target/lint-venv/.made
	cargo fmt --all --check
	cargo clippy $(CARGO_FLAGS) --tests -- -D warnings
	cargo clippy $(TESTS) --all-targets -- -D warnings
	target/lint-venv/bin/python tools/pgspot $(SCRIPT)

# What comes from package registries, made anew when its list changes.
target/lint-venv/.made: tools/lint-requirements.txt
target/venv/.made: tests/clients/python/requirements.txt examples/payments/requirements.txt
target/lint-venv/.made target/venv/.made:
	rm -rf $(@D)
	python3 -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check $(addprefix -r ,$^)
	@touch $@

target/node/.made: $(wildcard tests/clients/node/package*.json)
	rm -rf $(@D)
	mkdir -p $(@D)
	cp $^ $(@D)/
	cd $(@D) && npm install --silent --no-audit --no-fund
	@touch $@

# pg_regress comes with PGXS, beside its makefiles; that of one major version tests another as well.
PG_REGRESS ?= $(dir $(call pg_dir,pgxs))../test/regress/pg_regress

installcheck: check
	'$(PG_REGRESS)' --bindir='$(call pg_dir,bindir)' \
	    --inputdir=tests/regress --outputdir=target/installcheck --dbname=idempotency_enforcer_regression \
	    replay errors views

clean:
	@tools/demo-stop --remove
	rm -rf target
