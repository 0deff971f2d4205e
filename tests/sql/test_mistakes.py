"""Mistakes of analysts, and odd tables: each answer names the place and the way out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticdl.errors import DataError, ElasticDLError, UsageError
from elasticdl.sql import training
from elasticdl.sql.check import evaluate_request, predict_request, train_request
from elasticdl.sql.database_interface import DatabaseError, open_database
from elasticdl.sql.evaluation import evaluate
from elasticdl.sql.execute import Connection, SqlSession, execute
from elasticdl.sql.models import Models
from elasticdl.sql.parse import parse
from elasticdl.sql.prediction import PredictRequest, predict
from elasticdl.sql.statements import StatementError

TABLES = (
    "CREATE TABLE employee AS SELECT ['clerk', 'boss', 'chef'][1 + i % 3] AS role, i % 7 AS years, "
    "1000.0 * (i % 3) + i AS salary FROM range(60) rows(i);\n"
    "CREATE TABLE testdata AS SELECT role, years FROM employee LIMIT 9;\n"
)
SHORT = "hidden_units=[4], train.num_epochs=1"


def run(program: str, models: Path) -> list[list[dict]]:
    return [
        [row for batch in result.rows.batches for row in batch.to_pylist()] if result.rows else []
        for result in execute(program, SqlSession("duckdb://", str(models)))
    ]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Return a folder with a regressor `m` and a classifier `c`."""
    folder = tmp_path_factory.mktemp("models")
    run(
        f"{TABLES}SELECT * FROM employee TO TRAIN regressor.DNN WITH {SHORT} INTO m;"
        f"SELECT * FROM employee TO TRAIN classifier.DNN WITH {SHORT} LABEL role INTO c;"
        'SELECT years AS "in years", salary FROM employee TO TRAIN regressor.DNN WITH '
        f"{SHORT} INTO spaced;",
        folder,
    )
    return folder


def error_of(statement: str, models: Path) -> ElasticDLError:
    with pytest.raises(ElasticDLError) as caught:
        run(TABLES + statement, models)
    return caught.value


def caret_of(error: ElasticDLError) -> str:
    """Return the text above the caret."""
    *_, line, caret = str(error).splitlines()
    start = len(caret) - len(caret.lstrip())
    return line[start : len(caret)]


@pytest.mark.parametrize(
    ("column", "is_suggested"),
    [
        ("will_salary", False),
        ("a_salary1", False),
        ("salary_predicted", False),
        ("Sa_lary", True),
        ("salery", True),
    ],
)
def test_only_a_very_similar_column_is_suggested_for_a_missing_label(
    models, column, is_suggested
) -> None:
    error = error_of(f"SELECT role, years, 1.0 AS {column} FROM employee TO EVALUATE m", models)

    assert "The SELECT has no column 'salary' with the true values" in str(error)
    assert (f"did you mean '{column}'?" in str(error)) == is_suggested


TRAIN = "SELECT * FROM employee TO TRAIN regressor.DNN"
CLASSIFY = "SELECT * FROM employee TO TRAIN classifier.DNN"


