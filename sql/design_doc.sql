-- The design document: Markdown from the live registry and settings, for reviews and audits.
--
-- Kept is what a reviewer can find nowhere else, because it is of this database: inputs, figures, settings, roles and
-- open findings; and, so that the document can be judged by itself, the promises in a line each and the tables of
-- states. How things work and why is in the documentation, which the document names.
--
-- Every function is SQL whose body is bound here, by OID: whoever owns the schema may put objects of the same names in
-- their place at any time. Our tables are read by functions in Rust, with their owner's rights. Every name goes through
-- _idem_markdown().
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE FUNCTION @extschema@._idem_doc_interval(value interval)
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN ltrim(justify_hours(_idem_doc_interval.value)::text, '@ ');

CREATE FUNCTION @extschema@._idem_doc_number(value numeric)
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN to_char(_idem_doc_number.value, 'FM999,999,999,999,999,999,999,999,990');

CREATE FUNCTION @extschema@._idem_doc_guess(guessed boolean)
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN _idem_doc_guess.guessed THEN ' *(guess)*' ELSE '' END;

-- The settings are there once the library is loaded: by the first function in C.
CREATE FUNCTION @extschema@._idem_doc_setting(name text)
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN (SELECT s.setting FROM pg_settings s WHERE s.name = 'idempotency_enforcer.' || _idem_doc_setting.name);

-- The schema as it is called now, quoted where it needs to be.
CREATE FUNCTION @extschema@._idem_doc_schema()
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN (SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid = '@extschema@.idempotency_keys'::regclass);

CREATE FUNCTION @extschema@._idem_doc_title()
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
  SELECT format(
$md$# Idempotency design of database %s

- Generated at %s by `idem_design_doc()`, from the registry and the settings. Apart from
  figures, the same registry and settings give the same text.
- Extension: idempotency_enforcer %s in schema %s, on PostgreSQL %s.
- A value marked *(guess)* was registered as one: confirm it before relying on what follows from it.
- How it works is in idempotency_enforcer's `README.md`, effects outside of the database in its
  `docs/external-effects.md`, views, metrics and alerts in `docs/monitoring.md`.
$md$, @extschema@._idem_markdown(current_database()::text, false), to_char(now(), 'YYYY-MM-DD HH24:MI:SS "UTC"'),
      @extschema@._idem_markdown(x.extversion, false),
      @extschema@._idem_markdown(@extschema@._idem_doc_schema(), false),
      @extschema@._idem_markdown(split_part(current_setting('server_version'), ' ', 1), false))
    FROM pg_extension x WHERE x.extname = 'idempotency_enforcer';
END;

CREATE FUNCTION @extschema@._idem_doc_inputs()
RETURNS text
LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
  SELECT E'\n## 1. Protected endpoints\n\n' || coalesce(
    E'| endpoint | effect | retry window | ttl | stuck after | key required | max body, bytes | writes a day '
    '| registered | notes |\n|---|---|---|---|---|---|---|---|---|---|\n'
    || string_agg(format(
         E'| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n', @extschema@._idem_markdown(e.endpoint, true),
         e.effect || @extschema@._idem_doc_guess('effect' = ANY (e.guesses)),
         @extschema@._idem_doc_interval(e.retry_window)
           || @extschema@._idem_doc_guess('retry_window' = ANY (e.guesses)),
         @extschema@._idem_doc_interval(e.ttl) || @extschema@._idem_doc_guess('ttl' = ANY (e.guesses)),
         @extschema@._idem_doc_interval(e.stuck_after) || @extschema@._idem_doc_guess('stuck_after' = ANY (e.guesses)),
         CASE WHEN e.key_required THEN 'yes' ELSE 'no' END
           || @extschema@._idem_doc_guess('key_required' = ANY (e.guesses)),
         coalesce(e.max_body_bytes::text, @extschema@._idem_doc_setting('max_body_bytes') || ' (setting)')
           || @extschema@._idem_doc_guess('max_body_bytes' = ANY (e.guesses)),
         coalesce(@extschema@._idem_doc_number(e.expected_writes_per_day)
           || @extschema@._idem_doc_guess('expected_writes_per_day' = ANY (e.guesses)), 'unknown'),
         to_char(e.created_at, 'YYYY-MM-DD'), @extschema@._idem_markdown(e.notes, false)), '' ORDER BY e.endpoint),
    E'No endpoint is registered. `idem_protect()` registers one.\n')
    FROM @extschema@._idem_registry() e;
