//! Client languages and pooling: Python, Node.js, Rust, PgBouncer.
