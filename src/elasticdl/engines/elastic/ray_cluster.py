"""Starts Ray on this machine for one run, or joins a cluster.

A Ray of ours takes no connection from the network and none without the token of its run:

    local Ray    every listener on 127.0.0.1; a random token, in the environment of this run only
    a cluster    the user's own settings, as the `ray` command takes them: RAY_AUTH_MODE,
                 RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token

Ray runs any pickle that reaches its control store, so an open port is a shell for strangers
(docs/security.md).

Callers: `placement.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import ray
from ray._private import ray_constants
from ray._raylet import (  # type: ignore[attr-defined]
    AuthenticationTokenLoader,
    Config,
    GcsClient,
)

from elasticdl.errors import UsageError

LOCALHOST = "127.0.0.1"

_CONNECT_TIMEOUT_S = 5.0
_TOKEN_BYTES = 32
# Ray's switch for laptops: it then takes 127.0.0.1 for the node's address and binds to it.
# Otherwise it replaces a loopback address with the machine's outer one, and binds to all.
_SEVERAL_MACHINES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_TOKEN_FILE = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - the name of a variable


@contextlib.contextmanager
def local_ray(num_cpus: int) -> Iterator[str]:
    """Run a Ray of this run's own; yield the address of this machine in it.

    Args:
        num_cpus: Logical ones: how many actors that ask for a core fit at the same time.
    """
    with _closed_to_others():
        _connect("local", num_cpus=num_cpus, include_dashboard=False, _node_ip_address=LOCALHOST)
        # It carries here what workers print, which is in files; it looks for that ten times
        # a second, and there is no option against it.
        node: Any = ray._private.worker._global_node  # noqa: SLF001
        node.kill_log_monitor(check_alive=False)
        try:
            yield LOCALHOST
        finally:
            ray.shutdown()


@contextlib.contextmanager
def joined_cluster(address: str) -> Iterator[str]:
    """Join a cluster of the user's; yield the address of this machine in it.

    Raises:
        UsageError: Nothing answers at the address, or the cluster does not accept the token.
    """
    with contextlib.ExitStack() as undo:
        try:
            undo.enter_context(_users_authentication(address))
            _connect(address)
        except ray.exceptions.AuthenticationError as error:
            raise _wrong_token(address) from error
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"--ray_address={address}: no Ray cluster answers there "
                f"({str(error).splitlines()[0]}). Start one with `ray start --head`, or leave "
                "the option out to train on this machine."
            ) from error
        undo.callback(ray.shutdown)
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        yield host


def _connect(address: str, **options: Any) -> None:
    """Call `ray.init` and keep this process' answer to SIGTERM.

    Ray puts in a handler of its own, which would end a training without its last checkpoint.
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
    """Find out within seconds how to talk to a cluster; Ray itself tries for a minute and a half.

    A token at hand is used where the cluster asks for one, as the `ray` command does. Where it
    asks for none, a stray token file must not count: the driver would then refuse calls of
    the cluster's processes, which have no token.

    Raises:
        UsageError: The cluster asks for a token, and does not accept what there is.
        OSError: Nothing answers.
    """
    _reload_settings()
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    is_plain = colon and port.isdigit() and not address.startswith("ray://")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    has_token = AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True)
    given = os.environ.get("RAY_AUTH_MODE")
    modes = [given] if given else ["disabled", *(["token"] if has_token else [])]
    if given == "token" and not has_token:
        # Ray's native library would end the process.
        raise _wrong_token(address)
    for mode in modes if is_plain else modes[-1:]:
        with _environment({"RAY_AUTH_MODE": mode}):
            if is_plain and not _accepts(address):
                continue
            yield
            return
    raise _wrong_token(address)


def _accepts(address: str) -> bool:
    """Whether the cluster's control store talks to this process as it is set up now."""
    try:
        GcsClient(address=address)
    except ray.exceptions.AuthenticationError:
        return False
    return True


def _wrong_token(address: str) -> UsageError:
    return UsageError(
        f"--ray_address={address}: the Ray cluster does not accept this token, or needs one and "
        "got none. Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to the "
        "token that the cluster was started with; `ray get-auth-token` prints it there."
    )


@contextlib.contextmanager
def _closed_to_others() -> Iterator[None]:
    """Let Ray listen on loopback only, and require a token that only this run knows."""
    own = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(_TOKEN_BYTES),
        _SEVERAL_MACHINES: "0",
    }
    # Ray's processes read the environment; this one has read it when it imported Ray.
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
    """Let Ray's native library read the environment again."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
