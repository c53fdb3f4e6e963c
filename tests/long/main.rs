//! Tests that take minutes: run by `make test-long`, not by `make test`.

mod databases;
