"""Commands that run beside each other until a block ends, and when each of them printed what.

Whatever a command has started is ended with it: trees of processes are killed, not processes.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections import defaultdict

import psutil

# How exact a line's time is.
_POLL_S = 0.01
_END_S = 15.0


class StandstillError(Exception):
    """What was waited for did not happen."""


class Commands:
    """See the module; used with `with`.

    Attributes:
        lines: Name of a log -> (time, text) of each of its lines, in seconds since 1970; they are
            read while somebody waits.
        variables: The environment of all commands; no GPU is seen in it.

    Args:
        folder: For what they print, and for their temporary files.
        variables: Beside those of this process.
    """

    def __init__(self, folder, variables):
        self.lines = defaultdict(list)
        temporary = folder / "t"
        temporary.mkdir()
        self.variables = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "TMPDIR": str(temporary),
            **variables,
        }
        self._folder = folder
        self._logs = {}
        self._places = defaultdict(int)
        self._processes = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        # Who was started last uses who was started first.
        for process in reversed(self._processes.values()):
            _end(process)

    def start(self, name, command):
        """Start a command; returns its process."""
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            process = psutil.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.variables,
                start_new_session=True,
            )
        self._processes[name] = process
        self.follow(name, log)
        return process

    def follow(self, name, log):
        """Read the lines of a file as well, if it is there."""
        self._logs[name] = log

    def kill(self, name):
        """Kill a command with all it has started; returns when."""
        process = self._processes.pop(name)
        family = [process, *process.children(recursive=True)]
        killed = time.time()
        _kill(process, family)
        return killed

    def wait_for(self, condition, what, timeout_s=180):
        """Wait until a condition holds.

        Raises:
            StandstillError: It does not, or a command has failed.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self.look()
            if condition():
                return
            failed = [name for name, process in self._processes.items() if process.poll()]
            if failed or time.monotonic() > deadline:
                raise StandstillError(
                    f"{' and '.join(failed) or 'nobody'} failed while waiting for {what}.\n"
                    f"{self._last_lines()}"
                )
            time.sleep(_POLL_S)

    def look(self):
        """Read what was printed since the last look."""
        for name, log in self._logs.items():
            with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
                file.seek(self._places[name])
                whole, newline, _ = file.read().rpartition(b"\n")
                if newline:
                    now = time.time()
                    self._places[name] += len(whole) + 1
                    texts = whole.decode(errors="replace").split("\n")
                    self.lines[name] += [(now, text) for text in texts]

    def times(self, name, text):
        """Return when a log's lines with a text appeared."""
        return [at for at, line in self.lines[name] if text in line]

    def _last_lines(self):
        return "\n".join(
            "\n  ".join([f"== {name}", *(text for _, text in lines[-20:])])
            for name, lines in self.lines.items()
        )


def _end(process):
    """Ask a process to end, and kill what is left of all it started."""
    family = [process]
    with contextlib.suppress(psutil.NoSuchProcess):
        family += process.children(recursive=True)
        process.terminate()
    with contextlib.suppress(psutil.TimeoutExpired):
        process.wait(_END_S)
    _kill(process, family)


def _kill(process, family):
    # The group has those whose parent has ended, the family those with groups of their own.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