@pytest.mark.parametrize(
    ("statement", "place", "problem"),
    [
        # A verb that is none.
        ("SELECT * FROM employee TO TRIAN regressor.DNN INTO x", "TRIAN", "did you mean 'TRAIN'?"),
        ("SELECT * FROM employee TRIAN regressor.DNN INTO x", "TRIAN", "did you mean 'TRAIN'?"),
        ("SELECT * FROM testdata TO PREDIC testdata.p USING m", "PREDIC", "mean 'PREDICT'?"),
        # Clauses.
        ("SELECT * FROM employee TRAIN regressor.DNN", "", "TRAIN needs INTO.*INTO my_model"),
        (TRAIN, "", "TRAIN needs INTO and a name for the trained model, such as INTO my_model"),
        ("SELECT * FROM testdata PREDICT testdata.p", "", "PREDICT needs USING"),
        (f"{TRAIN} LABEL salary, role INTO x", ",", "LABEL takes one name"),
        (f"{TRAIN} WITH train.num_epochs=1 seed=2 INTO x", "seed", "needs a comma"),
        (f"{TRAIN} INTO label", "label", "in double quotes"),
        (f"{TRAIN} WITH train.num_epoch=4 INTO x", "train.num_epoch", "not a training option"),
        (
            f"{TRAIN} WITH hidden_units='many' INTO x",
            "hidden_units='many'",
            r"the default, \[64, 64\]",
        ),
        (f"{TRAIN} WITH learning_rate=fast INTO x", "learning_rate=fast", "the default, 0.001"),
        (f"{TRAIN} WITH hidden_units=[-3] INTO x", "hidden_units=[-3]", "from 1 to"),
        (f"{TRAIN} WITH hidden_units=[0] INTO x", "hidden_units=[0]", "from 1 to"),
        (
            f"{TRAIN} WITH hidden_units=[1.5] INTO x",
            "hidden_units=[1.5]",
            r"the default, \[64, 64\]",
        ),
        (f"{TRAIN} WITH hidden_units=[1000000000] INTO x", "hidden_units=[1000000000]", "1 to"),
        (f"{TRAIN} WITH hidden_units=[90000, 90000] INTO x", "hidden_units=[90000, 90000]", "most"),
        (f"{TRAIN} WITH learning_rate=0 INTO x", "learning_rate=0", "above 0"),
        (f"{TRAIN} WITH model.embedding_size=0 INTO x", "model.embedding_size=0", "from 1 to"),
        (f"{TRAIN} WITH label_scale=-1 INTO x", "label_scale=-1", "above 0"),
        (
            "SELECT * FROM employee TO TRAIN classifier.DNN WITH num_classes=1 INTO x",
            "num_classes=1",
            "from 2 to",
        ),
        (
            f"{CLASSIFY} WITH class_counts=[1, 'a'] INTO x",
            "class_counts=[1, 'a']",
            "the number of rows",
        ),
        (
            f"{CLASSIFY} WITH classes=['a', 'b'], class_counts=[1] INTO x",
            "class_counts=[1]",
            "each of the 2 classes",
        ),
        (
            f"{CLASSIFY} WITH num_classes=3, class_counts=[1, 2] INTO x",
            "class_counts=[1, 2]",
            "each of the 3 classes",
        ),
        (f"{CLASSIFY} WITH classes=['a', 'a'] INTO x", "classes=['a', 'a']", "'a' twice"),
        # A query to validate on.
        (
            f"{TRAIN} WITH validation.select='SELECT role FROM employee' INTO x",
            "validation.select",
            "no column 'salary'",
        ),
        # A model that does not fit the rows.
        ("SELECT years FROM testdata TO PREDICT testdata.p USING m", "m", "no column 'role'"),
        (
            "SELECT role AS rolle, years FROM testdata TO PREDICT testdata.p USING m",
            "m",
            "trained on; did you mean 'rolle'.*AS role",
        ),
        (
            "SELECT 1 AS a, 2 AS b FROM testdata TO PREDICT testdata.p USING m",
            "m",
            r"no columns 'role', 'years', which m was trained on\. It has: a, b\. Name them",
        ),
        (
            "SELECT 7 AS role, years FROM testdata TO PREDICT t2.p USING m",
            "m",
            "'role' holds whole numbers.*on text",
        ),
        ("SELECT role, salary FROM employee TO EVALUATE m", "m", "no column 'years'"),
        ("SELECT role, salary FROM employee TO EXPLAIN m", "m", "no column 'years'"),
        (
            "SELECT role FROM testdata TO PREDICT testdata.p USING spaced",
            "spaced",
            'AS "in years"',
        ),
        # True values of another type.
        (
            "SELECT role, years, 'much' AS salary FROM employee TO EVALUATE m",
            "m",
            "'salary' holds text.*m was trained on numbers",
        ),
        (
            "SELECT role, years, today() AS day FROM employee TO EVALUATE m LABEL day",
            "day",
            "'day' holds dates.*m was trained on numbers",
        ),
        (
            "SELECT years, salary, 7 AS role FROM employee TO EXPLAIN c",
            "c",
            "'role' holds whole numbers.*c was trained on text",
        ),
        (
            "SELECT * FROM testdata TO PREDICT testdata.p WITH predict.probability=q USING m",
            "predict.probability=q",
            "predicts a number",
        ),
    ],
)
def test_an_error_points_at_its_place_before_a_row_is_read(
    statement, place, problem, models
) -> None:
    error = error_of(statement, models)

    assert isinstance(error, StatementError)
    assert re.search(f"(?s)line 3, .*{problem}", str(error)), error
    if place != "validation.select":
        assert caret_of(error) == place


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("SELECT * FROM employe", "employe"),
        ("SELECT * FROM employe TO TRAIN regressor.DNN INTO x", "employe"),
        ("SELECT rle, salary FROM employee TO TRAIN regressor.DNN INTO x", "rle"),
        ("SELECT * FROM employee\nWHER role = 'a'", "role"),
        (f"{TRAIN} WITH validation.select='SELECT * FROM employe' INTO x", "employe"),
        ("SELECT error('too old') AS a", "SELECT"),
    ],
)
def test_an_error_of_the_database_points_at_its_place(statement, place, models) -> None:
    error = error_of(statement, models)

    assert isinstance(error, DatabaseError)
    # As a wrong name in LABEL or COLUMN.
    assert error.exit_code == (4 if "too old" in statement else 2)
    assert re.search(r"^line [34], column \d+: duckdb://: ", str(error)), error
    assert caret_of(error) == place


