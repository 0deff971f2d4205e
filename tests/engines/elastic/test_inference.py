"""Many workers predict and measure what one process does, whoever of them is killed.

One model is trained for most tests; what its input function does besides is told by a file, so
that a test can slow it down, let it fail, or see which process it ran in. It is PyTorch's, which is
imported in a third of the time: every worker of every test does. The pipeline's is Keras's.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.engines.conftest import MODEL, write_records

import elasticdl
from elasticdl import api, job_options
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.data.sources import open_source
from elasticdl.definition import Mode
from elasticdl.engines.elastic.inference_ranges import Range
from elasticdl.engines.elastic.inference_worker import (
    Finished,
    InferenceWorker,
    Instructions,
    model_files,
)
from elasticdl.engines.elastic.worker import Identity, WorkerFailure
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import OutputError, SchemaError
from elasticdl.prediction.parts import PredictionParts

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

NUM_RECORDS = 1000

STEERED = """
import json, os, time
from pathlib import Path

import numpy as np
import torch
from torch import nn

steering = {steering!r}


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3)
        )

    def forward(self, x):
        return self.layers(x)


def custom_model():
    return Small()


def data_schema():
    return [
        {{"name": "x", "shape": [4], "dtype": "float32"}},
        {{"name": "label", "shape": [1], "dtype": "int64"}},
    ]


def loss(output, labels):
    return nn.functional.cross_entropy(output, labels.flatten())


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.05)


def eval_metrics_fn(predictions, labels):
    return {{"accuracy": (predictions.argmax(1) == labels.flatten()).float().mean()}}


def input_fn(records, mode):
    told = json.loads(Path(steering).read_text())
    with open(steering + ".log", "a") as log:
        log.write(f"{{os.getpid()}} {{len(records)}} {{os.path.abspath(__file__)}}\\n")
    time.sleep(told.get("pause_s", 0))
    if told.get("raise_at", -1) in [round(float(r["x"][0]), 4) for r in records]:
        raise (SystemExit if told.get("exits") else ZeroDivisionError)("an odd record")
    return {{"x": np.stack([r["x"] for r in records])}}, np.stack([r["label"] for r in records])


class PredictionOutputsProcessor:
    def process(self, predictions, worker_id):
        with open(steering + ".processed", "a") as log:
            log.write(f"{{worker_id}} {{len(predictions)}}\\n")
"""

PIPELINE = """

def input_fn(dataset, mode):
    import tensorflow as tf

    shapes = {"x": tf.io.FixedLenFeature([4], tf.float32),
              "label": tf.io.FixedLenFeature([1], tf.int64)}

    def parse(record):
        values = tf.io.parse_single_example(record, shapes)
        return values["x"], values["label"]

    dataset = dataset.map(parse)
    if mode == "evaluation":
        dataset = dataset.filter(lambda x, label: x[0] > 0.0)
    return dataset


del data_schema


def loss(output, labels):
    return keras.losses.sparse_categorical_crossentropy(labels[:, 0], output, from_logits=True)


def eval_metrics_fn(predictions, labels):
    # No mean over examples: it depends on which examples meet in a batch.
    return {"spread": keras.ops.max(predictions) - keras.ops.min(predictions)}
