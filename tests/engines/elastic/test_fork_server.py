"""Processes are forked where a module is imported already, and die with whoever asked for them."""

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from elasticdl.engines.elastic import fork_server

# Nothing else imports it.
MODULE = "wave"
LINGER_S = 1.0
PATIENCE_S = 20.0


@pytest.fixture
def folder():
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory() as short:
        yield Path(short, "server")


@pytest.fixture
def connect(folder):
    """Return connections to the server, which are closed at the end; then it is gone as well."""
    links = []

    def connect():
        links.append(fork_server.connect(folder, [MODULE, "not.there"], linger_s=LINGER_S))
        return links[-1]

    yield connect
    for link in links:
        link.close()
    wait_until(lambda: not folder.exists())


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def introduce(link):
    link.send(
        {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "knows": MODULE in sys.modules,
            "variable": os.environ.get("OF_ONE_CALLER"),
            "folder": str(Path.cwd()),
            "path": sys.path,
            "temporary": tempfile.gettempdir(),
        }
    )
    time.sleep(PATIENCE_S)


def leave_a_file(link):
    with tempfile.NamedTemporaryFile(delete=False) as file:
        link.send(file.name)


def introduced(link):
    fork_server.fork(link, introduce)
    return link.recv()


def test_a_process_has_the_servers_imports_and_its_callers_settings(connect, tmp_path, monkeypatch):
    monkeypatch.setenv("OF_ONE_CALLER", "7")
    # No file of the user's folder is taken for one of Python's.
    (tmp_path / "socketserver.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))

    told = introduced(connect())

    assert told["knows"]
    assert told["variable"] == "7"
    assert told["folder"] == str(tmp_path)
    assert told["path"] == sys.path


def test_concurrent_callers_share_one_server(connect):
    links = []
    threads = [threading.Thread(target=lambda: links.append(connect())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    told = [introduced(link) for link in links]

    assert len({one["parent"] for one in told}) == 1
    assert len({one["pid"] for one in told}) == len(links)
    assert len({one["temporary"] for one in told}) == len(links)


def test_the_end_of_a_process_is_read_from_the_connection(connect):
    link, other = connect(), connect()
    told, of_other = introduced(link), introduced(other)

    os.kill(told["pid"], signal.SIGKILL)

    with pytest.raises(EOFError):
        link.recv()
    assert is_alive(of_other["pid"])


def end_with(code, link):
    link.send(os.getpid())
    time.sleep(PATIENCE_S) if code is None else os._exit(code)


@pytest.mark.parametrize(
    ("code", "how"), [(3, "exit code 3"), (0, "exit code 0"), (None, "killed by SIGTERM")]
)
def test_how_a_process_ended_is_known(connect, folder, code, how):
    link = connect()
    fork_server.fork(link, functools.partial(end_with, code))
    process_id = link.recv()
    if code is None:
        os.kill(process_id, signal.SIGTERM)
    with pytest.raises(EOFError):
        link.recv()

    assert fork_server.how_ended(folder, process_id) == how


def test_the_end_of_an_unknown_process_is_unknown(folder):
    assert not fork_server.how_ended(folder, 1)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_process_dies_with_the_connection_even_if_it_is_stopped(connect, is_stopped):
    link = connect()
    pid = introduced(link)["pid"]
    if is_stopped:
        os.kill(pid, signal.SIGSTOP)

    link.close()

    wait_until(lambda: not is_alive(pid))


CALLER = f"""
import sys, time
from pathlib import Path
from elasticdl.engines.elastic import fork_server
from tests.engines.elastic import test_fork_server

link = fork_server.connect(Path(sys.argv[1]), [{MODULE!r}], linger_s={LINGER_S})
print(test_fork_server.introduced(link)["pid"], flush=True)
time.sleep({PATIENCE_S})
"""


def test_a_process_dies_with_its_caller_and_the_server_stays(connect, folder):
    with subprocess.Popen(
        [sys.executable, "-c", CALLER, str(folder)], stdout=subprocess.PIPE, text=True
    ) as caller:
        pid = int(caller.stdout.readline())
        server = introduced(connect())["parent"]

        caller.kill()

    wait_until(lambda: not is_alive(pid))
    assert introduced(connect())["parent"] == server


def test_the_server_ends_after_its_last_process(connect, folder):
    link = connect()
    server = introduced(link)["parent"]
    other = connect()
    fork_server.fork(other, leave_a_file)
    assert Path(other.recv()).is_relative_to(folder)

    link.close()

    wait_until(lambda: not folder.exists())
    wait_until(lambda: not is_alive(server))


def test_a_server_without_its_folder_ends_without_recreating_it():
    with tempfile.TemporaryDirectory() as short:
        folder = Path(short, "of-a-run", "server")
        link = fork_server.connect(folder, [MODULE], linger_s=LINGER_S)
        fork_server.fork(link, introduce)
        server = psutil.Process(link.recv()["parent"])

        # As a run does at its end.
        shutil.rmtree(folder.parent)
        link.close()
        wait_until(lambda: not is_alive(server.pid))

        assert not folder.parent.exists()


def test_a_killed_server_is_replaced(connect):
    told = introduced(connect())

    os.kill(told["parent"], signal.SIGKILL)
    wait_until(lambda: not is_alive(told["parent"]))
    after = introduced(connect())

    assert after["parent"] != told["parent"]
    assert is_alive(told["pid"])


def test_connecting_while_a_server_ends_starts_another(connect, folder):
    for _ in range(5):
        link = connect()
        pid = introduced(link)["pid"]
        link.close()
        # About when it goes.
        time.sleep(LINGER_S + 0.4)
        assert introduced(connect())["pid"] != pid


def test_a_server_without_its_folder_leaves_no_folder_behind():
    with tempfile.TemporaryDirectory() as short:
        run = Path(short, "run")
        run.mkdir()
        link = fork_server.connect(run / "server", [MODULE], linger_s=LINGER_S)
        server = introduced(link)["parent"]

        link.close()
        shutil.rmtree(run)
        wait_until(lambda: not is_alive(server))

        assert not run.exists()
