"""Which parties take part: they join or are refused, are asked, answer or are silent.

    here ---ask: join---> joined ---ask: train, evaluate, sync---> good answers, and why others miss
      |                     ^
      +---> refused --------+  asked again after a while: somebody may be mending it

The first party that joins says what examples look like; of them the aggregator makes its own model,
and whoever has another one is refused. A round waits for all that have joined, at most
`max_timeout_s`; for who was silent before, not longer than for the others (`silences.py`).

Callers: `aggregator.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elasticdl.engines.federated.messages import Refusal, Reply, Request, architecture_of
from elasticdl.engines.federated.party import weights_of
from elasticdl.engines.federated.redaction import redacted
from elasticdl.engines.federated.replies import problem_of, problem_of_metrics
from elasticdl.engines.federated.silences import Silences
from elasticdl.engines.federated.status import PartySeen
from elasticdl.engines.job_messages import aloud
from elasticdl.errors import TrainingError
from elasticdl.events import PartyJoined

if TYPE_CHECKING:
    from elasticdl.engines.attempt import Attempt
    from elasticdl.engines.federated.messages import Architecture, Kind, LocalTraining
    from elasticdl.engines.federated.parties import Parties
    from elasticdl.job import Federation
    from elasticdl.training.trainer import Trainer, Weights

_POLL_S = 0.05
# A question costs a round some seconds.
_ASK_AGAIN_S, _ASK_AGAIN_MAX_S = 10.0, 320.0


def nothing_to_check() -> None:
    """Go on waiting."""


@dataclass
class Attendance:
    """See the module.

    Attributes:
        attempt: Where it is told who joined.
        federation: How many are needed, and how long they are waited for.
        parties: Who can be asked.
        create_trainer: Makes the job's model for examples of the shapes a party tells.
        options_for: Slot, and whether it is to evaluate -> how a party is to train.
        needs: How many answers the fusion needs, whatever the quorum.
        joined: Party -> how it joined.
        trainer: Of the aggregator's own model; None before a party has joined.
        last: Party -> what it answered last, or why it was left out.
        check: Called now and then while it waits; raises what ends the training at once.
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
        # Party -> when, and after how long.
        self._ask_again: dict[str, tuple[float, float]] = {}
        self._silences = Silences()
        self._unmade: set[str] = set()
        self._architecture: Architecture = {}

    @property
    def needed(self) -> int:
        """How many valid answers a round needs."""
        share = self.federation.quorum * self.federation.num_parties
        # A share of 0.6 of 5 is 3, whatever floating-point numbers say.
        return max(1, math.ceil(share - 1e-9), self.needs)

    def wait(self, safe_point: Callable[[], bool]) -> bool:
        """Wait until all parties have joined.

        As soon as there is a quorum, the others are waited for as long as in a round.

        Args:
            safe_point: Says whether to wait no longer.

        Returns:
            Whether they have; else it was told to end.

        Raises:
            TrainingError: Too few have come in time, or they could not be kept track of.
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
            # Who was refused is not missing, if it goes without.
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
                "  Mend what keeps the others away, and run the same again."
            )
        return True

    def seen(self) -> dict[str, PartySeen]:
        """Return the parties that were heard of; may be called in another thread.

        Raises:
            TrainingError: They could not be kept track of.
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
        """Ask those who have come what their models look like.

        Raises:
            TrainingError: They could not be kept track of.
        """
        here, now = sorted(self.parties.here()), time.monotonic()
        # Who comes again has perhaps been mended.
        self._ask_again = {name: self._ask_again[name] for name in here if name in self._ask_again}
        newcomers = {
            name
            for name in here
            if name not in self.joined and now >= self._ask_again.get(name, (0.0, 0.0))[0]
        }
        if not newcomers:
            return
        request = Request(
            kind="join", history="", round=0, weights={}, options=self.options_for(0, False)
        )
        asked, timeout_s = dict.fromkeys(sorted(newcomers), request), self.federation.max_timeout_s
        for answer in self.parties.ask(asked, timeout_s, self.check):
            newcomers.discard(answer.party)
            if isinstance(answer, Refusal):
                why = f"Party {answer.party!r} could not join: {_said(answer)}"
                self._refuse(answer.party, why)
                continue
            problem = self._made_for(answer) or problem_of(answer, request, self._architecture)
            if problem is not None:
                self._refuse(answer.party, problem)
                continue
            self.joined[answer.party] = answer
            self._refused.pop(answer.party, None)
            self.attempt.events.write(
                PartyJoined(step=0, party=answer.party, num_examples=answer.num_examples)
            )
            aloud(self.attempt.reporter).note(
                f"Party {answer.party!r} joined, with {answer.num_examples:,} examples."
            )
        for name in sorted(newcomers):
            self._refuse(name, f"Party {name!r} did not answer when it was asked to join.")

    def _made_for(self, reply: Reply) -> str | None:
        """Make the aggregator's own model for the examples of the first party, or say why not.

        Raises:
            ElasticDLError: It cannot be made, and too few other parties are left to try.
        """
        if self.trainer is not None:
            return None
        try:
            self.trainer = self.create_trainer(reply.example)
        except Exception as error:
            # With no other party to take its place, the model is most likely what is wrong.
            self._unmade.add(reply.party)
            if self.federation.num_parties - len(self._unmade) < self.needed:
                raise
            return (
                f"Party {reply.party!r} could not join: no model can be made for the examples that "
                f"it describes ({type(error).__name__}: {redacted(str(error))}). Look at the "
                "`data:` section of its config."
            )
        self._architecture = architecture_of(weights_of(self.trainer.state()))
        return None

    def _problem_of(self, reply: Reply, request: Request) -> str | None:
        """Return why a reply cannot be used; see `replies.py`."""
        problem = problem_of(reply, request, self._architecture)
        if problem is not None or self.trainer is None:
            return problem
        return problem_of_metrics(
            reply, self.trainer.training_metrics, self.trainer.evaluation_metrics
        )

    def _refuse(self, party: str, why: str) -> None:
        # Somebody may be mending it meanwhile.
        _, before_s = self._ask_again.get(party, (0.0, _ASK_AGAIN_S / 2))
        pause_s = min(2 * before_s, _ASK_AGAIN_MAX_S)
        self._ask_again[party] = time.monotonic() + pause_s, pause_s
        if self._refused.get(party) != why:
            self.attempt.reporter.note(why)
        self._refused[party] = why

    def ask(
        self, kind: Kind, number: int, history: str, weights: Weights
    ) -> tuple[list[Reply], dict[str, str]]:
        """Ask all parties that are there; return what can be used, and why the rest cannot.

        Args:
            kind: What.
            number: The round.
            history: The training.
            weights: The global ones.

        Raises:
            TrainingError: They could not be kept track of.
        """
        here = [name for name in sorted(self.parties.here()) if name in self.joined]
        evaluating = {name for name, joined in self.joined.items() if joined.is_evaluating}
        slots = {name: slot for slot, name in enumerate(sorted(self.joined))}
        requests = {
            name: Request(
                kind=kind,
                history=history,
                round=number,
                weights=weights,
                options=self.options_for(slots[name], name in evaluating),
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
                left_out[name] = "no answer while the others gave theirs; it was silent before"
        if kind == "train":
            self.last |= dict.fromkeys(good, f"took part in round {number}")
            self.last |= {n: f"left out of round {number}: {why}" for n, why in left_out.items()}
        return [good[name] for name in sorted(good)], dict(sorted(left_out.items()))


def _said(refusal: Refusal) -> str:
    return f"{refusal.error_kind}: {refusal.text}"


def listed(names: Any) -> str:
    """Return names for the end of a sentence."""
    return f" ({', '.join(sorted(names))})" if names else ""
