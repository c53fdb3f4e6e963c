-- What functions for administrators begin and end with, and reports begin with.

CREATE FUNCTION @extschema@._idem_hold(for_change boolean)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '_idem_hold';

COMMENT ON FUNCTION @extschema@._idem_hold(boolean) IS
  'Keeps the extension from being dropped until the transaction ends; for_change: one transaction at a time. 55000 when it is gone.';

CREATE FUNCTION @extschema@._idem_log(message text)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '_idem_log';

COMMENT ON FUNCTION @extschema@._idem_log(text) IS
  'Logs what the session''s user did, without the statement.';
