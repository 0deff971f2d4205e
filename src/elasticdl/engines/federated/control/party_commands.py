"""Commands to a running party, from the user who started it and owns its data.

    status   answered immediately, in the listening thread
    eval     )  executed between two requests of the aggregator; the results stay on this machine,
    save     )  even if `privacy.metrics` is true
    stop     )

`eval` and `save` use the model that the party trained last, or the global model if the aggregator
has sent one with `sync` since (`client_state.py`).

Callers: `flower/deployment.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.engines.federated.client.party import measured
from elasticdl.engines.federated.control.control_server import NoCommands
from elasticdl.engines.federated.control.saving import save_model
from elasticdl.engines.federated.control.status import (
    PartyStatus,
    RoundEvaluation,
    Saved,
    facts_of,
    model_of,
)
from elasticdl.errors import DataError, ElasticDLError, OutputBusyError, UsageError

if TYPE_CHECKING:
    from elasticdl.engines.federated.client.party import Party
    from elasticdl.engines.federated.control.control_server import Command, CommandQueue
    from elasticdl.engines.federated.protocol.messages import Answer, RoundRequest
    from elasticdl.engines.federated.protocol.wire import Facts

_VERBS = ("eval", "save", "stop")
_AT_THE_AGGREGATOR = ("train", "sync")


@dataclass(eq=False)
class PartyCommands:
    """Executes the user's commands to a party between two requests, and reports its status.

    Attributes:
        config: The party's config file, for messages.
        folder: Folder of the party's client state.
        current_status: The party's status. An update replaces the object instead of changing it,
            because another thread reads it.
        stop: Function that ends the process after the current request is answered.
        is_connected: Function that returns whether the aggregator has accepted the connection.
        queue: The queue of commands.
        party: The party; None while it is starting.
        code: Folder with a copy of the model's code, which `save` stores with the model.
    """

    config: Path
    folder: Path
    current_status: PartyStatus
    stop: Callable[[], None] = lambda: None
    is_connected: Callable[[], bool] = lambda: False
    queue: CommandQueue = field(default_factory=NoCommands)
    party: Party | None = None
    code: Path = Path()

    def opened(self, party: Party, num_examples: int, code: Path) -> None:
        """Record that the party is ready for requests and connecting to the aggregator.

        Args:
            party: The party, with its data open.
            num_examples: Number of its training examples.
            code: Folder with a copy of the code of its model.
        """
        self.party, self.code = party, code
        self.current_status = replace(
            self.current_status,
            state="connecting",
            num_examples=num_examples,
            pid=os.getpid(),
            **model_of(party.memory.which()),
        )

    def answer(self, request: RoundRequest) -> Answer:
        """Answer a request of the aggregator, and record the request in the status."""
        assert self.party is not None  # noqa: S101 - set before the first request
        asked = f"{request.kind}, round {request.round}" if request.round else request.kind
        self.current_status = replace(
            self.current_status, last_asked=asked, last_asked_unix_s=time.time()
        )
        answer = self.party.answer(request)
        self.current_status = replace(
            self.current_status,
            num_answered=self.current_status.num_answered + 1,
            **model_of(self.party.memory.which()),
        )
        return answer

    # --- in the listening thread ------------------------------------------------------------

    def at_once(self, verb: str, options: Facts) -> Facts | None:
        """Answer `status` or reject an invalid command immediately.

        Returns:
            The result of `status`; None for any other valid command, which is then queued.

        Raises:
            OutputBusyError: The party is stopping.
            UsageError: The verb is unknown, or is a command of the aggregator.
        """
        del options
        if verb == "status":
            return facts_of(self.status())
        if verb in _AT_THE_AGGREGATOR:
            raise UsageError(f"A party has no command {verb}: send it to its aggregator.")
        if verb not in _VERBS:
            raise UsageError(
                f"A party has no command {verb!r}; expected one of status, {', '.join(_VERBS)}."
            )
        if self.current_status.state == "stopping":
            raise OutputBusyError("The party is stopping. Start it again after it has ended.")
        return None

    def status(self) -> PartyStatus:
        """Return the party's status."""
        status = self.current_status
        if status.state == "connecting" and self.is_connected():
            return replace(status, state="connected")
        return status

    # --- between two requests ---------------------------------------------------------------

    def run_pending(self) -> None:
        """Execute the queued commands; called between two requests of the aggregator."""
        answers: Mapping[str, Callable[[Command], Facts]] = {
            "eval": self._eval,
            "save": self._save,
            "stop": self._stop,
        }
        while (order := self.queue.take()) is not None:
            try:
                order.done(answers[order.verb](order))
            except ElasticDLError as error:
                order.failed(error)

    def _eval(self, order: Command) -> Facts:
        del order
        party = self._party()
        current, context, trainer = party.restored()
        which = current.which
        if context.validation is None:
            raise DataError(
                f"{self.config}: data.validation_uri is missing, so there are no records to "
                "evaluate on. Add it and restart the party."
            )
        metrics = trainer.evaluation_metrics.results(measured(context, trainer))
        return facts_of(
            RoundEvaluation(which.kind, which.round, {party.name: metrics}, {}, metrics)
        )

    def _save(self, order: Command) -> Facts:
        party = self._party()
        current, context, trainer = party.restored()
        which = current.which
        output = order.options.get("output")
        if output is None:
            name = f"round-{which.round}{'-global' if which.is_global else ''}"
            output = str(self.folder.parent / "saved" / name)
        save_model(party.job, context.definition, trainer, {}, output=str(output), code=self.code)
        return facts_of(Saved(str(output), which.kind, which.round))

    def _stop(self, order: Command) -> Facts:
        del order
        self.current_status = replace(self.current_status, state="stopping")
        self.stop()
        return facts_of(self.current_status)

    def _party(self) -> Party:
        if self.party is None:
            raise UsageError("The party is starting; run the command again in a few seconds.")
        return self.party
