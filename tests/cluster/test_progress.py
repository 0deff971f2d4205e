"""Progress on a RayJob: what its annotations say, who writes them, who reads them."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.cluster.api_server import Fault
from tests.cluster.api_server.resources import RAYJOBS
from tests.cluster.operator import Operator
from tests.cluster.test_api_server import rayjob

import elasticdl
from elasticdl import api, job_options
from elasticdl.cli.main import cli
from elasticdl.cluster import annotate, progress
from elasticdl.cluster.options import ClusterOptions
from elasticdl.cluster.progress import JobProgress
from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.engines.progress_bar import Silent
from elasticdl.event_file import parse_events
from elasticdl.events import (
    EpochFinished,
    JobFailed,
    JobFinished,
    JobStarted,
    StepCommitted,
    WorkerJoined,
    WorkerLeft,
    to_json,
)

PATCH = "patch rayjobs.ray.io"
STARTED = JobStarted(job_id="a", num_records=100, num_epochs=3)


def steps(step, epoch, num_records=10, loss=0.5, **more):
    return StepCommitted(
        step=step, epoch=epoch, num_records=num_records, loss=loss, **{"records_per_s": 10, **more}
    )


def told(*events, **job):
    """Return the annotations after some events, without their prefix."""
    shown = JobProgress(**job).of_history(events).annotations()
    return {name.removeprefix("elasticdl.org/"): value for name, value in shown.items()}


# What the annotations say


def test_before_the_first_step_the_first_epoch_has_begun():
    assert told(STARTED) == {
        "progress": "epoch 1/3, 0 %", "step": "0", "loss": None, "workers": None, "eta_s": None,
    }  # fmt: skip


def test_steps_count_within_their_epoch():
    shown = told(STARTED, steps(1, 0), EpochFinished(epoch=0, step=1, metrics={}), steps(5, 1, 41))

    assert (shown["progress"], shown["step"]) == ("epoch 2/3, 41 %", "5")


def test_skipped_records_count_as_done():
    assert told(STARTED, steps(1, 0, 10, num_left_out=15))["progress"] == "epoch 1/3, 25 %"


def test_the_time_left_covers_all_epochs_or_max_steps():
    # 290 records at 10 a second; 8 steps at 1 a second.
    assert told(STARTED, steps(1, 0))["eta_s"] == "29"
    assert told(STARTED, steps(2, 0, num_records=20), max_steps=10)["eta_s"] == "8"


def test_speed_ignores_the_delay_between_reports():
    # 20 records in a second, of which the second half was told at once.
    assert told(STARTED, steps(1, 0), steps(2, 0, records_per_s=1e9))["eta_s"] == "14"


def test_the_time_left_follows_the_recent_speed():
    slow = [steps(step, 0, num_records=1, records_per_s=0.01) for step in range(1, 3)]

    # 298 records at one in 100 s; then 268 at ten in 100 s.
    assert int(told(STARTED, *slow)["eta_s"]) == 29800
    fast = [steps(step, 0, num_records=10, records_per_s=0.1) for step in range(3, 6)]
    assert int(told(STARTED, *slow, *fast)["eta_s"]) == pytest.approx(2680, rel=0.1)


def test_only_participating_workers_are_counted():
    joined = [WorkerJoined(step=0, rank=rank, incarnation=rank + 1) for rank in range(3)]
    left = WorkerLeft(step=1, rank=1, incarnation=2)

    assert told(STARTED, *joined, num_workers=4)["workers"] == "3 of 4"
    assert told(STARTED, *joined, left, num_workers=4)["workers"] == "2 of 4"
    assert told(STARTED, *joined, STARTED, num_workers=4)["workers"] == "0 of 4"


def test_repeated_events_count_once():
    once = [STARTED, steps(1, 0), steps(2, 0)]

    assert told(*once, steps(1, 0), steps(2, 0)) == told(*once)


def test_a_resumed_job_counts_only_steps_before_its_checkpoint():
    before = [STARTED, steps(2, 0, 20), steps(4, 0, 20), JobFailed(kind="K", message="", step=4)]
    again = JobStarted(job_id="a", attempt=2, num_records=100, num_epochs=3, resumed_from_step=2)
    lines = "".join(f"{to_json(event)}\n" for event in [*before, again, steps(3, 0, 10)])

    shown = told(*parse_events(lines.encode()))

    assert (shown["progress"], shown["step"]) == ("epoch 1/3, 30 %", "3")


def test_the_loss_is_the_mean_of_the_epoch_so_far():
    first = [steps(1, 0, 10, loss=4.0), steps(2, 0, 30, loss=2.0, num_left_out=5)]
    end = EpochFinished(epoch=0, step=2, metrics={"loss": 2.5, "val_loss": 9.0})

    assert told(STARTED, *first)["loss"] == "2.5"
    assert told(STARTED, *first, end)["loss"] == "2.5"
    assert told(STARTED, *first, end, steps(3, 1, 10, loss=1.0))["loss"] == "1"


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_not_shown(loss):
    assert told(STARTED, steps(1, 0, loss=loss))["loss"] is None


def test_a_finished_job_has_no_time_left():
    shown = told(STARTED, steps(1, 0), JobFinished(step=1))

    assert (shown["progress"], shown["eta_s"]) == ("finished", "0")


def test_the_last_progress_line_of_a_log_counts():
    lines = [
        'elasticdl-progress {"elasticdl.org/step": "1"}',
        'elasticdl-progress {"elasticdl.org/step": "2", "elasticdl.org/other": "x"}',
        "epoch 1",
        'elasticdl-progress {"elasticdl.org/st',
        "elasticdl-progress [3]",
    ]  # fmt: skip

    assert progress.last_line(lines) == {"elasticdl.org/step": "2"}


def test_progress_is_shown_in_one_line():
    shown = JobProgress(num_workers=4).of_history([STARTED, steps(1, 0, 41, loss=1 / 3)])
    texts = {name: text for name, text in shown.annotations().items() if text is not None}

    assert progress.in_words(texts) == (
        "epoch 1/3, 41 %; step 1; loss 0.3333; 0 of 4 workers; 26 s left"
    )
    assert progress.in_words({"elasticdl.org/eta_s": "soon"}) == ""
    assert progress.annotations_of({"metadata": {"annotations": {"elasticdl.org/step": 3}}}) == {}


# Who writes them

MODEL = """
import os
import time

