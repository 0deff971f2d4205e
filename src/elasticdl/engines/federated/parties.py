"""Who can be asked: the seam between the rounds and the way messages travel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from elasticdl.engines.federated.messages import Refusal, Reply, Request
    from elasticdl.training.trainer import Weights


class Parties(Protocol):
    """The parties of a federation, wherever they are."""

    def here(self) -> Collection[str]:
        """Return the names of those that can be asked now."""
        ...

    def ask(
        self,
        requests: Mapping[str, Request],
        timeout_s: float | None,
        check: Callable[[], None],
    ) -> Iterator[Reply | Refusal]:
        """Ask some of them, and yield answers as they come.

        Ends when all have answered or the time is over; who was silent is not in it.

        Args:
            requests: Party -> what it is asked.
            timeout_s: How long to wait in all; None waits for all of them.
            check: Called now and then while it waits; what it raises ends that.
        """
        ...

    def state(self) -> tuple[Weights, dict[str, Any]]:
        """Return what has to be kept with the global model: arrays by name, and JSON values.

        Nothing, where parties keep what they remember themselves.
        """
        ...

    def load_state(self, arrays: Weights, values: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        ...
