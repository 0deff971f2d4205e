"""A job on a stand-in cluster: submitted, followed, stopped, told in words."""

from __future__ import annotations

import threading
import time

import pytest
from tests.cluster.api_server import Fault, quota_exceeded
from tests.cluster.pod_states import image_pull_back_off, oom_killed, unschedulable

from elasticdl import api
from elasticdl.cluster.options import ClusterOptions
from elasticdl.errors import ClusterJobError, UnavailableError, UsageError

OPTIONS = ClusterOptions(image="registry.example/team/app@sha256:" + "4b" * 32, ray_version="2.60.0")


@pytest.fixture
def job(monkeypatch, kubeconfig):
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return api.training_job(
        model_def="mnist",
        data="s3://bucket/train/*.recordio",
        output="s3://bucket/my_model",
        num_workers="1..2",
    )


def run(job, **more):
    """Submit a job and follow it; returns what was told."""
    told = []
    api.run_on_cluster(job, OPTIONS, tell=told.append, **more)
    return "\n".join(told)
