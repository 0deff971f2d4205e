"""`elasticdl job list|show|logs|stop` over outputs on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from tests.engines.conftest import MODEL, write_records
from tests.page.conftest import T0, elastic_events, finished_events, started, step, write_output
from tests.page.test_views import federated_events

from elasticdl.cli.main import _run
from elasticdl.events import Evaluated, JobFailed, JobFinished


@pytest.fixture
def ask(capsys):
    """Run `elasticdl job`; returns its exit code and what it said."""

    def run(*words):
        capsys.readouterr()
        code = _run(["job", *map(str, words)], debug=False)
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def test_list_names_each_job_with_its_state(tmp_path, ask) -> None:
    write_output(tmp_path / "one", finished_events())
    write_output(tmp_path / "two", elastic_events())

    code, said = ask("list", tmp_path)

    assert not code
    one, two = said.split("\ntwo\n")
    assert one.startswith("one\n  finished: ")
    assert two.startswith("  killed: ")


def test_show_describes_the_job(tmp_path, ask) -> None:
    code, said = ask("show", write_output(tmp_path / "job", elastic_events()))

    assert not code
    assert "killed: the process ended without reporting why" in said
    assert "Worker 1 was lost" in said
    assert "The others waited 4.0 s" in said
    assert "Overfitting since step 8" in said


def test_a_job_stays_finished_after_a_refused_attempt_to_continue_it(tmp_path, ask) -> None:
    refused = JobFailed(time=T0 + 90, kind="CheckpointMismatchError", message="Other optimizer.")
    events = [started(), step(15), JobFinished(time=T0 + 20, step=15), refused]

    code, said = ask("show", write_output(tmp_path / "job", events))

    assert not code
    assert said.splitlines()[0] == (
        "finished: after 20.0 s. The last attempt to continue it ended before training began: "
        "Other optimizer."
    )
    assert said.splitlines()[1].startswith("  step 15; loss")


def test_the_pause_between_two_attempts_is_not_run_time(tmp_path, ask) -> None:
    events = [started(), step(3), started(at=63.0, attempt=2, resumed_from_step=3), step(4, at=64)]
    output = write_output(tmp_path / "job", [*events, JobFinished(time=T0 + 65, step=4)])

    said = ask("show", output)[1]

    assert said.startswith("finished: after 5.0 s in 2 starts, without 1 min 0 s between them\n")
    assert "took 5.0 s" in ask("list", tmp_path)[1]


def test_list_prints_the_first_line_of_an_error_and_show_all(tmp_path, ask) -> None:
    error = JobFailed(time=T0 + 9, kind="UserCodeError", message="m.py:3: it raised:\nKeyError: 1")
    output = write_output(tmp_path / "job", [started(), step(1), error])

    listed = ask("list", tmp_path)[1]

    assert "failed: UserCodeError: m.py:3: it raised: ..." in listed
    assert "KeyError" not in listed
    assert "failed: UserCodeError: m.py:3: it raised:\nKeyError: 1" in ask("show", output)[1]


def test_show_prints_the_step_once_before_the_first_event(tmp_path, ask) -> None:
    code, said = ask("show", write_output(tmp_path / "job", []))

    assert not code
    assert said.count("step 0") == 1, said


def test_progress_of_a_federation_is_shown_in_rounds(tmp_path, ask) -> None:
    output = write_output(tmp_path / "job", [*federated_events(), Evaluated(
        time=T0 + 9, step=3, epoch=3, metrics={"loss": 0.5}), JobFinished(time=T0 + 10, step=3),
    ])  # fmt: skip

    for command in ("show", "logs"):
        code, said = ask(command, output)
        assert (code, "step" in said) == (0, False), said
    assert "Evaluated at round 3: loss 0.5" in said
    assert "; round 3; " in ask("show", output)[1]


def test_logs_describe_the_events_in_words(tmp_path, ask) -> None:
    code, said = ask("logs", write_output(tmp_path / "job", finished_events()))

    assert not code
    assert "Worker 1 left at step 10: died" in said
    assert "Evaluated at step 8: loss 0.4, accuracy 0.5" in said
    assert said.splitlines()[-1].endswith("Finished at step 15: loss 0.2, val_loss 0.7")


@pytest.mark.parametrize("make", [finished_events, elastic_events])
def test_logs_are_in_the_order_of_time(tmp_path, ask, make) -> None:
    said = ask("logs", write_output(tmp_path / "job", make()))[1]

    times = [line[:19] for line in said.splitlines()]
    assert times == sorted(times)
    assert sum("Step " in line for line in said.splitlines())


def test_a_folder_that_is_not_a_job_is_refused(tmp_path, ask) -> None:
    for verb in ("list", "show", "logs", "stop", "page"):
        code, said = ask(verb, tmp_path)
        assert code == 6, verb
        assert "was passed as --output" in said


def test_a_folder_of_jobs_is_not_a_job(tmp_path, ask) -> None:
    write_output(tmp_path / "one", finished_events())
    write_output(tmp_path / "two", finished_events())

    code, said = ask("show", tmp_path)

    assert code == 6
    assert "it contains 2 (one, two). Choose one of them." in said


def test_cluster_options_require_a_cluster(tmp_path, ask) -> None:
    code, said = ask("list", tmp_path, "--namespace=team")

    assert code == 2
    assert "--namespace need --cluster" in said


def test_stopping_a_job_that_is_not_running_does_nothing(tmp_path, ask) -> None:
    code, said = ask("stop", write_output(tmp_path / "job", finished_events()))

    assert not code
    assert said.startswith("Nothing to stop")
    assert "Its state is finished." in said


def test_stopping_a_job_elsewhere_names_its_machine(tmp_path, ask) -> None:
    output = write_output(tmp_path / "job", elastic_events())
    holder = {"pid": 1, "host": "far", "machine": "another", "claimed": "today", "started": "1"}
    (output / ".lock").write_text(json.dumps(holder))

    code, said = ask("stop", output)

    assert code == 6
    assert "process 1 on far" in said


def test_stop_never_ends_another_process_with_the_same_pid(tmp_path, ask) -> None:
    from elasticdl.artifacts.holder import this_process

    output = write_output(tmp_path / "job", elastic_events())
    with subprocess.Popen(["sleep", "60"]) as other:
        holder = {**this_process(), "pid": other.pid, "started": "12345"}
        (output / ".lock").write_text(json.dumps(holder))
        code, _ = ask("stop", output)
        alive = other.poll() is None
        other.kill()

    assert not code
    assert alive


@pytest.mark.slow
def test_stop_ends_a_training_with_a_checkpoint_and_the_same_command_resumes(tmp_path, ask) -> None:
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "small.py").write_text(MODEL)
    (tmp_path / "data").mkdir()
    write_records(tmp_path / "data" / "a.recordio", 200)
    output = tmp_path / "out"
    command = [
        *(sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={tmp_path / 'zoo'}"),
        *("--model_def=small", f"--data={tmp_path / 'data'}", f"--output={output}"),
        *("--minibatch_size=10", "--num_epochs=100000"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as training:
        deadline = time.monotonic() + 60
        log = output / "events.jsonl"
        while time.monotonic() < deadline and (
            not log.exists() or "step_committed" not in log.read_text()
        ):
            time.sleep(0.2)
        code, said = ask("stop", output)
        training.wait(20)
        complaint = training.stderr.read()

    assert not code, complaint
    assert "Progress is saved up to" in said
    assert training.returncode == 128 + signal.SIGTERM
    assert list((output / "checkpoints").glob("step-*"))
    assert not (output / ".lock").exists()
    assert "interrupted" in ask("show", output)[1]
