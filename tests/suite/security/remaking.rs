//! A schema whose owner renames it, or drops and remakes it, beside a superuser's call: what he puts in its place is never
//! run, and the call gives a right answer or a plain error. CASES 48.

use harness::{sqlstate, Background, Calls, Cluster, Database};
use postgres::Client;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Statements that make a trap for each object of the extension, under its name and with its arguments or columns, in the
/// schema that has the name of the extension's. Not for the functions that the test calls by name.
const TRAPS: &str = "
    WITH member AS (
      SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension x ON x.oid = d.refobjid
       WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND x.extname = 'idempotency_enforcer')
    SELECT format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L;', p.proname,
                  pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
                  'BEGIN RAISE EXCEPTION ''TRAP as %'', current_user; END')
      FROM member m JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
     WHERE NOT EXISTS (SELECT FROM unnest($1::text[]) c WHERE position('.' || p.proname || '(' IN c) > 0)
    UNION ALL
    SELECT format('CREATE VIEW public.%I AS SELECT %s;', c.relname,
                  (SELECT string_agg(format('public.trap()::text::%s AS %I', format_type(a.atttypid, a.atttypmod), a.attname), ', '
                                     ORDER BY a.attnum)
                     FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))
      FROM member m JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass AND c.relkind IN ('r', 'v')";

/// As the schema's owner: makes the schema anew, full of traps.
fn plant(traps: &str) -> String {
    format!(
        "CREATE SCHEMA public;
         CREATE FUNCTION public.trap() RETURNS text LANGUAGE plpgsql IMMUTABLE AS
           'BEGIN RAISE EXCEPTION ''TRAP as %'', current_user; END';
         {traps}"
    )
}

struct Scene {
    db: Database<'static>,
    owner: String,
    role: String,
    traps: String,
}

impl Scene {
    fn set() -> Scene {
        let db = Cluster::shared().database();
        let (owner, role, mut admin) = (db.role("owner"), db.role("app"), db.admin());
        admin
            .batch_execute(&format!(
                "SELECT idem_protect('POST /t', 'external'); ALTER SCHEMA public OWNER TO {owner};
                 GRANT CREATE ON DATABASE {} TO {owner}; GRANT USAGE ON SCHEMA public TO {role}",
                db.name()
            ))
            .unwrap();
        let mut scene = Scene { db, owner, role, traps: String::new() };
        let called = [&scene.calls()[..], &scene.others()].concat();
        let traps = admin
            .query(TRAPS, &[&called])
            .unwrap()
            .iter()
            .map(|r| r.get::<_, String>(0))
            .collect::<Vec<_>>()
            .join("\n");
        scene.traps = traps;
        scene
    }

    /// What a superuser calls.
    fn calls(&self) -> [String; 3] {
        [
            "SELECT length(public.idem_design_doc())::text".into(),
            format!("SELECT public.idem_grant('{}', 'operator')::text", self.role),
            format!("SELECT public.idem_revoke('{}')::text", self.role),
        ]
    }
}

impl Scene {
    /// What an application, a reconciler and an operator call.
    fn others(&self) -> [String; 12] {
        [
            "SELECT public.idem_claim('t', 'POST /t', gen_random_uuid()::text, ''::bytea)::text",
            "SELECT public.idem_complete('t', 'POST /t', 'k', 200, ''::bytea)::text",
            "SELECT public.idem_fail('t', 'POST /t', 'k', 400, ''::bytea)::text",
            "SELECT public.idem_release('t', 'POST /t', 'k')::text",
            "SELECT public.idem_checkpoint('t', 'POST /t', 'k', 'p')::text",
            "SELECT count(*)::text FROM public.idem_reconcile()",
            "SELECT public.idem_protect('POST /t', 'external')::text",
            "SELECT public.idem_unprotect('POST /u')::text",
            "SELECT public.idem_sweep()::text",
            "SELECT public.idem_forget('t', 'POST /t', 'k')::text",
            "SELECT public.idem_erase('t')::text",
            "SELECT count(*)::text FROM public.idem_health()",
        ]
        .map(str::to_owned)
    }
}

/// Starts the call, which waits for a lock of `holder`, in the lock manager or in steps of its own (`waits`, the type of the
/// wait event); does `meanwhile`, ends the holder's transaction, and returns what the call came to.
fn call_waiting(
    scene: &Scene,
    call: &str,
    waits: &str,
    hold: &str,
    mut holder: Client,
    meanwhile: &str,
) -> Result<(), postgres::Error> {
    holder.batch_execute(&format!("BEGIN; {hold}")).unwrap();
    let call = call.to_owned();
    let waiting = Background::run(scene.db.admin(), move |c| c.batch_execute(&call));
    waiting.until_waiting_for(waits, &mut scene.db.admin());
    let mut owner = scene.db.connect_as(&scene.owner);
    owner.batch_execute(meanwhile).unwrap();
    holder.batch_execute("COMMIT").unwrap();
    waiting.join().0
}

