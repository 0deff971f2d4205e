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
        heartbeat_s: How long a worker waits between two heartbeats.
        heartbeat_timeout_s: How long the other workers wait for a worker that sends no heartbeat.
        join_timeout_s: How long the workers that are ready for a step wait for one that is alive
            but late. It should exceed the duration of a step.
        batch_timeout_s: How long a worker may spend on one batch before it is considered hung. Like
            `sum_timeout_s`, it is a minimum: a batch or a sum may take ten times as long as the
            slowest one so far.
        sum_timeout_s: How long a sum over the workers (all-reduce) may wait for living workers.
        transfer_timeout_s: How long the transfer of a state to a joining worker may pause before it
            is abandoned.
        quorum_timeout_s: How long a worker waits for a Lighthouse before it considers the driver
            gone.
        quorum_interval_s: How long the workers keep the same quorum (the set of workers that take
            part in a step) while nothing fails. A joining worker may have to wait this long for the
            next one. With 0, each step has its own quorum.
    """

    heartbeat_s: float = 0.1
    heartbeat_timeout_s: float = 1.0
    join_timeout_s: float = 10.0
    batch_timeout_s: float = 120.0
    sum_timeout_s: float = 60.0
    transfer_timeout_s: float = 60.0
    quorum_timeout_s: float = 60.0
    quorum_interval_s: float = 0.2
