"""An aggregator that is told something: real sockets, parties in this process."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest
from tests.engines.federated.conftest import assert_same_bits

import elasticdl
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.federated import training
from elasticdl.engines.federated.control.control_server import ADDRESS_FILE, Control, send_command
from elasticdl.engines.federated.control.status import kept_aggregator
from elasticdl.engines.federated.protocol.messages import Refusal
from elasticdl.engines.federated.server.client_registry import ClientRegistry
from elasticdl.engines.federated.simulation import simulate
from elasticdl.engines.federated.simulation.party_processes import PartyProcesses
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import (
    ElasticDLError,
    OutputBusyError,
    OutputTakenError,
    TrainingError,
    UsageError,
)
from elasticdl.event_file import read_events
from elasticdl.events import JobFailed, JobFinished, JobStarted, RoundFinished

MODEL = "torch_small"


class Teller:
    """Tells an aggregator something, in a thread of its own."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.notes = []

    def __call__(self, verb, **options):
        return send_command(self.folder, verb, options, self.notes.append)

    def until(self, state):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(ElasticDLError):
                status = self("status")
                if status is not None and status["state"] == state:
                    return status
            time.sleep(0.02)
        raise AssertionError(state)


@pytest.fixture
def told(member):
    """Return what runs an aggregator while a function tells it something."""

    def run(job, script, *, serves=True, members=(0, 1), change=None, made=None, **more):
        trainers = simulate._Trainers()
        happened = {}

        @contextlib.contextmanager
        def open_parties(definition):
            each = [member(n, **more.get(f"p{n}", {})) for n in members]
            parties = {
                one.name: simulate._party(
                    one, job, definition, trainers, simulate.InMemoryClientState()
                )
                for one in each
            }
            if made is not None:
                made.update(parties)
            yield simulate.SimulatedParties(
                parties, PartyProcesses(parties, 1), change or simulate._as_it_is
            )

        teller = Teller(job.output)

        def talk():
            try:
                happened["said"] = script(teller)
            except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
                happened["error"] = error
            finally:
                with contextlib.suppress(ElasticDLError):
                    teller("stop")

        thread = threading.Thread(target=talk)
        thread.start()
        try:
            happened["outcome"] = training.train(
                job,
                Silent(),
                open_parties,
                trainers.for_shapes,
                open_control=lambda at_once: Control(Path(job.output), at_once),
                serves=serves,
            )
        finally:
            thread.join(60)
        if "error" in happened:
            raise happened["error"]
        return happened

    return run


def events(job, kind):
    log = Path(job.output) / "events.jsonl"
    return [event for event in read_events(log) if isinstance(event, kind)]


def weights(output):
    return dict(load_trained_model(str(output)).params)


def test_repeated_train_commands_continue_from_the_current_weights(job, told, run, member):
    asked = job(model_def=MODEL)

    def script(tell):
        tell.until("idle")
        return [tell("train")["round"], tell("train")["round"], tell("train", num_rounds=1)]

    said = told(asked, script)["said"]

    assert [said[0], said[1], said[2]["round"]] == [2, 4, 5]
    started = events(asked, JobStarted)
    assert [(one.resumed_from_step, one.num_epochs) for one in started] == [(0, 2), (2, 4), (4, 5)]
    assert [one.step for one in events(asked, RoundFinished)] == [1, 2, 3, 4, 5]
    assert [one.step for one in events(asked, JobFinished)] == [2, 4, 5]
    run(job("at_once", model_def=MODEL, num_rounds=5), member(0), member(1))
    at_once = weights(Path(asked.output).parent / "at_once")
    assert_same_bits(weights(asked.output), at_once)


def test_followers_get_one_line_per_round(job, told):
    def script(tell):
        tell.until("idle")
        tell("train")
        return [note for note in tell.notes if note.startswith("round") and " of " in note]

    first, second = told(job(model_def=MODEL), script)["said"]

    assert first.startswith("round 1 of 2: parties 2/2, loss ")
    assert second.startswith("round 2 of 2: parties 2/2, loss ")


