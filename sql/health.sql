-- What a person would check by hand, one row a finding. Each part is in a file of its own, health_*.sql; a check is a
-- SELECT there, with a comment that names it.
--
-- A remedy is one statement on one line that a superuser can run as it is, and perhaps a comment behind it, with what
-- SQL cannot do or with the words of another statement. A name is a literal or an identifier in the statement
-- (_idem_literal, _idem_identifier), and never in a comment; findings print it quoted, as JSON.
--
-- It never fails and never waits, whatever somebody did to the tables, which are read leniently. It runs as the
-- extension's owner, to see what a monitor may not; that is safe because the bodies are bound when they are made, to
-- PostgreSQL's catalogs and to our own functions, and no look-up by name is left.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE FUNCTION @extschema@.idem_health(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- The same text in every session, and in the design document.
SET intervalstyle = 'postgres'
SET jit = off
BEGIN ATOMIC
  -- None of the parts is dropped between two steps.
  SELECT @extschema@._idem_hold(false);
  SELECT * FROM @extschema@._idem_health_library()
  UNION ALL
  -- A standby has no more of its own; the rest is the primary's.
  SELECT h.*
    FROM (SELECT * FROM @extschema@._idem_health_worker()
          UNION ALL SELECT * FROM @extschema@._idem_health_places()
          UNION ALL SELECT * FROM @extschema@._idem_health_access()
          UNION ALL SELECT * FROM @extschema@._idem_health_code()
          UNION ALL SELECT * FROM @extschema@._idem_health_rights()
          UNION ALL SELECT * FROM @extschema@._idem_health_tables()
          UNION ALL SELECT * FROM @extschema@._idem_health_indexes()
          UNION ALL SELECT * FROM @extschema@._idem_health_rules()
          UNION ALL SELECT * FROM @extschema@._idem_health_backlog()
          UNION ALL SELECT * FROM @extschema@._idem_health_care()
          UNION ALL SELECT * FROM @extschema@._idem_health_replication()
          UNION ALL SELECT * FROM @extschema@._idem_health_endpoints()) h
   WHERE NOT pg_is_in_recovery();
END;

COMMENT ON FUNCTION @extschema@.idem_health() IS
  'One row a finding: severity (critical, warning, info), what is wrong, and the statement or setting that mends it. No row when all is well; on a standby only what concerns the standby. Bounded work, whatever the size of the key store; never waits for a lock.';

SET LOCAL search_path = @extschema@, pg_temp;