@pytest.mark.parametrize(
    "extension",
    ["TO PREDICT t2.p USING m", "TO PREDICT testdata.p USING m", "TO EVALUATE m", "TO EXPLAIN m"],
)
def test_duplicate_columns_are_refused_with_their_place(extension, models) -> None:
    error = error_of(
        f"SELECT role, years, 7 AS salary, 'x' AS\nrole FROM testdata {extension}", models
    )

    assert isinstance(error, DataError)
    assert "line 4, column 1: Two columns are called 'role'" in str(error), error
    assert caret_of(error) == "role"


def test_duplicate_validation_columns_are_refused(models) -> None:
    error = error_of(
        f"{TRAIN} WITH validation.select='SELECT *, role FROM employee', {SHORT} INTO x", models
    )

    assert "Two columns are called 'role'" in str(error), error
    assert caret_of(error) == "validation.select"


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (f"{TRAIN} WITH {SHORT} LABEL role INTO x", "predicts a number; 'role' holds text"),
        (
            "SELECT role, today() AS day FROM employee TO TRAIN classifier.DNN LABEL day INTO x",
            "'day' holds dates, which cannot be classes",
        ),
    ],
)
def test_a_label_of_the_wrong_type_is_refused_before_rows_are_read(
    statement, problem, models, monkeypatch
) -> None:
    monkeypatch.setattr(training, "write_snapshot", None)

    error = error_of(statement, models)

    assert problem in str(error)
    assert caret_of(error) in {"role", "day"}


def test_names_may_contain_spaces_quotes_and_keywords(tmp_path) -> None:
    *_, rows = run(
        'CREATE TABLE "Order" AS SELECT i % 3 AS "Straße, Nr.", i % 5 AS "it""s", i % 2 = 0 AS '
        '"SELECT", 2.0 * i AS "GEHALT brutto" FROM range(40) rows(i);'
        f'SELECT * FROM "Order" TO TRAIN regressor.DNN WITH {SHORT} COLUMN "it""s", '
        'CATEGORY_ID("Straße, Nr."), "SELECT" LABEL "GEHALT brutto" INTO "into";'
        'CREATE TABLE copy AS FROM "Order"; SELECT * FROM copy TO PREDICT copy."für \'24" '
        'USING "into"; SELECT * FROM "Order" TO PREDICT main."Order"."a; DROP TABLE copy" '
        'USING "into"; SELECT "für \'24" = "a; DROP TABLE copy" AS same FROM copy JOIN "Order" '
        'USING ("GEHALT brutto")',
        tmp_path,
    )

    assert rows == [{"same": True}] * 40


def test_names_in_clauses_may_be_quoted_as_in_mysql() -> None:
    train, predict = parse(
        'SELECT * FROM `Order` TO TRAIN regressor.DNN COLUMN `a b`, INDICATOR(`c"d`) '
        "LABEL `GEHALT brutto` INTO m; SELECT * FROM `Order` TO PREDICT `Order`.`für ``24` USING m",
        "mysql",
    )

    assert train.columns[0].text == "a b"
    assert train.columns[1].arguments[0].text == 'c"d'
    assert train.label.text == "GEHALT brutto"
    assert (predict.table.text, predict.column.text) == ("Order", "für `24")


def test_labels_and_columns_are_case_insensitive(tmp_path) -> None:
    *_, rows = run(
        f"{TABLES}SELECT ROLE, SALARY, YEARS FROM EMPLOYEE TO TRAIN regressor.DNN WITH {SHORT} "
        "COLUMN INDICATOR(Role), YEARS LABEL Salary INTO m;"
        "SELECT * FROM testdata TO PREDICT TestData.P USING m; SELECT count(p) AS n FROM testdata",
        tmp_path,
    )

    assert rows == [{"n": 9}]


