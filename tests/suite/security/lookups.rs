//! Nothing that a caller owns is ever found: operators, functions, types, casts, tables, temporary objects.

use super::{application, sqlstate, whole_round};
use harness::{Calls, Cluster, Database};
use postgres::Client;

/// Makes everything in `schema` that an unqualified name in the extension could find by mistake. Each of it raises
/// an error when it is used.
fn set_traps(c: &mut Client, schema: &str) {
    c.batch_execute(&format!(
        "CREATE FUNCTION {schema}.trap(VARIADIC args text[]) RETURNS text LANGUAGE plpgsql AS
           $$ BEGIN RAISE EXCEPTION 'TRAP'; END $$"
    ))
    .unwrap();
    let trap = |result: &str| format!("RETURNS {result} LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'TRAP'; END $$");
    let functions = [
        ("now", "", "timestamptz"),
        ("clock_timestamp", "", "timestamptz"),
        ("sha256", "bytea", "bytea"),
        ("octet_length", "bytea", "int"),
        ("octet_length", "text", "int"),
        ("char_length", "text", "int"),
        ("date_trunc", "text, timestamptz", "timestamptz"),
        ("date_trunc", "text, interval", "interval"),
        ("format", "text, text", "text"),
        ("format", "text, text, text", "text"),
        ("quote_ident", "text", "text"),
        ("upper", "text", "text"),
        ("split_part", "text, text, int", "text"),
        ("ltrim", "text", "text"),
        ("unnest", "text[]", "text"),
        ("array_position", "text[], text", "int"),
        ("coalesce_like", "text", "text"),
        ("_idem_rights", "text", "text"),
    ];
    for (name, args, result) in functions {
        c.batch_execute(&format!("CREATE FUNCTION {schema}.{name}({args}) {}", trap(result))).unwrap();
    }
    let pairs = [
        ("text", "text"),
        ("text", "name"),
        ("name", "text"),
        ("name", "name"),
        ("bytea", "bytea"),
        ("timestamptz", "timestamptz"),
        ("interval", "interval"),
        ("int", "int"),
        ("bigint", "int"),
        ("bigint", "bigint"),
        ("boolean", "boolean"),
        ("oid", "oid"),
        ("jsonb", "jsonb"),
        ("uuid", "uuid"),
    ];
    for (i, (left, right)) in pairs.into_iter().enumerate() {
        c.batch_execute(&format!("CREATE FUNCTION {schema}.is_{i}({left}, {right}) {}", trap("boolean"))).unwrap();
        for operator in ["=", "<>", "<", "<=", ">", ">="] {
            c.batch_execute(&format!(
                "CREATE OPERATOR {schema}.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {schema}.is_{i})"
            ))
            .unwrap();
        }
    }
    let arithmetic = [
        ("+", "timestamptz", "interval", "timestamptz"),
        ("-", "timestamptz", "interval", "timestamptz"),
        ("-", "timestamptz", "timestamptz", "interval"),
        ("*", "interval", "int", "interval"),
        ("||", "text", "text", "text"),
        ("||", "bytea", "bytea", "bytea"),
    ];
    for (i, (operator, left, right, result)) in arithmetic.into_iter().enumerate() {
        c.batch_execute(&format!(
            "CREATE FUNCTION {schema}.does_{i}({left}, {right}) {};
             CREATE OPERATOR {schema}.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {schema}.does_{i})",
            trap(result)
        ))
        .unwrap();
    }
    for relation in ["idempotency_keys", "idempotency_endpoints", "pg_proc", "pg_roles", "pg_depend", "pg_extension"] {
        c.batch_execute(&format!(
            "CREATE VIEW {schema}.{relation} AS SELECT {schema}.trap('{relation}') AS tenant_id,
               'TRAP'::text AS endpoint, 'TRAP'::text AS key, 'TRAP'::text AS rolname"
        ))
        .unwrap();
    }
}

/// Types last: from here on, unqualified type names in the session mean these.
fn set_type_traps(c: &mut Client, schema: &str) {
    for name in ["text", "bytea", "timestamptz", "interval", "jsonb", "uuid", "int4", "bool", "name", "regnamespace"] {
        c.batch_execute(&format!(
            "CREATE DOMAIN {schema}.{name} AS pg_catalog.int8 CHECK (VALUE OPERATOR(pg_catalog.>) 0)"
        ))
        .unwrap();
    }
    // One that a statement of ours casts to: no value of this one passes.
    c.batch_execute(&format!("CREATE DOMAIN {schema}.float8 AS pg_catalog.float8 CHECK (false)")).unwrap();
}