"""


class Place:
    """What all tests of the file share."""

    def __init__(self, folder):
        self.folder = folder
        self.data = write_records(folder / "numbers.recordio", NUM_RECORDS)
        self.steering = folder / "steering.json"
        self.steer()
        self.model = self._trained("steered", STEERED.format(steering=str(self.steering)))
        self.pipeline = self._trained("pipeline", MODEL + PIPELINE)

    def _trained(self, name, code):
        zoo = self.folder / f"{name}_zoo"
        zoo.mkdir()
        (zoo / f"{name}.py").write_text(code)
        return elasticdl.train(
            model_zoo=str(zoo), model_def=name, data=str(self.data), minibatch_size=50,
            output=str(self.folder / f"{name}_model"), reporter=Silent(),
        ).output  # fmt: skip

    def steer(self, **told):
        for kind in ("log", "processed"):
            Path(f"{self.steering}.{kind}").write_text("")
        self.steering.write_text(json.dumps(told))

    def calls(self):
        """Return (process, number of records, file) of each call of the input function."""
        lines = Path(f"{self.steering}.log").read_text().splitlines()
        return [(int(pid), int(count), file) for pid, count, file in map(str.split, lines)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def cluster():
    """Return the address of a Ray cluster of one machine, as a user would have one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    # A short name: sockets lie in it.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray", ignore_cleanup_errors=True) as temp:
        head = subprocess.Popen(
            [
                Path(sys.executable).parent / "ray", "start", "--head", "--block",
                f"--port={address.rpartition(':')[2]}", "--node-ip-address=127.0.0.1",
                "--num-cpus=4", "--include-dashboard=false", f"--temp-dir={temp}",
                "--object-store-memory=100000000",
            ],
            env={**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            said = ""
            while "Ray runtime started" not in said:
                line = head.stdout.readline()
                assert line, said
                said += line
            yield address
        finally:
            head.terminate()
            with suppress(subprocess.TimeoutExpired):
                head.wait(30)
            head.kill()
            head.stdout.close()


def command(place, *more, name="predict"):
    return [
        sys.executable, "-m", "elasticdl.cli.main", name, f"--trained_model={place.model}",
        f"--data={place.data}", "--minibatch_size=10", "--num_workers=3", *more,
    ]  # fmt: skip


def start(arguments, **more_environment):
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, **more_environment},
    )  # fmt: skip


def wait_for(condition, process, timeout_s=120):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)


def joined_csv(folder):
    """Return the header and the rows of all parts, in the order of the parts."""
    texts = [path.read_text().splitlines() for path in sorted(Path(folder).glob("part-*.csv"))]
    assert {text[0] for text in texts} == {texts[0][0]}
    return [texts[0][0], *(row for text in texts for row in text[1:])]


def predicted_here(place, output, model=None, **options):
    place.steer()
    elasticdl.predict(
        trained_model=model or place.model, data=str(place.data), output=str(output),
        minibatch_size=10, reporter=Silent(), **options,
    )  # fmt: skip
    return output


# --- killed, interrupted ----------------------------------------------------------------------


def test_a_killed_worker_does_not_change_the_prediction(place, tmp_path):
    expected = joined_csv(predicted_here(place, tmp_path / "alone", format="csv"))
    place.steer(pause_s=0.1)
    output = tmp_path / "many"
    process = start(command(place, f"--output={output}", "--format=csv"))
    for num_calls in (15, 40):
        wait_for(lambda n=num_calls: len(place.calls()) >= n, process)
        os.kill(place.calls()[-1][0], signal.SIGKILL)

    text, _ = process.communicate(timeout=200)

    assert process.returncode == 0, text
    assert text.count("another worker takes over records") == 2
    assert "Predicted 1,000 records" in text
    assert joined_csv(output) == expected
    manifest = json.loads((output / "_SUCCESS").read_text())
    # A twelfth of the records is a range, in whole minibatches.
    assert [part["num_records"] for part in manifest["parts"]] == [80] * 12 + [40]
    assert sorted(path.name for path in output.iterdir()) == [
        "_SUCCESS", *(f"part-{i:05d}.csv" for i in range(13))
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "many"]
    # Three at a time, each under a number of its own; one process each, but for those killed.
    assert 3 <= len({pid for pid, _, _ in place.calls()}) <= 6


def test_an_interrupted_prediction_leaves_nothing(place, tmp_path):
    place.steer(pause_s=0.2)
    process = start(command(place, f"--output={tmp_path / 'out'}"))
    wait_for(lambda: len(place.calls()) >= 30, process)
    workers = {pid for pid, _, _ in place.calls()}

    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)

    assert process.returncode == 130, text
    assert list(tmp_path.iterdir()) == []
    _, alive = psutil.wait_procs([psutil.Process(p) for p in workers if psutil.pid_exists(p)], 10)
    assert alive == []