#[test]
fn a_call_that_waits_while_the_schema_is_dropped_and_remade_is_refused() {
    for n in 0..3 {
        let scene = Scene::set();
        let drop = format!("DROP SCHEMA public CASCADE; {}", plant(&scene.traps));
        let holder = scene.db.connect_as(&scene.owner);
        let refused =
            call_waiting(&scene, &scene.calls()[n], "Lock", &drop, holder, "").expect_err("the extension is gone");
        assert_eq!(sqlstate(&refused), "55000", "{refused:?}");
    }
}

#[test]
fn a_call_that_waits_while_the_schema_is_renamed_and_remade_runs_nothing_of_it() {
    for n in 0..3 {
        let scene = Scene::set();
        let rename = format!("BEGIN; ALTER SCHEMA public RENAME TO elsewhere; {}; COMMIT", plant(&scene.traps));
        // The document waits for a table, trying again and again, a change of rights for another one.
        let (waits, hold) = match n {
            0 => ("Extension", "LOCK TABLE idempotency_endpoints"),
            _ => ("Lock", "SELECT idem_revoke('pg_read_all_stats')"),
        };
        let done = call_waiting(&scene, &scene.calls()[n], waits, hold, scene.db.admin(), &rename);
        match &done {
            Ok(()) => {}
            Err(e) => assert_eq!(sqlstate(e), "55000", "{e:?}"),
        }
        // What a change of rights says that it did, it did to the extension's own functions.
        let mut admin = scene.db.admin();
        let may: bool = admin.value(&format!(
            "SELECT has_function_privilege('{}', 'elsewhere.idem_protect(text, text, interval, interval, interval, boolean, \
             integer, bigint, text[], text)', 'EXECUTE')",
            scene.role
        ));
        assert_eq!(may, n == 1 && done.is_ok());
    }
}

/// Tells the callers that it is over, also when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Neither a trap nor an internal error, whenever it happens.
#[test]
fn calls_beside_an_owner_who_renames_and_remakes_his_schema_in_a_loop_run_nothing_of_it() {
    let scene = Scene::set();
    beside_an_owner_who_remakes_his_schema(&scene, &scene.calls(), &["42883", "3F000", "55000", "40P01", "42P01"]);
}

#[test]
fn so_do_those_that_write_the_tables() {
    let scene = Scene::set();
    let known = ["42883", "3F000", "55000", "40P01", "42P01", "ID001", "ID002", "ID003", "ID006", "55006"];
    for calls in scene.others().chunks(4) {
        beside_an_owner_who_remakes_his_schema(&scene, calls, &known);
    }
}

fn beside_an_owner_who_remakes_his_schema(scene: &Scene, calls: &[String], known: &[&str]) {
    let over = AtomicBool::new(false);
    let (rename, remake) = (
        format!("BEGIN; ALTER SCHEMA public RENAME TO elsewhere; {}; COMMIT", plant(&scene.traps)),
        format!("BEGIN; DROP SCHEMA public CASCADE; {}; COMMIT", plant(&scene.traps)),
    );
    let answers = thread::scope(|scope| {
        let callers: Vec<_> = calls
            .iter()
            .map(|call| {
                let (mut c, over) = (scene.db.admin(), &over);
                scope.spawn(move || {
                    let (mut right, mut refused) = (0, Vec::new());
                    while !over.load(Ordering::SeqCst) {
                        match c.batch_execute(call) {
                            Ok(()) => right += 1,
                            Err(e) => refused.push(e),
                        }
                    }
                    (right, refused)
                })
            })
            .collect();
        let end = Ends(&over);
        let (mut owner, mut admin) = (scene.db.connect_as(&scene.owner), scene.db.admin());
        // Either may be chosen as the victim of a deadlock; and PostgreSQL's own ALTER SCHEMA beside a GRANT on the schema
        // fails with "tuple concurrently updated".
        let insist = |c: &mut Client, sql: &str| {
            while let Err(e) = c.batch_execute(sql) {
                assert!(["40P01", "XX000"].contains(&sqlstate(&e)), "{e:?}");
                c.batch_execute("ROLLBACK").unwrap();
            }
        };
        for _ in 0..5 {
            for _ in 0..5 {
                insist(&mut owner, &rename);
                insist(
                    &mut owner,
                    "BEGIN; DROP SCHEMA public CASCADE; ALTER SCHEMA elsewhere RENAME TO public; COMMIT",
                );
            }
            insist(&mut owner, &remake);
            insist(&mut owner, "BEGIN; DROP SCHEMA public CASCADE; CREATE SCHEMA public; COMMIT");
            insist(&mut admin, "CREATE EXTENSION idempotency_enforcer; SELECT idem_protect('POST /t', 'external')");
        }
        drop(end);
        callers.into_iter().map(|c| c.join().unwrap()).collect::<Vec<_>>()
    });
    for (right, refused) in answers {
        assert!(right + refused.len() > 0);
        for e in refused {
            // PostgreSQL's own: the function was dropped between the parsing of the statement and its call.
            let is_postgresqls = e
                .as_db_error()
                .is_some_and(|e| e.where_().is_none() && e.message().starts_with("cache lookup failed for function"));
            if is_postgresqls {
                continue;
            }
            assert!(known.contains(&sqlstate(&e)) && !format!("{e:?}").contains("TRAP"), "{e:?}");
        }
    }
}