@pytest.mark.parametrize("cut_in", [3, 4])
def test_an_interrupted_training_is_finished_before_another_begins(cut_in, job, told):
    """The request of the second training is kept, even for its first round."""
    asked = job(model_def=MODEL)

    def cut(request, answer):
        if request.kind == "train" and request.round == cut_in:
            raise KeyboardInterrupt
        return answer

    def script(tell):
        tell.until("idle")
        tell("train")
        with contextlib.suppress(ElasticDLError):
            tell("train", num_rounds=3)

    with pytest.raises(KeyboardInterrupt):
        told(asked, script, change=cut)
    kept = kept_aggregator(asked.output, 2, 2)

    def again(tell):
        before = tell.until("idle")
        return before, tell("train")

    before, done = told(asked, again)["said"]

    assert (kept.state, kept.round, kept.num_rounds, kept.published_round) == (
        "not running",
        cut_in - 1,
        5,
        2,
    )
    assert (before["round"], before["num_rounds"]) == (cut_in - 1, 5)
    assert (done["round"], done["num_rounds"]) == (5, 5)
    assert [one.step for one in events(asked, RoundFinished)] == [1, 2, 3, 4, 5]
    assert [one.resumed_from_step for one in events(asked, JobStarted)] == [0, 2, cut_in - 1]


def test_while_training_other_train_commands_are_refused(job, told):
    inside, go_on = threading.Event(), threading.Event()

    def hold(request, answer):
        if request.kind == "train" and request.round == 2:
            inside.set()
            assert go_on.wait(60)
        return answer

    def script(tell):
        tell.until("idle")
        thread = threading.Thread(target=lambda: tell("train"))
        thread.start()
        assert inside.wait(60)
        status = tell("status")
        try:
            with pytest.raises(OutputBusyError, match="Round 2 of 2 is in progress"):
                tell("train", num_rounds=7)
        finally:
            go_on.set()
            thread.join(60)
        return status

    status = told(job(model_def=MODEL), script, change=hold)["said"]

    assert (status["state"], status["round"], status["num_rounds"]) == ("training", 1, 2)
    assert status["parties"]["p0"] == {
        "connected": True,
        "joined": True,
        "num_examples": 96,
        "last": "took part in round 1",
    }


def test_a_failed_training_is_reported_and_the_aggregator_stays(job, told):
    asked = job(model_def=MODEL)
    broken = [True]

    def refuse(request, answer):
        if request.kind == "train" and request.round == 2 and broken[0]:
            return Refusal(answer.party, "DataError", "gone", answer.history, answer.round)
        return answer

    def script(tell):
        tell.until("idle")
        with pytest.raises(TrainingError, match="0 of 2 parties"):
            tell("train")
        status = tell.until("idle")
        broken[0] = False
        return status, tell("train")

    status, done = told(asked, script, change=refuse)["said"]

    assert (status["round"], status["num_rounds"]) == (1, 2)
    assert status["parties"]["p1"]["last"] == "left out of round 2: DataError: gone"
    assert done["round"] == 2
    assert [one.resumed_from_step for one in events(asked, JobStarted)] == [0, 1]
    assert [one.kind for one in events(asked, JobFailed)] == ["TrainingError"]


@pytest.mark.parametrize("serves", [True, False])
def test_stop_keeps_the_round_and_training_can_resume(serves, job, told):
    asked = job(model_def=MODEL, num_rounds=3)
    stopping = threading.Event()

    def hold(request, answer):
        if request.kind == "train" and request.round == 2:
            stopping.set()
            # Until the order to stop has come in.
            time.sleep(0.5)
        return answer

    def script(tell):
        if serves:
            tell.until("idle")
            threading.Thread(target=lambda: tell("train")).start()
        assert stopping.wait(60)
        return tell("stop")

    happened = told(asked, script, serves=serves, change=hold)
    again = told(asked, lambda tell: tell.until("idle") and tell("train"))["said"]

    assert happened["said"]["stopped"]
    assert happened["outcome"].stopped
    assert happened["outcome"].step == happened["said"]["round"] == 2
    assert [(one.kind, one.step) for one in events(asked, JobFailed)] == [("Interrupted", 2)]
    assert again["round"] == 3
    assert [one.step for one in events(asked, RoundFinished)] == [1, 2, 3]


def test_stopping_an_idle_aggregator_is_not_a_failure(job, told):
    asked = job(model_def=MODEL)

    outcome = told(asked, lambda tell: tell.until("idle") and tell("train"))["outcome"]

    assert (outcome.step, outcome.stopped) == (2, False)
    assert events(asked, JobFailed) == []


