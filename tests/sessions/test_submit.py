"""A session of a commit: pinned when it is submitted, queued, run once, whoever is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from elasticdl.artifacts.lock import start_of
from elasticdl.cli.session import session
from elasticdl.errors import DataError, DefinitionError, UsageError
from elasticdl.event_file import read_events
from elasticdl.events import Checkpointed
from elasticdl.sessions import runner, submit
from elasticdl.sessions.queue import Queue
from elasticdl.sessions.state import SessionState, SessionStatus
from elasticdl.sessions.submission import Submission
from elasticdl.sessions.submit import SubmitRequest

EXAMPLE = Path(__file__).parents[2] / "examples/mnist_session"
WAIT_S = 30
# A session that notes each start and ends with the code that somebody writes.
SESSION = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
with (folder / "starts").open("a") as file:
    file.write(f"{os.getpid()}\\n")
print("started", flush=True)
while not (folder / "go").exists():
    time.sleep(0.02)
print("error: as it was told", flush=True)
sys.exit(int((folder / "go").read_text()))
"""
RUNNER = f"""
import sys
from elasticdl.sessions import runner
runner.main(sys.argv[1:], lambda one, folder: [sys.executable, "-c", {SESSION!r}, str(folder)])
"""


def git(folder: Path, *arguments: str) -> str:
    person = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", *person, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, message: str = "Change") -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def until(is_so, what: str = "it") -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


@pytest.fixture
def repo(tmp_path) -> Path:
    """Return a repository with the example in it, and a folder that passes for its data."""
    folder = tmp_path / "digits"
    ignored = shutil.ignore_patterns("datasets", "__pycache__", "training", "session.json")
    shutil.copytree(EXAMPLE, folder, ignore=ignored)
    (folder / "datasets/digits").mkdir(parents=True)
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(folder))
    commit(folder, "Begin")
    return folder


@pytest.fixture
def queue(tmp_path):
    """Return a queue; whatever runs of it is killed in the end."""
    queue = Queue(tmp_path / "home")
    yield queue
    for one in queue.all():
        for pid in starts(queue, one):
            if one.state is SessionState.RUNNING and queue.lives(one):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start_runner(queue):
    """Return a function that starts a runner of sessions that do as they are told."""
    started = []

    def start(slots: int = 1) -> subprocess.Popen:
        command = [sys.executable, "-c", RUNNER, f"--home={queue.home}", f"--slots={slots}"]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def submitted(queue: Queue, repo: Path | str, run_name: str = "baseline", *, limit=10, **given):
    request = SubmitRequest(run_name, str(repo), **given)
    return submit.submit(request, submit.find(request), queue, max_queued=limit)


def starts(queue: Queue, one) -> list[int]:
    file = queue.folder(one.id) / "starts"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def let_end(queue: Queue, one, code: int = 0) -> None:
    (queue.folder(one.id) / "aside").write_text(str(code))
    (queue.folder(one.id) / "aside").rename(queue.folder(one.id) / "go")


def is_running(queue: Queue, one, num_starts: int = 1):
    return lambda: queue.read(one.id).pid and len(starts(queue, one)) == num_starts


def has_ended(queue: Queue, one):
    return lambda: queue.read(one.id).has_ended


# --- what is submitted ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "URL"])
@pytest.mark.parametrize("name", ["SHA", "branch"])
def test_a_submission_keeps_its_commit_when_the_branch_moves(repo, queue, kind, name) -> None:
    sha = git(repo, "rev-parse", "HEAD")

    one = submitted(
        queue,
        repo if kind == "path" else f"file://{repo}",
        commit=sha if name == "SHA" else "main",
        data_dir=str(repo / "datasets"),
    )
    (repo / "src/models.py").write_text("moved on")
    commit(repo)

    assert one.commit == sha
    checkout = queue.folder(one.id) / "project"
    assert git(checkout, "rev-parse", "HEAD") == sha
    assert (checkout / "src/models.py").read_text() == (EXAMPLE / "src/models.py").read_text()
    assert git(checkout, "status", "--porcelain") == ""


