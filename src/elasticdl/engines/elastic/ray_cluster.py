"""Ray connection: starts Ray on this machine for one run, or joins a cluster.

A Ray started here accepts no connection from the network, and none without the token of its run:

    local Ray    every listener on 127.0.0.1; a random token, in the environment of this run only
    a cluster    the user's own settings, as the `ray` command takes them: RAY_AUTH_MODE,
                 RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token

Ray executes any pickle that reaches its control store, so an open port gives strangers a shell
(docs/trust/security.md).

Callers: `placement.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants
from ray._raylet import (  # type: ignore[attr-defined]
    AuthenticationTokenLoader,
    Config,
    GcsClient,
)

from elasticdl.data.wording import counted
from elasticdl.engines.elastic.ray_watch import RayWatch, kill_fork_servers
from elasticdl.errors import (
    NonFiniteLossError,
    OutputError,
    TrainingError,
    UnavailableError,
    UsageError,
)
from elasticdl.scratch import TemporaryFolder, has_room, no_room

LOCALHOST = "127.0.0.1"

_log = logging.getLogger("elasticdl")

_CONNECT_TIMEOUT_S = 5.0
_MAX_STARTS = 3
_LONGEST_START_S = 60.0
_LOST_AFTER_S = 20.0
# Before Ray is shut down, what it was told of killed workers arrives; then it has this time.
_NEWS_OF_WORKERS_S = 1.0
_LONGEST_SHUTDOWN_S = 30.0
_leaving: threading.Thread | None = None
# Wait before failing: Ray removes old logs, and other programs remove their files.
_FULL_FOR_S = 5.0
_TOKEN_BYTES = 32
_LAST_PORT = 65_535
# Larger values are put into the raylet's shared memory. When the raylet dies, Ray's native library
# ends every process that has a value there, with exit code 1 and without a message.
_SENT_DIRECTLY_BYTES = 2**23
# The path of a socket is limited to 107 characters, and Ray appends 64.
_MAX_FOLDER_LENGTH = 43
# The monitor that starts and stops machines; the server of the dashboard, which runs even without
# the dashboard; the monitor that sends workers' output to the driver, although it is in files. Each
# takes a second and 80 MB.
_OF_CLUSTERS = ("start_monitor", "start_api_server", "start_log_monitor")
_OPENED = "r"
# Ray's switch for laptops: when off, Ray uses 127.0.0.1 as the node's address and binds to it.
# Otherwise it replaces a loopback address by the machine's external one, and binds to all.
_SEVERAL_MACHINES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_TOKEN_FILE = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - the name of a variable


class RayLostError(Exception):
    """Raised when Ray has died or is unreachable; `ConnectedRay.why_lost` returns the reason."""


@dataclass(frozen=True)
class ConnectedRay:
    """The Ray instance that this process is connected to.

    Attributes:
        host: Address under which Ray's processes reach this machine.
        why_lost: Function () -> sentence on why Ray can no longer be used, or None if it can.
        answers: Function () -> whether Ray's control store (GCS) answers; if not, calls to Ray may
            block.
        check_room: Function () that raises `OutputError` if the disk of Ray's temporary files is
            full.
    """

    host: str
    why_lost: Callable[[], str | None]
    answers: Callable[[], bool]
    check_room: Callable[[], None] = lambda: None


@contextlib.contextmanager
def local_ray(num_cpus: int) -> Iterator[ConnectedRay]:
    """Context manager that starts Ray on this machine for this run, and stops it after its block.

    Args:
        num_cpus: Number of cores that Ray assumes this machine to have. It limits how many actors
            that request a core run at the same time.

    Raises:
        UnavailableError: Ray did not start in several attempts.
        OutputError: There is no space for temporary files.
    """
    _check_left()
    # Ray never removes the files it writes there. `TMPDIR` puts the files of its processes there,
    # too.
    with (
        TemporaryFolder() as temporary,
        _folder_of_ray(temporary) as folder,
        _closed_to_others(),
        _environment({"TMPDIR": str(temporary)}),
    ):
        room = _Room((temporary, folder.parent))
        try:
            _start(num_cpus, folder)
        except UnavailableError:
            room.check(at_once=True)
            raise
        node: Any = ray._private.worker._global_node  # noqa: SLF001
        processes = {
            name: [each.process for each in node.all_processes.get(name, [])]
            for name in ("raylet", "gcs_server")
        }
        with RayWatch(processes) as watch:
            try:
                yield ConnectedRay(
                    LOCALHOST, watch.why_lost, lambda: watch.why_lost() is None, room.check
                )
            except (ray.exceptions.RayError, RayLostError, TrainingError) as error:
                # An error caused by a full disk seldom mentions the disk.
                if not isinstance(error, NonFiniteLossError):
                    room.check(at_once=True)
                raise
            finally:
                watch.kill_stopped()
                ray.shutdown()
                kill_fork_servers(temporary)


class _Room:
    """Detector of a full disk for temporary files; Ray itself would only log that the disk is full.

    Args:
        folders: Folders in which this run writes temporary files.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._full_since_s: float | None = None

    def check(self, *, at_once: bool = False) -> None:
        """Raise if a disk has been full for some seconds.

        Args:
            at_once: Whether to raise even if the disk has just become full.

        Raises:
            OutputError: A disk is full.
        """
        full = next((each for each in self._folders if not has_room(each)), None)
        now = time.monotonic()
        if full is None:
            self._full_since_s = None
            return
        if self._full_since_s is None:
            self._full_since_s = now
        if at_once or now - self._full_since_s >= _FULL_FOR_S:
            raise OutputError(no_room(full.parent))


