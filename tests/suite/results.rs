//! How a claim ends: `idem_complete`, `idem_fail`, `idem_release`, their errors and what they store.
