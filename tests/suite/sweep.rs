//! `idem_sweep`.
