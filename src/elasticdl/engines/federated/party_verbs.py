"""What a running party does when it is told something, by the person whose data it has.

    status   answered at once, in the thread that listens
    eval     )  between two questions of the aggregator's; what comes of it stays here, whatever
    save     )  `privacy.metrics` says
    stop     )

Its model is the one it has trained last, or the global one if that was synced since (`memory.py`).

Callers: `flower/deployment.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.engines.federated.control import NoOrders
from elasticdl.engines.federated.party import measured
from elasticdl.engines.federated.saving import save_model
from elasticdl.engines.federated.status import (
    Evaluation,
    PartyStatus,
    Saved,
    facts_of,
    model_of,
)
from elasticdl.errors import DataError, ElasticDLError, OutputBusyError, UsageError

if TYPE_CHECKING:
    from elasticdl.engines.federated.control import Order, Orders
    from elasticdl.engines.federated.messages import Answer, Request
    from elasticdl.engines.federated.party import Party
    from elasticdl.engines.federated.wire import Facts

_VERBS = ("eval", "save", "stop")
_AT_THE_AGGREGATOR = ("train", "sync")


@dataclass(eq=False)
class PartyVerbs:
    """What a party is told, and how it stands; see the module.

    Attributes:
        config: Its file, for what a person is told.
        folder: What it remembers lies there.
        stands: How it stands; replaced as a whole, because another thread reads it.
        stop: Ends the process when what is being answered is answered.
        is_connected: Whether the aggregator has let it in.
        orders: What it is told.
        party: None while it is starting.
        code: A copy of the code of its model.
    """

    config: Path
    folder: Path
    stands: PartyStatus
    stop: Callable[[], None] = lambda: None
    is_connected: Callable[[], bool] = lambda: False
    orders: Orders = field(default_factory=NoOrders)
    party: Party | None = None
    code: Path = Path()

    def opened(self, party: Party, num_examples: int, code: Path) -> None:
        """Note that the party can answer."""
        self.party, self.code = party, code
        self.stands = replace(
            self.stands,
            state="connecting",
            num_examples=num_examples,
            pid=os.getpid(),
            **model_of(party.memory.which()),
        )

    def answer(self, request: Request) -> Answer:
        """Have the party answer a question, and note that it was asked."""
        assert self.party is not None  # noqa: S101 - nobody asks before
        asked = f"{request.kind}, round {request.round}" if request.round else request.kind
        self.stands = replace(self.stands, last_asked=asked, last_asked_unix_s=time.time())
        answer = self.party.answer(request)
        self.stands = replace(
            self.stands,
            num_answered=self.stands.num_answered + 1,
            **model_of(self.party.memory.which()),
        )
        return answer

    # --- in the thread that listens ---------------------------------------------------------

    def at_once(self, verb: str, options: Facts) -> Facts | None:
        """Answer what need not wait; see `control.AtOnce`.

        Raises:
            OutputBusyError: It is stopping.
            UsageError: There is no such verb, or it is the aggregator's.
        """
        del options
        if verb == "status":
            return facts_of(self.status())
        if verb in _AT_THE_AGGREGATOR:
            raise UsageError(f"A party cannot {verb}: tell its aggregator.")
        if verb not in _VERBS:
            raise UsageError(f"A party cannot {verb!r}; it has status, {', '.join(_VERBS)}.")
        if self.stands.state == "stopping":
            raise OutputBusyError("It is stopping. Start it again when it has ended.")
        return None

    def status(self) -> PartyStatus:
        """Return how it stands."""
        stands = self.stands
        if stands.state == "connecting" and self.is_connected():
            return replace(stands, state="connected")
        return stands

    # --- between two questions --------------------------------------------------------------

    def between(self) -> None:
        """Do what was told meanwhile; see `resident.Resident`."""
        answers: Mapping[str, Callable[[Order], Facts]] = {
            "eval": self._eval,
            "save": self._save,
            "stop": self._stop,
        }
        while (order := self.orders.take()) is not None:
            try:
                order.done(answers[order.verb](order))
            except ElasticDLError as error:
                order.failed(error)

    def _eval(self, order: Order) -> Facts:
        del order
        party = self._party()
        current, material, trainer = party.restored()
        which = current.which
        if material.validation is None:
            raise DataError(
                f"{self.config}: data.validation_uri names no records, so there is nothing to "
                "evaluate on. Add it and start the party again."
            )
        metrics = trainer.evaluation_metrics.results(measured(material, trainer))
        return facts_of(Evaluation(which.kind, which.round, {party.name: metrics}, {}, metrics))

    def _save(self, order: Order) -> Facts:
        party = self._party()
        current, material, trainer = party.restored()
        which = current.which
        output = order.options.get("output")
        if output is None:
            name = f"round-{which.round}{'-global' if which.is_global else ''}"
            output = str(self.folder.parent / "saved" / name)
        save_model(party.job, material.definition, trainer, {}, output=str(output), code=self.code)
        return facts_of(Saved(str(output), which.kind, which.round))

    def _stop(self, order: Order) -> Facts:
        del order
        self.stands = replace(self.stands, state="stopping")
        self.stop()
        return facts_of(self.stands)

    def _party(self) -> Party:
        if self.party is None:
            raise UsageError("It is just starting; give the command again in some seconds.")
        return self.party