END;

CREATE FUNCTION @extschema@._idem_doc_unregistered()
RETURNS text
LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
  SELECT E'\n### In use, but not registered\n\n' || coalesce(
    E'| endpoint | seen in |\n|---|---|\n'
    || string_agg(format(E'| %s | %s |\n', @extschema@._idem_markdown(u.endpoint, true),
                         concat_ws(', ', CASE WHEN u.finished THEN 'finished claims' END,
                                         CASE WHEN u.open THEN 'open claims' END,
                                         CASE WHEN u.counted THEN 'counters' END)), '' ORDER BY u.endpoint COLLATE "C")
    || E'\nRegister them with `idem_protect()`.\n', E'None was seen.\n')
    || CASE WHEN @extschema@._idem_doc_setting('require_registration') = 'off'
            THEN E'\nA claim of one is let through (`require_registration` is off): its key is required and kept '
                 '24 hours, without a commit guard.\n'
            ELSE E'\nA new claim of one is refused (`ID006`).\n' END
    FROM (SELECT s.endpoint, bool_or(s.finished) AS finished, bool_or(s.open) AS open, bool_or(s.counted) AS counted
            FROM (SELECT r.endpoint, r.has_finished_claims AS finished, r.has_open_claims AS open, false AS counted
                    FROM @extschema@._idem_unregistered_in_use() r
                   UNION ALL
                  -- Counted when they were registered.
                  SELECT c.endpoint, false, false, true
                    FROM @extschema@._idem_counted() c
                   WHERE c.kind = 'endpoint' AND c.n[1] + c.n[2] > 0
                     AND NOT EXISTS (SELECT FROM @extschema@._idem_registry() r WHERE r.endpoint = c.endpoint)) s
           GROUP BY s.endpoint) u;
END;

CREATE FUNCTION @extschema@._idem_doc_storage()
RETURNS text
LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
  SELECT format(
$md$
## 2. Scope and storage

| decision | choice |
|---|---|
| scope of a key | `(tenant_id, endpoint, key)`: no tenant and no endpoint ever sees another's response |
| tenant | the account that the request is authenticated for; %s |
| where | table %s in the application's own database |
| response | status, ordered headers, body byte for byte; over `max_body_bytes` it needs a `resource_ref` (`ID005`) |
| request | only its fingerprint, never the body |
| retention | the endpoint's ttl, above its retry window; a claim in progress never expires |
| sweep | %s |

| setting | value |
|---|---|
$md$, CASE WHEN @extschema@._idem_doc_setting('tenant_setting') <> ''
           THEN 'must equal the session setting '
                || @extschema@._idem_markdown(@extschema@._idem_doc_setting('tenant_setting'), true)
           ELSE 'the caller vouches for it (`tenant_setting` is not set)' END,
      @extschema@._idem_markdown(@extschema@._idem_doc_schema() || '.idempotency_keys', true),
      CASE WHEN w.obstacle IS NULL
           THEN format('by the background worker: every %s, in batches of %s rows',
                       @extschema@._idem_doc_interval(
                         make_interval(secs => @extschema@._idem_doc_setting('sweep_interval')::integer)),
                       @extschema@._idem_doc_setting('sweep_batch_size'))
           ELSE format('by cron: %s, again while it returns 10000 (%s)',
                       @extschema@._idem_markdown(
                         format('SELECT %s.idem_sweep();', @extschema@._idem_doc_schema()), true), w.obstacle) END)
      || (SELECT string_agg(format(E'| `%s` | %s |\n', split_part(s.name, '.', 2),
                                   CASE WHEN s.setting = '' THEN '' ELSE @extschema@._idem_markdown(
                                     s.setting || coalesce(' ' || s.unit, ''), true) END), '' ORDER BY s.name)
            FROM pg_settings s WHERE starts_with(s.name, 'idempotency_enforcer.'))
    FROM (SELECT CASE WHEN NOT @extschema@.idem_is_preloaded()
                      THEN 'the library is not preloaded, so there is no background worker'
                      WHEN @extschema@._idem_doc_setting('sweep_interval') = '0'
                      THEN 'the background worker is turned off: `sweep_interval` is 0'
                      WHEN NOT @extschema@._idem_visits(current_database()::text)
                      THEN 'the background worker does not visit this database: `databases` is '
                           || @extschema@._idem_markdown(@extschema@._idem_doc_setting('databases'), true)
                 END AS obstacle) w;
END;

