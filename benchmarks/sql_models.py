"""Models from SQL: how right they are, and a table of ten million rows.

* Accuracy of a classifier trained by one statement, on rows that it has not seen, beside
  scikit-learn's logistic regression on standardised columns: on the same rows
  (`validation.fraction=0`), and with a fifth of them held out, as by default. Means of splits.
* Peak memory (of the whole process tree, its private pages) and rows per second of TRAIN and
  PREDICT on ten million rows of ten numbers.
"""

import statistics
import subprocess
import sys
import tempfile
import threading
import time

import psutil

MANY = 10**7
SPLITS = 6
_GIB = 1 << 30


def run():
    return {
        "accuracy": {name: accuracy(name) for name in ("iris", "wine", "breast_cancer")},
        "ten_million_rows": ten_million_rows(),
    }


def accuracy(name):
    """Return the accuracy on a third of the rows that were not trained on."""
    import duckdb
    from sklearn import datasets
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    table = getattr(datasets, f"load_{name}")(as_frame=True).frame
    ours, held_out, peer = [], [], []
    for split in range(SPLITS):
        train, test = train_test_split(
            table, test_size=1 / 3, random_state=split, stratify=table.target
        )
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=10_000))
        model.fit(train.drop(columns="target"), train.target)
        peer.append(float(model.score(test.drop(columns="target"), test.target)))
        with tempfile.TemporaryDirectory() as folder:
            with duckdb.connect(f"{folder}/t.db") as database:
                for which, rows in (("train", train), ("test", test)):
                    given = rows.assign(id=range(len(rows)))
                    database.sql(f"CREATE TABLE {which} AS SELECT * FROM given")
                    assert len(given) == len(rows)
            for found, settings in ((ours, "WITH validation.fraction=0"), (held_out, "")):
                _sql(
                    folder,
                    f"SELECT * EXCLUDE (id) FROM train TO TRAIN classifier.DNN {settings} "
                    "LABEL target INTO m;"
                    "SELECT * EXCLUDE (target) FROM test TO PREDICT test.predicted USING m",
                )
                with duckdb.connect(f"{folder}/t.db") as database:
                    right = database.sql("SELECT avg((predicted = target)::INT) FROM test")
                    found.append(float(right.fetchall()[0][0]))
    difference = statistics.mean(ours) - statistics.mean(peer)
    return {
        "ours": round(statistics.mean(ours), 4),
        "ours_a_fifth_held_out": round(statistics.mean(held_out), 4),
        "logistic_regression": round(statistics.mean(peer), 4),
        "bar": "within one point",
        "met": difference >= -0.01,
        "runs": {"ours": ours, "held_out": held_out, "logistic_regression": peer},
    }


def ten_million_rows():
    """Return what a training and a prediction on ten million rows take."""
    import duckdb

    numbers = ", ".join(f"((i * {3 + k}) % 1009) / {7 + k}.0::DOUBLE AS c{k}" for k in range(10))
    with tempfile.TemporaryDirectory() as folder:
        with duckdb.connect(f"{folder}/t.db") as database:
            database.execute(
                f"CREATE TABLE t AS SELECT {numbers}, (i * 3) % 1009 > 500 AS y "
                f"FROM range({MANY}) r(i)"
            )
        found = {}
        for name, statement in (
            ("train", "SELECT * FROM t TO TRAIN classifier.DNN LABEL y INTO m"),
            ("predict", "SELECT * EXCLUDE (y) FROM t TO PREDICT t.predicted USING m"),
        ):
            start = time.perf_counter()
            peak = _sql(folder, statement)
            seconds = time.perf_counter() - start
            found[name] = {
                "seconds": round(seconds),
                "rows_per_s": round(MANY / seconds),
                "peak_gib": round(peak / _GIB, 2),
                "met": peak < 2 * _GIB,
            }
    return {"rows": MANY, "bar_gib": 2, **found}


def _sql(folder, program):
    """Run statements as a person would; return the most private memory of its processes."""
    command = [sys.executable, "-m", "elasticdl.cli.main"]
    process = subprocess.Popen(
        [*command, "sql", f"--database=duckdb:///{folder}/t.db", f"--models={folder}/m", program],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    peak = [0]

    def watch():
        while process.poll() is None:
            peak[0] = max(peak[0], _private_bytes(process.pid))
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, error = process.communicate()
    watcher.join()
    if process.returncode:
        raise RuntimeError(error)
    return peak[0]


def _private_bytes(pid):
    total = 0
    try:
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            total += process.memory_full_info().uss
    except psutil.NoSuchProcess:
        pass
    return total
