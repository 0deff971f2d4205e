"""How soon silence is taken for death."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Times of a run, in seconds.

    Attributes:
        heartbeat_s: How often a worker says that it lives.
        heartbeat_timeout_s: Silent for so long: not waited for.
        join_timeout_s: How long a quorum waits for a living worker that is late; more than a step.
        batch_timeout_s: On one batch for so long: hung. This and the next are the least; a batch or
            a sum may take ten times the slowest one so far.
        sum_timeout_s: How long a sum may wait for workers that live.
        transfer_timeout_s: How long the transfer of a state may stand still.
        quorum_timeout_s: How long to wait for a Lighthouse before the driver is taken for gone.
        quorum_interval_s: How long a quorum stands while nothing fails, and so how long who joins
            may have to wait for the others to ask anew; 0: each step has a quorum of its own.
    """

    heartbeat_s: float = 0.1
    heartbeat_timeout_s: float = 1.0
    join_timeout_s: float = 10.0
    batch_timeout_s: float = 120.0
    sum_timeout_s: float = 60.0
    transfer_timeout_s: float = 60.0
    quorum_timeout_s: float = 60.0
    quorum_interval_s: float = 0.2
