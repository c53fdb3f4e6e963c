//! The test suite: every promise of the contract, against a real PostgreSQL with real connections.

mod arguments;
mod arrivals;
mod bodies;
mod cost;
mod crashes;
mod design_doc;
mod docs;
mod drivers;
mod guard;
mod health;
mod isolation;
mod lifecycle;
mod metrics;
mod payments;
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