/// A role that may create in a schema of its own (`evil`) and is otherwise an application.
fn hostile_application(db: &Database) -> String {
    let role = application(db);
    db.admin().batch_execute(&format!("CREATE SCHEMA evil AUTHORIZATION {role}")).unwrap();
    role
}

const HOSTILE_PATH: &str = "SET search_path = evil, pg_temp, pg_catalog";

#[test]
fn a_hostile_search_path_before_the_first_call_is_not_used() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.connect_as(&hostile_application(&db));
    set_traps(&mut c, "evil");
    set_type_traps(&mut c, "evil");
    c.batch_execute(HOSTILE_PATH).unwrap();
    assert_eq!(sqlstate(c.batch_execute("SELECT now()")), "P0001", "the traps are set");
    assert_eq!(sqlstate(c.batch_execute("SELECT 'a'::pg_catalog.text = 'b'::pg_catalog.text")), "P0001");
    whole_round(&mut c, "public", "first");
}

#[test]
fn a_hostile_search_path_between_calls_is_not_used_even_after_plans_are_invalidated() {
    let db = Cluster::shared().lenient_database();
    let mut owner = db.admin();
    let mut c = db.connect_as(&hostile_application(&db));
    whole_round(&mut c, "public", "before");
    set_traps(&mut c, "evil");
    set_type_traps(&mut c, "evil");
    c.batch_execute(HOSTILE_PATH).unwrap();
    whole_round(&mut c, "public", "kept plans");
    owner.batch_execute("ANALYZE idempotency_keys; ALTER TABLE idempotency_keys SET (fillfactor = 71)").unwrap();
    whole_round(&mut c, "public", "after ALTER TABLE");
    owner
        .batch_execute(
            "ALTER TABLE idempotency_keys ADD COLUMN extra int; ALTER TABLE idempotency_keys DROP COLUMN extra",
        )
        .unwrap();
    whole_round(&mut c, "public", "after another shape");
    c.batch_execute("DISCARD PLANS").unwrap();
    whole_round(&mut c, "public", "after DISCARD PLANS");
    // The guard, too, runs under the session's path.
    owner.execute("SELECT idem_protect('POST /guarded')", &[]).unwrap();
    let left_open = "SELECT public.idem_claim('t', 'POST /guarded', 'k', ''::pg_catalog.text)";
    assert_eq!(sqlstate(c.batch_execute(left_open)), "ID004");
}

#[test]
fn temporary_objects_of_our_names_are_not_used() {
    let db = Cluster::shared().lenient_database();
    let role = application(&db);
    let mut c = db.connect_as(&role);
    whole_round(&mut c, "public", "before");
    c.batch_execute(
        "CREATE TEMP TABLE idempotency_keys (tenant_id text, endpoint text, key text);
         CREATE TEMP TABLE idempotency_endpoints AS SELECT 'POST /round'::text AS endpoint, 'external'::text AS effect;",
    )
    .unwrap();
    whole_round(&mut c, "public", "temporary tables");
    c.batch_execute("DROP TABLE pg_temp.idempotency_keys, pg_temp.idempotency_endpoints").unwrap();
    set_traps(&mut c, "pg_temp");
    set_type_traps(&mut c, "pg_temp");
    c.batch_execute("SET search_path = pg_temp, pg_catalog").unwrap();
    whole_round(&mut c, "public", "temporary everything");
    // And where they are there before the first call, so that the statements are prepared with them in sight.
    let mut late = db.connect_as(&role);
    set_traps(&mut late, "pg_temp");
    set_type_traps(&mut late, "pg_temp");
    whole_round(&mut late, "public", "temporary types first");
}