CREATE FUNCTION @extschema@._idem_doc_size()
RETURNS text
LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
  WITH measured AS (
    -- From 10,000 rows on, the table's own size says what a row takes. Below: rows with a response of 300 bytes.
    SELECT r.enough, r.rows,
           CASE WHEN r.enough THEN ceil(pg_table_size(r.oid) / r.rows) ELSE 1000 END AS in_table,
           CASE WHEN r.enough THEN ceil(pg_indexes_size(r.oid) / r.rows) ELSE 200 END AS in_indexes
      FROM (SELECT c.oid, c.reltuples >= 10000 AS enough, c.reltuples::numeric AS rows
              FROM pg_class c WHERE c.oid = '@extschema@.idempotency_keys'::regclass) r),
  sized AS (
    SELECT e.endpoint, e.expected_writes_per_day AS writes, e.ttl, 'ttl' = ANY (e.guesses) AS ttl_guessed,
           ceil(e.expected_writes_per_day * extract(epoch FROM e.ttl)::numeric / 86400) AS kept,
           e.expected_writes_per_day IS NOT NULL AND 'expected_writes_per_day' = ANY (e.guesses) AS writes_guessed
      FROM @extschema@._idem_registry() e),
  lines AS (
    SELECT s.endpoint, @extschema@._idem_markdown(s.endpoint, true) AS name, s.writes::numeric, s.kept, '' AS least,
           @extschema@._idem_doc_interval(s.ttl) || @extschema@._idem_doc_guess(s.ttl_guessed) AS ttl,
           @extschema@._idem_doc_guess(s.writes_guessed) AS writes_mark,
           @extschema@._idem_doc_guess(s.writes_guessed OR s.ttl_guessed) AS kept_mark
      FROM sized s
    UNION ALL
    SELECT NULL, '**total**', sum(s.writes), sum(s.kept),
           CASE WHEN count(*) > count(s.kept) THEN 'at least ' ELSE '' END, '',
           @extschema@._idem_doc_guess(bool_or(s.writes_guessed)),
           @extschema@._idem_doc_guess(bool_or(s.writes_guessed OR (s.ttl_guessed AND s.kept IS NOT NULL)))
      FROM sized s HAVING count(*) > 0)
  SELECT format(
$md$
## 3. Size of the key store

Rows kept = writes a day times ttl. A row takes %s bytes in the table and %s in its indexes,
%s.

%s$md$, m.in_table, m.in_indexes,
      CASE WHEN m.enough
           THEN format('measured over about %s rows, free space included', @extschema@._idem_doc_number(m.rows))
           ELSE 'a default for responses of about 300 bytes: the table has fewer than 10,000 analyzed rows to measure'
      END,
      coalesce(E'| endpoint | writes a day | ttl | rows kept | size |\n|---|---|---|---|---|\n'
        || (SELECT string_agg(format(
                     E'| %s | %s | %s | %s | %s |\n', l.name,
                     coalesce(l.least || @extschema@._idem_doc_number(l.writes) || l.writes_mark, 'unknown'), l.ttl,
                     coalesce(l.least || @extschema@._idem_doc_number(l.kept) || l.kept_mark, 'unknown'),
                     coalesce(l.least || pg_size_pretty(l.kept * (m.in_table + m.in_indexes)) || l.kept_mark,
                              'unknown')),
                   '' ORDER BY l.endpoint NULLS LAST)
              FROM lines l),
        E'No endpoint is registered.\n'))
    FROM measured m;
END;

