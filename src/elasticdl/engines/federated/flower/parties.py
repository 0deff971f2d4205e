"""The parties of a federation on separate machines, connected through Flower.

    aggregator.py --Request--> FlowerParties --arrays, facts--> exchange.py ... party.py

A party's name is the one for which its key was registered. An answer with another name, or one that
cannot be parsed, counts as a refusal of the party that sent it.

Callers: `elasticdl federated aggregator`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from elasticdl.engines.federated.flower.exchange import Exchange
from elasticdl.engines.federated.flower.protocol_constants import UNANSWERED
from elasticdl.engines.federated.protocol.messages import Refusal, read_answer, redacted
from elasticdl.errors import MessageError

if TYPE_CHECKING:
    from elasticdl.engines.federated.flower.superlink import Superlink
    from elasticdl.engines.federated.protocol.messages import Reply, RoundRequest
    from elasticdl.engines.federated.protocol.wire import Arrays, Facts
    from elasticdl.training.trainer import Weights


class FlowerParties:
    """Parties that are connected through Flower; see `engines/federated/protocol/parties.py`.

    Args:
        exchange: Carries the messages; already started, as in `connected`.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def here(self) -> Collection[str]:
        """Return the names of the parties that Flower reports as connected now.

        Raises:
            TrainingError: Flower could not be kept running.
        """
        return self._exchange.here()

    def wait_for(self, num_parties: int, timeout_s: float) -> Collection[str]:
        """Wait at most `timeout_s` until `num_parties` are connected; return the connected ones.

        Raises:
            TrainingError: Flower could not be kept running.
        """
        return self._exchange.wait_for(num_parties, timeout_s)

    def ask(
        self,
        requests: Mapping[str, RoundRequest],
        timeout_s: float | None,
        check: Callable[[], None],
    ) -> Iterator[Reply | Refusal]:
        """Send requests to some of the parties, and yield their answers as they arrive.

        Args:
            requests: Party -> its request.
            timeout_s: How long to wait in total. None: wait until all have answered.
            check: Called each second while waiting; an exception from it ends the wait.

        Raises:
            TrainingError: Flower could not be kept running.
        """
        # Requests for all parties share the same arrays, so that these are sent to Flower once.
        parts = {party: request.to_message() for party, request in requests.items()}
        for party, arrays, facts in self._exchange.ask(parts, timeout_s, check):
            yield _read(party, requests[party], arrays, facts)

    def state(self) -> tuple[Weights, dict[str, Any]]:
        """Return an empty state: the parties save their client states themselves."""
        return {}, {}

    def load_state(self, arrays: Weights, values: Mapping[str, Any]) -> None:
        """Do nothing: the parties restore their client state themselves."""


@contextlib.contextmanager
def connected(superlink: Superlink) -> Iterator[FlowerParties]:
    """Context manager that starts Flower, yields the parties, and ends Flower on exit.

    Args:
        superlink: The superlink; it is started and ended here.

    Raises:
        TrainingError: Flower does not start.
        OutputError: The superlink's folder cannot be written.
    """
    with Exchange(superlink) as exchange:
        yield FlowerParties(exchange)


def _read(party: str, request: RoundRequest, arrays: Arrays, facts: Facts) -> Reply | Refusal:
    def refusal(error_kind: str, text: str) -> Refusal:
        return Refusal(party, error_kind, redacted(text), request.history, request.round)

    if facts.keys() == {UNANSWERED}:
        return refusal("NoAnswer", str(facts[UNANSWERED]))
    try:
        answer = read_answer(arrays, facts)
    except MessageError as error:
        return refusal("MessageError", str(error))
    if answer.party != party:
        return refusal("MessageError", f"it replied with the name {answer.party!r}")
    return answer
