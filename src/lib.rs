//! Idempotency keys for PostgreSQL: the second arrival of a non-reversible write replays the first result.
//!
//! An application calls `idem_claim`, does its work, and calls `idem_complete` or `idem_fail`, all in its own
//! transaction, so that the effect and the stored result commit together.

// The functions, each with its SQL entry points.
mod checkpoint;
mod claim;
mod finish;
mod forget;
mod reconcile;
mod registry;
mod release;
mod reports;
mod sweep;

// What they are made of.
mod audit;
mod constraint;
mod gate;
mod guard;
mod hold;
mod ownership;
mod patience;
mod settings;
mod subject;
mod tables;
mod tenancy;

// What runs beside them.
mod stats;
mod worker;

// Pure rules, with unit tests.
mod fingerprint;
mod headers;
mod limits;
mod problem;
mod refusal;
mod scope;
mod status;
mod template;
mod verdict;

// PostgreSQL itself.
mod pg;

use pg::process;
use pgrx::prelude::*;

::pgrx::pg_module_magic!(name, version);

// The install script is these files, in this order; `make` and `cargo pgrx` both read the list here.
extension_sql_file!("../sql/preflight.sql", name = "preflight", bootstrap);
extension_sql_file!("../sql/tables.sql", name = "tables", requires = ["preflight"]);
extension_sql_file!("../sql/functions.sql", name = "functions", requires = ["tables"]);
extension_sql_file!("../sql/registry.sql", name = "registry", requires = ["functions"]);
extension_sql_file!("../sql/reconcile.sql", name = "reconcile", requires = ["registry"]);
extension_sql_file!("../sql/views.sql", name = "views", requires = ["reconcile"]);
extension_sql_file!("../sql/stats.sql", name = "stats", requires = ["views"]);
extension_sql_file!("../sql/administration.sql", name = "administration", requires = ["stats"]);
extension_sql_file!("../sql/reports.sql", name = "reports", requires = ["administration"]);
extension_sql_file!("../sql/metrics.sql", name = "metrics", requires = ["reports"]);
extension_sql_file!("../sql/health_worker.sql", name = "health_worker", requires = ["metrics"]);
extension_sql_file!("../sql/health_tables.sql", name = "health_tables", requires = ["health_worker"]);
extension_sql_file!("../sql/health_rights.sql", name = "health_rights", requires = ["health_tables"]);
extension_sql_file!("../sql/health_rules.sql", name = "health_rules", requires = ["health_rights"]);
extension_sql_file!("../sql/health_care.sql", name = "health_care", requires = ["health_rules"]);
extension_sql_file!("../sql/health.sql", name = "health", requires = ["health_care"]);
extension_sql_file!("../sql/markdown.sql", name = "markdown", requires = ["health"]);
extension_sql_file!("../sql/design_doc.sql", name = "design_doc", requires = ["markdown"]);
extension_sql_file!("../sql/privileges.sql", name = "privileges", requires = ["design_doc"]);

/// Runs once a process, when the library is loaded: by preloading, or by the first call.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // Where a server has RUST_BACKTRACE in its environment, pgrx would put a backtrace into the DETAIL of errors.
    if std::env::var_os("RUST_LIB_BACKTRACE").is_none() {
        std::env::set_var("RUST_LIB_BACKTRACE", "0");
    }
    settings::define();
    guard::install();
    // pg_upgrade starts the old server and the new one in binary-upgrade mode. Between its dump and its reset of the
    // transaction ids nothing may be written, so no worker runs there, and nobody is there to count.
    if settings::is_preloading() && !process::is_binary_upgrade() {
        stats::reserve();
        worker::register();
    }
}
