"""What every test may count on: quiet frameworks and no GPU.

Set in the environment before any framework is imported, so that the commands a test starts
inherit it. Fixtures that only one folder needs live in that folder's own conftest.py.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import settings

from elasticdl.gc_tuning import collect_seldom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# PyTorch's threads wait for each other by spinning, and another process of tests needs the core:
# nine tenths of what tests of small models computed was that. libgomp reads it when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# How long an example takes says more of the machine than of the code.
settings.register_profile("elasticdl", deadline=None)
settings.load_profile("elasticdl")
# As in the commands.
collect_seldom()
# Commands that tests start are to answer Ctrl-C, though a run in the background leaves it ignored.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Results are compared bit by bit, and must not depend on the machine having a GPU. With
# ELASTICDL_TEST_GPU=1 the tests of `test_gpu.py` have it.
if not os.environ.get("ELASTICDL_TEST_GPU"):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(autouse=True)
def _number_of_threads() -> Iterator[None]:
    """Take back the limits that a worker sets for its process, which some tests run in this one.

    Commands that later tests start would inherit them, and sums depend on the number of threads.
    """
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(autouse=True)
def _framework_settings() -> Iterator[None]:
    """Undo what trainers and tests have set for the whole process, as the end of a job does.

    A test that makes a trainer without a job leaves determinism on, and with it TensorFlow refuses
    to draw random numbers without a seed. So does a plain script that a test imitates.
    """
    _restore_framework_settings()
    yield
    _restore_framework_settings()
    if "tensorflow" in sys.modules:
        from tensorflow.python.framework import config

        config.disable_op_determinism()


def _restore_framework_settings() -> None:
    for framework in ("keras", "torch"):
        module = sys.modules.get(f"elasticdl.training.{framework}.determinism")
        if module is not None:
            module.restore()


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the root of the repository."""
    return Path(__file__).parent.parent


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs Python code in a fresh interpreter.

    It raises `CalledProcessError` where the code fails; its output is text.
    """

    def run(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
        )

    return run


@pytest.fixture
def run_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Return a function that runs cells in a kernel and returns the outputs of each."""
    pytest.importorskip("ipykernel")
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    # The kernel is this very Python.
    from ipykernel.kernelspec import write_kernel_spec

    write_kernel_spec(tmp_path / "jupyter" / "kernels" / "these_tests")

    def run(*cells: str) -> list[Any]:
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        client = nbclient.NotebookClient(
            book, timeout=180, allow_errors=True, kernel_name="these_tests"
        )
        client.execute(cwd=str(tmp_path))
        return [cell.outputs for cell in book.cells]

    return run


