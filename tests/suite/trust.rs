//! The trust boundary: nothing runs with the tables' owner's rights but the tables' own statements and trusted code.

mod guard;
mod settings;

use harness::{sqlstate, Background, Calls, Cluster, Database, Failure};
use postgres::Client;

/// Every function that opens the tables, as a superuser or an application calls it.
const CALLS: [&str; 11] = [
    "idem_claim('t', 'POST /pay', 'new', ''::bytea)",
    "idem_complete('t', 'POST /charges', 'open', 200, ''::bytea)",
    "idem_fail('t', 'POST /charges', 'open', 400, ''::bytea)",
    "idem_release('t', 'POST /charges', 'open')",
    "idem_checkpoint('t', 'POST /charges', 'open', 'p')",
    "idem_reconcile()",
    "idem_protect('POST /x')",
    "idem_unprotect('POST /x')",
    "idem_sweep()",
    "idem_forget('t', 'POST /charges', 'done')",
    "idem_erase('t')",
];

struct Scene {
    db: Database<'static>,
    /// A role with every right on the tables that can be granted, and a schema of its own.
    attacker: String,
    admin: Client,
}

impl Scene {
    fn set() -> Scene {
        let db = Cluster::shared().database();
        let (attacker, mut admin) = (db.role("attacker"), db.admin());
        admin
            .batch_execute(&format!(
                "SELECT idem_protect('POST /pay'), idem_protect('POST /charges', 'external', stuck_after => '1 microsecond');
                 SELECT idem_claim('t', 'POST /charges', 'open', ''::bytea);
                 SELECT idem_claim('t', 'POST /charges', 'done', ''::bytea);
                 SELECT idem_complete('t', 'POST /charges', 'done', 200, ''::bytea);
                 SELECT idem_claim('t', 'POST /charges', 'expired', ''::bytea);
                 SELECT idem_complete('t', 'POST /charges', 'expired', 200, ''::bytea);
                 UPDATE idempotency_keys SET created_at = now() - interval '9 days', expires_at = now() - interval '1 day'
                  WHERE key = 'expired';
                 GRANT ALL ON ALL TABLES IN SCHEMA public TO {attacker};
                 CREATE SCHEMA evil AUTHORIZATION {attacker}"
            ))
            .unwrap();
        // What he would have run tells who runs it.
        db.connect_as(&attacker)
            .batch_execute(
                "CREATE TABLE evil.seen (who text);
                 GRANT INSERT ON evil.seen TO PUBLIC; GRANT USAGE ON SCHEMA evil TO PUBLIC;
                 CREATE FUNCTION evil.spy() RETURNS trigger LANGUAGE plpgsql AS
                   'BEGIN INSERT INTO evil.seen VALUES (current_user); RETURN coalesce(NEW, OLD); END';
                 CREATE FUNCTION evil.yes(text) RETURNS boolean LANGUAGE plpgsql AS
                   'BEGIN INSERT INTO evil.seen VALUES (current_user); RETURN true; END';
                 CREATE FUNCTION evil.both(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT evil.yes($1)';
                 CREATE OPERATOR evil.=== (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.both);
                 CREATE DOMAIN evil.checked AS text CHECK (evil.yes(VALUE))",
            )
            .unwrap();
        Scene { db, attacker, admin }
    }

    fn as_attacker(&self, sql: &str) {
        self.db.connect_as(&self.attacker).batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    /// Nothing of the attacker's has run as anybody else.
    fn nothing_was_run(&mut self) {
        let sql = format!("SELECT count(*) FROM evil.seen WHERE who <> '{}'", self.attacker);
        assert_eq!(self.admin.value::<i64>(&sql), 0);
    }

    /// Every call is refused, in a way that names `what`.
    fn all_are_refused(&mut self, what: &str) {
        for call in CALLS {
            let refused = Failure::of(self.admin.query(&format!("SELECT {call}"), &[]));
            assert_eq!(refused.sqlstate, "55000", "{call}: {refused:?}");
            assert!(refused.text().contains(what) && !refused.hint.is_empty(), "{call}: {refused:?}");
        }
        self.nothing_was_run();
    }

    fn all_work(&mut self) {
        for call in CALLS {
            let mut undone = self.admin.transaction().unwrap();
            undone.query(&format!("SELECT {call}"), &[]).unwrap_or_else(|e| panic!("{call}: {e:?}"));
        }
    }
}

// CASES 46
#[test]
fn a_trigger_that_runs_somebody_elses_code_is_refused_whatever_its_kind() {
    let mut scene = Scene::set();
    scene.all_work();
    let kinds = [
        "TRIGGER spy BEFORE INSERT ON keys FOR EACH ROW EXECUTE FUNCTION evil.spy()",
        "TRIGGER spy AFTER UPDATE ON keys FOR EACH ROW EXECUTE FUNCTION evil.spy()",
        "TRIGGER spy BEFORE DELETE ON keys FOR EACH STATEMENT EXECUTE FUNCTION evil.spy()",
        "TRIGGER spy AFTER INSERT OR UPDATE ON endpoints FOR EACH STATEMENT EXECUTE FUNCTION evil.spy()",
        "TRIGGER spy BEFORE UPDATE OF key ON keys FOR EACH ROW EXECUTE FUNCTION evil.spy()",
        "TRIGGER spy BEFORE INSERT OR TRUNCATE ON endpoints FOR EACH STATEMENT EXECUTE FUNCTION evil.spy()",
        "CONSTRAINT TRIGGER spy AFTER INSERT ON keys DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION evil.spy()",
        "TRIGGER spy AFTER INSERT ON keys REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION evil.spy()",
        // PostgreSQL's own function, behind a condition of the attacker's.
        "TRIGGER spy BEFORE UPDATE ON keys FOR EACH ROW WHEN (evil.yes(NEW.key))
           EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "TRIGGER spy BEFORE UPDATE ON keys FOR EACH ROW WHEN (NEW.key OPERATOR(evil.===) 'x')
           EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "TRIGGER spy BEFORE UPDATE ON keys FOR EACH ROW WHEN ((NEW.key::evil.checked) IS NOT NULL)
           EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        // And nothing of the attacker's own but a text that PostgreSQL's function runs, or an argument that it takes.
        "TRIGGER spy AFTER DELETE ON keys FOR EACH ROW
           WHEN (query_to_xml('SELECT evil.yes(''x'')', true, true, '') IS NULL)
           EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "TRIGGER spy BEFORE UPDATE ON keys FOR EACH ROW
           EXECUTE FUNCTION tsvector_update_trigger('body_tsv', 'pg_catalog.simple', 'key')",
    ];
    for kind in kinds {
        let kind = kind.replace("ON keys", "ON idempotency_keys").replace("ON endpoints", "ON idempotency_endpoints");
        scene.as_attacker(&format!("CREATE {kind}"));
        scene.all_are_refused("\"spy\"");
        let table = if kind.contains("idempotency_keys") { "idempotency_keys" } else { "idempotency_endpoints" };
        scene.admin.batch_execute(&format!("DROP TRIGGER spy ON {table}")).unwrap();
    }
    scene.all_work();
}

/// The rows of a table that is partitioned are written with the partitions' triggers.
#[test]
fn triggers_on_partitions_and_children_are_looked_at_too() {
    let mut scene = Scene::set();
    let attacker = scene.attacker.clone();
    scene
        .admin
        .batch_execute(&format!("CREATE TABLE child () INHERITS (idempotency_keys); GRANT ALL ON child TO {attacker}"))
        .unwrap();
    scene.all_work();
    scene.as_attacker("CREATE TRIGGER spy BEFORE DELETE ON child FOR EACH ROW EXECUTE FUNCTION evil.spy()");
    scene.all_are_refused("\"spy\"");
    scene.admin.batch_execute(&format!("DROP TRIGGER spy ON child; ALTER TABLE child OWNER TO {attacker}")).unwrap();
    scene.all_are_refused("belongs to another role");
}

/// Who may create objects in the schema plants some for whoever creates the extension there.
#[test]
fn an_extension_is_not_created_beside_functions_that_could_be_taken_for_its_own() {
    let db = Cluster::shared().empty_database("");
    let (role, mut admin) = (db.role("attacker"), db.admin());
    admin.batch_execute(&format!("GRANT CREATE ON SCHEMA public TO {role}")).unwrap();
    for planted in ["_idem_identifier(value name) RETURNS text", "idem_claim(int) RETURNS text"] {
        let create = format!("CREATE FUNCTION public.{planted} LANGUAGE sql AS 'SELECT current_user::text'");
        db.connect_as(&role).batch_execute(&create).unwrap();
        let refused = Failure::of(admin.batch_execute("CREATE EXTENSION idempotency_enforcer"));
        assert_eq!(refused.sqlstate, "42723", "{refused:?}");
        let name = planted.split(" RETURNS").next().unwrap().replace("value ", "");
        admin.batch_execute(&format!("DROP FUNCTION public.{name}")).unwrap();
    }
    admin.batch_execute("CREATE EXTENSION idempotency_enforcer").unwrap();
}

/// An operator cannot have a superuser's ANALYZE give him what he may not have.
#[test]
fn rights_are_not_changed_by_code_that_runs_in_somebody_elses_session() {
    let db = Cluster::shared().database();
    let (operator, mut admin) = (db.role("operator"), db.admin());
    admin
        .batch_execute(&format!(
            "SELECT idem_grant('{operator}', 'operator'); CREATE SCHEMA his AUTHORIZATION {operator}"
        ))
        .unwrap();
    db.connect_as(&operator)
        .batch_execute(&format!(
            "CREATE FUNCTION his.grab() RETURNS int LANGUAGE plpgsql AS $$
               BEGIN IF session_user <> '{operator}' THEN PERFORM public.idem_grant('{operator}', 'backup'); END IF; RETURN 1; END $$;
             CREATE FUNCTION his.hidden(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN his.grab(); END';
             CREATE TABLE his.t (n int); CREATE INDEX ON his.t (his.hidden(n)); INSERT INTO his.t VALUES (1), (2)"
        ))
        .unwrap();
    assert_eq!(Failure::of(admin.batch_execute("ANALYZE his.t")).sqlstate, "42501");
    let may = format!("SELECT has_table_privilege('{operator}', 'idempotency_keys', 'SELECT')");
    assert!(!admin.value::<bool>(&may));
}

// CASES 46
#[test]
fn triggers_of_superusers_and_of_the_tables_owner_are_let_be() {
    let mut scene = Scene::set();
    let owner = scene.db.role("owner");
    scene
        .admin
        .batch_execute(&format!(
            "CREATE TABLE audit (who text); GRANT INSERT ON audit TO PUBLIC;
             CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS
               'BEGIN INSERT INTO public.audit VALUES (current_user); RETURN coalesce(NEW, OLD); END';
             CREATE TRIGGER audit BEFORE DELETE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION audit();
             CREATE TRIGGER audit_changes BEFORE INSERT OR UPDATE ON idempotency_keys
               FOR EACH ROW WHEN (length(NEW.key) > 0) EXECUTE FUNCTION audit();
             CREATE TABLE refers (tenant_id text, endpoint text, key text,
               FOREIGN KEY (tenant_id, endpoint, key) REFERENCES idempotency_keys);
             ALTER TABLE idempotency_keys OWNER TO {owner}; ALTER TABLE idempotency_endpoints OWNER TO {owner};
             GRANT USAGE, CREATE ON SCHEMA public TO {owner};
             GRANT EXECUTE ON FUNCTION idem_row_is_well_formed TO {owner}"
        ))
        .unwrap();
    scene
        .db
        .connect_as(&owner)
        .batch_execute(
            "CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN coalesce(NEW, OLD); END';
             CREATE TRIGGER mine BEFORE INSERT OR UPDATE OR DELETE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION mine()",
        )
        .unwrap();
    // One that is disabled never runs, and TRUNCATE is none of ours.
    scene.as_attacker(
        "CREATE TRIGGER truncated BEFORE TRUNCATE ON idempotency_keys EXECUTE FUNCTION evil.spy();
         CREATE TRIGGER disabled BEFORE INSERT ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION evil.spy()",
    );
    scene.all_are_refused("\"");
    let attacker = scene.attacker.clone();
    // Its condition is a stranger's as long as a stranger may add triggers.
    scene
        .admin
        .batch_execute(&format!(
            "ALTER TABLE idempotency_keys DISABLE TRIGGER disabled; REVOKE TRIGGER ON idempotency_keys FROM {attacker}"
        ))
        .unwrap();
    scene.all_work();
    scene.admin.batch_execute("SELECT idem_erase('t')").unwrap();
    assert_eq!(scene.admin.value::<String>("SELECT DISTINCT who FROM audit"), owner);
    scene.nothing_was_run();
}

// CASES 46
#[test]
fn rules_and_tables_of_two_owners_are_refused() {
    let mut scene = Scene::set();
    scene.admin.batch_execute("CREATE RULE \"my rule\" AS ON DELETE TO idempotency_keys DO ALSO NOTIFY swept").unwrap();
    scene.all_are_refused("my rule");
    let attacker = scene.attacker.clone();
    scene
        .admin
        .batch_execute(&format!(
            "DROP RULE \"my rule\" ON idempotency_keys; ALTER TABLE idempotency_endpoints OWNER TO {attacker}"
        ))
        .unwrap();
    scene.all_are_refused(&format!("{attacker:?}"));
}

// CASES 46
#[test]
fn a_trigger_that_comes_while_a_claim_waits_is_seen_before_anything_is_written() {
    let mut scene = Scene::set();
    let mut first = scene.db.admin();
    first.batch_execute("BEGIN; SELECT idem_claim('t', 'POST /pay', 'k', ''::bytea)").unwrap();
    let waiting = Background::run(scene.db.admin(), |c| c.claim_waiting("t", "POST /pay", "k", b"", "1 hour"));
    waiting.until_waiting_for("Extension", &mut scene.admin);
    // The first claim holds the lock of a writer: the trigger waits for its end, and with it for the second's turn.
    let mut attacker = scene.db.connect_as(&scene.attacker);
    let create = "CREATE TRIGGER spy BEFORE INSERT ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION evil.spy()";
    let creating = Background::run(scene.db.connect_as(&scene.attacker), move |c| c.batch_execute(create));
    creating.until_waiting_for("Lock", &mut scene.admin);
    assert_eq!(
        sqlstate(&attacker.batch_execute("SET lock_timeout = 1; DROP TABLE idempotency_keys").unwrap_err()),
        "42501"
    );
    first.batch_execute("ROLLBACK").unwrap();
    match waiting.join().0 {
        Ok(arrival) => assert_eq!(arrival.outcome, "execute", "it was there first"),
        Err(refused) => assert!(["55000", "ID004"].contains(&sqlstate(&refused)), "{refused:?}"),
    }
    creating.join().0.unwrap();
    scene.nothing_was_run();
    scene.all_are_refused("\"spy\"");
}

/// Sessions that claim and complete beside one that puts triggers on the table and takes them away.
#[test]
fn triggers_that_come_and_go_beside_claims_are_never_run() {
    let mut scene = Scene::set();
    let work = |mut c: Client, name: &'static str| {
        Background::run(c.transaction().map(|t| t.commit()).map(|_| c).unwrap(), move |c| {
            let (mut done, mut refused) = (0, 0);
            for n in 0.. {
                let key = format!("{name}-{n}");
                let mut t = c.transaction().unwrap();
                let result = t
                    .claim("t", "POST /pay", &key, b"")
                    .and_then(|_| t.complete("t", "POST /pay", &key, 200, b""))
                    .and_then(|_| t.commit());
                match result {
                    Ok(()) => done += 1,
                    Err(e) if sqlstate(&e) == "55000" => refused += 1,
                    Err(e) => panic!("{e:?}"),
                }
                if done >= 50 && refused >= 50 || n > 5_000 {
                    break;
                }
            }
            (done, refused)
        })
    };
    let workers = [work(scene.db.admin(), "a"), work(scene.db.admin(), "b")];
    let mut attacker = scene.db.connect_as(&scene.attacker);
    let mut admin = scene.db.admin();
    while workers.iter().any(|w| !w.is_finished()) {
        let create =
            "CREATE TRIGGER spy BEFORE INSERT OR UPDATE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION evil.spy()";
        attacker.batch_execute(create).unwrap();
        admin.batch_execute("DROP TRIGGER spy ON idempotency_keys").unwrap();
    }
    for worker in workers {
        let (done, refused) = worker.join().0;
        assert!(done >= 50 && refused >= 50, "{done} done, {refused} refused");
    }
    scene.nothing_was_run();
}
