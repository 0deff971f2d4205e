"""Trains jobs on workers, one after the other on one Ray, as a process beside the tests.

    python elastic.py JOB.json ...

JOB.done says that a job is over. Callers: the tests beside this file.
"""

import signal
import sys
from dataclasses import replace
from pathlib import Path

from elasticdl import api
from elasticdl.engines import elastic  # noqa: F401 - sets Ray's environment
from elasticdl.engines.progress_bar import Silent
from elasticdl.job import Job

import ray.cluster_utils  # isort: skip


def main(paths):
    cluster = ray.cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    # Ray is ended however this process is. The answer of Ray's own, which this replaces, waits
    # for ever where it interrupts the end of the cluster.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for path in paths:
            job = Job.from_json(path.read_text())
            workers = replace(job.workers, ray_address=cluster.address)
            api.run(replace(job, workers=workers), Silent())
            path.with_suffix(".done").touch()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main([Path(path) for path in sys.argv[1:]])