import numpy as np
import torch
from torch import nn


def custom_model():
    return nn.Linear(2, 1)


def data_schema():
    return [
        {"name": "x", "shape": [2], "dtype": "float32"},
        {"name": "y", "shape": [1], "dtype": "float32"},
    ]


def input_fn(records):
    time.sleep(SLEEP_S)
    while os.path.exists(HOLD):
        time.sleep(0.02)
    return np.stack([r["x"] for r in records]), np.stack([r["y"] for r in records])


def loss(labels, predictions):
    return ((labels - predictions) ** 2).mean()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""
# What a pod has that this machine has not: the folder of its account.
POD = """
import sys
from pathlib import Path

from elasticdl.cli.main import main
from elasticdl.cluster import annotate

annotate._ACCOUNT, annotate._INTERVAL_S = Path(sys.argv[1]), 0.2
main(sys.argv[2:])
"""


@pytest.fixture
def account(api_server, tmp_path):
    """Return the folder that a pod finds its account in."""
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text(api_server.token)
    (folder / "namespace").write_text("default")
    (folder / "ca.crt").write_bytes(api_server.certificate)
    return folder


@pytest.fixture
def pod(api_server, account, monkeypatch):
    """Be in the head's pod of the RayJob `job`."""
    host, port = address(api_server)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setenv("ELASTICDL_JOB", "job")
    monkeypatch.setattr(annotate, "_ACCOUNT", account)
    monkeypatch.setattr(annotate, "_INTERVAL_S", 0.05)
    api_server.store.create(RAYJOBS, "default", rayjob("job"))


def address(api_server):
    return api_server.url.removeprefix("https://").split(":")


