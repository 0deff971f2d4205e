"""Client registry: admits parties, sends them a round's requests and collects their answers.

Answers are collected within the round's timeout; for every party without a usable answer, the
reason is returned.

    connected ---join---> joined ---train, evaluate, sync---> usable replies; why others are missing
      |                     ^
      +------> refused -----+  the request is repeated after a while: the cause may have been fixed

The first party that joins describes its examples. The aggregator builds its own model for them and
refuses every party whose model differs. A round waits for all joined parties, at most
`max_timeout_s`. If a party did not reply in an earlier round, the next rounds do not wait for it
once enough other parties have replied (`backoff.py`).

Callers: `aggregator.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elasticdl.engines.federated.client.party import weights_of
from elasticdl.engines.federated.client.redaction import redacted
from elasticdl.engines.federated.control.status import PartySeen
from elasticdl.engines.federated.protocol.messages import (
    Refusal,
    Reply,
    RoundRequest,
    architecture_of,
)
from elasticdl.engines.federated.server.backoff import Backoff
from elasticdl.engines.federated.server.replies import problem_of, problem_of_metrics
from elasticdl.engines.job_messages import without_recording
from elasticdl.errors import TrainingError
from elasticdl.events import PartyJoined

if TYPE_CHECKING:
    from elasticdl.engines.attempt import Attempt
    from elasticdl.engines.federated.protocol.messages import Architecture, Kind, LocalTraining
    from elasticdl.engines.federated.protocol.parties import Parties
    from elasticdl.job import Federation
    from elasticdl.training.trainer import Trainer, Weights

_POLL_S = 0.05
# A join request can delay a round by some seconds, so refused parties are retried rarely.
_ASK_AGAIN_S, _ASK_AGAIN_MAX_S = 10.0, 320.0


def nothing_to_check() -> None:
    """Do nothing: the default of `ClientRegistry.check`, which lets every wait continue."""


@dataclass
class ClientRegistry:
    """Tracks which parties have joined a federation, sends them requests and collects replies.

    Attributes:
        attempt: The attempt, whose log and reporter record which parties join.
        federation: How many parties are needed, and how long to wait for them.
        parties: The parties that can receive requests.
        create_trainer: Function (shapes of a party's examples) -> trainer of the job's model.
        options_for: Function (number of the party, whether it reports evaluation metrics) ->
            options of the party's training.
        needs: Minimum number of replies that the fusion can combine, such as 5 for Krum with one
            lying party. The quorum may require more.
        joined: Party -> its reply to the join request.
        trainer: Trainer of the aggregator's own model; None before a party has joined.
        last: Party -> what it did in the last round, or why it was left out.
        check: Called regularly while waiting; an exception from it ends training at once.
    """

    attempt: Attempt
    federation: Federation
    parties: Parties
    create_trainer: Callable[[Mapping[str, Any]], Trainer]
    options_for: Callable[[int, bool], LocalTraining]
    needs: int
    joined: dict[str, Reply] = field(default_factory=dict, init=False)
    trainer: Trainer | None = field(default=None, init=False)
    last: dict[str, str] = field(default_factory=dict, init=False)
    check: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        self.check = nothing_to_check
        self._refused: dict[str, str] = {}
        # Party -> time of its next join request, and the pause before it.
        self._ask_again: dict[str, tuple[float, float]] = {}
        self._silences = Backoff()
        self._unmade: set[str] = set()
        self._architecture: Architecture = {}

    @property
    def needed(self) -> int:
        """Number of usable replies that a round needs: the quorum, and at least `needs`."""
        share = self.federation.quorum * self.federation.num_parties
        # 0.6 of 5 must be 3, despite floating-point error.
        return max(1, math.ceil(share - 1e-9), self.needs)

    def wait(self, safe_point: Callable[[], bool]) -> bool:
        """Admit parties until all have joined.

        Once a quorum has joined, wait at most `max_timeout_s` for the remaining parties.

        Args:
            safe_point: Function () -> whether to stop waiting.

        Returns:
            True to start the rounds; False if `safe_point` ended the wait.

        Raises:
            TrainingError: Too few joined in time, or the connected parties could not be
                determined.
            ElasticDLError: The aggregator's model cannot be built for the parties' examples.
        """
        wanted = self.federation.num_parties
        deadline = time.monotonic() + self.federation.join_timeout_s
        has_quorum = False
        while True:
            self.join_newcomers()
            there = self.joined.keys() & set(self.parties.here())
            if len(there) >= self.needed and not has_quorum:
                has_quorum = True
                patience_s = self.federation.max_timeout_s
                if patience_s is not None:
                    deadline = min(deadline, time.monotonic() + patience_s)
            # With a quorum, do not wait for refused parties.
            come = there | (self._refused.keys() if has_quorum else set())
            if len(come) >= wanted or time.monotonic() >= deadline:
                break
            self.check()
            if safe_point():
                return False
            time.sleep(_POLL_S)
        if len(there) < self.needed:
            timeout_s = self.federation.join_timeout_s
            within = f" within {timeout_s:g} s" if timeout_s else ""
            raise TrainingError(
                f"Only {len(there)} of {wanted} parties joined{within}{listed(there)}; "
                f"{self.needed} are needed."
                f"{''.join(f'{chr(10)}  {why}' for _, why in sorted(self._refused.items()))}\n"
                "  Fix what prevents the others from joining, and run the same command again."
            )
        return True

    def seen(self) -> dict[str, PartySeen]:
        """Return the status of every known party. Safe to call from another thread.

        Raises:
            TrainingError: The connected parties could not be determined.
        """
        here, joined, refused = set(self.parties.here()), dict(self.joined), dict(self._refused)
        return {
            name: PartySeen(
                connected=name in here,
                joined=name in joined,
                num_examples=joined[name].num_examples if name in joined else 0,
                last=refused.get(name) or self.last.get(name, ""),
            )
            for name in sorted(here | joined.keys() | refused.keys())
        }

    def join_newcomers(self) -> None:
        """Send a join request to connected parties that have not joined; admit or refuse each.

        A refused party receives another request after a pause. The first party that joins
        determines the aggregator's own model.

        Raises:
            TrainingError: The connected parties could not be determined.
            ElasticDLError: The aggregator's model cannot be built for the parties' examples.
        """
        here, now = sorted(self.parties.here()), time.monotonic()
        # A party that reconnects may have been fixed, so its pause no longer applies.
        self._ask_again = {name: self._ask_again[name] for name in here if name in self._ask_again}
        newcomers = {
            name
            for name in here
            if name not in self.joined and now >= self._ask_again.get(name, (0.0, 0.0))[0]
        }
        if not newcomers:
            return
        request = RoundRequest(
            kind="join", history="", round=0, weights={}, options=self.options_for(0, False)
        )
        asked, timeout_s = dict.fromkeys(sorted(newcomers), request), self.federation.max_timeout_s
        for answer in self.parties.ask(asked, timeout_s, self.check):
            newcomers.discard(answer.party)
            if isinstance(answer, Refusal):
                why = f"Party {answer.party!r} could not join: {_said(answer)}"
                self._refuse(answer.party, why)
                continue
            problem = self._try_to_build_model(answer) or problem_of(
                answer, request, self._architecture
            )
            if problem is not None:
                self._refuse(answer.party, problem)
                continue
            self.joined[answer.party] = answer
            self._refused.pop(answer.party, None)
            self.attempt.events.write(
                PartyJoined(step=0, party=answer.party, num_examples=answer.num_examples)
            )
            without_recording(self.attempt.reporter).note(
                f"Party {answer.party!r} joined, with {answer.num_examples:,} examples."
            )
        for name in sorted(newcomers):
            self._refuse(name, f"Party {name!r} did not answer the join request.")

    def _try_to_build_model(self, reply: Reply) -> str | None:
        """Build the aggregator's model for a party's examples, if there is no model yet.

        Args:
            reply: The party's reply to the join request, with the shapes of its examples.

        Returns:
            None if there is a model now, from this or an earlier party. Otherwise the reason for
            which the party is refused: no model can be built for its examples.

        Raises:
            ElasticDLError: The model cannot be built, and too few other parties are left to try.
        """
        if self.trainer is not None:
            return None
        try:
            self.trainer = self.create_trainer(reply.example)
        except Exception as error:
            # If no other party can take its place, the model itself is most likely at fault.
            self._unmade.add(reply.party)
            if self.federation.num_parties - len(self._unmade) < self.needed:
                raise
            return (
                f"Party {reply.party!r} could not join: no model can be built for the examples "
                f"that it describes ({type(error).__name__}: {redacted(str(error))}). Check the "
                "`data:` section of its config."
            )
        self._architecture = architecture_of(weights_of(self.trainer.state()))
        return None

    def _problem_of(self, reply: Reply, request: RoundRequest) -> str | None:
        """Return why a reply cannot be used, None if it can; see `replies.py`."""
        problem = problem_of(reply, request, self._architecture)
        if problem is not None or self.trainer is None:
            return problem
        return problem_of_metrics(
            reply, self.trainer.training_metrics, self.trainer.evaluation_metrics
        )

    def _refuse(self, party: str, why: str) -> None:
        # Retried after a pause, because its operator may be fixing the cause.
        _, before_s = self._ask_again.get(party, (0.0, _ASK_AGAIN_S / 2))
        pause_s = min(2 * before_s, _ASK_AGAIN_MAX_S)
        self._ask_again[party] = time.monotonic() + pause_s, pause_s
        if self._refused.get(party) != why:
            self.attempt.reporter.note(why)
        self._refused[party] = why

    def ask(
        self, kind: Kind, number: int, history: str, weights: Weights
    ) -> tuple[list[Reply], dict[str, str]]:
        """Send a request to all connected parties that have joined, and collect the replies.

        An `evaluate` request is sent only to the parties that report evaluation metrics.

        Args:
            kind: Kind of the request.
            number: The round.
            history: ID of the training run.
            weights: The global weights.

        Returns:
            The usable replies, sorted by party; and for every other known party: name -> why it is
            left out, for messages.

        Raises:
            TrainingError: The connected parties could not be determined.
        """
        here = [name for name in sorted(self.parties.here()) if name in self.joined]
        evaluating = {name for name, joined in self.joined.items() if joined.is_evaluating}
        ranks = {name: rank for rank, name in enumerate(sorted(self.joined))}
        requests = {
            name: RoundRequest(
                kind=kind,
                history=history,
                round=number,
                weights=weights,
                options=self.options_for(ranks[name], name in evaluating),
            )
            for name in here
            if kind != "evaluate" or name in evaluating
        }
        left_out = {name: "not connected" for name in self.joined if name not in here}
        left_out |= {name: why for name, why in self._refused.items() if name not in self.joined}
        waited_for = {
            name for name in requests if kind != "train" or self._silences.is_over(name, number)
        }
        missing, silent = set(waited_for), set(requests)
        good: dict[str, Reply] = {}
        for answer in self.parties.ask(requests, self.federation.max_timeout_s, self.check):
            missing.discard(answer.party)
            silent.discard(answer.party)
            self._silences.end(answer.party)
            if isinstance(answer, Refusal):
                left_out[answer.party] = _said(answer)
            elif problem := self._problem_of(answer, requests[answer.party]):
                left_out[answer.party] = problem
            else:
                good[answer.party] = answer
            if not missing and (kind != "train" or len(good) >= self.needed):
                break
        for name in sorted(silent):
            if name in waited_for:
                self._silences.begin(name, number)
                left_out[name] = f"no answer within {self.federation.max_timeout_s:g} s"
            else:
                left_out[name] = (
                    "no answer while the others replied; it did not answer before either"
                )
        if kind == "train":
            self.last |= dict.fromkeys(good, f"took part in round {number}")
            self.last |= {n: f"left out of round {number}: {why}" for n, why in left_out.items()}
        return [good[name] for name in sorted(good)], dict(sorted(left_out.items()))


def _said(refusal: Refusal) -> str:
    return f"{refusal.error_kind}: {refusal.text}"


def listed(names: Any) -> str:
    """Format names to append to a sentence, such as ` (north, south)`; empty without names."""
    return f" ({', '.join(sorted(names))})" if names else ""
