//! What a call is about: tenant, endpoint and key, always the first three arguments.

use crate::limits::{KEY_BYTES, NAME_BYTES};
use crate::pg::entry::{Args, BadText};
use crate::refusal::Refusal;
use crate::scope::{self, KeyFault, Scope};
use crate::tenancy;

mod arg {
    pub const TENANT_ID: usize = 0;
    pub const ENDPOINT: usize = 1;
    pub const KEY: usize = 2;
}

/// Tenant and endpoint; `22023` when one is missing or too long.
pub fn read_names(args: &Args) -> Result<(String, String), Refusal> {
    let tenant = args.text(arg::TENANT_ID, NAME_BYTES).map_err(|bad| bad.of("tenant_id"))?;
    let endpoint = args.text(arg::ENDPOINT, NAME_BYTES).map_err(|bad| bad.of("endpoint"))?;
    Ok((scope::check_tenant(tenant)?, scope::check_endpoint(endpoint)?))
}

/// The key as a client sent it.
pub fn read_key(args: &Args) -> Result<String, KeyFault> {
    match args.text(arg::KEY, KEY_BYTES) {
        Ok(key) => scope::check_key(key),
        Err(BadText::TooLong { .. }) => Err(KeyFault::TooLong),
        Err(BadText::NotUtf8) => Err(KeyFault::NotUtf8),
    }
}

/// The scope of a claim that must have been made; `None` for a key that cannot be claimed. `42501` for another's tenant.
pub fn read_claimed_scope(args: &Args) -> Result<Option<Scope>, Refusal> {
    let (tenant, endpoint) = read_names(args)?;
    tenancy::check(&tenant)?;
    Ok(read_key(args).ok().map(|key| Scope { tenant, endpoint, key }))
}

/// As [`read_claimed_scope`]; `ID001` for a key that cannot be claimed.
pub fn read_scope_of_claim(args: &Args) -> Result<Scope, Refusal> {
    match read_claimed_scope(args)? {
        Some(scope) => Ok(scope),
        None => Err(Refusal::unclaimable_key(&read_names(args)?.1)),
    }
}
