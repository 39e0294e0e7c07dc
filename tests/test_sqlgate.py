"""The SQL gate lets reading through, holds against everything else, and writes answers that people and scripts read."""

import csv
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd.errors import KvlogdError, StoreError
from kvlogd.model import Engine, Run, Stats
from kvlogd.rows import Batch
from kvlogd.sheet import Format
from kvlogd.sqlgate import answer
from kvlogd.store import Store

T0 = 1_764_400_000.0
SECRET = "hunter2-not-to-be-read"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gate")
    (folder / "secret.csv").write_text(f"a\n{SECRET}\n", encoding="utf-8")
    (folder / "secret.json").write_text(f'{{"a": "{SECRET}"}}\n', encoding="utf-8")
    path = folder / "kv.duckdb"
    with Store.open(path) as store:
        run, many = Run(1, 1, 1, T0, True, blocks=100), [Stats(T0 + i, 1, 0, None, 1.5, 2, 3, 0, 0.5) for i in range(3)]
        store.commit(Batch([Engine(1, "s", 0, "s/\x1b[31m0")], [run], many, [1, 1, 1]))
    return path


@pytest.fixture(scope="module")
def writer(path: Path) -> Iterator[Store]:
    """A store that could write, so that only the gate stands between the query and the file."""
    with Store.open(path) as store:
        yield store


