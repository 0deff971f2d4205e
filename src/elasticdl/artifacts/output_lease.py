"""Lease: a lock for storage without `flock`, as a file that its holder renews periodically.

    free --write--> held --renew--> held --release--> free
                     |
                     +-- unchanged for `lease_s` while another process watches --> taken over

The clocks of two machines are never compared: a process that wants a lease whose holder is on
another machine watches the file for `lease_s` seconds by its own clock. If the holder was on this
machine and is dead, the process does not wait. `check` (see `fence.py`) renews the lease by
replacing the version of the file that this process wrote last. So it fails once another process has
replaced the file (`versioned_file.py` describes how reliably that is detected).

Callers: `lock.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeAlias

from elasticdl.artifacts.holder import is_dead, is_here, name_of, parse_holder, this_process
from elasticdl.artifacts.versioned_file import Content, S3File, VersionedFile
from elasticdl.errors import OutputBusyError, OutputError, OutputLostError

LEASE_S = 60.0
"""How long a holder may skip renewals before another process takes over its lease, in seconds."""

_RENEWALS_PER_LEASE = 4
_LOOKS_PER_LEASE = 40
_MAX_ATTEMPTS = 10
_RELEASED = "released"

Note: TypeAlias = Callable[[str], None]


def ignore_note(_: str) -> None:
    """Default for `note`: discard the notice."""


class Lease:
    """A lease that this process holds, renewed by a thread until `release`.

    Args:
        file: The file that represents the lease; it names the holder.
        where: The name of the file in messages.
        subject: The output that the lease protects, for messages.
        note: Called with a notice for the user when this process waits for an unresponsive holder.
        alternative: Advice for a user who does not want to wait, as part of a sentence.

    Raises:
        OutputBusyError: Another process holds it.
        OutputError: Other processes acquired the lease each time this process tried to.
    """

    def __init__(
        self,
        file: VersionedFile,
        where: str,
        subject: str,
        note: Note,
        alternative: str = "use another --output",
    ) -> None:
        self._file = file
        self._where = where
        self._subject, self._alternative = subject, alternative
        self._pid = os.getpid()
        self._lease_s = LEASE_S
        self._me = {**this_process(), "token": uuid.uuid4().hex, "lease_s": self._lease_s}
        self._renewals = 0
        self._lost = ""
        self._released = threading.Event()
        # The renewing thread and the writing thread must not replace each other's version.
        self._lock = threading.Lock()
        self._version = self._take(note)
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    @property
    def checks_conditions(self) -> bool:
        """Return whether the store itself rejects a write that would replace another version."""
        return isinstance(self._file, S3File)

    # --- Taking ---------------------------------------------------------------------------

    def _take(self, note: Note) -> str:
        for _ in range(_MAX_ATTEMPTS):
            there = self._free(note)
            before = 0 if there is None else parse_holder(there.data).get("generation", 0)
            self._me["generation"] = before + 1
            data = self._content()
            version = self._write(data, None if there is None else there.version)
            if version is not None:
                version = self._settled(data, version)
            if version is not None:
                return version
        raise OutputError(
            f"{self._where}: {_MAX_ATTEMPTS} other processes acquired the lease while this one "
            "tried to. Use another --output."
        )

    def _free(self, note: Note) -> Content | None:
        """Wait until the lease can be taken; return its file's content, None if there is no file.

        If the holder is on another machine, waits for `lease_s` seconds, to see whether the holder
        still renews the lease. Otherwise does not wait.

        Raises:
            OutputBusyError: A living process holds the lease.
        """
        there = self._file.read()
        if there is None:
            return None
        holder = parse_holder(there.data)
        # Empty if the attempt to lock the file created it (`lock.py`).
        if not there.data or holder.get(_RELEASED) or is_dead(holder):
            return there
        lease_s = holder.get("lease_s")
        if is_here(holder) or not isinstance(lease_s, (int, float)):
            raise self._busy(holder)
        note(
            f"{name_of(holder)} was using {self._subject}. Its lease expires if it is not renewed "
            f"within {lease_s:.0f} s."
        )
        deadline = time.monotonic() + lease_s
        while time.monotonic() < deadline:
            time.sleep(lease_s / _LOOKS_PER_LEASE)
            now = there if self._file.version() == there.version else self._file.read()
            if now is None:
                return None
            if now.version != there.version:
                holder = parse_holder(now.data)
                if holder.get(_RELEASED):
                    return now
                raise self._busy(holder)
        return there

    def _busy(self, holder: dict[str, Any]) -> OutputBusyError:
        if is_here(holder) or "lease_s" in holder:
            ended = ""
        else:
            ended = f" If that process no longer runs, delete {self._where}."
        return OutputBusyError(
            f"{self._subject}: {name_of(holder)} is using it. Wait until it is done, stop it, or "
            f"{self._alternative}.{ended}"
        )

    def _settled(self, data: bytes, version: str) -> str | None:
        """Check that no other process has replaced the file that this process has just written.

        On stores that cannot reject a write to a file of another version, waits for `settle_s`
        seconds, so that competing writes become visible, and then reads the file again.

        Args:
            data: The content that was written.
            version: The file's version after the write.

        Returns:
            The version of the file; None if another process has replaced it.
        """
        if isinstance(self._file, S3File):
            if self._file.checks_conditions(data, version):
                return version
            self._file = self._file.without_conditions()
            there = self._file.read()
            version = "" if there is None else there.version
        time.sleep(self._file.settle_s)
        there = self._file.read()
        return version if there == Content(data, version) else None

    # --- Holding --------------------------------------------------------------------------

    def check(self) -> None:
        """Check that this process still holds the lease, by renewing it.

        Raises:
            OutputLostError: Another process has taken it over.
            OSError: The store does not answer.
        """
        # A forked child has neither the thread nor the version; its parent checks.
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._renew()

    def _renew(self) -> None:
        if self._released.is_set():
            return
        if self._lost:
            raise OutputLostError(self._lost)
        self._renewals += 1
        data = self._content()
        for _ in range(_MAX_ATTEMPTS):
            version = self._write(data, self._version)
            if version is not None:
                self._version = version
                return
            there = self._file.read()
            if there is None or there.version != self._version:
                break
        self._lost = self._why_lost(there)
        raise OutputLostError(self._lost)

    def _why_lost(self, there: Content | None) -> str:
        if there is None:
            other = f"{self._where} was deleted"
        else:
            holder = parse_holder(there.data)
            other = f"{name_of(holder)} has taken it over (start {holder.get('generation')})"
        return (
            f"{self._subject}: {other}, because this process (start {self._me['generation']}) did "
            f"not renew its lease for {self._lease_s:.0f} s or was replaced manually. This process "
            "ends and has changed nothing since; the other one resumes from the last checkpoint."
        )

    def _keep(self) -> None:
        interval_s = self._lease_s / _RENEWALS_PER_LEASE
        while not self._released.wait(interval_s):
            try:
                self.check()
            except OutputLostError:
                # Raised again by the next `check`, in a thread that can end the run.
                return
            except Exception:  # noqa: BLE001 - each store has errors of its own
                # The store may be unavailable for a moment; otherwise `check` will report the
                # error.
                interval_s = self._lease_s / _RENEWALS_PER_LEASE / 4
            else:
                interval_s = self._lease_s / _RENEWALS_PER_LEASE

    def release(self) -> None:
        """Release the lease, so that others can take it; calling it twice is harmless."""
        if os.getpid() != self._pid or self._released.is_set():
            return
        # The output is complete by now: failing to release a lease must not fail the run.
        with self._lock, contextlib.suppress(Exception):
            self._released.set()
            if isinstance(self._file, S3File):
                # Not deleted: by then it could belong to the next holder.
                self._write(self._content(), self._version)
            elif self._file.version() == self._version:
                self._file.delete()

    def _content(self) -> bytes:
        state = {"renewals": self._renewals, _RELEASED: self._released.is_set()}
        return json.dumps({**self._me, **state}).encode()

    def _write(self, data: bytes, replaces: str | None) -> str | None:
        version = self._file.write(data, replaces)
        if version is None:
            # After a lost response the store's library writes again, and that write fails.
            there = self._file.read()
            if there is not None and there.data == data:
                return there.version
        return version
