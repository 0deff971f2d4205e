"""A kubeconfig file as a user has it, with contexts that work and contexts that do not."""

from __future__ import annotations

import socket
from pathlib import Path

import yaml

from tests.cluster.api_server.server import ApiServer

CONTEXTS = ("good", "wrong-token", "unreachable")


def write_kubeconfig(path: Path, server: ApiServer, namespace: str = "default") -> Path:
    """Write a kubeconfig with the contexts `good` (the current one), `wrong-token`, `unreachable`."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        unreachable = f"http://127.0.0.1:{unused.getsockname()[1]}"
    cluster_of = dict(zip(CONTEXTS, ("here", "here", "nowhere"), strict=True))
    user_of = dict(zip(CONTEXTS, ("tester", "stranger", "tester"), strict=True))
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "good",
        "clusters": [
            {"name": "here", "cluster": {"server": server.url}},
            {"name": "nowhere", "cluster": {"server": unreachable}},
        ],
        "users": [
            {"name": "tester", "user": {"token": server.token}},
            {"name": "stranger", "user": {"token": "wrong-token"}},
        ],
        "contexts": [
            {"name": name, "context": {"cluster": cluster_of[name], "user": user_of[name],
                                       "namespace": namespace}}
            for name in CONTEXTS
        ],
    }  # fmt: skip
    path.write_text(yaml.safe_dump(config))
    return path