@pytest.fixture
def here(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("KVLOGD_TEST_SECRET", SECRET)
    return path


def ask(store: Store, sql: str, form: Format = Format.CSV, max_rows: int | None = None) -> str:
    out = io.StringIO()
    answer(store, sql, form, out, max_rows=max_rows)
    return out.getvalue()


ATTACKS = [
    "INSERT INTO meta VALUES ('x', 'y')",
    "UPDATE meta SET value = '99'",
    "DELETE FROM samples",
    "TRUNCATE samples",
    "DROP TABLE samples",
    "DROP VIEW kv",
    "ALTER TABLE meta ADD COLUMN x INTEGER",
    "CREATE TABLE x (i INTEGER)",
    "CREATE TEMP TABLE x AS SELECT 1",
    "CREATE OR REPLACE VIEW kv AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "CREATE INDEX i ON meta (key)",
    "CREATE SEQUENCE q",
    "MERGE INTO meta USING (SELECT 1) s ON false WHEN NOT MATCHED THEN INSERT VALUES ('x', 'y')",
    "COMMENT ON TABLE meta IS 'x'",
    "WITH x AS (INSERT INTO meta VALUES ('x', 'y') RETURNING *) SELECT * FROM x",
    "WITH x AS (DELETE FROM samples RETURNING *) SELECT * FROM x",
    "WITH x AS (UPDATE meta SET value = '99' RETURNING *) SELECT count(*) FROM x",
    "SELECT * FROM (WITH x AS (DELETE FROM samples RETURNING *) SELECT * FROM x)",
    "EXPLAIN ANALYZE INSERT INTO meta VALUES ('x', 'y')",
    "EXPLAIN ANALYZE DELETE FROM samples",
    "EXPLAIN ANALYZE WITH x AS (DELETE FROM samples RETURNING *) SELECT * FROM x",
    "EXPLAIN ANALYZE COPY samples TO 'out.csv'",
    "EXPLAIN ANALYZE SELECT * FROM read_text('secret.csv')",
    "EXPLAIN (ANALYZE) SELECT * FROM read_text('secret.csv')",
    "/* x */ EXPLAIN ANALYZE SELECT * FROM read_text('secret.csv')",
    "SELECT 1; DROP TABLE samples",
    "SELECT 1; COMMIT; DROP TABLE samples",
    "SELECT 1; SELECT 2",
    "COMMIT",
    "ROLLBACK",
    "BEGIN TRANSACTION READ WRITE",
    "COPY samples TO 'out.csv'",
    "COPY (SELECT 1) TO '/tmp/kvlogd-out.parquet'",
    "COPY meta FROM 'secret.csv'",
    "EXPORT DATABASE 'out'",
    "IMPORT DATABASE 'out'",
    "ATTACH 'other.duckdb' AS other",
    "ATTACH ':memory:' AS other",
    "DETACH kv",
    "USE memory",
    "SET threads = 8",
    "SET memory_limit = '100GB'",
    "SET enable_external_access = true",
    "SET VARIABLE x = 1",
    "RESET enable_external_access",
    "PRAGMA enable_profiling",
    "PRAGMA table_info('samples')",
    "PRAGMA database_list",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '/tmp/evil.duckdb_extension'",
    "CALL pragma_version()",
    "CALL force_checkpoint()",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "SELECT * FROM checkpoint()",
    "SELECT * FROM force_checkpoint()",
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT * FROM READ_TEXT('/etc/hostname')",
    "SELECT * FROM \"read_text\"('/etc/hostname')",
    "SELECT * FROM system.main.read_text('/etc/hostname')",
    "SELECT * FROM read_blob('kv.duckdb')",
    "SELECT * FROM read_csv('secret.csv')",
    "SELECT * FROM read_csv_auto('secret.csv')",
    "SELECT * FROM sniff_csv('secret.csv')",
    "SELECT * FROM read_json('secret.json')",
    "SELECT * FROM read_json_objects('secret.json')",
    "SELECT * FROM read_ndjson_auto('secret.json')",
    "SELECT * FROM read_parquet('x.parquet')",
    "SELECT * FROM parquet_metadata('x.parquet')",
    "SELECT * FROM read_duckdb('kv.duckdb')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM 'secret.csv'",
    'SELECT * FROM "secret.csv"',
    "SELECT * FROM '/etc/hostname'",
    "FROM 'secret.json'",
    "DESCRIBE 'secret.csv'",
    "SUMMARIZE 'secret.csv'",
    "DESCRIBE SELECT * FROM 'secret.csv'",
    "SUMMARIZE SELECT * FROM read_csv('secret.csv')",
    "TABLE 'secret.csv'",
    "SELECT (SELECT content FROM read_text('secret.csv'))",
    "SELECT * FROM samples WHERE EXISTS (FROM read_text('secret.csv'))",
    "SELECT * FROM samples, LATERAL (SELECT * FROM read_text('secret.csv'))",
    "WITH x AS (FROM read_text('secret.csv')) SELECT * FROM x",
    "WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT 2 FROM read_text('secret.csv')) SELECT * FROM x",
    "SELECT 1 UNION ALL SELECT length(content) FROM read_text('secret.csv')",
    "SELECT 1 ORDER BY (SELECT content FROM read_text('secret.csv'))",
    "SELECT 1 LIMIT (SELECT length(content) FROM read_text('secret.csv'))",
    "VALUES ((SELECT content FROM read_text('secret.csv')))",
    "PIVOT read_csv('secret.csv') ON a",
    "FROM (PIVOT read_csv('secret.csv') ON a IN (1) USING count(*))",
    "SELECT * FROM query('DROP TABLE samples')",
    "SELECT * FROM query('SELECT * FROM read_text(''secret.csv'')')",
    "SELECT * FROM query_table('secret.csv')",
    "SELECT * FROM query_table(['meta'])",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''secret.csv'')'))",
    "SELECT getenv('KVLOGD_TEST_SECRET')",
    "SELECT GETENV('KVLOGD_TEST_SECRET')",
    "SELECT count(*) FROM samples WHERE getenv('KVLOGD_TEST_SECRET') LIKE 'h%'",
    "SELECT list_transform([1], x -> getenv('KVLOGD_TEST_SECRET'))",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM which_secret('s3://x', 's3')",
    "SELECT * FROM duckdb_logs()",
    "SELECT write_log('x')",
    "SELECT nextval('q')",
    "SELECT sleep_ms(60000)",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM seq_scan('samples')",
    "SELECT * FROM python_map_function()",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM test_all_types()",
    "SELECT json_serialize_plan('SELECT * FROM read_csv(''kv.duckdb'')')",
    "SELECT JSON_Serialize_Plan('SELECT * FROM read_blob(''kv.duckdb'')')",
    "SELECT \"json_serialize_plan\"('SELECT 1')",
    "SELECT system.main.json_serialize_plan('SELECT 1')",
    "SELECT 'SELECT * FROM read_csv(''kv.duckdb'')'.json_serialize_plan()",
    "SELECT list_transform(['KVLOGD_TEST_SECRET'], x -> x.getenv())",
    "SELECT [x.getenv() FOR x IN ['KVLOGD_TEST_SECRET']]",
    "SELECT pg_sleep(60)",
    "SELECT count(*) OVER (ORDER BY getenv('KVLOGD_TEST_SECRET')) FROM samples",
    "SELECT count(*) FILTER (getenv('KVLOGD_TEST_SECRET') > '') FROM samples",
    "SELECT COLUMNS(x -> getenv(x) > '') FROM samples",
    "SELECT * REPLACE (getenv('KVLOGD_TEST_SECRET') AS value) FROM meta",
    "FROM meta SELECT getenv('KVLOGD_TEST_SECRET')",
    "VALUES (getenv('KVLOGD_TEST_SECRET'))",
    "SELECT 1 FROM meta GROUP BY getenv('KVLOGD_TEST_SECRET')",
    "SELECT 1 FROM meta ORDER BY getenv('KVLOGD_TEST_SECRET')",
    "SELECT 1 FROM meta a JOIN meta b ON getenv('KVLOGD_TEST_SECRET') > ''",
    "SELECT 1 FROM range(length(getenv('KVLOGD_TEST_SECRET')))",
    "SELECT 1 LIMIT length(getenv('KVLOGD_TEST_SECRET'))",
    "SELECT DISTINCT ON (getenv('KVLOGD_TEST_SECRET')) 1 FROM meta",
    "SELECT 1 FROM meta QUALIFY getenv('KVLOGD_TEST_SECRET') > ''",
    "SELECT CASE WHEN true THEN getenv('KVLOGD_TEST_SECRET') END",
    "SELECT {'a': getenv('KVLOGD_TEST_SECRET')}",
    "SELECT (SELECT getenv('KVLOGD_TEST_SECRET'))",
    "FROM secret.csv",
    "FROM secret.json",
    "FROM kv.duckdb",
    'FROM "kv"."duckdb"',
    "FROM kv.main.duckdb",
    "FROM main.duckdb",
    "FROM main.CSV",
    "SUMMARIZE kv.duckdb",
    "DESCRIBE secret.csv",
    "SHOW TABLES FROM secret",
    "FROM kv.main.samples",
    "FROM U&'secret.csv'",
    "FROM \u202ekv.duckdb",
    "SEL\u0415CT 1",
    "SELECT 1\uff1b DROP TABLE samples",
    "SELECT 1;\u00a0DROP TABLE samples",
    "SELECT 1 --\n; DROP TABLE samples",
    "SELECT 1 /* ; */ ; /* */ DROP TABLE samples",
    "SELECT $$x$$; DROP TABLE samples",
    "SELECT * FROM duckdb_profiling_settings()",
    "SELECT * FROM histogram('secret.csv', 'a')",
    "SELECT repeat('x', 1000000000)",
    "SELECT lpad('x', 1000000000, 'y')",
    "SELECT printf('%1000000000d', 1)",
    "SELECT format('{:>1000000000}', 1)",
    "SELECT range(1000000000)",
    "SELECT generate_series(1, 1000000000)",
    "SELECT list_resize([1], 1000000000)",
    "SELECT array_resize([1], 1000000000)",
    "SELECT current_setting('memory_limit')",
    "SELECT * FROM writer",
    "SELECT * FROM nowhere",
    "SELECT nothing FROM samples",
    "SELECT ? FROM samples",
    "SELECT 1 /* and no end",
    "SELECT 1) AS q(c0), (DROP TABLE samples",
    "SELEKT 1",
    "",
    "  ;; ",
    "-- nothing",
    "SELECT '\0'",
    "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
    "SELECT " + "1+" * 30_000 + "1",
    "SELECT '" + "x" * 70_000 + "'",
]