CREATE FUNCTION @extschema@._idem_doc_promises()
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN format(
$md$
## 4. Promises

- **One execution.** For one tenant, endpoint and key the work runs at most once to a committed result within the ttl.
- **Durable together.** Effect and stored result commit in one transaction or not at all: on a `transaction` endpoint a
  COMMIT or PREPARE TRANSACTION that would leave a claim of its own open is refused (`ID004`), and so is releasing one.
- **Verbatim replay,** and only of the same request. The fingerprint is SHA-256 of the body (or the caller's
  `request_hash`), together with the `request_target`, which an endpoint whose name is a template requires.
- **Never a blind retry.** An open claim is reported after its `stuck_after` and reconciled; nothing re-runs, expires or
  sweeps it. Each take-over raises the `attempt`: whoever holds an earlier number is refused (`ID003`).
- **Never silently off.** A claim of an endpoint that is not registered is refused (`ID006`), unless
  `require_registration` is off.

`idem_forget` lets a finished key run again; `idem_erase` blanks stored answers and keeps the protection. Both are for
operators.

## 5. States and replays

| stored | arrival | outcome | code |
|---|---|---|---|
| nothing | any request | `execute` | |
| a claim in another transaction, not committed | any request | `in_progress`, with `retry-after: %s` | 409 |
| `in_progress` | the same request | `in_progress`, with `retry-after: %1$s`; whatever its age | 409 |
| `in_progress` | another request | `key_reused` | 422 |
| `succeeded` or `failed` | the same request | `replay`: status, headers and body as stored | as stored |
| `succeeded` or `failed`, erased | the same request | `replay`: the status alone | as stored |
| `succeeded` or `failed` | another request | `key_reused` | 422 |
| `succeeded` or `failed`, ttl over | any request | `execute`, as a first request | |
| `released`: the tombstone of a claim that was committed open, or forgotten | any request | `execute`, `attempt` + 1 | |
| anything | no key, key required | `key_missing` | 400 |
| anything | no key, key not required | `unprotected`: runs, nothing is stored | |
| anything | key over 255 characters or with a control character | `key_invalid` | 400 |

Only `execute` and `unprotected` run the work. An arrival answers at once, or after the `wait` that the caller chose.

| stored | the owner's `idem_complete` or `idem_fail` | `idem_release` |
|---|---|---|
| nothing | refused: `ID001` | false |
| `in_progress`, its attempt, committed | stored | true; the row becomes `released` |
| `in_progress`, of this transaction | stored | true; the row is gone. On a `transaction` endpoint refused: `ID004` |
| `released`, its attempt | refused: `ID001` | false |
| `in_progress` or `released`, a later attempt | refused: `ID003` | refused: `ID003` |
| `succeeded` or `failed` | the same result: a no-op; another: refused, `ID002` | refused: `ID002` |
$md$, @extschema@._idem_doc_setting('retry_after'));

CREATE FUNCTION @extschema@._idem_doc_external()
RETURNS text
LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
  SELECT E'\n## 6. External effects and reconciliation\n\n' || coalesce(
    E'| endpoint | stuck after | the reconciler takes over with |\n|---|---|---|\n'
    || string_agg(format(
         E'| %s | %s | %s |\n', @extschema@._idem_markdown(e.endpoint, true),
         @extschema@._idem_doc_interval(e.stuck_after) || @extschema@._idem_doc_guess('stuck_after' = ANY (e.guesses)),
         @extschema@._idem_markdown(format('SELECT * FROM %s.idem_reconcile(only_endpoint => %L);',
                                           @extschema@._idem_doc_schema(), e.endpoint), true)), '' ORDER BY e.endpoint)
    || $md$
Each claim is committed before the provider is called, and sends its `provider_key` there, which takeovers, crashes and
restores do not change. A stuck one shows in `idem_stuck`; a reconciler takes it over, asks the provider what happened,
and ends it with `idem_complete`, `idem_fail` or `idem_release`: `docs/external-effects.md`.
$md$, E'No endpoint has an external effect.\n')
    FROM @extschema@._idem_registry() e WHERE e.effect = 'external';
END;

-- As the ACLs have them.
CREATE FUNCTION @extschema@._idem_doc_roles()
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
  WITH member AS (
    SELECT d.classid, d.objid
      FROM pg_depend d JOIN pg_extension x ON x.oid = d.refobjid
     WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND x.extname = 'idempotency_enforcer'),
  given AS (
    SELECT p.proname AS name, a.grantee
      FROM member m JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
     CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
     WHERE a.grantee <> p.proowner
    UNION
    SELECT c.relname, a.grantee
      FROM member m JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass
     CROSS JOIN LATERAL aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
     WHERE a.grantee <> c.relowner),
  roles AS (
    SELECT CASE WHEN g.grantee = 0 THEN '**PUBLIC**'
                ELSE @extschema@._idem_markdown(pg_get_userbyid(g.grantee)::text, true) END AS name,
           pg_get_userbyid(g.grantee) COLLATE "C" AS place,
           CASE WHEN bool_or(g.name = 'idem_protect') THEN 'operator'
                WHEN bool_or(g.name = 'idem_reconcile') THEN 'reconciler'
                WHEN bool_or(g.name = 'idem_claim') THEN 'application'
                WHEN bool_or(g.name = 'idem_health') THEN 'monitoring' END AS kind,
           CASE WHEN bool_or(g.name IN ('idempotency_keys', 'idempotency_endpoints')) THEN 'backup' END AS tables
      FROM given g GROUP BY g.grantee)
  SELECT E'\n## 7. Roles\n\n' || coalesce(
    E'| role | may act as |\n|---|---|\n'
    || (SELECT string_agg(format(E'| %s | %s |\n', r.name,
                                 coalesce(nullif(concat_ws(', ', r.kind, r.tables), ''), 'single functions')),
                          '' ORDER BY r.place) FROM roles r), E'Nothing is granted.\n')
    || format(
$md$
Members of a role have its rights; superusers and the owner of the tables, %s, have all. Rights are given
by `idem_grant()`: nobody but a backup needs one on the tables.
$md$, @extschema@._idem_markdown(pg_get_userbyid(c.relowner)::text, true))
    FROM pg_class c WHERE c.oid = '@extschema@.idempotency_keys'::regclass;
