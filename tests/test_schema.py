"""The schema's data, its text and what DuckDB makes of it agree."""

from pathlib import Path

import pytest

from kvlogd import bookkeeping, schema, table, telemetry
from kvlogd.model import Engine, Gap, Run, Stats
from kvlogd.store import Store

DOCS = Path(__file__).parent.parent / "docs" / "schema.md"


def test_the_page_is_what_the_schema_says() -> None:
    assert DOCS.read_text(encoding="utf-8") == schema.markdown()


def test_every_comment_and_type_is_in_the_database(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.duckdb") as store:
        sql = "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() WHERE NOT internal"
        with store.query(sql, limit_s=30) as answer:
            found = {(row[0], row[1]): (row[2], row[3]) for row in answer.rows}
    wanted = {
        (what.name, column.name): (column.type.replace("TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE"), column.comment)
        for what in (*schema.TABLES, *schema.VIEWS)
        for column in what.columns
    }
    assert found == wanted


@pytest.mark.parametrize(
    ("table", "record"),
    [(telemetry.ENGINES, Engine), (telemetry.RUNS, Run), (bookkeeping.GAPS, Gap), (telemetry.SAMPLES, Stats)],
)
def test_columns_follow_the_records(table: table.Table, record: type[tuple[object, ...]]) -> None:
    fields = [name.removesuffix("_s") for name in getattr(record, "_fields", ())]
    columns = [column.name for column in table.columns]
    if table is telemetry.SAMPLES:
        assert set(columns) - {"engine_id", "run_id"} == set(fields) - {"pid", "engine_index"}
    else:
        assert columns == fields


def test_upgrade_takes_one_step_after_the_other() -> None:
    now = schema.SCHEMA_VERSION
    steps = {now - 2: ("a", "b"), now - 1: ("c",)}
    assert schema.upgrade(now - 2, steps) == ["a", "b", "c"]
    assert schema.upgrade(now - 1, steps) == ["c"]
    assert schema.upgrade(now, steps) == []
    with pytest.raises(KeyError):
        schema.upgrade(now - 3, steps)
