"""A stand-in cluster: an API server with KubeRay's RayJobs, reached as users reach theirs."""

from __future__ import annotations

import pytest
from tests.cluster.api_server import ApiServer, write_kubeconfig
from tests.cluster.crd import rayjob_schema
from tests.cluster.operator import Operator


@pytest.fixture
def api_server():
    with ApiServer(rayjob_schema(), namespaces=("default", "team")) as server:
        yield server


@pytest.fixture
def kubeconfig(api_server, tmp_path):
    return write_kubeconfig(tmp_path / "kubeconfig", api_server)


@pytest.fixture
def operator(api_server):
    with Operator(api_server) as operator:
        yield operator
