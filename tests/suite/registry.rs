//! `idem_protect`, `idem_unprotect` and the endpoint registry.
