"""The entrypoint of a RayJob as a process of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cluster.api_server.store import PodLog

_LAST_LINES = 20


class Entrypoint:
    """A command that runs; its output goes to the log of the submitter's pod.

    Attributes:
        head: Name of the pod that it would run in.
        submitter: Name of the pod that waits for it.
    """

    def __init__(
        self, command: str, env: Mapping[str, str], head: str, submitter: str, log: PodLog
    ) -> None:
        self.head, self.submitter = head, submitter
        self._log = log
        self._ending_since: float | None = None
        # A group of its own, so that what it has started ends with it.
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def is_over(self) -> bool:
        """Whether it and all that writes to its output have ended."""
        return self._process.poll() is not None and not self._reader.is_alive()

    @property
    def exit_code(self) -> int:
        return self._process.returncode

    def last_lines(self) -> str:
        return "\n".join(line for _, line in self._log.lines[-_LAST_LINES:])

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def end(self, grace_s: float) -> None:
        """Ask it to end; called again and again, it kills it after the grace period."""
        if self._ending_since is None:
            self._ending_since = time.monotonic()
            self._signal(signal.SIGTERM)
        elif time.monotonic() > self._ending_since + grace_s:
            self._signal(signal.SIGKILL)

    def _signal(self, which: signal.Signals) -> None:
        # The number of a process that is over may be another's by now.
        if self.is_over:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, which)

    def _read(self) -> None:
        with self._process.stdout as lines:
            for line in lines:
                self._log.append(line.rstrip("\n"))
