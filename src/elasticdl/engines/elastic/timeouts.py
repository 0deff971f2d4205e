"""Timeouts of an elastic run: how long a silent worker or a stalled wait is tolerated.

They are set from the options of a job, `job.Workers`. Failed workers are detected in three places:
`allreduce.py` (no heartbeat: torchft's Lighthouse forms a quorum without it), `peer_watch.py` (a
frozen peer in a sum or a transfer) and `scaling_policy.py` (hung on a batch: the driver replaces
it).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """Timeouts and intervals of a run, in seconds.

    Attributes:
        heartbeat_s: Interval of a worker's heartbeats.
        heartbeat_timeout_s: A worker that is silent for this long is no longer waited for.
        join_timeout_s: How long a quorum waits for a living worker that is late; more than a step.
        batch_timeout_s: A worker that spends this long on one batch is considered hung. Like
            `sum_timeout_s`, it is a minimum: a batch or a sum may take ten times the slowest one
            so far.
        sum_timeout_s: How long a sum may wait for living workers.
        transfer_timeout_s: How long the transfer of a state may make no progress.
        quorum_timeout_s: How long to wait for a Lighthouse before the driver is considered gone.
        quorum_interval_s: How long a quorum stays valid while nothing fails, and therefore how long
            a joining worker may have to wait for the others to form a new one. With 0, each step
            has its own quorum.
    """

    heartbeat_s: float = 0.1
    heartbeat_timeout_s: float = 1.0
    join_timeout_s: float = 10.0
    batch_timeout_s: float = 120.0
    sum_timeout_s: float = 60.0
    transfer_timeout_s: float = 60.0
    quorum_timeout_s: float = 60.0
    quorum_interval_s: float = 0.2