def test_an_older_commit_may_be_submitted_despite_changes(repo, queue) -> None:
    older = git(repo, "rev-parse", "HEAD")
    (repo / "src/models.py").write_text("newer")
    commit(repo)
    (repo / "src/models.py").write_text("newest")

    assert submitted(queue, repo, commit=older[:10]).commit == older


def test_a_project_may_be_a_folder_of_its_repository(tmp_path, queue) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "all/vision")
    git(tmp_path, "init", "--quiet", "all")
    commit(tmp_path / "all")

    given = {"data_dir": str(tmp_path)}
    by_path = submitted(queue, tmp_path / "all/vision/src", **given)
    by_url = submitted(queue, f"file://{tmp_path}/all#vision", **given)

    for one in (by_path, by_url):
        assert one.session_folder(queue.folder(one.id)).joinpath("config.yaml").is_file()


@pytest.mark.parametrize(
    ("file", "is_refused"),
    [
        ("src/models.py", True),
        ("src/new.py", True),
        ("runs/baseline/notes.txt", True),
        ("README.md", True),
        ("notes.txt", False),
        ("src/__pycache__/models.pyc", False),
    ],
)
def test_uncommitted_changes_are_refused_by_name(repo, queue, file, is_refused) -> None:
    (repo / file).parent.mkdir(exist_ok=True)
    (repo / file).write_text("changed")

    if is_refused:
        with pytest.raises(UsageError, match=file):
            submitted(queue, repo)
        assert queue.all() == []
    else:
        assert submitted(queue, repo).state is SessionState.QUEUED


def test_a_patch_is_stored_and_applied_without_local_changes(repo, queue) -> None:
    (repo / "weights.bin").write_bytes(bytes(range(256)))
    (repo / "src/gone.py").touch()
    commit(repo)
    plain = submitted(queue, repo)
    before = {
        "src/models.py": b"# latin: \xe9\r\n",
        "weights.bin": bytes(reversed(range(256))),
        "src/new file.py": b"new, without an end of line",
        "src/empty.py": b"",
        "runs/baseline/picture.png": b"\x89PNG\0\xff",
    }
    for name, content in before.items():
        (repo / name).write_bytes(content)
    (repo / "src/gone.py").unlink()
    (repo / "elsewhere.txt").write_text("not of the session")
    status = git(repo, "status", "--porcelain")

    one = submitted(queue, repo, with_patch=True)

    folder = queue.folder(one.id)
    assert {name: (folder / "project" / name).read_bytes() for name in before} == before
    assert not (folder / "project/src/gone.py").exists()
    assert not (folder / "project/elsewhere.txt").exists()
    assert (folder / "patch.diff").stat().st_size > 0
    assert one.patch
    assert one.id != plain.id
    assert git(repo, "status", "--porcelain") == status
    # Another change is another submission.
    (repo / "src/empty.py").write_text("1")
    assert submitted(queue, repo, with_patch=True).id != one.id


def test_without_changes_a_patch_is_empty(repo, queue) -> None:
    assert submitted(queue, repo, with_patch=True).id == submitted(queue, repo).id


def test_a_patch_requires_head_and_a_folder(repo, queue) -> None:
    older = git(repo, "rev-parse", "HEAD")
    (repo / "README.md").write_text("newer")
    commit(repo)

    with pytest.raises(UsageError, match="another commit"):
        submitted(queue, repo, commit=older, with_patch=True)
    with pytest.raises(UsageError, match="is a URL"):
        submitted(queue, f"file://{repo}", with_patch=True)


def test_a_config_error_is_reported_before_queueing(repo, queue) -> None:
    config = repo / "runs/baseline/config.yaml"
    config.write_text(config.read_text().replace("epochs: 5", "epochs: many"))
    sha = commit(repo)

    with pytest.raises(DefinitionError, match="epochs is 'many'") as told:
        submitted(queue, f"file://{repo}", data_dir=str(repo))

    assert f"{repo}@{sha[:12]}/runs/baseline/config.yaml:12" in str(told.value)
    assert list(queue.home.glob("[!.]*")) == []
    assert list(queue.home.glob(".new*")) == []


