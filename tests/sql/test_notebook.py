"""The magics in a real kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("duckdb")


@pytest.fixture
def notebook(shop, tmp_path, run_cells):
    """Return a function that runs cells on the shop and returns the outputs of each."""
    begin = f"%load_ext elasticdl.sql\n%sql --database={shop} --models={tmp_path}/models"

    def run(*cells: str) -> list:
        return run_cells(begin, *cells)[1:]

    return run


def text_of(outputs) -> str:
    return "".join(each.get("text", "") for each in outputs)


def result_of(outputs) -> str:
    (result,) = [each for each in outputs if each.output_type == "execute_result"]
    return str(result.data["text/plain"])


def error_of(outputs) -> str:
    (error,) = [each for each in outputs if each.output_type == "error"]
    return "\n".join(error.traceback)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
@pytest.mark.slow
def test_statements_run_in_a_notebook(notebook) -> None:
    role = "clerk'; DROP TABLE employee; --"
    outputs = notebook(
        f"role = {role!r}\nfew = 2",
        "%%sql\nSELECT role, salary FROM employee WHERE role <> ${role} AND salary > 2000 "
        "ORDER BY salary LIMIT ${few}",
        "frame = %sql SELECT count(*) AS n FROM employee -- it's one\n"
        "int(frame.loc[0, 'n']), type(frame).__name__",
        "%%sql --to=importance\nSELECT name, role, salary FROM employee TO TRAIN regressor.DNN "
        "WITH hidden_units=[4], train.num_epochs=2 INTO m;\n"
        "SELECT name, role, salary FROM employee TO EXPLAIN m;",
        "sorted(importance['column'])",
        "%%sql\nSELECT *\nFROM employee TO TRAIN regressor.DMM INTO m",
        "%%sql\nSELECT name, 1 AS one FROM employee TO TRAIN regressor.DNN INTO n",
        "%sql SELECT '${role}'",
        "%sql --database=mongo://nowhere",
        "%sql SELECT count(*) AS n FROM employee",
        "import sys; 'tensorflow' in sys.modules or 'prompt_toolkit.shortcuts' in sys.modules",
    )

    assert "2002.0" in result_of(outputs[1])
    assert result_of(outputs[2]) == "(200, 'DataFrame')"
    # Progress as lines, the bars as a picture and as text, the metrics as a table.
    assert "Training: 322/322 records" in text_of(outputs[3])
    shown = [each.data for each in outputs[3] if each.output_type == "display_data"]
    assert "val_loss" in shown[0]["text/plain"]
    assert "image/png" in shown[1]
    assert "█" in shown[1]["text/plain"]
    # The names differ in all rows, so the model takes no notice of them.
    assert result_of(outputs[4]) == "['role']"
    assert (
        error_of(outputs[5])
        .splitlines()[0]
        .startswith("StatementError: line 2, column 24: There is no")
    )
    assert "Traceback" not in error_of(outputs[5])
    assert "is 1 in every row" in text_of(outputs[6])
    assert (
        error_of(outputs[6])
        == "StatementFailedError: The statement failed (exit code 4); see above."
    )
    assert "without quotes" in error_of(outputs[7])
    assert "--database=mongo://nowhere" in error_of(outputs[8])
    # The settings before it still hold.
    assert "200" in result_of(outputs[9])
    assert result_of(outputs[10]) == "False"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
@pytest.mark.slow
def test_an_interrupted_cell_ends_its_training_which_can_resume(notebook) -> None:
    train = (
        "%%sql\nSELECT name, role, salary FROM employee TO TRAIN regressor.DNN "
        "WITH hidden_units=[4], train.num_epochs=100000 INTO m;"
    )
    # As the button of a notebook does.
    interrupt = (
        "import os, signal, sys, threading, time\n"
        "class Watch:\n"
        "    def __init__(self, stream): self.stream = stream\n"
        "    def write(self, text):\n"
        "        if text.startswith('Training:'): os.kill(os.getpid(), signal.SIGINT)\n"
        "        return self.stream.write(text)\n"
        "    def __getattr__(self, name): return getattr(self.stream, name)\n"
        "sys.stderr = Watch(sys.stderr)"
    )
    outputs = notebook(
        interrupt,
        train,
        train,
        "import psutil; [each.cmdline() for each in psutil.Process().children()]",
    )

    assert "Cancelled." in error_of(outputs[1])
    assert "Resuming version 1 of m" in text_of(outputs[2])
    assert "Cancelled." in error_of(outputs[2])
    assert result_of(outputs[3]) == "[]"


def test_loading_the_package_loads_no_ipython(run_python) -> None:
    listing = run_python("import elasticdl.sql, sys; print('IPython' in sys.modules)")

    assert listing.stdout.strip() == "False"


def test_the_extension_is_found_by_its_name() -> None:
    import elasticdl.sql

    assert callable(elasticdl.sql.load_ipython_extension)
    assert Path(elasticdl.sql.__file__).name == "__init__.py"


def test_the_magic_prints_its_help(capsys) -> None:
    pytest.importorskip("IPython")
    from elasticdl.sql.notebook import SqlMagics

    for line, cell in (("--help", None), ("--help", "SELECT 1"), ("-h", None)):
        SqlMagics(None).sql(line, cell)
        printed = capsys.readouterr().out
        assert "--database URL" in printed
        assert "Variable in which to store the rows" in printed
