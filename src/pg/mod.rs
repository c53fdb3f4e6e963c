//! The boundary to PostgreSQL: everything `unsafe` is in here, wrapped once.
//!
//! pgrx gives the bindings, the guard that turns an ERROR into an unwinding and back, and the datum
//! conversions. What it does not give, and what this extension needs, is here: SQLSTATEs of our own,
//! kept plans with a chosen snapshot, shared memory made in place, the owner switch, advisory locks in a class of
//! their own, text in the database's encoding, and transaction callbacks that are registered once.

pub mod catalog;
pub mod databases;
pub mod encoding;
pub mod entry;
pub mod extension;
pub mod locks;
pub mod memory;
pub mod placeholders;
pub mod process;
pub mod raise;
pub mod reserve;
pub mod rights;
pub mod row;
pub mod rows;
pub mod shared_memory;
pub mod spi;
pub mod subscriptions;
pub mod subtransaction;
pub mod tell;
pub mod transaction;
pub mod trust;
pub mod value;