def test_eval_names_parties_that_report_nothing(job, told, place):
    validation = str(place / "validation.recordio")

    def script(tell):
        tell.until("idle")
        with pytest.raises(UsageError, match="no global model yet"):
            tell("eval")
        trained = tell("train")
        return trained, tell("eval")

    trained, found = told(
        job(model_def=MODEL, num_parties=3),
        script,
        members=(0, 1, 2),
        p0={"validation_data": validation},
        p1={"validation_data": validation, "shares_metrics": False},
    )["said"]

    assert (found["model"], found["round"], list(found["parties"])) == ("global", 2, ["p0"])
    assert found["merged"] == found["parties"]["p0"]
    assert found["merged"]["loss"] == trained["metrics"]["val_loss"]
    assert found["silent"] == {
        "p1": "does not report metrics (privacy.metrics: false)",
        "p2": "has no validation data",
    }


def test_a_synced_party_has_the_global_model_until_it_trains(job, told):
    asked, parties, seen = job(model_def=MODEL), {}, []

    def look():
        current = parties["p0"].memory.current()
        params = load_trained_model(asked.output).params
        same = all(
            current.checkpoint.state[f"model/{name}"].tobytes() == array.tobytes()
            for name, array in params.items()
        )
        seen.append((current.which.kind, current.which.round, same))

    def script(tell):
        tell.until("idle")
        tell("train")
        look()
        synced = tell("sync")
        look()
        tell("train", num_rounds=1)
        look()
        return synced

    synced = told(asked, script, made=parties)["said"]

    assert synced == {"round": 2, "parties": ["p0", "p1"], "left_out": {}}
    assert seen == [("own", 2, False), ("global", 2, True), ("own", 3, False)]


def test_save_writes_an_independent_trained_model(job, told, place, tmp_path):
    asked = job(model_def=MODEL)

    def script(tell):
        tell.until("idle")
        tell("train", num_rounds=1)
        saved = tell("save")
        tell("train", num_rounds=1)
        with pytest.raises(OutputTakenError, match="something other"):
            tell("save", output=asked.output)
        return saved, tell("save", output=str(tmp_path / "mine"))

    first, second = told(asked, script)["said"]

    assert first == {"output": str(tmp_path / "saved" / "round-1"), "model": "global", "round": 1}
    assert load_trained_model(first["output"]).description.step == 1
    assert_same_bits(weights(second["output"]), weights(asked.output))
    validation = str(place / "validation.recordio")
    scored = elasticdl.evaluate(
        trained_model=second["output"], data=validation, reporter=Silent()
    ).metrics
    assert scored["loss"] > 0


def test_an_aggregator_that_does_not_serve_answers_between_two_rounds(job, told):
    asked = job(model_def=MODEL, num_rounds=2)
    inside, orders = threading.Event(), []

    def hold(request, answer):
        if request.kind == "train" and request.round == 2:
            inside.set()
            # Until the order to sync has come in.
            time.sleep(0.5)
        orders.append((request.kind, request.round))
        return answer

    def script(tell):
        assert inside.wait(60)
        with pytest.raises(OutputBusyError, match="Round 2 of 2"):
            tell("train")
        return tell("sync")

    happened = told(asked, script, serves=False, change=hold)

    assert happened["said"]["round"] == 2
    assert happened["outcome"].step == 2
    # Nothing is asked within a round.
    assert orders[-2:] == [("sync", 2), ("sync", 2)]
    assert not (Path(asked.output) / ADDRESS_FILE).exists()


def test_ctrl_c_while_idle_ends_it_without_a_failure(job, told, monkeypatch):
    asked = job(model_def=MODEL)

    def script(tell):
        tell.until("idle")
        tell("train")

        interrupted = threading.Event()

        def interrupt(self):
            interrupted.set()
            raise KeyboardInterrupt

        # Called while it is idle.
        monkeypatch.setattr(ClientRegistry, "join_newcomers", interrupt)
        assert interrupted.wait(60)

    with pytest.raises(KeyboardInterrupt):
        told(asked, script)

    assert [one.step for one in events(asked, JobFinished)] == [2]
    assert events(asked, JobFailed) == []