def test_data_of_the_config_are_in_the_working_project(repo, queue) -> None:
    assert submitted(queue, repo).data_dir == str(repo / "datasets/digits")
    with pytest.raises(DataError, match="--data_dir"):
        submitted(queue, f"file://{repo}")


def test_committed_data_are_those_of_the_commit(repo, queue) -> None:
    (repo / ".gitignore").unlink()
    (repo / "datasets/digits/labels.csv").touch()
    commit(repo)

    one = submitted(queue, repo)

    assert not any("data_dir" in word for word in one.arguments(Path()))


def test_bytecode_does_not_change_the_code(repo, queue) -> None:
    (repo / ".gitignore").unlink()
    commit(repo)
    one = submitted(queue, repo, data_dir=".")

    checkout = queue.folder(one.id) / "project"
    (checkout / "src/__pycache__").mkdir()
    (checkout / "src/__pycache__/models.cpython-311.pyc").touch()

    assert git(checkout, "status", "--porcelain") == ""


def test_options_of_run_are_passed_on(repo, queue, monkeypatch) -> None:
    monkeypatch.setattr(runner, "ensure", lambda *_: None)
    monkeypatch.chdir(repo)
    given = (
        *(f"--data_dir={repo}", "--set=batch_size=4", "--set=seed=1", "--epochs=3"),
        *("--num_workers=2..4", "--num_spare_workers=2", "--ray_address=host:6379"),
        *("--checkpoint_steps=20", "--tracking_uri=all.db", "--no-track"),
    )
    command = ["submit", "--run_name=baseline", f"--home={queue.home}", *given]
    CliRunner().invoke(session, command, catch_exceptions=False)
    (one,) = queue.all()

    _, _, *arguments = one.arguments(queue.folder(one.id))

    asked = session.commands["run"].make_context("run", arguments).params
    assert asked == {
        "run_name": "baseline",
        "project_root": str(queue.folder(one.id) / "project"),
        "data_dir": str(repo),
        "settings": ("batch_size=4", "seed=1"),
        "epochs": 3,
        "num_workers": "2..4",
        "num_spare_workers": 2,
        "ray_address": "host:6379",
        "checkpoint_steps": 20,
        "tracking_uri": f"sqlite:///{repo / 'all.db'}",
        "tracked": False,
        "quiet": False,
    }
    # How it is trained may change; what it is may not.
    assert submitted(queue, repo, data_dir=".", settings=one.settings).id == one.id


def test_a_password_of_the_tracking_server_is_refused(repo, queue) -> None:
    with pytest.raises(UsageError, match="MLFLOW_TRACKING_PASSWORD") as told:
        submitted(queue, repo, tracking_uri="http://me:secret@host:5000")

    assert "secret" not in str(told.value)
    assert not queue.home.exists()


def test_unknown_commits_and_runs_are_reported(repo, queue) -> None:
    with pytest.raises(UsageError, match="--commit=v9"):
        submitted(queue, repo, commit="v9")
    with pytest.raises(UsageError, match="--commit=--all"):
        submitted(queue, repo, commit="--all")
    with pytest.raises(UsageError, match="no branch or tag 'v9'. It has: main"):
        submitted(queue, f"file://{repo}", commit="v9")
    with pytest.raises(UsageError, match="already names main"):
        submitted(queue, f"file://{repo}@main", commit="v9")
    with pytest.raises(UsageError, match="Did you mean 'baseline'"):
        submitted(queue, repo, "basline", data_dir=".")


def test_nothing_is_written_into_the_repository(repo) -> None:
    with pytest.raises(UsageError, match="outside"):
        submitted(Queue(repo / "home"), repo)

    assert not (repo / "home").exists()


