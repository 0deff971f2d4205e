"""The socket by which a running process is told something: real sockets, real processes."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from elasticdl.engines.federated.control import control_server as control_module
from elasticdl.engines.federated.control.control_server import ADDRESS_FILE, Control, send_command
from elasticdl.engines.federated.protocol import wire
from elasticdl.engines.federated.protocol.wire import Frame
from elasticdl.errors import (
    CorruptDataError,
    OutputBusyError,
    TrainingError,
    UnavailableError,
    UsageError,
)


def nothing_at_once(verb, options):
    return None


def ignore(text):
    pass


@pytest.fixture
def told(tmp_path):
    """Return what tells the process of `tmp_path` something in a thread, and its answer."""
    threads = []

    def start(verb, note=ignore, **options):
        answer = {}

        def run():
            try:
                answer["facts"] = send_command(tmp_path, verb, options, note)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                answer["error"] = error

        thread = threading.Thread(target=run)
        thread.start()
        threads.append(thread)

        def wait():
            thread.join(20)
            return answer

        wait.is_over = lambda: not thread.is_alive()
        return wait

    yield start
    for thread in threads:
        thread.join(20)


def test_a_command_without_any_process_returns_none(tmp_path):
    assert send_command(tmp_path, "status", {}, ignore) is None


def test_immediate_answers_do_not_wait_for_the_main_loop(tmp_path):
    with Control(tmp_path, lambda verb, options: {"verb": verb, **options}):
        assert send_command(tmp_path, "status", {"n": 3}, ignore) == {"verb": "status", "n": 3}


def test_a_command_waits_until_it_is_taken_and_done(tmp_path, told):
    notes = []
    with Control(tmp_path, nothing_at_once) as control:
        wait = told("train", notes.append, num_rounds=2)
        order = control.take(20)
        order.note("round 1")
        order.done({"round": 2})

        assert wait() == {"facts": {"round": 2}}
    assert (order.verb, order.options["num_rounds"], notes) == ("train", 2, ["round 1"])


def test_status_is_answered_while_a_command_waits(tmp_path, told):
    with Control(tmp_path, lambda verb, _: {} if verb == "status" else None) as control:
        wait = told("sync")
        order = control.take(20)

        assert send_command(tmp_path, "status", {}, ignore) == {}
        order.done({})
        wait()


@pytest.mark.parametrize("error", [OutputBusyError("busy"), UsageError("what?")])
def test_an_error_is_raised_in_the_sender(error, tmp_path, told):
    def refuse(verb, options):
        raise error

    with Control(tmp_path, refuse), pytest.raises(type(error), match=str(error)) as raised:
        send_command(tmp_path, "train", {}, ignore)

    assert raised.value.exit_code == error.exit_code


def test_an_error_with_several_arguments_keeps_its_message(tmp_path, told):
    with Control(tmp_path, nothing_at_once) as control:
        wait = told("eval")
        control.take(20).failed(CorruptDataError("a.recordio", 3, "x", "y"))
        error = wait()["error"]

    assert isinstance(error, CorruptDataError)
    assert "damaged at byte 3" in str(error)


def test_a_command_continues_after_its_sender_disconnects(tmp_path):
    with Control(tmp_path, nothing_at_once) as control:
        path = json.loads((tmp_path / ADDRESS_FILE).read_text())["socket"]
        with wire.connect(Path(path)) as stream:
            wire.send(stream, Frame("train", {}))
            order = control.take(20)
        for number in range(100):
            order.note(f"round {number}")
        order.done({})

        assert tell_status(tmp_path, control)


def tell_status(folder, control):
    thread = threading.Thread(target=lambda: control.take(20).done({"fine": True}))
    thread.start()
    facts = send_command(folder, "eval", {}, ignore)
    thread.join(20)
    return facts == {"fine": True}


def test_commands_that_were_not_executed_are_reported(tmp_path, told):
    with Control(tmp_path, nothing_at_once):
        wait = told("save")
        # Time to come in; whoever comes later is told the same, in other words.
        time.sleep(0.5)
    error = wait()["error"]

    assert isinstance(error, TrainingError)
    assert "The process ended before it executed the command." in str(error)


def test_only_this_user_can_reach_the_socket(tmp_path):
    with Control(tmp_path, nothing_at_once):
        path = Path(json.loads((tmp_path / ADDRESS_FILE).read_text())["socket"])

        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert path.stat().st_uid == os.getuid()


def test_a_socket_of_another_user_is_not_trusted(tmp_path, monkeypatch):
    with Control(tmp_path, nothing_at_once):
        monkeypatch.setattr(os, "getuid", lambda: 4242)

        with pytest.raises(UsageError, match="another user"):
            send_command(tmp_path, "status", {}, ignore)


def test_a_command_for_another_machine_names_that_machine(tmp_path):
    address = {"socket": "/tmp/x", "pid": 1, "host": "elsewhere"}
    (tmp_path / ADDRESS_FILE).write_text(json.dumps(address))

    with pytest.raises(UsageError, match="runs on elsewhere"):
        send_command(tmp_path, "status", {}, ignore)


def test_a_damaged_address_file_is_named(tmp_path):
    (tmp_path / ADDRESS_FILE).write_text("{")

    with pytest.raises(UsageError, match=ADDRESS_FILE):
        send_command(tmp_path, "status", {}, ignore)


KILLED = """
import sys, time
from pathlib import Path
from elasticdl.engines.federated.control.control_server import Control

