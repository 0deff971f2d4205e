"""SIGTERM ends a training that a script has started after a last checkpoint."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.engines.conftest import MODEL, write_records

from elasticdl.termination import ExitOnSigterm, TerminatedError

SCRIPT = """
import elasticdl, signal
{before}
try:
    elasticdl.train(
        model_zoo="zoo", model_def="small", data="data", output="out", minibatch_size=10,
        num_epochs=100000, quiet=True, {options}
    )
finally:
    print("cleaned up", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
"""


@pytest.fixture(autouse=True)
def default_handler():
    """Let each test start with the default handler: Ray leaves its own in a process."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def terminated(folder, options="", before=""):
    """Send SIGTERM to a script that trains, and return its exit code and what it printed."""
    (folder / "zoo").mkdir()
    (folder / "zoo" / "small.py").write_text(MODEL)
    (folder / "data").mkdir()
    write_records(folder / "data" / "a.recordio", 200)
    (folder / "script.py").write_text(SCRIPT.format(options=options, before=before))
    log = folder / "out" / "events.jsonl"
    with subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline and script.poll() is None:
            if log.exists() and "step_committed" in log.read_text():
                break
            time.sleep(0.2)
        script.send_signal(signal.SIGTERM)
        printed, complaint = script.communicate(timeout=60)
    return script.returncode, printed, complaint


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    ["", pytest.param("num_workers=2", marks=[pytest.mark.ray, pytest.mark.timeout(200)])],
)
def test_sigterm_ends_a_script_after_a_last_checkpoint(tmp_path, options) -> None:
    code, printed, complaint = terminated(tmp_path, options)

    log = (tmp_path / "out" / "events.jsonl").read_text()
    events = [json.loads(line) for line in log.splitlines()]
    last = max(event["step"] for event in events if event["event"] == "checkpointed")
    assert code == 143, complaint
    assert (
        f"Terminated. Progress is saved up to step {last:,}; run the same command to resume."
        in complaint
    )
    assert "Traceback" not in complaint
    assert printed == "cleaned up True\n"


@pytest.mark.slow
def test_a_handler_of_the_script_takes_precedence(tmp_path) -> None:
    before = "signal.signal(signal.SIGTERM, lambda *_: exit(7))"

    code, printed, complaint = terminated(tmp_path, before=before)

    assert (code, printed) == (7, "cleaned up False\n"), complaint


def test_sigterm_ends_the_block_with_exit_code_143(capsys) -> None:
    before = sys.unraisablehook

    with pytest.raises(SystemExit) as ended, ExitOnSigterm():
        try:
            signal.raise_signal(signal.SIGTERM)
        except TerminatedError as error:
            error.add_note("Progress is saved up to step 9.")
            raise

    assert ended.value.code == 143
    assert capsys.readouterr().err == "Terminated. Progress is saved up to step 9.\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert sys.unraisablehook is before


def test_signals_stay_as_they_are_outside_the_main_thread() -> None:
    during = []

    def work() -> None:
        with ExitOnSigterm():
            during.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert during == [signal.SIG_DFL]


def test_an_import_of_the_script_itself_does_not_delay_sigterm(tmp_path, monkeypatch) -> None:
    (tmp_path / "imported_script.py").write_text(
        "import signal\n"
        "from elasticdl.termination import ExitOnSigterm\n"
        "with ExitOnSigterm():\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "raise RuntimeError('went on')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(SystemExit):
        __import__("imported_script")
