"""Makes an empty database a store, lifts an older store to this version, and refuses what is neither.

Promises one transaction: after a kill in the middle the store is as old as before. Knows no database: a connection is
what can execute.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kvlogd import schema
from kvlogd.disk import private_files
from kvlogd.errors import StoreError
from kvlogd.transaction import Connection


def prepare(con: Connection, path: Path, read_only: bool, migrations: Mapping[int, Sequence[str]]) -> None:
    """Create or migrate the tables unless `read_only`; raises StoreError for what is no store of ours."""
    tables = {row[0] for row in con.execute("SELECT table_name FROM duckdb_tables() WHERE NOT internal").fetchall()}
    if not tables and not read_only:
        _transact(con, [*schema.ddl(), f"INSERT INTO meta VALUES ('schema_version', '{schema.SCHEMA_VERSION}')"])  # noqa: S608
        return
    found = _version(con, path, tables)
    if found > schema.SCHEMA_VERSION:
        what = f"has schema version {found}, this kvlogd knows {schema.SCHEMA_VERSION}"
        raise StoreError(what, where=str(path), mend="install a newer kvlogd; the store was left as it is")
    if found == schema.SCHEMA_VERSION:
        return
    if read_only:
        raise StoreError(f"has the old schema version {found}", where=str(path), mend="open it with `kvlogd run` once")
    try:
        steps = schema.upgrade(found, migrations)
    except KeyError as error:
        mend = "open it with the kvlogd that wrote it"
        raise StoreError(f"no way leads from schema version {error} on", where=str(path), mend=mend) from error
    _transact(con, [*steps, f"UPDATE meta SET value = '{schema.SCHEMA_VERSION}' WHERE key = 'schema_version'"])  # noqa: S608


def _version(con: Connection, path: Path, tables: set[str]) -> int:
    row = None
    if "meta" in tables:
        row = con.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is None or not str(row[0]).isdecimal():
        raise StoreError("is a DuckDB file but no kvlogd store", where=str(path), mend="give another path")
    return int(row[0])


def _transact(con: Connection, statements: Sequence[str]) -> None:
    # An error leaves the transaction open; the caller closes the connection, which rolls it back.
    with private_files():
        con.execute("BEGIN TRANSACTION")
        for statement in statements:
            con.execute(statement)
        con.execute("COMMIT")
