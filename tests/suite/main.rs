//! The test suite: every promise of the contract, against a real PostgreSQL with real connections.

mod arguments;
mod arrivals;
mod bodies;
mod cost;
mod crashes;
mod docs;
mod drivers;
mod guard;
mod isolation;
mod lifecycle;
mod privileges;
mod races;
mod random;
mod registry;
mod results;
mod security;
mod sweep;
mod tenancy;
mod views;
mod volume;
mod worker;
