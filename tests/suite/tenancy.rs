//! `idempotency_enforcer.tenant_setting` and the other settings.
