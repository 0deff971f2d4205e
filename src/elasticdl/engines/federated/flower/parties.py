"""The parties of a federation on machines of their own, reached by Flower.

    aggregator.py --Request--> FlowerParties --arrays, facts--> exchange.py ... party.py

A party's name is the one its key was registered for. What says otherwise, or cannot be read, counts
as a refusal of the party that sent it.

Callers: `elasticdl federated aggregator`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from elasticdl.engines.federated.flower.exchange import Exchange
from elasticdl.engines.federated.flower.words import UNANSWERED
from elasticdl.engines.federated.messages import Refusal, read_answer, redacted
from elasticdl.errors import MessageError

if TYPE_CHECKING:
    from elasticdl.engines.federated.flower.superlink import Superlink
    from elasticdl.engines.federated.messages import Reply, Request
    from elasticdl.engines.federated.wire import Arrays, Facts
    from elasticdl.training.trainer import Weights


class FlowerParties:
    """See the module, and `engines/federated/parties.py`.

    Args:
        exchange: Open; see `connected`.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def here(self) -> Collection[str]:
        """Return the names of those that can be asked now; see `Exchange.here`.

        Raises:
            TrainingError: Flower could not be kept running.
        """
        return self._exchange.here()

    def wait_for(self, num_parties: int, timeout_s: float) -> Collection[str]:
        """Wait until so many are here, and return who is then, or when the time is over.

        Raises:
            TrainingError: Flower could not be kept running.
        """
        return self._exchange.wait_for(num_parties, timeout_s)

    def ask(
        self,
        requests: Mapping[str, Request],
        timeout_s: float | None,
        check: Callable[[], None],
    ) -> Iterator[Reply | Refusal]:
        """Ask some of them, and yield answers as they come.

        Args:
            requests: Party -> what it is asked.
            timeout_s: How long to wait in all; None waits for all of them.
            check: Called each second while it waits; what it raises ends that.

        Raises:
            TrainingError: Flower could not be kept running.
        """
        # Of the same arrays there is one list of names, so that all are sent them once.
        parts = {party: request.to_message() for party, request in requests.items()}
        for party, arrays, facts in self._exchange.ask(parts, timeout_s, check):
            yield _read(party, requests[party], arrays, facts)

    def state(self) -> tuple[Weights, dict[str, Any]]:
        """Return nothing: parties keep what they remember themselves."""
        return {}, {}

    def load_state(self, arrays: Weights, values: Mapping[str, Any]) -> None:
        """Go on from nothing."""


@contextlib.contextmanager
def connected(superlink: Superlink) -> Iterator[FlowerParties]:
    """Start Flower, yield its parties, and end it.

    Args:
        superlink: Not started yet.

    Raises:
        TrainingError: Flower does not start.
        OutputError: The superlink's folder cannot be written.
    """
    with Exchange(superlink) as exchange:
        yield FlowerParties(exchange)


def _read(party: str, request: Request, arrays: Arrays, facts: Facts) -> Reply | Refusal:
    def refusal(error_kind: str, text: str) -> Refusal:
        return Refusal(party, error_kind, redacted(text), request.history, request.round)

    if facts.keys() == {UNANSWERED}:
        return refusal("NoAnswer", str(facts[UNANSWERED]))
    try:
        answer = read_answer(arrays, facts)
    except MessageError as error:
        return refusal("MessageError", str(error))
    if answer.party != party:
        return refusal("MessageError", f"it answered in the name of {answer.party!r}")
    return answer