def test_workers_that_run_out_of_memory_end_the_job(place, tmp_path):
    place.steer(pause_s=1.0)
    process = start(
        command(place, f"--output={tmp_path / 'out'}", "--num_workers=2"),
        # Ray ends workers when more than this share of the machine's memory is taken.
        RAY_memory_usage_threshold="0.02",
        RAY_memory_monitor_refresh_ms="100",
    )

    text, _ = process.communicate(timeout=200)

    assert process.returncode == 5, text
    assert "6 workers in a row ran out of memory, the last one on records" in text
    assert "--minibatch_size" in text
    assert list(tmp_path.iterdir()) == []


# --- on a cluster -----------------------------------------------------------------------------


@pytest.fixture
def on_workers(place, cluster):
    """Return a function that evaluates or predicts on two workers of the cluster."""

    def run(function, **options):
        return function(
            **{
                "trained_model": place.model,
                "data": str(place.data),
                "minibatch_size": 10,
                "num_workers": 2,
                "ray_address": cluster,
                "reporter": Silent(),
                **options,
            }
        )

    return run


def test_a_joined_file_matches_that_of_one_process(place, on_workers, tmp_path):
    alone = predicted_here(place, tmp_path / "alone.recordio")
    place.steer()

    outcome = on_workers(elasticdl.predict, output=str(tmp_path / "many.recordio"))

    assert outcome.metrics["num_records"] == NUM_RECORDS
    assert (tmp_path / "many.recordio").read_bytes() == alone.read_bytes()
    # A worker loads the model once, and is given the ranges that follow.
    assert len({pid for pid, _, _ in place.calls()}) <= 2
    # The model was sent: no worker imported its code from the trained model's own folder.
    files = {file for _, _, file in place.calls()}
    assert files
    assert not any(file.startswith(str(place.folder)) for file in files)
    processed = Path(f"{place.steering}.processed").read_text().splitlines()
    assert sum(int(line.split()[1]) for line in processed) == NUM_RECORDS
    assert {line.split()[0] for line in processed} <= {"0", "1"}


# The pipeline's ranges differ in how many of their records are left, and its metric is no mean.
@pytest.mark.parametrize("model", [pytest.param("model", marks=pytest.mark.exhaustive), "pipeline"])
def test_metrics_match_those_of_one_process(place, on_workers, tmp_path, model):
    trained_model = getattr(place, model)
    place.steer()
    options = {
        "trained_model": trained_model, "data": str(place.data), "minibatch_size": 8,
        "output": str(tmp_path / "alone.json"), "reporter": Silent(),
    }  # fmt: skip
    alone = elasticdl.evaluate(**options)

    many = on_workers(elasticdl.evaluate, **{**options, "output": str(tmp_path / "many.json")})

    assert alone.metrics.keys() == many.metrics.keys()
    assert many.metrics == pytest.approx(alone.metrics, rel=1e-6)
    assert json.loads((tmp_path / "many.json").read_text())["num_records"] == NUM_RECORDS


def test_a_pipeline_predicts_the_same_rows_as_one_process(place, on_workers, tmp_path):
    options = {"model": place.pipeline, "format": "csv"}
    expected = joined_csv(predicted_here(place, tmp_path / "alone", **options))

    on_workers(
        elasticdl.predict, trained_model=place.pipeline, format="csv",
        output=str(tmp_path / "many"),
    )  # fmt: skip

    assert joined_csv(tmp_path / "many") == expected
    assert len(list((tmp_path / "many").glob("part-*"))) == 4


