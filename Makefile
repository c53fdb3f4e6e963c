# idempotency_enforcer: build, install, demonstrate, test. `make help` lists the targets.

EXTENSION := idempotency_enforcer
VERSION   := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)

# The PostgreSQL to build for: make PG_CONFIG=/path/to/pg_config ...
override PG_CONFIG := $(shell PG_CONFIG='$(PG_CONFIG)' tools/pg_config)
PG_MAJOR  := $(if $(PG_CONFIG),$(shell $(PG_CONFIG) --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/'))

# One target directory a major version: cargo rebuilds pgrx when the PostgreSQL changes.
TARGET    := target/pg$(PG_MAJOR)
LIBRARY   := $(TARGET)/release/lib$(EXTENSION).so
SCRIPT    := $(TARGET)/$(EXTENSION)--$(VERSION).sql
CONTROL   := $(TARGET)/$(EXTENSION).control
# The install script is the files that src/lib.rs lists, in its order.
SQL_FILES := $(shell grep -o 'sql/[a-z_]*[.]sql' src/lib.rs)

CARGO_FLAGS = --release --lib --no-default-features --features pg$(PG_MAJOR) --target-dir $(TARGET)
export PGRX_PG_CONFIG_PATH := $(PG_CONFIG)

.PHONY: all library install

all: library $(SCRIPT) $(CONTROL)

library:
	cargo build $(CARGO_FLAGS)

$(SCRIPT): $(SQL_FILES) src/lib.rs Cargo.toml Makefile
	mkdir -p $(@D)
	{ printf '%s\n' '\echo Use "CREATE EXTENSION $(EXTENSION)" to load this file. \quit'; cat $(SQL_FILES); } > $@

$(CONTROL): $(EXTENSION).control Cargo.toml
	mkdir -p $(@D)
	sed 's/@CARGO_VERSION@/$(VERSION)/' $< > $@

PKGLIBDIR = $(DESTDIR)$(shell $(PG_CONFIG) --pkglibdir)
EXTDIR    = $(DESTDIR)$(shell $(PG_CONFIG) --sharedir)/extension

install: all
	install -d $(PKGLIBDIR) $(EXTDIR)
	install -m 755 $(LIBRARY) $(PKGLIBDIR)/$(EXTENSION).so
	install -m 644 $(SCRIPT) $(CONTROL) $(EXTDIR)/