def test_a_password_is_not_stored(repo, queue, monkeypatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{repo}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://me:secret@host/digits")

    submitted(queue, "https://me:secret@host/digits", data_dir=str(repo))

    stored = [file for file in queue.home.rglob("*") if file.is_file()]
    assert stored
    assert [file for file in stored if b"secret" in file.read_bytes()] == []


# --- the queue --------------------------------------------------------------------------------


def test_the_number_of_waiting_submissions_is_limited(repo, queue) -> None:
    submitted(queue, repo, limit=2)
    submitted(queue, repo, settings=("epochs=6",), limit=2)

    with pytest.raises(UsageError, match="2 sessions are already waiting"):
        submitted(queue, repo, settings=("epochs=7",), limit=2)
    # It waits already.
    submitted(queue, repo, limit=2)


def test_the_same_session_is_one_submission_that_resumes(repo, queue, start_runner) -> None:
    one = submitted(queue, repo)
    again = submitted(queue, repo)
    # It does not lose its place in the line.
    assert (again.id, again.submitted) == (one.id, one.submitted)
    assert len(queue.all()) == 1

    start_runner()
    until(is_running(queue, one))
    (queue.folder(one.id) / "project/runs/baseline/kept").touch()
    assert submitted(queue, repo).state is SessionState.RUNNING
    with pytest.raises(UsageError, match="is running"):
        submitted(queue, repo, epochs=50)
    let_end(queue, one)
    until(has_ended(queue, one))

    assert submitted(queue, repo).state is SessionState.EVALUATED
    further = submitted(queue, repo, epochs=50)
    assert (further.id, further.state) == (one.id, SessionState.QUEUED)
    assert (queue.folder(one.id) / "project/runs/baseline/kept").exists()


def test_submissions_run_one_at_a_time_in_order(repo, queue, start_runner) -> None:
    several = [submitted(queue, repo, settings=(f"epochs={n}",)) for n in (9, 1, 5)]
    process = start_runner()

    for number, one in enumerate(several):
        until(is_running(queue, one))
        states = [queue.read(other.id).state for other in several[number + 1 :]]
        assert states == [SessionState.QUEUED] * len(states)
        let_end(queue, one, code=number)
        until(has_ended(queue, one))

    # Nothing is left to do.
    assert process.wait(timeout=WAIT_S) == 0
    ended = [queue.read(one.id) for one in several]
    assert [one.state for one in ended] == [
        SessionState.EVALUATED,
        SessionState.FAILED,
        SessionState.FAILED,
    ]
    assert [one.exit_code for one in ended] == [0, 1, 2]
    assert ended[1].error == "as it was told"


def test_slots_run_side_by_side(repo, queue, start_runner) -> None:
    several = [submitted(queue, repo, settings=(f"epochs={n}",)) for n in (1, 2, 3)]
    start_runner(slots=2)

    until(is_running(queue, several[0]))
    until(is_running(queue, several[1]))
    assert queue.read(several[2].id).state is SessionState.QUEUED


def test_a_session_that_outlives_its_runner_is_not_started_twice(repo, queue, start_runner) -> None:
    one, other = (submitted(queue, repo, settings=(f"epochs={n}",)) for n in (1, 2))
    first = start_runner()
    until(is_running(queue, one))
    first.kill()
    first.wait()
    assert not runner.is_alive(queue)

    start_runner()
    until(lambda: runner.is_alive(queue))
    time.sleep(0.5)
    assert len(starts(queue, one)) == 1
    assert starts(queue, other) == []

    # It is over, but did not say what came of it: it is looked after by starting it again.
    let_end(queue, one)
    until(has_ended(queue, one))
    assert queue.read(one.id).state is SessionState.EVALUATED
    until(is_running(queue, other))


def test_a_session_that_died_with_its_runner_is_started_again(repo, queue, start_runner) -> None:
    one = submitted(queue, repo)
    first = start_runner()
    until(is_running(queue, one))
    first.kill()
    first.wait()
    os.kill(starts(queue, one)[0], signal.SIGKILL)
    until(lambda: not queue.lives(queue.read(one.id)))
    assert queue.settled(queue.read(one.id)).state is SessionState.INTERRUPTED

    start_runner()
    until(is_running(queue, one, num_starts=2))


def test_a_killed_session_is_resumed_a_limited_number_of_times(repo, queue, start_runner) -> None:
    one = submitted(queue, repo)
    start_runner()
    for number in (1, 2, 3):
        until(is_running(queue, one, num_starts=number))
        os.kill(starts(queue, one)[-1], signal.SIGKILL)

    until(has_ended(queue, one))
    ended = queue.read(one.id)
    assert (ended.state, ended.exit_code, len(starts(queue, one))) == (SessionState.FAILED, 137, 3)
    assert "enough memory" in ended.error
    # Whoever has made room tries again.
    assert submitted(queue, repo).state is SessionState.QUEUED


def test_only_one_runner_exists(queue, repo, start_runner) -> None:
    one = submitted(queue, repo)
    start_runner()
    until(is_running(queue, one))

    assert start_runner().wait(timeout=WAIT_S) == 0
    assert len(starts(queue, one)) == 1


def test_a_cancelled_submission_neither_starts_nor_resumes(repo, queue, start_runner) -> None:
    one, other = (submitted(queue, repo, settings=(f"epochs={n}",)) for n in (1, 2))
    process = start_runner()
    until(is_running(queue, one))

    assert queue.cancel(other.id).state is SessionState.KILLED
    queue.cancel(one.id[:-3])
    assert process.wait(timeout=WAIT_S) == 0

    assert [queue.read(o.id).state for o in (one, other)] == [SessionState.KILLED] * 2
    assert [len(starts(queue, o)) for o in (one, other)] == [1, 0]
    with pytest.raises(UsageError, match="is already killed"):
        queue.cancel(one.id)
    with pytest.raises(UsageError, match="Did you mean"):
        queue.find(one.id.replace("baseline", "basline"))


ONE = Submission("one", "/repo", "ab" * 20, "", "", "baseline", "/data", since=100.0)


@pytest.mark.parametrize(
    ("code", "told", "state", "exit_code"),
    [
        (0, SessionState.EXPORTED, SessionState.EXPORTED, 0),
        (0, SessionState.EVALUATED, SessionState.EVALUATED, 0),
        (5, SessionState.FAILED, SessionState.FAILED, 5),
        (2, SessionState.NEW, SessionState.FAILED, 2),
        (130, SessionState.KILLED, SessionState.KILLED, 130),
        (143, SessionState.KILLED, SessionState.KILLED, 143),
        (-9, SessionState.RUNNING, SessionState.INTERRUPTED, None),
        # Nobody was told how it ended.
        (None, SessionState.EVALUATED, SessionState.EVALUATED, 0),
        (None, SessionState.FAILED, SessionState.FAILED, 1),
        (None, SessionState.KILLED, SessionState.KILLED, 143),
        (None, SessionState.RUNNING, SessionState.INTERRUPTED, None),
        (None, SessionState.INTERRUPTED, SessionState.INTERRUPTED, None),
        (None, SessionState.EXPORTED, SessionState.INTERRUPTED, None),
    ],
)
def test_the_final_state_follows_from_exit_code_and_session(code, told, state, exit_code) -> None:
    ended = ONE.ended(code, SessionStatus(told, since=101.0, error="as it says"), "as its log says")

    assert (ended.state, ended.exit_code) == (state, exit_code)
    if state is SessionState.FAILED:
        assert ended.error == ("as it says" if told is SessionState.FAILED else "as its log says")


def test_the_status_of_an_earlier_start_is_ignored() -> None:
    assert (
        ONE.ended(None, SessionStatus(SessionState.EVALUATED, since=99.0)).state
        is SessionState.INTERRUPTED
    )


def test_submissions_made_during_a_run_are_started(repo, queue, start_runner) -> None:
    one = submitted(queue, repo)
    start_runner(slots=2)
    until(is_running(queue, one))

    other = submitted(queue, repo, settings=("epochs=6",))

    until(is_running(queue, other))


def test_cancelling_one_session_does_not_affect_others(repo, queue, start_runner) -> None:
    one, other = (submitted(queue, repo, settings=(f"epochs={n}",)) for n in (1, 2))
    start_runner()
    until(is_running(queue, one))

    queue.cancel(one.id, at_once=True)

    until(is_running(queue, other))
    assert (queue.read(one.id).state, queue.read(one.id).exit_code) == (SessionState.KILLED, 137)


def test_a_child_that_outlives_its_session_does_not_count(repo, queue) -> None:
    one = submitted(queue, repo)
    forks = "import os, time; os.fork() and print('forked', flush=True); time.sleep(60)"
    descriptor = queue.new_process_lock(one)
    with subprocess.Popen(
        [sys.executable, "-c", forks],
        pass_fds=[descriptor],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as session:
        os.close(descriptor)
        session.stdout.readline()
        one = replace(
            one, host=socket.gethostname(), pid=session.pid, pid_start=start_of(session.pid)
        )
        assert queue.lives(one)

        session.kill()
        session.wait()
        try:
            assert not queue.lives(one)
        finally:
            os.killpg(session.pid, signal.SIGKILL)


# --- real sessions ----------------------------------------------------------------------------


def elasticdl(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "elasticdl.cli.main", "session", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_ctrl_c_only_ends_following(repo, queue, start_runner) -> None:
    one = submitted(queue, repo)
    start_runner()
    until(is_running(queue, one))

    with elasticdl("logs", one.id, "--follow", f"--home={queue.home}", cwd=repo) as follower:
        assert follower.stdout.readline() == "started\n"
        follower.send_signal(signal.SIGINT)
        said, _ = follower.communicate(timeout=WAIT_S)

    assert follower.returncode == 130
    assert "the session continues" in said
    assert queue.lives(queue.read(one.id))


def test_following_exits_with_the_code_of_the_session(repo, queue, start_runner) -> None:
    one = submitted(queue, repo)
    start_runner()
    until(is_running(queue, one))

    with elasticdl("logs", one.id, "--follow", f"--home={queue.home}", cwd=repo) as follower:
        follower.stdout.readline()
        let_end(queue, one, code=5)
        said, _ = follower.communicate(timeout=WAIT_S)

    assert follower.returncode == 5
    assert said.splitlines()[-2:] == [f"{one.id}: failed", "  as it was told"]


def test_commits_see_only_their_own_modules(repo, queue, monkeypatch) -> None:
    (repo / "tried").mkdir()
    (repo / "tried/lies_about.py").touch()
    # As of somebody who tries his modules out.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ.get("PYTHONPATH", ""), "tried"]))
    monkeypatch.chdir(repo)
    (repo / "src/models.py").write_text(
        "import importlib.util, named\n"
        "raise ValueError(named.NAME, importlib.util.find_spec('lies_about'))"
    )
    several = []
    for name in ("first", "second"):
        (repo / "src/named.py").write_text(f"NAME = {name!r}")
        git(repo, "add", "src")
        git(repo, "commit", "--quiet", "--message", name)
        several.append(submitted(queue, repo))

    runner.work(queue, slots=2)

    for one, name in zip(several, ("first", "second"), strict=True):
        ended = queue.read(one.id)
        assert (ended.state, ended.exit_code) == (SessionState.FAILED, 3)
        assert f"ValueError: ('{name}', None)" in ended.error


@pytest.mark.slow
def test_the_example_can_be_submitted(repo, queue, monkeypatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    subprocess.run([sys.executable, "make_data.py"], cwd=repo, check=True)
    given = ("submit", "--run_name=baseline", "--follow", "--epochs=2", "--checkpoint_steps=7")

    with elasticdl(*given, cwd=repo / "src", ELASTICDL_HOME=str(queue.home)) as process:
        said, _ = process.communicate(timeout=90)

    assert process.returncode == 0, said
    assert git(repo, "rev-parse", "HEAD") in said
    (one,) = queue.all()
    assert one.state in {SessionState.EXPORTED, SessionState.EVALUATED}
    folder = one.session_folder(queue.folder(one.id))
    assert (folder / "exported/savedmodel").is_dir()
    # All sessions of a home are tracked in one place.
    assert (queue.home / "mlflow.db").is_file()
    kept = [e for e in read_events(folder / "training/events.jsonl") if isinstance(e, Checkpointed)]
    assert [event.step for event in kept][:2] == [7, 14]
    status = json.loads((folder / "session.json").read_text())
    # The commit, not `-dirty`.
    assert status["commit"] == one.commit
    assert status["metrics"]["val_accuracy"] > 0.8
    assert git(repo, "status", "--porcelain", "--ignored") == "!! datasets/"