END;

CREATE FUNCTION @extschema@._idem_doc_findings()
RETURNS text
LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
  SELECT E'\n## 8. Open findings\n\n' || coalesce(
    E'| severity | finding | remedy |\n|---|---|---|\n'
    || string_agg(format(E'| %s | %s | %s |\n', @extschema@._idem_markdown(h.severity, false),
                         @extschema@._idem_markdown(h.finding, false), @extschema@._idem_markdown(h.remedy, true)),
                  '' ORDER BY h.n), E'None.\n')
    FROM @extschema@.idem_health() WITH ORDINALITY h(severity, finding, remedy, n);
END;

CREATE FUNCTION @extschema@.idem_design_doc()
RETURNS text
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- The same text for every reader.
SET standard_conforming_strings = on
SET quote_all_identifiers = off
SET datestyle = 'ISO, YMD'
SET intervalstyle = 'postgres_verbose'
SET timezone = 'UTC'
SET jit = off
BEGIN ATOMIC
  SELECT @extschema@._idem_hold(false);
  SELECT rtrim(concat(
    @extschema@._idem_doc_title(), @extschema@._idem_doc_inputs(), @extschema@._idem_doc_unregistered(),
    @extschema@._idem_doc_storage(), @extschema@._idem_doc_size(), @extschema@._idem_doc_promises(),
    @extschema@._idem_doc_external(), @extschema@._idem_doc_roles(), @extschema@._idem_doc_findings()), E'\n');
END;

COMMENT ON FUNCTION @extschema@._idem_doc_interval(interval) IS 'Part of idem_design_doc(): an interval.';
COMMENT ON FUNCTION @extschema@._idem_doc_number(numeric) IS 'Part of idem_design_doc(): a number.';
COMMENT ON FUNCTION @extschema@._idem_doc_guess(boolean) IS 'Part of idem_design_doc(): the mark of a guess.';
COMMENT ON FUNCTION @extschema@._idem_doc_setting(text) IS 'Part of idem_design_doc(): a setting of ours, without its unit.';
COMMENT ON FUNCTION @extschema@._idem_doc_schema() IS 'Part of idem_design_doc(): the schema''s name.';
COMMENT ON FUNCTION @extschema@._idem_doc_title() IS 'Part of idem_design_doc(): title and versions.';
COMMENT ON FUNCTION @extschema@._idem_doc_inputs() IS 'Part of idem_design_doc(): the protected endpoints.';
COMMENT ON FUNCTION @extschema@._idem_doc_unregistered() IS 'Part of idem_design_doc(): endpoints in use that are not registered.';
COMMENT ON FUNCTION @extschema@._idem_doc_storage() IS 'Part of idem_design_doc(): scope, storage, settings.';
COMMENT ON FUNCTION @extschema@._idem_doc_size() IS 'Part of idem_design_doc(): the size of the key store.';
COMMENT ON FUNCTION @extschema@._idem_doc_promises() IS 'Part of idem_design_doc(): promises and states.';
COMMENT ON FUNCTION @extschema@._idem_doc_external() IS 'Part of idem_design_doc(): external effects.';
COMMENT ON FUNCTION @extschema@._idem_doc_roles() IS 'Part of idem_design_doc(): roles.';
COMMENT ON FUNCTION @extschema@._idem_doc_findings() IS 'Part of idem_design_doc(): open findings.';
COMMENT ON FUNCTION @extschema@.idem_design_doc() IS
  'The design document as Markdown, from the live registry and settings: protected endpoints, scope, storage, settings, sizing, promises, states, external effects, roles and open findings. psql -At -c ''SELECT idem_design_doc()'' > idempotency.md';
