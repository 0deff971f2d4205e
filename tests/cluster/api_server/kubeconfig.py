"""A kubeconfig file as a user has it, with contexts that work and contexts that do not."""

from __future__ import annotations

import base64
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from tests.cluster.api_server.server import ApiServer

# The cluster and the user of each; the first is the current one.
CONTEXTS = {
    "good": ("here", "tester"),
    "wrong-token": ("here", "stranger"),
    "untrusted": ("without-certificate", "tester"),
    "unreachable": ("nowhere", "tester"),
}


def write_kubeconfig(path: Path, server: ApiServer, namespace: str = "default") -> Path:
    """Write a kubeconfig with a context that works, and one for each way not to get in."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        unreachable = f"https://127.0.0.1:{unused.getsockname()[1]}"
    trusted = base64.b64encode(server.certificate).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "good",
        "clusters": [
            {"name": "here", "cluster": {
                "server": server.url, "certificate-authority-data": trusted}},
            {"name": "without-certificate", "cluster": {"server": server.url}},
            {"name": "nowhere", "cluster": {"server": unreachable}},
        ],
        "users": [
            {"name": "tester", "user": {"token": server.token}},
            {"name": "stranger", "user": {"token": "wrong-token"}},
        ],
        "contexts": [
            {"name": name, "context": {"cluster": cluster, "user": user, "namespace": namespace}}
            for name, (cluster, user) in CONTEXTS.items()
        ],
    }  # fmt: skip
    path.write_text(yaml.safe_dump(config))
    return path
