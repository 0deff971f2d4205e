"""Runs a submitted session as a Ray job; this process waits for the job to end.

The queue treats this process as the process that runs the session.

    runner --> this process --> a job on the cluster: session run ... >> HOME/ID/session.log
                 SIGTERM, job stopped <-- cancel

The submission has the same folder, log and states as any other. So the machines of the cluster must
have the queue's folder (HOME) under the same path. If this process is killed, the job continues,
and the next process waits for it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import elasticdl.engines.elastic  # noqa: F401 - sets variables that Ray reads on import
from elasticdl.errors import (
    MissingExtraError,
    OutputError,
    TrainingError,
    UnavailableError,
    UsageError,
)
from elasticdl.job import without_password
from elasticdl.sessions.submission import LOG_FILE, PROJECT

_POLL_S = 0.5
# Time for a last checkpoint; by default, Ray waits for three seconds.
_STOP_S = 120
_PATIENCE_S = 60.0
_FOLDER = "elasticdl_folder"
_KILLED_CODE = 143
# If these are set, Ray prefers them to the address that was passed.
_OTHER_ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")


def entrypoint(folder: Path, session: Sequence[str]) -> str:
    """Return the shell command that the cluster runs.

    Args:
        folder: Folder of the submission.
        session: Command of the session. If its interpreter does not exist on the cluster, `python3`
            runs it instead.
    """
    project, log = folder / PROJECT, folder / LOG_FILE
    missing = (
        f"error: {project}: the machine of the cluster that runs the job has no such folder. "
        "Submit with a --home that all machines have under the same path."
    )
    python, *arguments = session
    return (
        f"cd {shlex.quote(str(project))} || "
        f"{{ echo {shlex.quote(missing)}; exit {OutputError.exit_code}; }}; "
        f"python={shlex.quote(python)}; test -x $python || python=python3; "
        f"exec $python {shlex.join(arguments)} >> {shlex.quote(str(log))} 2>&1"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a session as a Ray job, and wait for its end; SIGTERM stops the job.

    Args:
        arguments: `--address=CLUSTER --folder=SUBMISSION -- COMMAND ...`; None means those of the
            command line.

    Returns:
        The exit code of the session, or of the error that prevented it; errors are printed.
    """
    parser = argparse.ArgumentParser(prog="python -m elasticdl.sessions.ray_job")
    parser.add_argument("--address", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("session", nargs="+")
    given = parser.parse_args(arguments)
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_end.append(number))
    try:
        client = _client(given.address)
        job = _job(client, Path(given.folder), given.session)
        _print(f"Ray job {job}")
        ended = _end_of(client, job, asked_to_end)
    except (MissingExtraError, TrainingError, UnavailableError, UsageError) as error:
        _print(f"error: {error}")
        return error.exit_code
    # The session's output is in its log; Ray has the output from before there was a log.
    errors = [line for line in client.get_job_logs(job).splitlines() if line.startswith("error: ")]
    if ended.status == "FAILED" and (errors or ended.driver_exit_code is None):
        _print("\n".join(errors) or f"error: {ended.message}")
    return _code_of(ended)


def _client(address: str) -> Any:
    """Return Ray's job client for a cluster.

    Raises:
        MissingExtraError: Ray is not installed.
        UnavailableError: No cluster answers.
        UsageError: The address is invalid.
    """
    for name in _OTHER_ADDRESSES:
        os.environ.pop(name, None)
    try:
        from ray.job_submission import JobSubmissionClient  # noqa: PLC0415 - takes seconds
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "ray", "elastic", "--as_ray_job") from error
    try:
        return JobSubmissionClient(address)
    except ValueError as error:
        raise UsageError(
            f"--ray_address={address}: not the address of a Ray cluster "
            f"({str(error).splitlines()[0]})."
        ) from error
    except (OSError, RuntimeError) as error:
        raise UnavailableError(
            f"--ray_address={address}: no Ray cluster accepts jobs there "
            f"({str(error).splitlines()[0]}). Start one with `ray start --head`, including the "
            "dashboard, and run the same command again."
        ) from error


def _job(client: Any, folder: Path, session: Sequence[str]) -> str:
    """Return the ID of a submission's active Ray job; submit a job if there is none.

    Args:
        client: Ray's job client.
        folder: Folder of the submission, which identifies its job.
        session: Command of the session.
    """
    for there in client.list_jobs():
        if (there.metadata or {}).get(_FOLDER) == str(folder) and not there.status.is_terminal():
            return str(there.submission_id)
    names = ("PYTHONPATH", "PYTHONUNBUFFERED", "MLFLOW_TRACKING_URI")
    # The cluster shows these variables to everyone who looks at a job.
    variables = {
        name: os.environ[name]
        for name in names
        if without_password(os.environ.get(name, "")) == os.environ.get(name)
    }
    job: str = client.submit_job(
        entrypoint=entrypoint(folder, session),
        submission_id=f"{folder.name}-{time.time_ns()}",
        metadata={_FOLDER: str(folder)},
        runtime_env={"env_vars": {**variables, "RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_S)}},
    )
    return job


def _end_of(client: Any, job: str, asked_to_end: Sequence[int]) -> Any:
    """Wait until a Ray job has ended, or stop it if requested; return Ray's details of the job.

    Args:
        client: Ray's job client.
        job: ID of the job.
        asked_to_end: Signals received so far, added by a signal handler. If there is one, the job
            is stopped.

    Raises:
        TrainingError: The cluster no longer answers.
    """
    heard_s = time.monotonic()
    is_stop_requested = False
    while True:
        try:
            found = client.get_job_info(job)
            heard_s = time.monotonic()
            if found.status.is_terminal():
                return found
            if asked_to_end and not is_stop_requested:
                is_stop_requested = client.stop_job(job)
        except (OSError, RuntimeError) as error:
            if time.monotonic() - heard_s > _PATIENCE_S:
                raise TrainingError(
                    f"The cluster that runs the Ray job {job} has not responded for "
                    f"{_PATIENCE_S:.0f} s ({str(error).splitlines()[0]}). Submit the session again "
                    "when it is back, to resume from its last checkpoint."
                ) from error
        time.sleep(_POLL_S)


def _code_of(ended: Any) -> int:
    if ended.status == "STOPPED":
        return _KILLED_CODE
    code = 0 if ended.status == "SUCCEEDED" else ended.driver_exit_code
    if code is not None and code < 0:
        # The queue restarts sessions that were killed by a signal.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return 1 if code is None else int(code)


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the log of the session


if __name__ == "__main__":
    sys.exit(main())