with Control(Path(sys.argv[1]), lambda verb, options: None):
    print("listening", flush=True)
    time.sleep(100)
"""


def test_a_killed_process_does_not_count_as_running(tmp_path, told):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"listening\n"
        wait = told("sync")
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    assert "ended before `sync` was done" in str(wait()["error"])
    assert (tmp_path / ADDRESS_FILE).exists()
    assert send_command(tmp_path, "status", {}, ignore) is None
    with Control(tmp_path, lambda verb, options: {"again": True}):
        assert send_command(tmp_path, "status", {}, ignore) == {"again": True}


STOPPED = """
import sys
from pathlib import Path
from elasticdl.engines.federated.control.control_server import Control

with Control(Path(sys.argv[1]), lambda verb, options: {} if verb == "status" else None) as control:
    print("listening", flush=True)
    while (order := control.take(60)) is not None:
        print(order.verb, flush=True)
        if order.verb == "stop":
            order.done({})
            break
"""


@pytest.fixture
def stoppable(tmp_path, monkeypatch):
    """A process that takes orders and does none but `stop`; silence is a second of it."""
    monkeypatch.setattr(control_module, "_ANSWER_S", 1.0)
    command = [sys.executable, "-c", STOPPED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"listening\n"
        yield process
        process.send_signal(signal.SIGCONT)
        process.kill()


@pytest.mark.timeout(60)
def test_a_command_to_a_stopped_process_fails_in_time(stoppable, tmp_path, monkeypatch):
    stoppable.send_signal(signal.SIGSTOP)
    # Its threads stop one after another.
    while psutil.Process(stoppable.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    time.sleep(0.2)
    began_s = time.monotonic()
    with pytest.raises(UnavailableError, match=rf"kill -CONT {stoppable.pid}") as raised:
        send_command(tmp_path, "sync", {}, ignore)

    assert "did not answer within 1 s: it is suspended" in str(raised.value)
    assert time.monotonic() - began_s < 5
    stoppable.send_signal(signal.SIGCONT)
    monkeypatch.setattr(control_module, "_ANSWER_S", 20.0)
    send_command(tmp_path, "stop", {}, ignore)
    # What was given up is not done afterwards.
    assert stoppable.stdout.read() == b"stop\n"


@pytest.mark.timeout(60)
def test_waiting_ends_when_the_process_is_stopped(stoppable, told, tmp_path):
    wait = told("train")
    assert stoppable.stdout.readline() == b"train\n"
    # Longer than a silence: it is at work, and says so when it is asked.
    time.sleep(2.5)
    assert not wait.is_over()
    stoppable.send_signal(signal.SIGSTOP)

    assert isinstance(wait()["error"], UnavailableError)


def test_a_control_server_leaves_nothing_behind(tmp_path):
    with Control(tmp_path, nothing_at_once):
        path = Path(json.loads((tmp_path / ADDRESS_FILE).read_text())["socket"])

    assert not path.parent.exists()
    assert list(tmp_path.iterdir()) == []


def test_invalid_input_does_not_disturb_the_next_command(tmp_path):
    with Control(tmp_path, lambda verb, options: {}):
        path = json.loads((tmp_path / ADDRESS_FILE).read_text())["socket"]
        with wire.connect(Path(path)) as stream:
            stream.sendall(b"GET / HTTP/1.1\r\n\r\n")

        assert send_command(tmp_path, "status", {}, ignore) == {}
