"""What a report on each example costs: beside the model's own `predict`, and by itself.

The peer of a report is `model.predict` of Keras over the same rows in batches of the same size.
The report runs the model as well, and calls the function of the sessions' documents, which makes
a loss of Keras for every row: called one by one, it does about a thousand rows a second. The loop
that runs the model has less to do than `predict`; so the report is compared with that loop, too.

Writing is measured with a million rows of fifteen columns that are there already; the CSV view, the
page and the tables are timed beside it and are in no bar.
"""

import os
import tempfile
import time
from pathlib import Path

from benchmarks.record import ratio

RUNS = 5
NUM_ROWS = 100_000
BATCH = 256
BAR = 0.8
# So many rows, and so many metrics beside the eight columns of every report.
NUM_WRITTEN = 1_000_000
NUM_METRICS = 7
WRITE_BAR_S = 2.0


def run():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return {**_rows_per_s(), **_writing()}


def _rows_per_s():
    import keras
    import numpy as np

    rng = np.random.default_rng(0)
    features = rng.random((NUM_ROWS, 784), np.float32)
    labels = rng.integers(0, 10, NUM_ROWS)
    ids = [f"image_{i}.jpg" for i in range(NUM_ROWS)]
    model = keras.Sequential(
        [
            keras.Input((784,)),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.predict(features[: 4 * BATCH], batch_size=BATCH, verbose=0)
    _report(model, features[: 4 * BATCH], labels, ids)
    ours, peer, loop = [], [], []
    for _ in range(RUNS):
        peer.append(_timed(lambda: model.predict(features, batch_size=BATCH, verbose=0)))
        ours.append(_timed(lambda: _report(model, features, labels, ids)))
        loop.append(_timed(lambda: list(_outputs(model, features))))
    ours, peer, loop = ([NUM_ROWS / s for s in times] for times in (ours, peer, loop))
    return {
        "rows_per_s_of_a_report_to_predict": ratio(ours, peer, BAR),
        "rows_per_s_of_a_report_to_its_own_loop_without_one": ratio(ours, loop, BAR),
    }


def _outputs(model, features):
    import tensorflow as tf

    forward = tf.function(lambda x: model(x, training=False), autograph=False)
    for start in range(0, len(features), BATCH):
        yield start, forward(tf.convert_to_tensor(features[start : start + BATCH])).numpy()


def _report(model, features, labels, ids):
    import tensorflow as tf

    from elasticdl.evaluation.functions import EvalFunctions
    from elasticdl.evaluation.report_writer import ReportWriter

    # As it stands in the document.
    tfk = tf.keras

    def scce_loss(y_true, y_pred):
        scce = tfk.losses.SparseCategoricalCrossentropy(from_logits=False)
        return scce(y_true, y_pred).numpy()

    functions = EvalFunctions({"sparse categorical ce": scce_loss})
    with (
        tempfile.TemporaryDirectory() as folder,
        ReportWriter(folder, functions=functions) as writer,
    ):
        for start, outputs in _outputs(model, features):
            rows = slice(start, start + len(outputs))
            writer.add(ids=ids[rows], labels=labels[rows], outputs=outputs)
        writer.close()
    assert writer.result.num_rows == len(features)
    assert writer.result.notes == []


def _writing():
    import numpy as np

    from elasticdl.evaluation.report_page import write_page
    from elasticdl.evaluation.report_tables import Report
    from elasticdl.evaluation.report_views import write_views
    from elasticdl.evaluation.report_writer import ReportWriter

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, NUM_WRITTEN)
    outputs = rng.random((NUM_WRITTEN, 10)).astype(np.float32)
    outputs /= outputs.sum(axis=1, keepdims=True)
    metrics = {f"m{i}": rng.random(NUM_WRITTEN) for i in range(NUM_METRICS)}
    ids = [f"image_{i}.jpg" for i in range(NUM_WRITTEN)]

    def write(folder):
        with ReportWriter(folder) as writer:
            for start in range(0, NUM_WRITTEN, BATCH):
                rows = slice(start, start + BATCH)
                some = {name: values[rows] for name, values in metrics.items()}
                writer.add(ids=ids[rows], labels=labels[rows], outputs=outputs[rows], metrics=some)

    with tempfile.TemporaryDirectory() as folder:
        seconds = [_timed(lambda: write(folder)) for _ in range(RUNS)]
        report = Report(Path(folder, "report.parquet"))
        beside = {
            "csv_of_a_million_rows_s": _timed(
                lambda: write_views(report, folder, max_rows=NUM_WRITTEN)
            ),
            "summary_only_s": _timed(lambda: write_views(report, folder, max_rows=0)),
            "page_s": _timed(lambda: write_page(report, folder)),
            "worst_100_s": _timed(lambda: report.worst("m0", 100, largest=True)),
            "classes_s": _timed(report.classes),
        }
    # The bar is a time: what counts as the peer is the bar itself.
    written = ratio(seconds, [WRITE_BAR_S], 1.0, higher_is_better=False)
    return {"seconds_for_a_million_rows_to_the_bar": written, "beside": beside}


def _timed(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
