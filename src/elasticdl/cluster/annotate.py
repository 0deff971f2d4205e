"""Publishes training progress as annotations of the job's RayJob, from the driver's pod.

    write(event) -> events.jsonl, as in a job that does not run on a cluster
                 -> a queue -> a thread -> PATCH the RayJob's annotations
                                           or, if that is forbidden, a line in the pod's log

Dashboards, queues and `job list` read the progress there. The cluster's owner decides whether the
pod's account may change annotations: after a refusal, the progress goes only to the pod's log.
Nothing here delays or ends training. If the API server is unavailable, updates are lost. That does
no harm, because each update contains all values.

The image of a job may lack the Kubernetes client, so each update is one HTTP request through the
standard library. Callers: `engines/attempt.py`, in a pod of a job.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from elasticdl.cluster.progress import JobProgress, line_of
from elasticdl.cluster.rayjob import GROUP, VERSION
from elasticdl.errors import DataError
from elasticdl.event_file import parse_events
from elasticdl.events import JobStarted

if TYPE_CHECKING:
    from elasticdl.events import Event
    from elasticdl.job import Job
    from elasticdl.tracking.follow import Log

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_INTERVAL_S = 15.0
_TIMEOUT_S = 3.0
# How long an unresponsive server may delay the end of a finished job, in seconds.
_DRAIN_S = 5.0
# Forbidden and not found: neither will change while the job runs.
_FOR_GOOD = {403, 404}
_ERRORS_FROM = 300

_Texts: TypeAlias = Mapping[str, str | None]


class ProgressLog:
    """An event log that also writes the training progress to the annotations of the job's RayJob.

    Use it as a context manager: the annotations are written by a thread, which runs until the end
    of the `with` block.

    Args:
        log: Receives each event first, in the caller's thread.
        job: The job that is trained.
        rayjob: Name of its RayJob.
        account: Folder with the credentials of the pod's service account; None means the folder
            where Kubernetes mounts them.
        interval_s: Minimum time between two updates, except before the last one; None means 15 s.

    Attributes:
        path: Path of the file that `log` writes.
    """

    def __init__(
        self,
        log: Log,
        job: Job,
        rayjob: str,
        *,
        account: Path | None = None,
        interval_s: float | None = None,
    ) -> None:
        self._log = log
        self.path = log.path
        self._rayjob: _RayJob | None = _RayJob(rayjob, account or _ACCOUNT)
        self._interval_s = _INTERVAL_S if interval_s is None else interval_s
        self._progress = JobProgress(
            num_workers=0 if job.workers is None else job.workers.max,
            max_steps=job.training.max_steps,
        )
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        # A daemon: an unresponsive server must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._queue.put(None)
        self._thread.join(_DRAIN_S)

    def write(self, event: Event) -> None:
        """Write an event to the log, and queue it for the next update of the annotations.

        Raises:
            OutputError: The log cannot be written.
        """
        self._log.write(event)
        self._queue.put(event)

    def publish(self) -> None:
        """Make all events in the log durable, without waiting for an update of the RayJob.

        Raises:
            OutputError: The log cannot be written.
        """
        self._log.publish()

    # --- on the thread --------------------------------------------------------------------

    def _work(self) -> None:
        sent: _Texts = {}
        next_s = 0.0
        is_open = True
        while is_open:
            is_due = self._progress.annotations() != sent
            wait_s = max(0.0, next_s - time.monotonic()) if is_due else None
            try:
                event = self._queue.get(timeout=wait_s)
            except queue.Empty:
                pass
            else:
                is_open = event is not None
                if event is not None:
                    self._take(event)
            shown = self._progress.annotations()
            if self._progress.num_epochs and shown != sent:
                if is_open and time.monotonic() < next_s:
                    continue
                self._write(shown)
                sent, next_s = shown, time.monotonic() + self._interval_s

    def _take(self, event: Event) -> None:
        if isinstance(event, JobStarted) and event.resumed_from_step:
            try:
                history = parse_events(self.path.read_bytes(), str(self.path))
            except (OSError, DataError):
                # The audit reports a damaged log; here only the epoch is wrong for a while.
                history = [event]
            self._progress = self._progress.of_history(history)
        elif isinstance(event, JobStarted):
            self._progress = self._progress.of_history([event])
        else:
            self._progress = self._progress.after(event)

    def _write(self, shown: _Texts) -> None:
        if self._rayjob is not None:
            try:
                status = self._rayjob.annotate(shown)
            except (OSError, http.client.HTTPException, ValueError):
                status = 0
            if status in _FOR_GOOD:
                self._rayjob = None
            if 0 < status < _ERRORS_FROM:
                return
        sys.stderr.write(f"{line_of(shown)}\n")
        sys.stderr.flush()


class _RayJob:
    """Client that changes annotations of the job's RayJob, with the pod's service account."""

    def __init__(self, name: str, account: Path) -> None:
        self._name, self._account = name, account

    def annotate(self, annotations: _Texts) -> int:
        """Set annotations of the RayJob; return the HTTP status, such as 403 if that is forbidden.

        Raises:
            OSError: There is no account, or the server does not answer.
            http.client.HTTPException: The response is not valid HTTP.
        """
        # Kubernetes renews the token on disk while the pod runs.
        token = (self._account / "token").read_text().strip()
        namespace = (self._account / "namespace").read_text().strip()
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
        port = int(os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
        trusted = ssl.create_default_context(cafile=self._account / "ca.crt")
        server = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=trusted)
        try:
            server.request(
                "PATCH",
                f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/rayjobs/{self._name}",
                body=json.dumps({"metadata": {"annotations": annotations}}),
                headers={
                    "Authorization": f"Bearer {token}",
                    "Content-Type": "application/merge-patch+json",
                    "Accept": "application/json",
                },
            )
            answer = server.getresponse()
            answer.read()
            return answer.status
        finally:
            server.close()
