//! A database of one test, and the extension's functions as a client calls them.

use crate::Cluster;
use postgres::error::DbError;
use postgres::{Client, NoTls, Row};
use serde_json::Value;
use std::sync::mpsc::{channel, Receiver};

/// A database of its own; dropped with the value.
pub struct Database<'a> {
    cluster: &'a Cluster,
    name: String,
}

impl<'a> Database<'a> {
    pub(crate) fn new(cluster: &'a Cluster, name: String) -> Self {
        Database { cluster, name }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    /// A new connection as superuser.
    pub fn admin(&self) -> Client {
        self.connect_as("postgres")
    }

    /// A new connection as a role.
    pub fn connect_as(&self, role: &str) -> Client {
        self.cluster.config(&self.name, role).connect(NoTls).unwrap_or_else(|e| panic!("{role}: {e}"))
    }

    /// A new connection as superuser, and what the server tells it besides answers: notices and warnings.
    pub fn admin_with_notices(&self) -> (Client, Receiver<DbError>) {
        let (sender, notices) = channel();
        let mut config = self.cluster.config(&self.name, "postgres");
        config.notice_callback(move |notice| drop(sender.send(notice)));
        (config.connect(NoTls).expect("a connection"), notices)
    }

    /// Lets claims of endpoints that are not registered through, in connections that are made from now on.
    pub fn let_unregistered_through(&self) {
        let off = "SET idempotency_enforcer.require_registration = off";
        self.admin().batch_execute(&format!("ALTER DATABASE {} {off}", self.name)).expect("ALTER DATABASE");
    }

    /// Creates a role that may log in and nothing else, and returns its name. Roles belong to the cluster, so the
    /// name carries that of the database; dropped with the database.
    pub fn role(&self, name: &str) -> String {
        let role = format!("{}_{name}", self.name);
        self.admin().batch_execute(&format!("CREATE ROLE {role} LOGIN")).expect("CREATE ROLE");
        role
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        let Ok(mut admin) = self.cluster.config("postgres", "postgres").connect(NoTls) else { return };
        let _ = admin.batch_execute(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        let roles =
            admin.query("SELECT rolname::text FROM pg_roles WHERE rolname LIKE $1", &[&format!("{}\\_%", self.name)]);
        for row in roles.unwrap_or_default() {
            let _ = admin.batch_execute(&format!("DROP ROLE IF EXISTS {}", row.get::<_, String>(0)));
        }
    }
}

/// The row that `idem_claim` returns.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    pub outcome: String,
    pub response_code: Option<i32>,
    pub response_headers: Option<Value>,
    pub response_body: Option<Vec<u8>>,
    pub resource_ref: Option<String>,
    pub attempt: Option<i32>,
    pub provider_key: Option<uuid::Uuid>,
    pub expires_at: Option<String>,
}

impl Arrival {
    /// An answer of which nothing but the outcome is filled.
    pub fn bare(outcome: &str) -> Arrival {
        Arrival {
            outcome: outcome.into(),
            response_code: None,
            response_headers: None,
            response_body: None,
            resource_ref: None,
            attempt: None,
            provider_key: None,
            expires_at: None,
        }
    }
}

impl From<Row> for Arrival {
    fn from(row: Row) -> Self {
        Arrival {
            outcome: row.get("outcome"),
            response_code: row.get("response_code"),
            response_headers: row.get("response_headers"),
            response_body: row.get("response_body"),
            resource_ref: row.get("resource_ref"),
            attempt: row.get("attempt"),
            provider_key: row.get("provider_key"),
            expires_at: row.get("expires_at"),
        }
    }
}

type Answer<T> = Result<T, postgres::Error>;

/// The calls as an application makes them, on a connection or in a transaction.
pub trait Calls {
    fn rows(&mut self, sql: &str, params: &[&(dyn postgres::types::ToSql + Sync)]) -> Answer<Vec<Row>>;

    /// `idem_claim` with a bytea body; `wait` is an interval.
    fn claim_waiting(&mut self, tenant: &str, endpoint: &str, key: &str, body: &[u8], wait: &str) -> Answer<Arrival> {
        let sql = "SELECT outcome, response_code, response_headers, response_body, resource_ref, attempt, provider_key,
                          expires_at::text
                     FROM idem_claim($1, $2, $3, $4::bytea, wait => $5::text::interval)";
        let mut rows = self.rows(sql, &[&tenant, &endpoint, &key, &body, &wait])?;
        assert_eq!(rows.len(), 1, "idem_claim returns exactly one row");
        Ok(rows.remove(0).into())
    }

    /// `idem_claim` with a bytea body, answering at once.
    fn claim(&mut self, tenant: &str, endpoint: &str, key: &str, body: &[u8]) -> Answer<Arrival> {
        self.claim_waiting(tenant, endpoint, key, body, "0")
    }

    /// `idem_complete` with a bytea body: whether it was stored now, and not before.
    fn complete(&mut self, tenant: &str, endpoint: &str, key: &str, code: i32, body: &[u8]) -> Answer<bool> {
        let sql = "SELECT idem_complete($1, $2, $3, $4, $5::bytea)";
        Ok(self.rows(sql, &[&tenant, &endpoint, &key, &code, &body])?[0].get(0))
    }

    /// `idem_fail` with a bytea body: whether it was stored now, and not before.
    fn fail(&mut self, tenant: &str, endpoint: &str, key: &str, code: i32, body: &[u8]) -> Answer<bool> {
        let sql = "SELECT idem_fail($1, $2, $3, $4, $5::bytea)";
        Ok(self.rows(sql, &[&tenant, &endpoint, &key, &code, &body])?[0].get(0))
    }

    /// `idem_release`.
    fn release(&mut self, tenant: &str, endpoint: &str, key: &str) -> Answer<bool> {
        let rows = self.rows("SELECT idem_release($1, $2, $3)", &[&tenant, &endpoint, &key])?;
        Ok(rows[0].get(0))
    }

    /// The first column of the first row of a query without parameters.
    fn value<T: for<'r> postgres::types::FromSql<'r>>(&mut self, sql: &str) -> T {
        let rows = self.rows(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert!(!rows.is_empty(), "no row: {sql}");
        rows[0].get(0)
    }
}

impl Calls for Client {
    fn rows(&mut self, sql: &str, params: &[&(dyn postgres::types::ToSql + Sync)]) -> Answer<Vec<Row>> {
        self.query(sql, params)
    }
}

impl Calls for postgres::Transaction<'_> {
    fn rows(&mut self, sql: &str, params: &[&(dyn postgres::types::ToSql + Sync)]) -> Answer<Vec<Row>> {
        self.query(sql, params)
    }
}