def test_every_kind_of_feature_accepts_missing_text(tmp_path) -> None:
    *_, rows = run(
        "CREATE TABLE t AS SELECT CASE WHEN i % 4 > 0 THEN 'r' || (i % 4) END AS role, "
        "CASE WHEN i % 5 > 0 THEN 'a b' END AS tags, CASE WHEN i % 6 > 0 THEN '0:1.5' END AS "
        "pairs, CASE WHEN i % 7 > 0 THEN i % 7 END AS years, i AS salary FROM range(60) rows(i);"
        f"SELECT * FROM t TO TRAIN regressor.DNN WITH {SHORT} INTO derived;"
        f"SELECT * FROM t TO TRAIN regressor.DNN WITH {SHORT} COLUMN EMBEDDING(role, 2), "
        "INDICATOR(role), CROSS([role, years], 20), CATEGORY_ID(years), CATEGORY_HASH(role, 9), "
        "BUCKET(years, [2, 4]), SEQ_CATEGORY_ID(tags, 20, ' '), SPARSE(pairs, 3) INTO named;"
        "SELECT * FROM t TO PREDICT t.p USING derived; SELECT * FROM t TO PREDICT t.q USING named;"
        "SELECT count(p) AS p, count(q) AS q FROM t",
        tmp_path,
    )

    assert rows == [{"p": 60, "q": 60}]


@pytest.mark.parametrize("kind", ["duckdb", "sqlite", "sqlalchemy", "postgresql", "mariadb"])
def test_predicting_no_rows_changes_nothing(kind, request, tmp_path, models, capfd) -> None:
    urls = {"duckdb": "duckdb://", "sqlite": "sqlite://"}
    urls["sqlalchemy"] = f"sqlite+pysqlite:///{tmp_path}/t.db"
    url = urls[kind] if kind in urls else request.getfixturevalue(kind).url
    with open_database(url) as database:
        for statement in (
            "DROP TABLE IF EXISTS no_risk",
            "DROP TABLE IF EXISTS people",
            "CREATE TABLE people (id INTEGER PRIMARY KEY, role VARCHAR(9), years INTEGER)",
            "INSERT INTO people VALUES (1, 'boss', 7)",
        ):
            with database.run(statement):
                pass
        for table, using, probability in (("people", "m", None), ("no_risk", "c", "sure")):
            asked = PredictRequest(
                "SELECT role, years, 7.5 AS salary FROM people WHERE years IS NULL",
                table, "predicted", using, probability=probability,
            )  # fmt: skip
            for _ in range(2):
                done = predict(asked, database, Models(str(models)))
                columns = ["predicted", *([probability] if probability else [])]
                assert done.to_pydict() == {
                    "table": [table] * len(columns), "column": columns, "rows": [0] * len(columns),
                }  # fmt: skip
        assert list(database.table("people").columns) == ["id", "role", "years"]
        with database.read("SELECT * FROM no_risk") as rows:
            assert rows.schema.names == ["role", "years", "salary", "predicted", "sure"]
            assert sum(batch.num_rows for batch in rows.batches) == 0
    said = capfd.readouterr().err
    assert "no rows to predict: people is unchanged." in said
    assert "no rows to predict: no_risk was created without rows." in said


@pytest.mark.parametrize("kind", ["duckdb", "sqlite", "mariadb"])
def test_columns_of_a_model_are_case_insensitive(kind, request, models) -> None:
    url = request.getfixturevalue(kind).url if kind == "mariadb" else f"{kind}://"
    trained = Models(str(models))
    with open_database(url) as database:
        for statement in (
            "DROP TABLE IF EXISTS cased",
            "CREATE TABLE cased (id INT PRIMARY KEY, ROLE VARCHAR(9), YEARS INT, Salary INT)",
            "INSERT INTO cased VALUES (1, 'boss', 3, 1000), (2, 'chef', 5, 2000)",
        ):
            with database.run(statement):
                pass

        def request_of(program: str, make):
            (statement,) = parse(program, database.dialect)
            return make(statement, program, database, trained)

        asked = request_of(
            "SELECT Role, YEARS FROM cased TO PREDICT cased.p USING m", predict_request
        )
        assert predict(asked, database, trained).to_pylist()[0]["rows"] == 2
        for program in (
            "SELECT ROLE, Years, SALARY FROM cased TO EVALUATE m",
            "SELECT ROLE, Years, id AS Pay FROM cased TO EVALUATE m LABEL PAY",
        ):
            metrics = evaluate(request_of(program, evaluate_request), database, trained)
            assert "loss" in metrics.column("metric").to_pylist()