def _start(num_cpus: int, folder: Path) -> None:
    """Start Ray on this machine; try again if its processes time out on a busy machine.

    Args:
        num_cpus: Number of cores that Ray assumes this machine to have.
        folder: Folder for Ray's temporary files.
    """
    started_s = time.monotonic()
    for attempt in range(1, _MAX_STARTS + 1):
        try:
            with _without_processes_of_clusters():
                _connect(
                    "local",
                    num_cpus=num_cpus,
                    include_dashboard=False,
                    _node_ip_address=LOCALHOST,
                    _temp_dir=str(folder),
                )
        except Exception as error:
            ray.shutdown()
            if attempt == _MAX_STARTS or time.monotonic() - started_s > _LONGEST_START_S:
                reason = str(error).strip().splitlines() or [type(error).__name__]
                raise UnavailableError(
                    f"Ray did not start on this machine in {counted(attempt, 'attempt')}: "
                    f"{reason[0]} If the machine is busy or out of memory, run the same command "
                    "again later."
                ) from error
        else:
            return


@contextlib.contextmanager
def _without_processes_of_clusters() -> Iterator[None]:
    """Context manager that keeps Ray from starting processes that only a cluster needs."""
    node: Any = ray._private.node.Node  # noqa: SLF001
    before = {name: getattr(node, name) for name in _OF_CLUSTERS}
    for name in before:
        setattr(node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, start in before.items():
            setattr(node, name, start)


@contextlib.contextmanager
def _folder_of_ray(temporary: Path) -> Iterator[Path]:
    """Context manager that yields a folder for Ray's temporary files, private to this user.

    It is created in RAY_TMPDIR if that is set, otherwise where its path is short enough for Ray.
    """
    wanted = os.environ.get("RAY_TMPDIR")
    # Ray makes its folder writable for everyone, so it must be within a folder that only this user
    # can access.
    if wanted is None and len(str(temporary / _OPENED)) <= _MAX_FOLDER_LENGTH:
        yield temporary / _OPENED
    else:
        with TemporaryFolder(wanted or "/tmp") as folder:  # noqa: S108 - a new folder is created in it
            yield folder / _OPENED


@contextlib.contextmanager
def joined_cluster(address: str) -> Iterator[ConnectedRay]:
    """Context manager that connects this process to the user's Ray cluster during its block.

    Raises:
        UnavailableError: Nothing answers at the address; retrying later may succeed.
        UsageError: The address is invalid, or the cluster does not accept the token.
    """
    _check_left()
    with contextlib.ExitStack() as undo:
        try:
            undo.enter_context(_users_authentication(address))
            _connect(address)
        except ray.exceptions.AuthenticationError as error:
            raise _wrong_token(address) from error
        except (OSError, ValueError, RuntimeError, OverflowError) as error:
            raise _not_joined(address, error) from error
        undo.callback(_leave_cluster)
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        store = _ControlStore(ray.get_runtime_context().gcs_address)
        yield ConnectedRay(host, store.why_lost, store.answers)


def _leave_cluster() -> None:
    """Disconnect this process from a cluster, within a limited time.

    Ray's native library crashed, or never returned, where messages about killed workers arrived
    while it was shut down. A training that is complete must not be lost with it.
    """
    global _leaving  # noqa: PLW0603 - as global as Ray's connection
    _leaving = threading.Thread(target=_shut_down, name="ray-shutdown", daemon=True)
    try:
        time.sleep(_NEWS_OF_WORKERS_S)
    finally:
        # Also after Ctrl-C.
        _leaving.start()
        try:
            _leaving.join(_LONGEST_SHUTDOWN_S)
        finally:
            if _leaving.is_alive():
                # At exit, it would wait for the thread that does not return.
                atexit.unregister(ray.shutdown)
    if _leaving.is_alive():
        _log.warning(
            "Ray has not disconnected from the cluster for %.0f s. The run continues without "
            "waiting for it.",
            _LONGEST_SHUTDOWN_S,
        )


def _shut_down() -> None:
    try:
        ray.shutdown()
    except Exception as error:  # noqa: BLE001 - the run is over, whatever Ray raises
        _log.warning("Ray has not disconnected from the cluster as it should: %s", error)


def _check_left() -> None:
    """Check that this process is not still leaving a cluster; Ray would wait for that forever.

    Raises:
        UnavailableError: The process is still leaving a cluster.
    """
    if _leaving is not None and _leaving.is_alive():
        _leaving.join(_LONGEST_SHUTDOWN_S)
        if _leaving.is_alive():
            raise UnavailableError(
                "Ray has not disconnected from the cluster of an earlier job in this process, so "
                "it cannot connect again. Restart the process."
            )


class _ControlStore:
    """A cluster's control store (GCS), to check whether it is reachable.

    The checks serve to end the run with an error in time: a minute after the store is gone, Ray's
    native library ends this process without a message.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._heard_s = time.monotonic()

    def answers(self) -> bool:
        host, port = self._address.rsplit(":", 1)
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
        except OSError:
            return False
        self._heard_s = time.monotonic()
        return True

    def why_lost(self) -> str | None:
        silent_s = time.monotonic() - self._heard_s
        if self.answers() or silent_s < _LOST_AFTER_S:
            return None
        return f"The Ray cluster at {self._address} has not answered for {silent_s:.0f} s."


def _connect(address: str, **options: Any) -> None:
    """Call `ray.init` and keep this process's SIGTERM handler.

    Ray installs its own handler, which would end a run without saving a last checkpoint.
    """
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(
        address=address,
        namespace="elasticdl",
        log_to_driver=False,
        logging_level=logging.ERROR,
        **options,
    )
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _users_authentication(address: str) -> Iterator[None]:
    """Context manager that makes Ray send a token during its block, if the cluster requires one.

    A mode that the user has set in RAY_AUTH_MODE is kept. Otherwise an available token is used only
    if the cluster requires one; at an address other than HOST:PORT, where this cannot be asked, it
    is always used. If the cluster requires none, a stray token file must be ignored: in
    token mode, the driver would refuse calls of the cluster's processes, which have no token.

    Raises:
        UsageError: The cluster requires a token and does not accept the available one, if any.
        OSError: Nothing answers.
        ValueError: The address is invalid.
    """
    _reload_settings()
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    is_plain = colon and port.isdigit() and not address.startswith("ray://")
    if colon and port.isdigit():
        if not 0 < int(port) <= _LAST_PORT:
            # The operating system would use it modulo 65,536.
            raise ValueError(f"the port must be between 1 and {_LAST_PORT}")
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    has_token = AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True)
    given = os.environ.get("RAY_AUTH_MODE")
    modes = [given] if given else ["disabled", *(["token"] if has_token else [])]
    if given == "token" and not has_token:
        # Otherwise Ray's native library would end the process.
        raise _wrong_token(address)
    for mode in modes if is_plain else modes[-1:]:
        with _environment({"RAY_AUTH_MODE": mode}):
            if is_plain and not _accepts(address):
                continue
            yield
            return
    raise _wrong_token(address)


def _accepts(address: str) -> bool:
    """Return whether the cluster's control store accepts this process with its current settings."""
    try:
        GcsClient(address=address)
    except ray.exceptions.AuthenticationError:
        return False
    return True


def _not_joined(address: str, error: Exception) -> UnavailableError | UsageError:
    """Return the error for a cluster that does not answer, or for an invalid address."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    unknown_host = isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN
    if unknown_host or isinstance(error, (ValueError, OverflowError)):
        return UsageError(
            f"--ray_address={address}: not the address of a Ray cluster ({reason}). Expected "
            "HOST:PORT, such as 10.0.0.1:6379, or leave the option out to train on this machine."
        )
    return UnavailableError(
        f"--ray_address={address}: no Ray cluster answers there ({reason}). Start one with `ray "
        "start --head` and run the same command again, or leave the option out to train on this "
        "machine."
    )


def _wrong_token(address: str) -> UsageError:
    return UsageError(
        f"--ray_address={address}: the Ray cluster rejected the token, or requires one and "
        "received none. Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to the "
        "token that the cluster was started with; `ray get-auth-token` prints it there."
    )


@contextlib.contextmanager
def _closed_to_others() -> Iterator[None]:
    """Context manager that makes Ray listen on loopback only, with a random token as password."""
    own = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(_TOKEN_BYTES),
        _SEVERAL_MACHINES: "0",
        "RAY_max_direct_call_object_size": str(_SENT_DIRECTLY_BYTES),
    }
    # Ray's processes read the environment, but this process has read it when it imported Ray.
    several = ray_constants.ENABLE_RAY_CLUSTER
    with _environment(own, without=(_TOKEN_FILE,)):
        ray_constants.ENABLE_RAY_CLUSTER = False
        try:
            yield
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = several


@contextlib.contextmanager
def _environment(values: dict[str, str], without: tuple[str, ...] = ()) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in (*values, *without)}
    for name in without:
        os.environ.pop(name, None)
    os.environ.update(values)
    _reload_settings()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _reload_settings()


def _reload_settings() -> None:
    """Make Ray's native library read its environment variables again."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