def digest(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.suffix != ".lock"}


@pytest.mark.parametrize("sql", ATTACKS, ids=[sql[:60].replace("\0", "0") for sql in ATTACKS])
def test_the_gate_holds(writer: Store, here: Path, sql: str) -> None:
    out = io.StringIO()
    before = ask(writer, "SELECT (SELECT count(*) FROM samples), (SELECT string_agg(key || value) FROM meta)")
    with pytest.raises(KvlogdError) as caught:
        answer(writer, sql, Format.CSV, out, limit_s=10)
    assert out.getvalue() == ""
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert Path("/etc/hostname").read_text(encoding="utf-8").strip() not in str(caught.value)
    assert before == ask(writer, "SELECT (SELECT count(*) FROM samples), (SELECT string_agg(key || value) FROM meta)")
    assert {p.name for p in here.parent.iterdir()} <= {
        "kv.duckdb",
        "kv.duckdb.wal",
        "kv.duckdb.lock",
        "secret.csv",
        "secret.json",
    }


def test_all_attacks_leave_a_read_only_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "kv.duckdb"
    Store.open(path).close()
    before = digest(tmp_path)
    with Store.open(path, read_only=True) as store:
        for sql in ATTACKS:
            with pytest.raises(KvlogdError):
                answer(store, sql, Format.CSV, io.StringIO(), limit_s=10)
    assert digest(tmp_path) == before


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO meta VALUES ('x', 'y')",
        "DROP TABLE samples",
        "SELECT * FROM read_text('secret.csv')",
        "SELECT * FROM 'secret.csv'",
        "COPY meta TO 'out.csv'",
        "SET memory_limit = '100GB'",
        "ATTACH 'other.duckdb' AS other",
    ],
)
def test_the_store_holds_also_without_the_gate(writer: Store, here: Path, sql: str) -> None:
    with pytest.raises(StoreError), writer.query(sql, limit_s=10) as found:
        list(found.rows)
    assert ask(writer, "SELECT count(*) FROM meta") == "count_star()\r\n1\r\n"
    assert not (here.parent / "out.csv").exists()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "select 1;",
        " SELECT 1 -- why",
        "FROM samples",
        "TABLE samples",
        "VALUES (1)",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t WHERE i < 5) SELECT sum(i) FROM t",
        "SELECT * FROM range(3)",
        "SELECT unnest([1, 2])",
        "SELECT * FROM unnest([1, 2])",
        "SELECT * FROM main.samples UNION ALL SELECT * FROM samples",
        "SELECT * FROM (PIVOT samples ON running IN (3) USING count(*))",
        "SELECT count(*) FILTER (running > 1), median(kv_usage) OVER () FROM kv GROUP BY kv_usage",
        "SELECT json_extract(numbers, '$.tp') FROM events",
        "DESCRIBE samples",
        "DESCRIBE SELECT * FROM kv",
        "SHOW TABLES",
        "SUMMARIZE samples",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM duckdb_columns()",
        "EXPLAIN SELECT 1",
        "explain analyze FROM samples",
        "SELECT ts, ts AS again, [ts] FROM samples ORDER BY ts DESC; ",
        "SELECT * FROM samples a ASOF JOIN samples b ON a.ts >= b.ts",
        "SELECT row_number() OVER w, lag(running) OVER w, sum(running) OVER w FROM samples WINDOW w AS (ORDER BY ts)",
        "SELECT time_bucket(INTERVAL 5 MINUTE, ts) AS t, avg(kv_usage), regr_slope(kv_usage, epoch(ts)) FROM samples "
        "GROUP BY ALL HAVING count(*) > 0 ORDER BY t",
        "SELECT ts FROM samples WHERE ts > now() - INTERVAL 1 HOUR UNION ALL SELECT max(ts) FROM samples",
        "SELECT quantile_cont(kv_usage, [0.5, 0.9]), count(DISTINCT running), arg_max(ts, running) FROM samples",
        "SELECT label LIKE 's/%', label ILIKE 'S%', label SIMILAR TO 's.*', label GLOB 's*', label[1], "
        "extract(hour FROM TIMESTAMP '2026-01-01'), {'a': 1}.a, [1, 2][1], MAP {'a': 1}['a'], 1 IN (1, 2), "
        "x BETWEEN 1 AND 2, NOT true, -1, 7 // 2, 7 % 2, 2 ** 3, 'a' || 'b', coalesce(NULL, 1), 1::VARCHAR, "
        "[y * 2 FOR y IN [1, 2]], list_transform([1], lambda z: z + 1), substring('abc' FROM 1 FOR 2), trim(' x '), "
        "position('a' IN 'abc'), strftime(TIMESTAMP '2026-01-01', '%H'), 5!, @ -1, count(*) OVER () "
        "FROM engines, range(1) t(x)",
        "SELECT * EXCLUDE (ts), COLUMNS('kv.*') FROM samples",
        "PIVOT samples ON running IN (3) USING count(*)",
        "SELECT (SELECT max(running) FROM samples s WHERE s.engine_id = e.engine_id) FROM main.engines e",
        "SELECT numbers ->> '$.tp', numbers -> '$.tp' FROM events",
    ],
)
@pytest.mark.parametrize("form", list(Format))
def test_reading_passes(writer: Store, path: Path, sql: str, form: Format) -> None:
    assert ask(writer, sql, form).count("\n") >= 1


