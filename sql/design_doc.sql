-- The design document: Markdown from the live registry and settings, for reviews and audits.

-- Literal text inside Markdown, also in a table cell. Names become code; what is written for people stays prose.
CREATE FUNCTION @extschema@.idem_markdown(value text, as_code boolean)
RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $idem_markdown$
DECLARE
  -- What cannot be seen, or changes how its neighbours are seen, as marks of direction do.
  invisible text := CASE getdatabaseencoding()
                      WHEN 'UTF8' THEN '[\u0001-\u001f\u007f-\u00a0\u00ad\u061c\u180e\u2000-\u200f'
                                       '\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff9-\ufffb]'
                      ELSE '[\u0001-\u001f\u007f]' END;
  shown     text := coalesce(idem_markdown.value, '');
  quoted    boolean := false;
  fence     text;
  pad       text := '';
BEGIN
  IF as_code THEN
    -- Quoted as in the log and in errors, where the bare characters would not show what the name is.
    quoted := shown ~ '^ *$' OR shown ~ invisible OR starts_with(shown, '"');
  ELSE
    shown := btrim(regexp_replace(shown, '\s+', ' ', 'g'));
  END IF;
  IF quoted OR shown ~ invisible THEN
    SELECT string_agg(CASE WHEN quoted AND s.c IN ('\', '"') THEN '\' || s.c
                           WHEN s.c = E'\n' THEN '\n'
                           WHEN s.c = E'\r' THEN '\r'
                           WHEN s.c = E'\t' THEN '\t'
                           WHEN s.c ~ invisible THEN format('\u{%s}', to_hex(ascii(s.c)))
                           ELSE s.c END, '' ORDER BY s.n)
      INTO shown
      FROM regexp_split_to_table(shown, '') WITH ORDINALITY AS s(c, n);
  END IF;
  IF NOT as_code THEN
    RETURN regexp_replace(shown, '([][\\`*_<>&|~$#])', '\\\1', 'g');
  END IF;
  IF quoted THEN
    shown := '"' || coalesce(shown, '') || '"';
  END IF;
  -- A fence longer than any run of backticks inside, kept apart from one at either end. Markdown takes one blank off
  -- both ends where both have one.
  SELECT repeat('`', 1 + coalesce(max(length(m.run[1])), 0)) INTO fence
    FROM regexp_matches(shown, '`+', 'g') AS m(run);
  IF shown ~ '^`|`$|^ .* $' THEN
    pad := ' ';
  END IF;
  RETURN fence || pad || replace(shown, '|', '\|') || pad || fence;
END
$idem_markdown$;

COMMENT ON FUNCTION @extschema@.idem_markdown(text, boolean) IS
  'The value as literal text for a Markdown table: prose with its special characters escaped, or a code span.';

CREATE FUNCTION @extschema@.idem_design_doc()
RETURNS text
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
-- The same text for every reader.
SET datestyle = 'ISO, YMD'
SET intervalstyle = 'postgres_verbose'
SET timezone = 'UTC'
-- However small the table was when this was planned, only the index of open claims is read.
SET enable_seqscan = off
SET jit = off
AS $idem_design_doc$
#variable_conflict use_column
-- The names below are those of the schema at CREATE EXTENSION. Somebody else may have made that schema anew.
BEGIN
IF NOT EXISTS (SELECT FROM pg_extension x JOIN pg_namespace n ON n.oid = x.extnamespace
                WHERE x.extname = 'idempotency_enforcer' AND quote_ident(n.nspname) = $name$@extschema@$name$) THEN
  RAISE EXCEPTION 'the schema of extension idempotency_enforcer was renamed'
    USING ERRCODE = 'object_not_in_prerequisite_state',
          DETAIL = 'This function belongs to the schema that the extension was created in.',
          HINT = 'Rename the schema back, or create the extension anew. Claims and their completion follow a renaming.';
END IF;
-- Reading a table runs what its owner has put on it: that must not be with more rights than the owner's.
IF EXISTS (SELECT FROM pg_class c
            WHERE c.oid IN ('@extschema@.idempotency_keys'::regclass, '@extschema@.idempotency_endpoints'::regclass)
              AND c.relowner <> (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user)) THEN
  RAISE EXCEPTION 'the tables of idempotency_enforcer belong to another role than this function'
    USING ERRCODE = 'object_not_in_prerequisite_state',
          DETAIL = 'It acts with the rights of its own owner, and reading a table can run what the table''s owner has put on it.',
          HINT = 'ALTER FUNCTION idem_health(), idem_design_doc() and idem_count_open_claims() OWNER TO the tables'' owner.';
END IF;
-- idem_markdown() is called with exactly its types: an overload that somebody else has put into the schema never matches
-- better, and so never runs with our rights.
DECLARE
  -- From this many rows on, the table's own size says what a row takes. Below: rows with a response of 300 bytes.
  enough_rows   CONSTANT real := 10000;
  default_table CONSTANT bigint := 1000;
  default_index CONSTANT bigint := 200;
  digits        CONSTANT text := 'FM999,999,999,999,999,999,999,999,990';
  mark          CONSTANT text := ' *(guess)*';
  schema_name   CONSTANT text := '@extschema@'::regnamespace::text;
  extension     oid;
  counted       text[];
  setting       jsonb;
  by_worker     boolean;
  measured      boolean;
  rows_now      real;
  table_bytes   numeric;
  index_bytes   numeric;
  rows_of       text;
  part          text;
  doc           text;
BEGIN
  -- Counting needs the library to be preloaded; asking loads it in any case, and with it the settings.
  BEGIN
    SELECT coalesce(array_agg(s.endpoint), '{}') INTO counted
      FROM @extschema@.idem_stats s WHERE s.kind = 'endpoint';
  EXCEPTION WHEN object_not_in_prerequisite_state THEN
    counted := NULL;
  END;
  SELECT jsonb_object_agg(split_part(s.name, '.', 2), s.setting) INTO setting
    FROM pg_settings s WHERE starts_with(s.name, 'idempotency_enforcer.');

  SELECT x.oid, format(
$md$# Idempotency design of database %s

- Generated at %s by `idem_design_doc()`, from the registry and the settings. Apart from
  figures, the same registry and settings give the same text.
- Extension: idempotency_enforcer %s in schema %s, on PostgreSQL %s.
- A value marked *(guess)* was registered as one: confirm it before relying on what follows from it.
$md$, @extschema@.idem_markdown(current_database()::text, false), to_char(now(), 'YYYY-MM-DD HH24:MI:SS "UTC"'),
      @extschema@.idem_markdown(x.extversion, false), @extschema@.idem_markdown(schema_name, false),
      @extschema@.idem_markdown(split_part(current_setting('server_version'), ' ', 1), false))
    INTO extension, doc
    FROM pg_extension x WHERE x.extname = 'idempotency_enforcer';

  -- Inputs.
  SELECT string_agg(format(
           '| %s | %s | %s | %s | %s | %s | %s | %s | %s |', @extschema@.idem_markdown(e.endpoint, true),
           e.effect || g.marks[1], ltrim(justify_hours(e.retry_window)::text, '@ ') || g.marks[2],
           ltrim(justify_hours(e.ttl)::text, '@ ') || g.marks[3],
           ltrim(justify_hours(e.stuck_after)::text, '@ ') || g.marks[4],
           CASE WHEN e.key_required THEN 'yes' ELSE 'no' END || g.marks[5],
           coalesce(e.max_body_bytes::text, (setting ->> 'max_body_bytes') || ' (setting)') || g.marks[6],
           coalesce(to_char(e.expected_writes_per_day, digits) || g.marks[7], 'unknown'),
           @extschema@.idem_markdown(e.notes, false)), E'\n' ORDER BY e.endpoint)
    INTO part
    FROM @extschema@.idempotency_endpoints e
   CROSS JOIN LATERAL (
         SELECT array_agg(CASE WHEN i.name = ANY (e.guesses) THEN mark ELSE '' END ORDER BY i.n) AS marks
           FROM unnest(ARRAY['effect', 'retry_window', 'ttl', 'stuck_after', 'key_required', 'max_body_bytes',
                             'expected_writes_per_day']) WITH ORDINALITY AS i(name, n)) g;
  doc := doc || E'\n## 1. Inputs\n\n' || coalesce(
    E'| endpoint | effect | retry window | ttl | stuck after | key required | max body, bytes | writes a day | notes |\n'
    '|---|---|---|---|---|---|---|---|---|\n' || part || E'\n',
    E'No endpoint is registered. `idem_protect()` registers one.\n');

  -- The protected endpoints, and the others.
  SELECT string_agg(format('| %s | %s | %s |', @extschema@.idem_markdown(e.endpoint, true),
                           CASE e.effect WHEN 'transaction' THEN 'commits with the claim, in one transaction'
                                         ELSE 'outside of the database' END,
                           to_char(e.created_at, 'YYYY-MM-DD')), E'\n' ORDER BY e.endpoint)
    INTO part
    FROM @extschema@.idempotency_endpoints e;
  doc := doc || E'\n## 2. Protected endpoints\n\n' || coalesce(
    E'| endpoint | its effect | registered |\n|---|---|---|\n' || part || E'\n', E'None.\n');

  SELECT string_agg(format('| %s | %s |', @extschema@.idem_markdown(u.endpoint, true), u.seen), E'\n'
                    ORDER BY u.endpoint)
    INTO part
    FROM (SELECT f.endpoint COLLATE "C" AS endpoint, string_agg(DISTINCT f.seen, ', ' ORDER BY f.seen) AS seen
            FROM (SELECT o.endpoint, 'open claims' AS seen
                    FROM (SELECT k.endpoint FROM @extschema@.idempotency_keys k
                           WHERE k.open_since IS NOT NULL
                           ORDER BY k.open_since DESC LIMIT 10000) o
                  UNION ALL
                  SELECT c.endpoint, 'counters' FROM unnest(counted) AS c(endpoint)
                  UNION ALL
                  SELECT v.endpoint, 'statistics'
                    FROM pg_stats p
                   CROSS JOIN LATERAL unnest(p.most_common_vals::text::text[]) AS v(endpoint)
                   WHERE p.schemaname = (SELECT n.nspname FROM pg_namespace n
                                          WHERE n.oid = '@extschema@'::regnamespace)
                     AND p.tablename = 'idempotency_keys' AND p.attname = 'endpoint') f
           WHERE NOT EXISTS (SELECT FROM @extschema@.idempotency_endpoints e WHERE e.endpoint = f.endpoint)
           GROUP BY f.endpoint COLLATE "C") u;
  doc := doc || E'\n### In use, but not registered\n\n' || coalesce(
    E'| endpoint | seen in |\n|---|---|\n' || part || E'\n\n'
    'Their keys are required and kept 24 hours; the commit guard does not hold for them. Register them with '
    '`idem_protect()`.\n', E'None was seen.\n') ||
    E'\nLooked for among the latest open claims, the planner''s statistics of the key store and ' ||
    CASE WHEN counted IS NULL THEN E'nothing else: the library is not\npreloaded, so nothing is counted.\n'
         ELSE E'the counters since the server\nstarted.\n' END;

  doc := doc || format(
$md$
## 3. Scope of a key

A key means something only together with its tenant and its endpoint: `(tenant_id, endpoint, key)` is the primary key.

| part | what it is | limits |
|---|---|---|
| `tenant_id` | the account that the request is authenticated for; %s | 0 to 255 bytes, not NULL |
| `endpoint` | the operation, by convention `METHOD /route/template` | 1 to 255 bytes |
| `key` | the client's `Idempotency-Key` | 1 to 255 characters, no control characters |
$md$, CASE WHEN setting ->> 'tenant_setting' <> ''
           THEN 'must equal the session setting ' || @extschema@.idem_markdown(setting ->> 'tenant_setting', true)
                || ' (`tenant_setting`)'
           ELSE 'the caller vouches for it (`tenant_setting` is not set)' END);

  -- Storage and sweep. The list of databases is read as the worker reads it.
  by_worker := counted IS NOT NULL AND setting ->> 'sweep_interval' <> '0'
               AND (btrim(setting ->> 'databases', ' ,') = ''
                    OR EXISTS (SELECT FROM unnest(string_to_array(setting ->> 'databases', ',')) AS d(name)
                                WHERE btrim(btrim(d.name), '"') = current_database()));
  doc := doc || format(
$md$
## 4. Storage

| decision | choice |
|---|---|
| where | table %s in the application's own database, PostgreSQL |
| when | in the transaction of the effect: both commit or neither; an external effect has its claim committed before |
| response body | `bytea`, replayed byte for byte; up to `max_body_bytes`, else only a `resource_ref` (`ID005` without one) |
| response headers | ordered `[name, value]` pairs |
| request | only its SHA-256, never the body |
| retention | the endpoint's ttl (24 hours where it is not registered), above its retry window; a claim in progress never expires |
| sweep | %s |
| backup | keys and registry are part of `pg_dump` |
$md$, @extschema@.idem_markdown(format('%s.idempotency_keys', schema_name), true),
      CASE WHEN by_worker
           THEN format('by the background worker: every %s, in batches of %s rows',
                       ltrim(make_interval(secs => (setting ->> 'sweep_interval')::integer)::text, '@ '),
                       setting ->> 'sweep_batch_size')
           ELSE format('by cron: %s, again while it returns 10000 (%s)',
                       @extschema@.idem_markdown(format('SELECT %s.idem_sweep();', schema_name), true),
                       CASE WHEN counted IS NULL THEN 'the library is not preloaded, so there is no background worker'
                            WHEN setting ->> 'sweep_interval' = '0'
                            THEN 'the background worker is turned off: `sweep_interval` is 0'
                            ELSE 'the background worker does not visit this database: `databases` is '
                                 || @extschema@.idem_markdown(setting ->> 'databases', true) END) END);

  -- Sizing.
  SELECT c.reltuples, pg_table_size(c.oid), pg_indexes_size(c.oid) INTO rows_now, table_bytes, index_bytes
    FROM pg_class c WHERE c.oid = '@extschema@.idempotency_keys'::regclass;
  measured := rows_now >= enough_rows AND table_bytes > 0;
  IF measured THEN
    table_bytes := ceil(table_bytes / rows_now::numeric);
    index_bytes := ceil(index_bytes / rows_now::numeric);
  ELSE
    table_bytes := default_table;
    index_bytes := default_index;
  END IF;
  WITH sized AS (
    SELECT e.endpoint, e.expected_writes_per_day AS writes, e.ttl,
           ceil(e.expected_writes_per_day * extract(epoch FROM e.ttl)::numeric / 86400) AS kept,
           'ttl' = ANY (e.guesses) AS ttl_guessed,
           e.expected_writes_per_day IS NOT NULL AND 'expected_writes_per_day' = ANY (e.guesses) AS writes_guessed
      FROM @extschema@.idempotency_endpoints e),
  lines AS (
    SELECT s.endpoint, @extschema@.idem_markdown(s.endpoint, true) AS name, s.writes::numeric,
           ltrim(justify_hours(s.ttl)::text, '@ ') || CASE WHEN s.ttl_guessed THEN mark ELSE '' END AS ttl,
           s.kept, '' AS least, CASE WHEN s.writes_guessed THEN mark ELSE '' END AS writes_mark,
           CASE WHEN s.writes_guessed OR s.ttl_guessed THEN mark ELSE '' END AS kept_mark
      FROM sized s
    UNION ALL
    SELECT NULL, '**total**', sum(s.writes), '', sum(s.kept),
           CASE WHEN count(*) > count(s.kept) THEN 'at least ' ELSE '' END,
           CASE WHEN bool_or(s.writes_guessed) THEN mark ELSE '' END,
           CASE WHEN bool_or(s.writes_guessed OR (s.ttl_guessed AND s.kept IS NOT NULL)) THEN mark ELSE '' END
      FROM sized s HAVING count(*) > 0)
  SELECT string_agg(format('| %s | %s | %s | %s | %s |', l.name,
                           coalesce(l.least || to_char(l.writes, digits) || l.writes_mark, 'unknown'), l.ttl,
                           coalesce(l.least || to_char(l.kept, digits) || l.kept_mark, 'unknown'),
                           coalesce(l.least || pg_size_pretty(l.kept * (table_bytes + index_bytes)) || l.kept_mark,
                                    'unknown')), E'\n' ORDER BY l.endpoint NULLS LAST)
    INTO part
    FROM lines l;
  doc := doc || format(
$md$
## 5. Size of the key store

Rows kept = writes a day times ttl. A row takes %s bytes in the table and %s in its indexes,
%s.

%s
$md$, table_bytes, index_bytes,
      CASE WHEN measured
           THEN format('measured over about %s rows, free space included', to_char(rows_now::numeric, digits))
           ELSE format('a default for responses of about 300 bytes: the table has fewer than %s analyzed rows to '
                       'measure', to_char(enough_rows::numeric, digits)) END,
      coalesce(E'| endpoint | writes a day | ttl | rows kept | size |\n|---|---|---|---|---|\n' || part,
               'No endpoint is registered.'));

  doc := doc || format(
$md$
## 6. States and replays

| stored | arrival | outcome | code |
|---|---|---|---|
| nothing | any body | `execute` | |
| a claim in another transaction, not committed | any body | `in_progress`, with `retry-after: %s` | 409 |
| `in_progress` | the same body | `in_progress`, with `retry-after: %1$s`; whatever its age | 409 |
| `in_progress` | another body | `key_reused` | 422 |
| `succeeded` or `failed` | the same body | `replay`: status, headers and body as stored | as stored |
| `succeeded` or `failed` | another body | `key_reused` | 422 |
| `succeeded` or `failed`, ttl over | any body | `execute`, as a first request | |
| anything | no key, key required | `key_missing` | 400 |
| anything | no key, key not required | `unprotected`: runs, nothing is stored | |
| anything | key over 255 characters or with a control character | `key_invalid` | 400 |

Only `execute` and `unprotected` run the work. An arrival answers at once, or after the `wait` that the caller chose.

| stored | the owner's `idem_complete` or `idem_fail` | `idem_release` |
|---|---|---|
| nothing | refused: `ID001` | false |
| `in_progress`, its attempt | stored | forgotten: the next arrival executes |
| `in_progress`, taken over by a later attempt | refused: `ID003` | refused: `ID003` |
| `succeeded` or `failed` | the same result: a no-op; another: refused, `ID002` | refused: `ID002` |

## 7. Body hash

SHA-256 of the request body's raw bytes (of text: its UTF-8 bytes), compared before anything else about a stored row. Another
body under the same key is `key_reused` (422), never a replay. JSON with other spacing is another body. A caller that hashes
for itself, a stream or a canonical form, passes 32 bytes as `request_hash` in place of the body.

$md$, setting ->> 'retry_after');

  -- The commit guard.
  SELECT string_agg(format('| %s | %s |', @extschema@.idem_markdown(e.endpoint, true),
                           CASE e.effect WHEN 'transaction' THEN 'yes' ELSE 'no: its claim is committed open' END),
                    E'\n' ORDER BY e.endpoint)
    INTO part
    FROM @extschema@.idempotency_endpoints e;
  doc := doc ||
$md$## 8. Commit guard

On an endpoint registered as `transaction`, a COMMIT or PREPARE TRANSACTION that would leave a claim of that transaction in
progress is refused (`ID004`): an effect cannot commit without its stored result. It does not hold where the effect is
external, or the endpoint not registered.

$md$ || coalesce(E'| endpoint | guarded |\n|---|---|\n' || part || E'\n', E'No endpoint is registered.\n');

  -- Reconciliation.
  SELECT string_agg(format('| %s | %s | %s |', @extschema@.idem_markdown(e.endpoint, true),
                           ltrim(justify_hours(e.stuck_after)::text, '@ ')
                           || CASE WHEN 'stuck_after' = ANY (e.guesses) THEN mark ELSE '' END,
                           @extschema@.idem_markdown(format('SELECT * FROM %s.idem_reconcile(only_endpoint => %L);',
                                                            schema_name, e.endpoint), true)), E'\n'
                    ORDER BY e.endpoint)
    INTO part
    FROM @extschema@.idempotency_endpoints e WHERE e.effect = 'external';
  doc := doc || E'\n## 9. External effects and reconciliation\n\n' || coalesce(
$md$| endpoint | stuck after | the reconciler takes over with |
|---|---|---|
$md$ || part ||
$md$

For each of them:

1. The claim is committed before the provider is called. `idem_claim` returns a `provider_key`, to be sent as the provider's
   own idempotency key: a UUID (version 8) from SHA-256 of tenant, endpoint, key and request hash, so that takeovers, crashes,
   failovers and restores all send the same one.
2. `idem_checkpoint` stores, in the transaction of each local step, how far the operation has come.
3. A claim that is still open after its `stuck_after` shows in the view `idem_stuck`$md$
    || CASE WHEN by_worker THEN ', and the background worker logs it' ELSE '' END || $md$.
   Duplicates get 409 meanwhile, whatever its age.
4. `idem_reconcile` hands it to one reconciler: it raises the attempt, so that the old owner is refused from then on (`ID003`),
   and sets a lease, after which it can be handed out again.
5. The reconciler asks the provider what happened, by `provider_key`, and ends the claim with its attempt: `idem_complete`
   (it happened), `idem_fail` (it was declined), `idem_release` (it never happened: the next arrival executes).
6. Never a blind retry: while the answer is unknown the claim stays open. Nothing re-runs, expires or sweeps it.
$md$, E'No endpoint has an external effect.\n');

  -- Roles, as the ACLs of the extension's functions have them.
  SELECT string_agg(format('| %s | %s |', CASE WHEN h.grantee = 0 THEN '**PUBLIC**'
                                               ELSE @extschema@.idem_markdown(pg_get_userbyid(h.grantee)::text, true)
                                          END, h.kind), E'\n' ORDER BY pg_get_userbyid(h.grantee) COLLATE "C")
    INTO part
    FROM (SELECT a.grantee,
                 CASE WHEN bool_or(p.proname = 'idem_protect') THEN 'operator'
                      WHEN bool_or(p.proname = 'idem_reconcile') THEN 'reconciler'
                      WHEN bool_or(p.proname = 'idem_claim') THEN 'application'
                      ELSE 'single functions' END AS kind
            FROM pg_depend d
            JOIN pg_proc p ON p.oid = d.objid
           CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
           WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass
             AND d.refobjid = extension AND d.deptype = 'e'
             AND a.privilege_type = 'EXECUTE' AND a.grantee <> p.proowner
           GROUP BY a.grantee) h;
  doc := doc || E'\n## 10. Roles\n\n' || coalesce(E'| role | may act as |\n|---|---|\n' || part || E'\n',
                                                  E'Nothing is granted.\n') || format(
$md$
Members of a role have its rights; superusers and the owner of the tables, %s, have all. Rights are given
by `idem_grant()`: nobody needs one on the tables.
$md$, (SELECT @extschema@.idem_markdown(pg_get_userbyid(c.relowner)::text, true)
         FROM pg_class c WHERE c.oid = '@extschema@.idempotency_keys'::regclass));

  -- Only the extension's own idem_health(): another's in the same schema must not run with our rights.
  IF EXISTS (SELECT FROM pg_depend d
              WHERE d.classid = 'pg_proc'::regclass AND d.objid = to_regprocedure('@extschema@.idem_health()')
                AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = extension AND d.deptype = 'e') THEN
    EXECUTE $health$
      SELECT string_agg(format('| %s | %s | %s |', @extschema@.idem_markdown(h.severity::text, false),
                               @extschema@.idem_markdown(h.finding::text, false), @extschema@.idem_markdown(h.remedy::text, false)), E'\n'
                        ORDER BY h.n)
        FROM (SELECT f.severity, f.finding, f.remedy, row_number() OVER () AS n
                FROM @extschema@.idem_health() f) h $health$ INTO part;
    doc := doc || E'\n## 11. Open findings\n\n' || coalesce(
      E'| severity | finding | remedy |\n|---|---|---|\n' || part || E'\n', E'None.\n');
  END IF;
  RETURN rtrim(doc, E'\n');
END;
END
$idem_design_doc$;

COMMENT ON FUNCTION @extschema@.idem_design_doc() IS
  'The design document as Markdown, from the live registry and settings: inputs, protected endpoints, scope, storage, sizing, states, body hash, commit guard, reconciliation, roles and open findings. psql -At -c ''SELECT idem_design_doc()'' > idempotency.md';
