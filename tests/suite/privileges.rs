//! `idem_grant`, `idem_revoke` and what each kind of role may do.
