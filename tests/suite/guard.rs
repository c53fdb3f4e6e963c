//! The commit guard under savepoints, exception blocks and two-phase commit.
