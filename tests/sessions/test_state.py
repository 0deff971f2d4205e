"""What a session's files say of it, whatever became of the process that ran it."""

import json
import os
import signal
import subprocess
import sys

import pytest

from elasticdl.errors import OutputBusyError, OutputError
from elasticdl.sessions.run import status_of
from elasticdl.sessions.state import (
    STATE_FILE,
    SessionState,
    SessionStatus,
    held,
    read_status,
    write_status,
)

HOLDS = """
import sys
from pathlib import Path
from elasticdl.sessions.state import held
with held(Path(sys.argv[1]), "first"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Return a process that holds the session; it ends when its input does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_session_that_never_ran_is_new(tmp_path):
    assert read_status(tmp_path) == SessionStatus(SessionState.NEW)
    assert list(tmp_path.iterdir()) == []


def test_a_held_session_is_running(holder, tmp_path):
    status = read_status(tmp_path)

    assert (status.state, status.pid, status.attempt) == (SessionState.RUNNING, holder.pid, 1)


def test_a_session_whose_process_was_killed_is_interrupted(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()

    assert read_status(tmp_path).state is SessionState.INTERRUPTED
    assert status_of(tmp_path).state is SessionState.INTERRUPTED


def test_an_interrupted_session_can_be_held_again(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()

    with held(tmp_path, "first") as status:
        assert (status.state, status.attempt, status.pid) == (SessionState.RUNNING, 2, os.getpid())


def test_a_second_process_is_refused_with_the_first_ones_id(holder, tmp_path):
    said = f"the session first: process {holder.pid} on"
    with pytest.raises(OutputBusyError, match=said), held(tmp_path, "first"):
        pass

    assert read_status(tmp_path).pid == holder.pid


def test_a_lock_is_released_however_a_run_ends(tmp_path):
    with pytest.raises(KeyboardInterrupt), held(tmp_path, "first"):
        raise KeyboardInterrupt

    with held(tmp_path, "first") as status:
        assert status.attempt == 2


@pytest.mark.parametrize("state", sorted(set(SessionState) - {SessionState.RUNNING}))
def test_a_reached_state_is_kept(tmp_path, state):
    write_status(tmp_path, SessionStatus(state, attempt=3, error="why"))

    assert read_status(tmp_path) == SessionStatus(state, attempt=3, error="why")


def test_the_next_run_clears_the_error_of_an_earlier_one(tmp_path):
    write_status(tmp_path, SessionStatus(SessionState.FAILED, error="why", commit="abc"))

    with held(tmp_path, "first") as status:
        assert (status.error, status.commit) == ("", "abc")
        assert read_status(tmp_path) == status


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"state": "asleep"}', '{"attempt": 1}', '{"state": "new", "x": 1}'],
)
def test_a_damaged_file_is_reported_with_a_remedy(tmp_path, text):
    (tmp_path / STATE_FILE).write_text(text)

    for ask in (read_status, status_of):
        with pytest.raises(OutputError, match="session.json: cannot be read .*Delete it"):
            ask(tmp_path)


def test_a_damaged_file_holds_no_lock(tmp_path):
    (tmp_path / STATE_FILE).write_text("{")

    for _ in range(2):
        with pytest.raises(OutputError, match="Delete it") as caught, held(tmp_path, "first"):
            pass
        assert not isinstance(caught.value, OutputBusyError)


def test_partial_files_of_a_killed_run_are_removed(tmp_path):
    code = (
        "import os, sys\nfrom elasticdl.artifacts.folder import OutputFolder\n"
        "with OutputFolder(sys.argv[1]).staging('exported') as staged:\n"
        "    (staged / 'half').write_text('')\n    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert [path.name.startswith(".") for path in tmp_path.iterdir()] == [True]

    with held(tmp_path, "first"):
        pass

    assert sorted(path.name for path in tmp_path.iterdir()) == [".gitignore", STATE_FILE]


def test_session_files_are_ignored_by_git(tmp_path):
    def git(*arguments):
        done = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("epochs: 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "All")

    with held(folder, "first"):
        for name in ("training", "exported", "reports"):
            (folder / name).mkdir()
            (folder / name / "file").write_text("")
        assert git("status", "--porcelain") == ""
    assert git("status", "--porcelain") == ""
    (folder / "notes.md").write_text("")
    assert git("status", "--porcelain") == "?? runs/first/notes.md\n"


def test_a_gitignore_of_the_user_is_left_alone(tmp_path):
    (tmp_path / ".gitignore").write_text("mine\n")

    with held(tmp_path, "first"):
        pass

    assert (tmp_path / ".gitignore").read_text() == "mine\n"


def test_the_state_file_tells_other_programs_who_ran_it(tmp_path):
    with held(tmp_path, "first"):
        pass

    found = json.loads((tmp_path / STATE_FILE).read_text())
    assert (found["state"], found["attempt"], found["pid"]) == ("running", 1, os.getpid())