def training(folder, sleep_s=0.0):
    """Return the options of a training of 16 steps; it waits while there is a file `hold`."""
    folder.mkdir()
    model = MODEL.replace("SLEEP_S", str(sleep_s)).replace("HOLD", repr(str(folder / "hold")))
    (folder / "line.py").write_text(model)
    with recordio.Writer(str(folder / "train.recordio")) as writer:
        for number in range(64):
            x = np.float32([number % 7, number % 5]) / 7
            writer.write(encode({"x": x, "y": x[:1] * 2}))
    return {
        "model_zoo": str(folder),
        "model_def": "line",
        "data": str(folder / "train.recordio"),
        "output": str(folder / "out"),
        "minibatch_size": 8,
        "num_epochs": 2,
    }


class Watching(Silent):
    """Does something once while a training runs."""

    def __init__(self, then):
        self.then = then

    def advanced(self, done, facts):
        self.then()


def weights(options):
    return Path(options["output"], "params.safetensors").read_bytes()


def annotations(api_server, name="job"):
    return progress.annotations_of(api_server.store.get(RAYJOBS, "default", name))


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory):
    """Return the weights of a training that is in no cluster."""
    options = training(tmp_path_factory.mktemp("unwatched") / "zoo")
    elasticdl.train(**options, reporter=Silent())
    return weights(options)


def test_a_training_in_a_pod_reports_its_progress(api_server, pod, tmp_path, capfd, unwatched):
    options = training(tmp_path / "zoo")

    elasticdl.train(**options, reporter=Silent())

    assert annotations(api_server)["elasticdl.org/progress"] == "finished"
    assert annotations(api_server)["elasticdl.org/step"] == "16"
    assert set(api_server.requests) == {PATCH}
    assert "elasticdl-progress" not in capfd.readouterr().err
    assert weights(options) == unwatched


def test_updates_are_throttled_except_for_the_last(api_server, pod, tmp_path, monkeypatch):
    monkeypatch.setattr(annotate, "_INTERVAL_S", 600)

    elasticdl.train(**training(tmp_path / "zoo", sleep_s=0.05), reporter=Silent())

    changes = api_server.store.changes(RAYJOBS, 1000, 0)
    seen = [progress.short(progress.annotations_of(each.after)) for each in changes]
    assert seen == ["", "epoch 1/2, 0 %", "finished"]


def test_a_resumed_training_reports_earlier_progress(api_server, pod, tmp_path, monkeypatch):
    options = {**training(tmp_path / "zoo"), "checkpoint_steps": 5}

    class Interrupting(Silent):
        def advanced(self, done, facts):
            if done > 80:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        elasticdl.train(**options, reporter=Interrupting())
    api_server.store.delete(RAYJOBS, "default", "job")
    api_server.store.create(RAYJOBS, "default", rayjob("job"))
    before = api_server.store.version
    monkeypatch.setattr(annotate, "_INTERVAL_S", 600)

    elasticdl.train(**options, reporter=Silent())

    changes = api_server.store.changes(RAYJOBS, before, 0)
    seen = [progress.short(progress.annotations_of(each.after)) for each in changes]
    # Ten of its 16 steps were kept: eight of the first epoch and two of the second.
    assert seen == ["epoch 2/2, 25 %", "finished"]


def test_without_permission_progress_is_written_to_the_log(
    api_server, pod, tmp_path, capfd, unwatched
):
    api_server.access.forbid("patch", "rayjobs.ray.io")
    options = training(tmp_path / "zoo", sleep_s=0.05)

    elasticdl.train(**options, reporter=Silent())

    assert api_server.requests == [PATCH]
    lines = [line for line in capfd.readouterr().err.splitlines() if progress.is_line(line)]
    assert len(lines) >= 2
    assert progress.short(progress.last_line(lines)) == "finished"
    assert annotations(api_server) == {}
    assert weights(options) == unwatched


