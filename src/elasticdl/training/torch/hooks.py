"""The moments of a run: the end of an epoch, for learning rate schedulers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticdl.training.torch.schedulers import Schedulers
    from elasticdl.training.trainer import State


class TorchHooks:
    """Lets every other moment pass; see `trainer.Hooks`.

    Args:
        schedulers: They step after an epoch.
        measures_averages: Evaluations measure averages of the weights.

    Attributes:
        epoch: The number of the epoch, from 0.
    """

    observes_batches = False
    observes_test_batches = False
    stop_requested = False

    def __init__(self, schedulers: Schedulers, *, measures_averages: bool) -> None:
        self._schedulers, self._measures_averages = schedulers, measures_averages
        self.epoch = 0

    def check_sharing(self) -> None:
        """Find nothing: nothing looks at what workers share."""

    def train_begin(  # noqa: D102 - see trainer.Hooks, here and below
        self, *, num_epochs: int, num_steps: int | None, resumes: bool
    ) -> None:
        pass

    def committed(self, *, leads: bool) -> None:  # noqa: D102
        pass

    def epoch_begin(self, epoch: int) -> None:  # noqa: D102
        self.epoch = epoch

    def batch_begin(self, step: int) -> None:  # noqa: D102
        pass

    def batch_end(self, step: int, logs: Mapping[str, Any]) -> None:  # noqa: D102
        pass

    def test_begin(self) -> None:  # noqa: D102
        pass

    def test_batch_begin(self, number: int) -> None:  # noqa: D102
        pass

    def test_batch_end(self, number: int, logs: Mapping[str, Any]) -> None:  # noqa: D102
        pass

    def test_end(self, logs: Mapping[str, Any]) -> None:  # noqa: D102
        pass

    def epoch_end(self, epoch: int, logs: Mapping[str, Any]) -> None:  # noqa: D102
        self._schedulers.epoch_ended(epoch, logs)

    def train_end(self, logs: Mapping[str, Any]) -> None:  # noqa: D102
        pass

    def state(self) -> dict[str, Any]:
        """Return nothing: what schedulers remember is part of the trainer's state."""
        return {}

    def arrays(self) -> State:
        """Return nothing: what schedulers remember is part of the trainer's state."""
        return {}

    def load_state(self, state: Mapping[str, Any], arrays: State) -> None:  # noqa: D102
        pass

    def measures_averages(self, state: Mapping[str, Any]) -> bool:
        """See `trainer.Hooks`."""
        del state
        return self._measures_averages