TYPES = """SELECT TIMESTAMPTZ '2026-11-29 15:31:00+01' AS ts, 1.5::DOUBLE AS d, 'nan'::DOUBLE AS n, NULL AS u,
  true AS b, 12.50::DECIMAL(9,2) AS m, 'a,"b"' || chr(10) || chr(27) AS t, [1, NULL] AS l, {'k': 0.5} AS s,
  DATE '2026-11-29' AS day, INTERVAL 90 SECOND AS i, TIMESTAMPTZ '2026-11-29 14:31:00.25+00' AS f, 7 AS d"""


def test_json_is_what_scripts_want(writer: Store) -> None:
    assert json.loads(ask(writer, TYPES, Format.JSON)) == [
        {
            "ts": "2026-11-29T14:31:00+00:00", "d": 1.5, "n": None, "u": None, "b": True, "m": 12.5,
            "t": 'a,"b"\n\x1b', "l": [1, None], "s": {"k": 0.5}, "day": "2026-11-29", "i": "0:01:30",
            "f": "2026-11-29T14:31:00.250000+00:00", "d_2": 7,
        }
    ]  # fmt: skip
    assert ask(writer, "SELECT 1 AS a WHERE false", Format.JSON) == "[]\n"
    assert ask(writer, "FROM range(2)", Format.JSON) == '[{"range": 0},\n{"range": 1}]\n'