#[test]
fn a_cast_of_the_callers_own_runs_with_the_callers_rights() {
    let db = Cluster::shared().lenient_database();
    let role = hostile_application(&db);
    let mut c = db.connect_as(&role);
    c.batch_execute(
        "CREATE TABLE evil.seen (as_role name);
         CREATE TYPE evil.key AS (k text);
         CREATE FUNCTION evil.to_text(evil.key) RETURNS text LANGUAGE plpgsql AS
           $$ BEGIN INSERT INTO evil.seen VALUES (current_user); RETURN ($1).k; END $$;
         CREATE CAST (evil.key AS text) WITH FUNCTION evil.to_text(evil.key) AS IMPLICIT",
    )
    .unwrap();
    c.batch_execute("SELECT idem_claim('t', 'POST /x', ROW('k')::evil.key, ''::text)").unwrap();
    assert_eq!(c.value::<String>("SELECT string_agg(as_role, ',') FROM evil.seen"), role);
    assert_eq!(c.claim("t", "POST /x", "k", b"").unwrap().outcome, "in_progress");
}

#[test]
fn the_definer_functions_of_an_operator_use_nothing_of_the_callers() {
    let db = Cluster::shared().database();
    let role = db.role("operator");
    let other = db.role("other");
    let mut admin = db.admin();
    admin.execute("SELECT idem_grant($1::text::name, 'operator')", &[&role]).unwrap();
    admin.batch_execute(&format!("CREATE SCHEMA evil AUTHORIZATION {role}")).unwrap();
    let mut c = db.connect_as(&role);
    set_traps(&mut c, "evil");
    set_traps(&mut c, "pg_temp");
    set_type_traps(&mut c, "evil");
    set_type_traps(&mut c, "pg_temp");
    c.batch_execute("SET search_path = pg_temp, evil, pg_catalog").unwrap();
    let calls = [
        "SELECT public.idem_protect('POST /x', 'external', '1 hour', '30 hours', '5 s', true, 10, 5, ARRAY['ttl'], 'n')".into(),
        "SELECT public.idem_protect('POST /x')".into(),
        "SELECT public.idem_sweep()".into(),
        "SELECT public.idem_unprotect('POST /x')".into(),
        format!("SELECT public.idem_grant('{other}', 'reconciler')"),
        format!("SELECT public.idem_revoke('{other}')"),
        "TABLE public.idem_keys".into(),
        "TABLE public.idem_stuck".into(),
        "TABLE public.idem_endpoint_summary".into(),
    ];
    for call in calls {
        c.batch_execute(&call).unwrap_or_else(|e| panic!("{call}: {e:?}"));
    }
}

/// Nor does one look up names when it runs whose body was bound when it was made.
#[test]
fn every_definer_function_has_a_pinned_search_path() {
    let db = Cluster::shared().database();
    let unpinned: Option<String> = db.admin().value(
        "SELECT string_agg(p.oid::regprocedure::text, ', ')
           FROM pg_proc p
           JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
           JOIN pg_extension x ON x.oid = d.refobjid AND x.extname = 'idempotency_enforcer'
          WHERE (p.prosecdef
                 OR p.prolang <> (SELECT oid FROM pg_language WHERE lanname = 'c') AND p.prosqlbody IS NULL)
            AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)",
    );
    assert_eq!(unpinned, None);
}

#[test]
fn triggers_and_rules_on_the_tables_are_for_their_owner_only() {
    let db = Cluster::shared().database();
    let mut c = db.connect_as(&hostile_application(&db));
    c.batch_execute("CREATE FUNCTION evil.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$")
        .unwrap();
    for attempt in [
        "CREATE TRIGGER t BEFORE INSERT ON public.idempotency_keys FOR EACH ROW EXECUTE FUNCTION evil.f()",
        "CREATE RULE r AS ON INSERT TO public.idempotency_keys DO INSTEAD NOTHING",
        "CREATE TABLE evil.child () INHERITS (public.idempotency_keys)",
        "CREATE TABLE evil.alike (LIKE public.idempotency_keys INCLUDING ALL)",
        "CREATE TABLE evil.refers (endpoint text REFERENCES public.idempotency_endpoints)",
        "CREATE POLICY p ON public.idempotency_keys USING (true)",
        "CREATE STATISTICS evil.s ON tenant_id, key FROM public.idempotency_keys",
        "CREATE INDEX ON public.idempotency_keys (evil.f())",
        "ALTER TABLE public.idempotency_keys OWNER TO CURRENT_USER",
        "ALTER FUNCTION public.idem_sweep(int) OWNER TO CURRENT_USER",
        "DO $$ BEGIN LOCK TABLE public.idempotency_keys IN ACCESS SHARE MODE; END $$",
    ] {
        assert_eq!(sqlstate(c.batch_execute(attempt)), "42501", "{attempt}");
    }
}