def test_an_error_in_the_users_function_ends_the_job_immediately(place, on_workers, tmp_path):
    record = open_source(str(place.data)).read_records(500, 501, None)[0]
    place.steer(raise_at=round(float(record["x"][0]), 4))

    with pytest.raises(elasticdl.ElasticDLError) as raised:
        on_workers(elasticdl.predict, output=str(tmp_path / "out"))

    assert raised.type.__name__ == "UserCodeError"
    assert "ZeroDivisionError: an odd record" in str(raised.value)
    # The user knows the trained model, and nothing of the copy that was sent.
    assert f"{place.model}/zoo/steered.py" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_a_part_that_does_not_arrive_is_an_error_with_advice(on_workers, monkeypatch):
    from elasticdl.engines.elastic import inference

    monkeypatch.setattr(inference, "_ARRIVAL_TIMEOUT_S", 0.5)

    def predict(reporter, **options):
        job = job_options.prediction_job(output="p", **{**options, "num_workers": 1})
        # A place that each process has for itself, which `--output` refuses.
        return api.run(replace(job, output="memory://nowhere-else/p"), reporter)

    with pytest.raises(OutputError, match=r"a worker wrote part-0.*shared disk"):
        on_workers(predict)


# --- a worker by itself -----------------------------------------------------------------------


@pytest.fixture
def instructions(place, tmp_path):
    job = job_options.prediction_job(
        trained_model=place.model, data=str(place.data), output="unused", minibatch_size=10
    )
    place.steer()
    return Instructions(
        job=job, mode=Mode.PREDICTION, model=model_files(load_trained_model(place.model)),
        files=open_source(str(place.data)).files, staging=str(tmp_path / "staging"),
        records_per_part=20, num_workers=3, num_threads=1,
    )  # fmt: skip


def test_a_range_predicted_twice_gives_the_same_part(instructions, tmp_path):
    staging = tmp_path / "staging"
    written = []
    for model in (InferenceWorker(instructions), InferenceWorker(instructions)):
        messages = list(model.run(Range(1, 20, 40), 2))
        assert [type(message) for message in messages] == [Identity, Finished]
        written.append((staging / "part-00001.recordio").read_bytes())

    assert written[0] == written[1]
    assert sorted(path.name for path in staging.iterdir()) == [
        "part-00001.json", "part-00001.recordio"
    ]  # fmt: skip


def test_a_worker_loads_the_model_once_for_all_its_ranges(instructions, monkeypatch):
    from elasticdl.engines import inference

    made = []
    create = inference.create_trainer
    monkeypatch.setattr(
        inference, "create_trainer", lambda *args, **more: made.append(1) or create(*args, **more)
    )
    model = InferenceWorker(instructions)

    for index in range(3):
        list(model.run(Range(index, index * 20, index * 20 + 20), 0))

    assert len(made) == 1
    assert len(PredictionParts(_staging(instructions), "recordio", 20).described()) == 3


def _staging(instructions):
    from elasticdl.artifacts.folder import OutputFolder

    return OutputFolder(instructions.staging)


def test_a_function_that_ends_the_process_is_reported_with_its_line(instructions, place):
    record = open_source(str(place.data)).read_records(5, 6, None)[0]
    place.steer(raise_at=round(float(record["x"][0]), 4), exits=True)

    *_, failure = InferenceWorker(instructions).run(Range(0, 0, 20), 0)

    assert isinstance(failure, WorkerFailure)
    assert failure.kind == "UserCodeError"
    assert "this code ended the command with SystemExit(an odd record)" in failure.message
    assert f"{place.model}/zoo/steered.py:" in failure.message


def test_a_worker_that_sees_different_data_refuses_them(instructions, place, tmp_path):
    from dataclasses import replace

    other = write_records(tmp_path / "other.recordio", 30)
    more = replace(instructions, job=replace(instructions.job, data=str(other)))

    (failure,) = InferenceWorker(more).run(Range(0, 0, 20), 0)

    assert isinstance(failure, WorkerFailure)
    assert failure.kind == "DataError"
    assert "found 1 files with 30 records on" in failure.message
    assert "but 1 files with 1,000 where the command" in failure.message


def test_records_without_a_field_have_the_same_exit_code_on_a_worker(instructions, tmp_path):
    data = write_records(tmp_path / "some.recordio", 30, fields=("x",))
    job = replace(instructions.job, data=str(data))
    some = replace(instructions, job=job, mode=Mode.EVALUATION, files=open_source(str(data)).files)

    *_, failure = InferenceWorker(some).run(Range(0, 0, 20), 0)

    assert isinstance(failure, WorkerFailure)
    assert type(failure.to_error()) is SchemaError
