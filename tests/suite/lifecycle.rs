//! CREATE and DROP EXTENSION, schemas, pg_dump and restore.