def test_csv_is_rfc_4180(writer: Store) -> None:
    text = ask(writer, TYPES)
    head, row = list(csv.reader(io.StringIO(text, newline="")))
    assert head == ["ts", "d", "n", "u", "b", "m", "t", "l", "s", "day", "i", "f", "d"]
    assert row[:7] == ["2026-11-29T14:31:00+00:00", "1.5", "nan", "", "true", "12.50", 'a,"b"\n\x1b']
    assert text.endswith("\r\n")


def test_a_table_is_aligned_and_harmless(writer: Store) -> None:
    sql = (
        "SELECT label, 5 * engine_id AS n, NULL AS u FROM engines UNION ALL SELECT 'long label', 12345, 'x' ORDER BY n"
    )
    assert ask(writer, sql, Format.TABLE).splitlines() == [
        "label            n  u",
        "-----------  -----  ----",
        "s/\\x1b[31m0      5  NULL",
        "long label   12345  x",
    ]


def test_a_table_is_never_cut(writer: Store) -> None:
    lines = ask(
        writer, "SELECT range, (SELECT string_agg('x', '') FROM range(300)) FROM range(5000)", Format.TABLE
    ).splitlines()
    assert len(lines) == 5002
    assert lines[-1] == " 4999  " + "x" * 300


def test_a_plan_keeps_its_lines(writer: Store) -> None:
    lines = ask(writer, "EXPLAIN SELECT running FROM samples WHERE kv_usage > 0.1", Format.TABLE).splitlines()
    assert any("samples" in line for line in lines)
    assert not any("\\n" in line for line in lines)


def test_too_many_rows_end_with_the_mend(writer: Store) -> None:
    assert ask(writer, "FROM range(3)", max_rows=3).count("\n") == 4
    with pytest.raises(StoreError, match="more than 3 rows: add a LIMIT"):
        ask(writer, "FROM range(4)", max_rows=3)


def test_an_error_while_rows_are_read_is_one_line(writer: Store) -> None:
    with pytest.raises(StoreError, match=r"[Cc]ould not") as caught:
        ask(writer, "SELECT CAST(CASE WHEN range = 90000 THEN 'x' ELSE '1' END AS INTEGER) FROM range(100000)")
    assert "\n" not in str(caught.value)
