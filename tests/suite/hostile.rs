//! Somebody with every right on the tables but ownership, or their owner, or an application, does what nobody should.

mod columns;
mod conditions;
mod documents;
mod names;
