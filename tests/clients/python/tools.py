"""What Alembic and Django make of a database with the extension in the schema `idempotency` and a table `public.orders`.

Connects by the environment (PGHOST, PGPORT, PGDATABASE, PGUSER) and prints a JSON object: what failed, by name.
"""

import io
import json
import os
import traceback

import django
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from django.conf import settings
from django.core.management import call_command
from django.core.management.color import no_style
from django.core.management.sql import sql_flush
from django.db import connections


def differences(**options):
    """What `alembic revision --autogenerate` would do, as `operation table`."""
    metadata = sqlalchemy.MetaData()
    sqlalchemy.Table("orders", metadata, sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True))
    # Everything else is in the environment.
    engine = sqlalchemy.create_engine("postgresql+psycopg://")
    with engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
    return sorted(f"{operation[0]} {operation[1].name}" for operation in found)


def models(database, *arguments):
    """The tables of which `inspectdb` makes models."""
    output = io.StringIO()
    call_command("inspectdb", *arguments, database=database, stdout=output)
    lines = [line.strip() for line in output.getvalue().splitlines()]
    return sorted(line.split("'")[1] for line in lines if line.startswith("db_table = "))


def expect(actual, expected):
    assert actual == expected, f"{actual!r} instead of {expected!r}"


def alembic_sees_nothing_by_default():
    expect(differences(), [])


def alembic_would_drop_the_tables_when_it_looks_at_all_schemas():
    found = differences(include_schemas=True)
    assert "remove_table idempotency_keys" in found, found


def alembic_sees_nothing_with_the_filter_that_is_documented():
    def include_name(name, type_, parent_names):
        return not (type_ == "schema" and name == "idempotency")

    expect(differences(include_schemas=True, include_name=include_name), [])


def django_inspects_only_the_search_path():
    expect(models("default", "--include-views"), ["orders"])
    expect(models("wide"), ["idempotency_endpoints", "idempotency_keys", "orders"])
    expect(models("wide", "orders"), ["orders"])


def django_flushes_only_its_own_tables():
    for database in ["default", "wide"]:
        expect(sql_flush(no_style(), connections[database], allow_cascade=True), [])


CASES = [
    alembic_sees_nothing_by_default,
    alembic_would_drop_the_tables_when_it_looks_at_all_schemas,
    alembic_sees_nothing_with_the_filter_that_is_documented,
    django_inspects_only_the_search_path,
    django_flushes_only_its_own_tables,
]


def main():
    default = {"ENGINE": "django.db.backends.postgresql"}
    names = {"NAME": "PGDATABASE", "USER": "PGUSER", "HOST": "PGHOST", "PORT": "PGPORT"}
    default |= {name: os.environ[variable] for name, variable in names.items()}
    wide = default | {"OPTIONS": {"options": "-c search_path=public,idempotency"}}
    settings.configure(DATABASES={"default": default, "wide": wide})
    django.setup()
    failed = {}
    for case in CASES:
        try:
            case()
        except Exception:
            failed[case.__name__] = traceback.format_exc()
    tools = f"Alembic, Django {django.__version__}, SQLAlchemy {sqlalchemy.__version__}"
    print(json.dumps({"driver": tools, "passed": len(CASES) - len(failed), "failed": failed}))


main()