def test_integers_of_any_type_may_be_classes(tmp_path) -> None:
    *_, rows = run(
        "CREATE TABLE t AS SELECT i AS a, (i % 3)::DOUBLE AS b FROM range(40) rows(i);"
        f"SELECT * FROM t TO TRAIN classifier.DNN WITH {SHORT} INTO c;"
        "SELECT a FROM t TO PREDICT t.p USING c; SELECT bool_and(p IN (0, 1, 2)) AS ok FROM t",
        tmp_path,
    )

    assert rows == [{"ok": True}]


def test_a_repaired_table_trains_with_the_same_statement(tmp_path) -> None:
    url, train = (
        f"duckdb:///{tmp_path}/t.db",
        f"SELECT * FROM t TO TRAIN regressor.DNN WITH {SHORT} INTO m",
    )
    session = SqlSession(url, str(tmp_path / "models"))
    request = "CREATE OR REPLACE TABLE t AS SELECT i AS a, {} AS b FROM range(40) rows(i)"
    with Connection(session) as connection:
        models = Models(session.models)

        def train_on(label: str) -> None:
            (statement,) = parse(train, "duckdb")
            with connection.opened() as database:
                with database.run(request.format(label)):
                    pass
                training.train(train_request(statement, train, database), database, models)

        with pytest.raises(DataError, match="'b' is 7 in every row"):
            train_on("7")
        train_on("i % 7")

        assert models.current("m").number == 1


def test_class_counts_must_match_the_values_of_the_rows(tmp_path) -> None:
    error = error_of(f"{CLASSIFY} WITH class_counts=[1, 2]\nLABEL role INTO x", tmp_path)

    assert isinstance(error, UsageError)
    assert "'role' has 3 different values: 'boss', 'chef', 'clerk'" in str(error), error
    assert caret_of(error) == "class_counts"
    # Nothing is left of a training that did not begin.
    assert not list((tmp_path / "x").glob("v*"))


def test_dates_for_timestamps_are_noted_and_times_of_day_refused(tmp_path, capfd) -> None:
    run(
        "CREATE TABLE t AS SELECT TIMESTAMP '2024-01-01' + to_days(i::INT) AS day, i AS y "
        f"FROM range(40) r(i); SELECT day, y FROM t TO TRAIN regressor.DNN WITH {SHORT} INTO m;"
        "SELECT day::DATE AS day FROM t TO PREDICT p.y USING m;"
        "SELECT day::DATE AS day, y FROM t TO EVALUATE m;",
        tmp_path,
    )
    note = (
        "'day' holds dates, but m was trained on timestamps. A date is treated as midnight of "
        "that day."
    )
    assert capfd.readouterr().err.count(note) == 2
    error = error_of("SELECT TIME '10:00' AS day, 1 AS y TO PREDICT q.y USING m", tmp_path)
    assert "'day' holds times of day, but m was trained on timestamps" in str(error)


def test_rows_may_have_another_label_beside_the_trained_one(models) -> None:
    selected = "FROM employee TO EVALUATE m LABEL pay;"
    *_, beside, alone = run(
        f"{TABLES}SELECT *, 7.0 * years AS pay {selected}"
        f"SELECT role, years, 7.0 * years AS pay {selected}",
        models,
    )

    assert beside == alone


