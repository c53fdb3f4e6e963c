-- Literal text inside Markdown, also in a table cell. Names become code; what is written for people stays prose.
CREATE FUNCTION @extschema@._idem_markdown(value text, as_code boolean)
RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $_idem_markdown$
DECLARE
  -- What cannot be seen, or changes how its neighbours are seen, as marks of direction do.
  invisible text := CASE getdatabaseencoding()
                      WHEN 'UTF8' THEN '[\u0001-\u001f\u007f-\u00a0\u00ad\u061c\u180e\u2000-\u200f'
                                       '\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff9-\ufffb]'
                      ELSE '[\u0001-\u001f\u007f]' END;
  shown     text := coalesce(_idem_markdown.value, '');
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
$_idem_markdown$;

COMMENT ON FUNCTION @extschema@._idem_markdown(text, boolean) IS
  'The value as literal text for a Markdown table: prose with its special characters escaped, or a code span.';
