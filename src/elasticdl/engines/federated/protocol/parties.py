"""Interface through which the aggregator sends requests to the parties over any transport."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from elasticdl.engines.federated.protocol.messages import Refusal, Reply, RoundRequest
    from elasticdl.training.trainer import Weights


class Parties(Protocol):
    """Interface to the parties of a federation, on this machine or on others."""

    def here(self) -> Collection[str]:
        """Return the names of the parties that are connected now."""
        ...

    def ask(
        self,
        requests: Mapping[str, RoundRequest],
        timeout_s: float | None,
        check: Callable[[], None],
    ) -> Iterator[Reply | Refusal]:
        """Send requests to some of the parties, and yield their answers as they arrive.

        Ends when all have answered or the timeout expires; silent parties yield no answer.

        Args:
            requests: Party -> its request.
            timeout_s: How long to wait in total. None: wait until all have answered.
            check: Called regularly while waiting; an exception from it ends the wait.
        """
        ...

    def state(self) -> tuple[Weights, dict[str, Any]]:
        """Return the client states to save with the global model: arrays by name, JSON values.

        The result is empty if the parties save their client state themselves.
        """
        ...

    def load_state(self, arrays: Weights, values: Mapping[str, Any]) -> None:
        """Restore the client states that `state` returned before the job was resumed."""
        ...