@pytest.fixture(scope="session")
def s3() -> Iterator[None]:
    """Run an S3 server, and let this process and those it starts use it: see `s3_server.py`."""
    for package in ("s3fs", "moto"):
        pytest.importorskip(package)
    server = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("s3_server.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with pytest.MonkeyPatch.context() as environment, server:
        environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{int(server.stdout.readline())}")
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield
        server.kill()


class _NoExporter:
    """Nothing is an instance of it."""


@pytest.fixture(scope="module")
def weights_only() -> Iterator[None]:
    """Let what this process trains publish its weights, and no model for other programs.

    Tracing a model for those takes a third of the time of a short training. It is the matter of
    the tests of exports, of `EXPORTED` in `parity/conftest.py`, of the examples and the documents.
    """
    from elasticdl.engines import publish

    with mock.patch.object(publish, "Exporter", _NoExporter):
        yield


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what this process trains be exported all the same."""
    from elasticdl.engines import publish
    from elasticdl.training.trainer import Exporter

    monkeypatch.setattr(publish, "Exporter", Exporter)


def _sample(name: str) -> Callable[..., Path]:
    """Return a fixture: a folder with a data set, `train/` and `test/`, as RecordIO files."""

    @pytest.fixture(scope="session", name=name)
    def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
        from elasticdl.data.samples import write_sample

        folder = tmp_path_factory.mktemp(name)
        write_sample(name, str(folder))
        return folder

    return sample


digits, patches = _sample("digits"), _sample("patches")
iris, wine, diabetes = _sample("iris"), _sample("wine"), _sample("diabetes")


def pytest_runtest_logreport(report):
    """Print the name and the error of a failed test at once.

    pytest prints them at the end, which a run that is stopped never reaches.
    """
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        error = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else str(report.longrepr)
        print(f"\nFAILED {report.nodeid} at {error[:500]}", flush=True)


def pytest_addoption(parser):
    """Add options: `make chaos MINUTES=10`, `make test PART=1/3`."""
    parser.addoption(
        "--chaos-minutes", type=float, default=2.0, help="How long the storms last, in minutes."
    )
    parser.addoption(
        "--part",
        type=_part,
        default=(1, 1),
        metavar="K/N",
        help="Run all short tests, but only the K-th of N parts of the long ones.",
    )


def _part(text):
    """Return (K, N) of `K/N`."""
    number, _, count = text.partition("/")
    if not 1 <= int(number) <= int(count):
        raise ValueError(text)
    return int(number), int(count)


# Tests of many processes that watch each other's silence: a machine that stands still for a
# second is taken for a death. What passes at the second try is listed at the end of a run.
# The same holds for those that talk to a shell on a terminal, a kernel or a server.
_MANY_PROCESSES = (
    "tests/chaos/",
    "tests/cluster/",
    "tests/engines/elastic/",
    "tests/engines/federated/",
    "tests/sessions/test_ray_job.py",
    "tests/sessions/test_submit.py",
    "tests/sql/serving/",
    "tests/sql/test_database_failures.py",
    "tests/sql/test_interrupting.py",
    "tests/sql/test_notebook.py",
    "tests/sql/test_shell.py",
    "tests/sql/test_submitter_process.py",
)


# The longest files, in this order. One that takes minutes and begins last is all that one core of
# many still has to do.
_LONGEST = (
    "tests/parity/test_keras_training.py",
    "tests/interchange/test_table.py",
    "tests/parity/test_keras_layers.py",
    "tests/test_docs.py",
    "tests/parity/test_keras_sequences.py",
    "tests/parity/test_keras_losses.py",
    "tests/engines/elastic/test_inference.py",
    "tests/chaos/test_storm.py",
    "tests/cluster/test_seed_on_pods.py",
    "tests/engines/elastic/test_silence.py",
    "tests/engines/elastic/test_container_hosts.py",
    "tests/parity/test_torch.py",
    "tests/engines/elastic/test_controller.py",
    "tests/parity/test_keras_optimizers.py",
    "tests/seeds/test_saved_models.py",
    "tests/engines/federated/flower/test_deployment.py",
    "tests/sql/test_seed.py",
    "tests/seeds/test_sessions.py",
    "tests/contracts/test_trainer.py",
    "tests/engines/federated/flower/test_federation.py",
    "tests/seeds/test_seeds.py",
    "tests/sql/test_database_failures.py",
    "tests/engines/test_s3_output.py",
    "tests/sql/serving/test_service.py",
    "tests/sql/test_notebook.py",
    "tests/engines/elastic/test_hosts.py",
    "tests/engines/elastic/test_cluster.py",
    "tests/engines/elastic/test_leftovers.py",
    "tests/tracking/test_training.py",
    "tests/seeds/test_session_numbers.py",
    "tests/engines/test_tables.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Select a part, give some tests a second try, and begin with the long files."""
    number, count = config.getoption("--part")
    left_out = [item for item in items if _part_of(item, count) not in (None, number)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if marks & {"ray", "flower"} or item.nodeid.startswith(_MANY_PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=1))
    items[:] = _longest_first(items)


def _part_of(item, count):
    """Return the part (1 to `count`) that a long test is in; None for a short test.

    Tests of one parametrized function are in different parts, except cells of one feature of the
    parity table, which share their trainings.
    """
    if not _is_long(item):
        return None
    feature = getattr(getattr(item, "callspec", None), "params", {}).get("trainings")
    name = item.nodeid if feature is None else feature.id
    return zlib.crc32(name.encode()) % count + 1


def _is_long(item):
    file = item.nodeid.partition("::")[0]
    is_marked = item.get_closest_marker("slow") is not None
    return is_marked or "parity" in item.path.parts or file in _LONGEST


def _longest_first(items):
    """Begin with the long files, in turn one that waits for others and one that computes.

    Two that wait at once leave cores idle, and a long one at the end leaves all but its own idle.
    """
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting, computing, short = [], [], []
    for path, tests in files.items():
        marks = {mark.name for test in tests for mark in test.iter_markers()}
        if marks & {"ray", "flower"}:
            waiting.append(tests)
        else:
            (computing if "slow" in marks or "parity" in path.parts else short).append(tests)
    order = {name: number for number, name in enumerate(_LONGEST)}
    for those in (waiting, computing, short):
        those.sort(key=lambda tests: order.get(tests[0].nodeid.partition("::")[0], len(order)))
    long = [
        tests for pair in itertools.zip_longest(waiting, computing, fillvalue=[]) for tests in pair
    ]
    return [test for tests in (*long, *short) for test in tests]


@pytest.fixture
def chaos_minutes(request) -> float:
    """Return how long the storms are to last."""
    minutes: float = request.config.getoption("--chaos-minutes")
    return minutes