@pytest.mark.parametrize("how", ["gone", "silent", "failing"])
def test_an_unreachable_server_does_not_disturb_the_training(
    api_server, pod, tmp_path, monkeypatch, unwatched, how
):
    monkeypatch.setattr(annotate, "_TIMEOUT_S", 0.2)
    faults = {"silent": Fault("patch", delay_s=1), "failing": Fault("patch", status=500)}

    def break_it():
        if how == "gone":
            api_server.__exit__()
        elif not api_server.faults:
            api_server.faults.append(faults[how])

    options = training(tmp_path / "zoo", sleep_s=0.02)
    begun_s = time.monotonic()

    elasticdl.train(**options, reporter=Watching(break_it))

    assert time.monotonic() - begun_s < 10
    assert weights(options) == unwatched


def test_outside_a_cluster_no_cluster_code_is_imported(run_python):
    run_python(
        "import sys; from elasticdl.artifacts.folder import OutputFolder\n"
        "from elasticdl.engines import attempt, run\n"
        "assert not [name for name in sys.modules if name.startswith('elasticdl.cluster')]"
    )


# Who reads them


def command(*arguments):
    result = CliRunner().invoke(
        cli, ["job", *arguments, "--cluster=kubernetes"], catch_exceptions=False,
        env={"COLUMNS": "80"},
    )  # fmt: skip
    assert result.exit_code == 0
    return result.output


@pytest.fixture
def job(kubeconfig, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return job_options.training_job(
        model_def="mnist", data="s3://bucket/a", output="s3://bucket/b", num_workers=1
    )


def submit(job, **how):
    image = ClusterOptions(image="registry.example/app", ray_version="2.60.0")
    api.run_on_cluster(job, image, **{"detach": True, "print_fn": lambda _: None, **how})


def wait_until(condition):
    end_s = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_a_job_on_a_cluster_shows_its_progress_while_it_runs(api_server, account, job, tmp_path):
    ours = "elasticdl.org"
    options = training(tmp_path / "zoo", sleep_s=0.25)
    flags = [f"--{name}={value}" for name, value in options.items()]
    entrypoint = shlex.join([sys.executable, "-c", POD, str(account), "train", *flags])
    host, port = address(api_server)
    env = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    with Operator(api_server, env, rewrite=lambda _: entrypoint):
        submit(job)
        wait_until(lambda: annotations(api_server, job.id))
        (tmp_path / "zoo/hold").touch()
        shown, listed = command("show", job.id), command("list")
        (tmp_path / "zoo/hold").unlink()
        wait_until(lambda: annotations(api_server, job.id).get(f"{ours}/progress") == "finished")

    assert "running on 1 of 1 workers" in shown
    assert "  epoch 1/2, " in shown
    assert "epoch 1/2, " in listed
    last = annotations(api_server, job.id)
    assert (last[f"{ours}/step"], last[f"{ours}/eta_s"]) == ("16", "0")
    assert float(last[f"{ours}/loss"]) < 1


def test_without_annotations_progress_is_read_from_the_log(api_server, job):
    line = progress.line_of({"elasticdl.org/progress": "epoch 1/2, 25 %"})
    with Operator(api_server, rewrite=lambda _: f"echo {shlex.quote(line)}; sleep 60"):
        submit(job)
        wait_until(lambda: any(log.lines for log in api_server.logs.values()))
        shown, listed = command("show", job.id), command("list")
        api_server.access.forbid("get", "pods/log")
        without_right = command("list")

    assert "  epoch 1/2, 25 %\n" in shown
    # On a terminal of 80 columns as well.
    assert "epoch 1/2, 25 %" in listed
    assert job.id in listed
    assert job.id in without_right
    assert "epoch" not in without_right


def test_progress_lines_of_a_log_are_not_shown_to_users(api_server, job):
    line = progress.line_of({"elasticdl.org/step": "1"})
    said = []
    with Operator(api_server, rewrite=lambda _: f"echo begun; echo {shlex.quote(line)}"):
        submit(job, detach=False, print_fn=said.append)

    assert "begun" in said
    assert not any("elasticdl-progress" in each for each in said)
