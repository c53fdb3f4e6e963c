-- What reports read, and how they print it.
--
-- Reading a table plans it, and planning runs what its owner has put on it: so data is read in C, with the tables'
-- owner's rights (src/reports.rs), and everything else from PostgreSQL's catalogs. The bodies below are bound when this
-- script runs: nothing in them is looked up by name later, whoever owns the schema then.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE FUNCTION @extschema@._idem_open_claims(
  lenient boolean DEFAULT false,
  OUT endpoint text, OUT registered boolean, OUT open bigint, OUT stuck bigint, OUT leased bigint,
  OUT oldest timestamptz)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', '_idem_open_claims';

COMMENT ON FUNCTION @extschema@._idem_open_claims(boolean) IS
  'Open claims of each registered endpoint and of up to a hundred others, largest first; the rest of those together in a row without an endpoint. Lenient: no rows where the tables cannot be read.';

CREATE FUNCTION @extschema@._idem_sweep_lag(lenient boolean DEFAULT false)
RETURNS interval
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', '_idem_sweep_lag';

COMMENT ON FUNCTION @extschema@._idem_sweep_lag(boolean) IS
  'How long the oldest expired row has been due for the sweep; NULL when none is. Lenient: NULL where the tables cannot be read.';

CREATE FUNCTION @extschema@._idem_registry(
  lenient boolean DEFAULT false,
  OUT endpoint text, OUT effect text, OUT key_required boolean, OUT retry_window interval, OUT ttl interval,
  OUT stuck_after interval, OUT max_body_bytes integer, OUT expected_writes_per_day bigint, OUT guesses text[],
  OUT notes text, OUT created_at timestamptz)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', '_idem_registry';

COMMENT ON FUNCTION @extschema@._idem_registry(boolean) IS
  'The rows of idempotency_endpoints by endpoint, at most 10000. Lenient: no rows where the tables cannot be read.';

CREATE FUNCTION @extschema@._idem_unregistered_in_use(
  lenient boolean DEFAULT false, OUT endpoint text, OUT has_open_claims boolean, OUT has_finished_claims boolean)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', '_idem_unregistered_in_use';

COMMENT ON FUNCTION @extschema@._idem_unregistered_in_use(boolean) IS
  'Up to 20 endpoints that are not registered, of the 1000 oldest open claims and the 1000 last rows to expire. Lenient: no rows where the tables cannot be read.';

CREATE FUNCTION @extschema@._idem_tables_problem()
RETURNS text
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '_idem_tables_problem';

COMMENT ON FUNCTION @extschema@._idem_tables_problem() IS
  'The error that using the tables raises; NULL when there is none. Never waits for a lock.';

CREATE FUNCTION @extschema@._idem_counted(OUT kind text, OUT endpoint text, OUT n bigint[])
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  -- Without preloading idem_counters() would raise: this condition is decided before it is called.
  SELECT c.kind, c.endpoint, c.counters FROM @extschema@.idem_counters() c WHERE @extschema@.idem_is_preloaded();
END;

COMMENT ON FUNCTION @extschema@._idem_counted() IS
  'As idem_counters(); no rows without preloading.';

-- Names as text that cannot break out of its place, whatever is in them.

CREATE FUNCTION @extschema@._idem_odd_characters()
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT CASE getdatabaseencoding()
           WHEN 'UTF8'
           THEN E'[\\u0001-\\u001f\\u007f-\\u009f\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff]'
           ELSE E'[\\x01-\\x1f\\x7f]' END;
END;

COMMENT ON FUNCTION @extschema@._idem_odd_characters() IS
  'A regular expression: a character that ends a line, cannot be seen, or changes how its neighbours are seen.';

CREATE FUNCTION @extschema@._idem_escaped(value text, quote text, mark text)
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT quote || coalesce(string_agg(
           CASE WHEN s.c IN (quote, E'\\') THEN s.c || s.c
                WHEN s.c ~ @extschema@._idem_odd_characters() THEN mark || lpad(to_hex(ascii(s.c)), 4, '0')
                ELSE s.c END, '' ORDER BY s.n), '') || quote
    FROM regexp_split_to_table(value, '') WITH ORDINALITY AS s(c, n);
END;

COMMENT ON FUNCTION @extschema@._idem_escaped(text, text, text) IS
  'The value in quotes, quotes and backslashes in it doubled, and what is not to be seen as the mark and four hexadecimal digits.';

CREATE FUNCTION @extschema@._idem_literal(value text)
RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT CASE WHEN value ~ @extschema@._idem_odd_characters() OR position(E'\\' IN value) > 0
              THEN 'E' || @extschema@._idem_escaped(value, '''', E'\\u')
              ELSE quote_literal(value) END;
END;

COMMENT ON FUNCTION @extschema@._idem_literal(text) IS
  'The value as an SQL literal on one line.';

CREATE FUNCTION @extschema@._idem_identifier(value text)
RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT CASE WHEN value ~ @extschema@._idem_odd_characters()
              THEN 'U&' || @extschema@._idem_escaped(value, '"', E'\\')
              ELSE quote_ident(value) END;
END;

COMMENT ON FUNCTION @extschema@._idem_identifier(text) IS
  'The name as an SQL identifier on one line.';

CREATE FUNCTION @extschema@._idem_qualified(relation oid, OUT quoted text, OUT printed text)
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT @extschema@._idem_identifier(n.nspname::text) || '.' || @extschema@._idem_identifier(c.relname::text),
         to_json(n.nspname || '.' || c.relname)::text
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
   WHERE c.oid = relation;
END;

COMMENT ON FUNCTION @extschema@._idem_qualified(oid) IS
  'The schema and name of a relation, for a statement and for people.';

CREATE FUNCTION @extschema@._idem_relations(OUT relation oid, OUT is_keys boolean, OUT is_root boolean)
RETURNS SETOF record
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  WITH RECURSIVE tables(relation, is_keys, is_root) AS (
    VALUES ('@extschema@.idempotency_keys'::regclass::oid, true, true),
           ('@extschema@.idempotency_endpoints'::regclass::oid, false, true)
    UNION
    SELECT c.oid, t.is_keys, false
      FROM tables t
      JOIN pg_inherits i ON i.inhparent = t.relation
      JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition)
  SELECT t.relation, t.is_keys, t.is_root FROM tables t;
END;

COMMENT ON FUNCTION @extschema@._idem_relations() IS
  'The two tables, wherever they are and whatever they are called now, and their partitions.';

CREATE FUNCTION @extschema@._idem_named_relations(
  OUT relation oid, OUT is_keys boolean, OUT is_root boolean, OUT quoted text, OUT printed text)
RETURNS SETOF record
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT r.relation, r.is_keys, r.is_root, q.quoted, q.printed
    FROM @extschema@._idem_relations() r, @extschema@._idem_qualified(r.relation) q
   ORDER BY NOT r.is_keys, NOT r.is_root, q.quoted;
END;

COMMENT ON FUNCTION @extschema@._idem_named_relations() IS
  'The same with their names, for a statement and for people.';

SET LOCAL search_path = @extschema@, pg_temp;
