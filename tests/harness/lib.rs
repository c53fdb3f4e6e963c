//! Real PostgreSQL clusters for the tests and the demonstration.
//!
//! [`Cluster::shared`] is one server for all tests of a process, each with a [`Database`] of its own;
//! [`Cluster::start`] is a server for a test that kills or configures it. Nothing is mocked, and nothing is left
//! behind.

mod cluster;
mod database;
mod installation;
mod relay;
mod session;
mod wait;

pub use cluster::{Cluster, Shutdown};
pub use database::{Arrival, Calls, Database};
pub use installation::Installation;
pub use relay::Relay;
pub use session::{at_once, sqlstate, Background};
pub use wait::{wait_for, wait_until};