def test_booleans_may_be_the_label(tmp_path) -> None:
    *_, rows = run(
        "CREATE TABLE t AS SELECT i AS a, i % 3 = 0 AS b FROM range(40) rows(i);"
        f"SELECT * FROM t TO TRAIN classifier.DNN WITH {SHORT} INTO c;"
        "SELECT a FROM t TO PREDICT t.p WITH predict.probability=q USING c;"
        "SELECT DISTINCT typeof(p) AS type, q BETWEEN 0.5 AND 1 AS sure FROM t",
        tmp_path,
    )

    assert rows == [{"type": "BOOLEAN", "sure": True}]


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (
            "SELECT years, today() + years::INT AS day FROM employee TRAIN classifier.DNN INTO x",
            r"'day' holds dates.*CAST\(day AS VARCHAR\)",
        ),
        (
            "SELECT role, years / 7.0 AS share FROM employee TO TRAIN classifier.DNN INTO x",
            r"(?s)line 3, column 29: 'share' is .*, such as 0.14.*regressor.*CAST\(share .*\^{5}$",
        ),
        (
            "SELECT 0.5::DECIMAL * years AS s FROM employee\nTRAIN classifier.DNN LABEL s INTO x",
            r"line 4, column 28: 's' is .* fractions, such as 0.5 \(7 diff",
        ),
        ("SELECT role, 1 AS a FROM employee TO TRAIN regressor.DNN INTO x", "column 19: .*every"),
        ("SELECT * FROM employee WHERE false TO TRAIN regressor.DNN INTO x", "no row"),
        ("SELECT * FROM employee WHERE false TO EXPLAIN m", "no rows to evaluate"),
        ("SELECT * FROM employee WHERE false TO EVALUATE m", "no rows to evaluate"),
    ],
)
def test_incompatible_rows_are_refused(statement, problem, models) -> None:
    error = error_of(statement, models)

    assert re.search(problem, str(error)), error
    assert error.exit_code == DataError.exit_code


@pytest.mark.parametrize("kind", ["duckdb", "sqlite", "postgresql", "mariadb"])
def test_missing_name_errors_of_each_database_are_understood(kind, request, tmp_path) -> None:
    url = (
        f"{kind}:///{tmp_path / 'shop.db'}"
        if kind in {"duckdb", "sqlite"}
        else request.getfixturevalue(kind).url
    )
    session = SqlSession(url, str(tmp_path / "models"))
    list(execute("CREATE TABLE staff_of_mistakes (role TEXT, salary INTEGER)", session))

    try:
        for statement, place in (
            ("SELECT *\nFROM stuff_of_mistakes", "stuff_of_mistakes"),
            ("SELECT rle FROM staff_of_mistakes TO TRAIN regressor.DNN INTO m", "rle"),
            ("SELECT role\nFORM staff_of_mistakes WHERE", "staff_of_mistakes"),
        ):
            with pytest.raises(DatabaseError) as caught:
                list(execute(statement, session))
            error = caught.value

            assert error.exit_code == UsageError.exit_code, error
            assert caret_of(error) == place, error
            assert str(error).startswith(f"line {1 + statement.count(chr(10))}, "), error
            if place == "stuff_of_mistakes":
                assert re.search("[.!] Did you mean '?\"?staff_of_mistakes|!\nDid", str(error))
    finally:
        list(execute("DROP TABLE staff_of_mistakes", session))


def test_a_type_that_only_the_rows_determine_is_located_in_the_statement(tmp_path, capfd) -> None:
    # SQLite does not know the type of most expressions before it has read the rows.
    session = SqlSession(f"sqlite:///{tmp_path}/db.sqlite", str(tmp_path / "models"))

    def run_in_sqlite(program: str) -> None:
        list(execute(program, session))

    run_in_sqlite(
        "CREATE TABLE t(role TEXT, born DATE, years REAL, y REAL);"
        "INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 0 UNION SELECT i + 1 FROM n WHERE i < 40)"
        "SELECT char(97 + i % 3), date('2000-01-01', i || ' days'), i * 1.5, i FROM n;"
        f"SELECT * FROM t TO TRAIN regressor.DNN WITH {SHORT} LABEL y INTO m;"
    )
    # Some versions of SQLite know the type of a CAST.
    begin = "SELECT role, born, years || '' AS years"
    for statement in (
        f"{begin} FROM t TO PREDICT p.y USING m",
        f"{begin}, y FROM t TO EVALUATE m",
        f"{begin}, y FROM t TO EXPLAIN m",
    ):
        capfd.readouterr()
        # The statement runs in another process, which writes the error.
        with pytest.raises(ElasticDLError):
            run_in_sqlite(statement)
        error = (
            "line 1, column 20: The column 'years' holds text, but m was trained on numbers. "
            "Convert it: CAST(years AS DOUBLE PRECISION) AS years.\n"
            f"  {statement}\n  {' ' * 19}^^^^^\n"
        )
        assert error in capfd.readouterr().err
    with pytest.raises(ElasticDLError):
        run_in_sqlite("SELECT role, born, years, y || '' AS many FROM t TO EVALUATE m LABEL many")
    assert "The column 'many' holds text, but m was trained on numbers" in capfd.readouterr().err
    # Text is a suitable date.
    run_in_sqlite("SELECT role, date(born) AS born, years FROM t TO PREDICT p.y USING m")
