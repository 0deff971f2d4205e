"""Ray clusters with and without tokens: joined as the `ray` command would, or refused quickly."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from tests.engines.elastic.training import PATIENCE_S

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

TOKEN, OTHER_TOKEN = "a" * 32, "b" * 32
# One minute and a half is what Ray takes to give up.
SOON_S = 20

JOIN = """
import sys
from elasticdl.engines.elastic.ray_cluster import joined_cluster
from elasticdl.errors import UnavailableError, UsageError
import ray
try:
    with joined_cluster(sys.argv[1]):
        print("joined", ray.get(ray.remote(lambda: "and works").remote()))
except (UnavailableError, UsageError) as error:
    print(error.exit_code, error)
"""

# Ray has waited for itself forever, in the driver of a job that had lost machines.
NEVER_LEFT = """
import sys
import time
import ray
from elasticdl.engines.elastic import ray_cluster
from elasticdl.errors import UnavailableError
ray_cluster._LONGEST_SHUTDOWN_S = 1.0
with ray_cluster.joined_cluster(sys.argv[1]):
    ray._private.worker.disconnect = lambda *_, **__: time.sleep(3600)
print("went on")
try:
    with ray_cluster.joined_cluster(sys.argv[1]):
        pass
except UnavailableError as error:
    print(error)
"""


def environment(home, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    return {**kept, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", **more}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Return a function: variables -> address of a new cluster's head."""
    begun = []

    def head(**variables):
        home = tmp_path_factory.mktemp("home")
        # Sockets lie in it, whose paths are at most 107 bytes long; pytest's own grow.
        folder = tempfile.mkdtemp(prefix="r-", dir="/tmp")
        port = 20000 + (os.getpid() * 7 + len(begun) * 131) % 9000
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
                *(f"--port={port}", "--num-cpus=1", "--include-dashboard=false"),
                *("--object-store-memory=100000000", f"--temp-dir={folder}"),
            ],
            env=environment(home, **variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        begun.append((process, folder))
        said = []
        for line in process.stdout:
            said.append(line)
            if "Ray runtime started" in line:
                return f"127.0.0.1:{port}"
        raise AssertionError("".join(said))

    yield head
    for process, folder in begun:
        for child in psutil.Process(process.pid).children(recursive=True):
            # It may end by itself, as its parent goes.
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def closed(start):
    return start(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)


@pytest.fixture(scope="module")
def open_to_all(start):
    return start(RAY_AUTH_MODE="disabled")


def join(address, home, *, script=JOIN, **variables):
    done = subprocess.run(
        [sys.executable, "-c", script, address],
        check=False, capture_output=True, text=True, timeout=PATIENCE_S,
        env=environment(home, **variables),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def with_token_file(home, token):
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(token)
    return home


def test_the_users_token_from_the_environment_is_used(closed, tmp_path):
    found = join(closed, tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)

    assert found == "joined and works"


def test_the_users_token_file_is_used(closed, tmp_path):
    assert join(closed, with_token_file(tmp_path, TOKEN)) == "joined and works"


def test_a_stray_token_file_does_not_prevent_joining(open_to_all, tmp_path):
    assert join(open_to_all, with_token_file(tmp_path, OTHER_TOKEN)) == "joined and works"


def test_a_ray_that_does_not_disconnect_is_left_behind(closed, tmp_path):
    began_s = time.monotonic()

    found = join(closed, tmp_path, script=NEVER_LEFT, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)

    assert found.startswith("went on\nRay has not disconnected from the cluster of an earlier job")
    assert time.monotonic() - began_s < SOON_S


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_MODE": "token"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": OTHER_TOKEN},
    ],
)
def test_a_missing_or_wrong_token_is_reported_soon(closed, tmp_path, variables):
    began_s = time.monotonic()

    found = join(closed, tmp_path, **variables)

    assert "rejected the token, or requires one" in found
    assert time.monotonic() - began_s < SOON_S


def test_an_unreachable_address_is_a_temporary_failure(tmp_path):
    found = join("127.0.0.1:9", tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)

    assert found.startswith("75 ")
    assert "no Ray cluster answers there" in found


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "nowhere.invalid:6379", "no address"])
def test_an_invalid_address_is_a_permanent_failure(tmp_path, address):
    found = join(address, tmp_path)

    assert found.startswith("2 "), found
    assert "not the address of a Ray cluster" in found


SLOW = """
import sys
from elasticdl.engines.elastic import ray_cluster
from elasticdl.errors import UnavailableError

connect, num_slow = ray_cluster._connect, int(sys.argv[1])


def slow_at_first(*args, **options):
    global num_slow
    if num_slow:
        num_slow -= 1
        raise RuntimeError("The current node timed out during startup.\\nMore.")
    connect(*args, **options)


ray_cluster._connect = slow_at_first
try:
    with ray_cluster.local_ray(1) as connection:
        print("started", connection.why_lost())
except UnavailableError as error:
    print(error.exit_code, error)
"""


@pytest.mark.parametrize(
    ("num_slow", "printed"),
    [
        (1, "started None"),
        (9, "75 Ray did not start on this machine in 3 attempts: The current node timed out"),
    ],
)
def test_starting_a_slow_ray_is_retried_a_limited_number_of_times(num_slow, printed):
    done = subprocess.run(
        [sys.executable, "-c", SLOW, str(num_slow)], check=True, capture_output=True, text=True
    )

    assert done.stdout.startswith(printed), done


MODES = """
import os, tempfile
from pathlib import Path
import ray
from elasticdl.engines.elastic.ray_cluster import local_ray

with local_ray(1):
    written = Path(ray._private.worker._global_node.get_session_dir_path())
    # Here is the folder of the server that workers are forked from.
    for folder in (written, Path(os.environ["TMPDIR"])):
        closed = [each for each in (folder, *folder.parents) if not each.stat().st_mode & 0o077]
        print(bool(closed))
"""


# A folder that is named is a new one within it, as where the path of `TMPDIR` is too long; of that
# one `test_leftovers.py` says the same.
@pytest.mark.parametrize("is_named", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_other_users_cannot_access_files_of_a_local_ray(is_named):
    # Ray opens its own folder to everybody; who can write there can be its fork server's.
    with tempfile.TemporaryDirectory() as short:
        Path(short).chmod(0o755)
        named = {"RAY_TMPDIR": short} if is_named else {}
        done = subprocess.run(
            [sys.executable, "-c", MODES], check=True, capture_output=True, text=True,
            env={**os.environ, "TMPDIR": short, **named},
        )  # fmt: skip

    assert done.stdout.split() == ["True", "True"], done
