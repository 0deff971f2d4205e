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
        step_timeout_s: How long a sum, or the transfer of a state, may take.
        quorum_timeout_s: How long to wait for a quorum before the driver is taken for gone.
        quorum_interval_s: How long a quorum stands while nothing fails, and so how long who joins
            may have to wait for the others to ask anew; 0: each step has a quorum of its own.
    """

    heartbeat_s: float = 0.1
    heartbeat_timeout_s: float = 1.0
    join_timeout_s: float = 10.0
    step_timeout_s: float = 60.0
    quorum_timeout_s: float = 60.0
    quorum_interval_s: float = 0.2
