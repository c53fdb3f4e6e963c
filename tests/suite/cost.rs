//! What an operation costs: WAL, HOT updates, plans, locks.
