"""States of TorchMetrics metrics as arrays, carried from batch to batch or added up.

A metric has states, each with its own reduction (`add_state(..., dist_reduce_fx="sum")`). In one
process all states are carried: a batch's update starts from the states before it, whatever the
reduction, as in a plain script. If workers share the batches, each batch updates fresh states, and
these are summed. The result is the same for states that start at 0 and are summed. A metric with
other states (a maximum, a list of all predictions) is rejected in this case. So is a user's own
metric that declares "sum" but whose states do not add up, which a test detects.

The arrays of a metric are, in this order: the number of updates of the metric and of each metric
within it; the length of each state that is a list; a code for the dtype of each tensor in these
lists; and the states themselves, one array per tensor.

TorchMetrics is not imported; the user's code creates the objects.

Callers: `metrics.py`.
"""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from elasticdl.data.batch import leaves
from elasticdl.errors import (
    DefinitionError,
    ElasticDLError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.training.torch.outputs import as_plain_containers, map_tensors
from elasticdl.training.torch.untracked_state import digest

States = tuple[np.ndarray[Any, Any], ...]

_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
# Other wrappers keep values outside their states, or draw random numbers. A user's class counts as
# the wrapper that it derives from.
_WRAPPERS = (
    "BinaryTargetTransformer", "ClasswiseWrapper", "LambdaInputTransformer",
    "MetricInputTransformer", "MultioutputWrapper", "MultitaskWrapper", "WrapperMetric",
)  # fmt: skip
_BINNED = (
    " With thresholds=200 it keeps sums instead, and its value is computed from curves with 200 "
    "points."
)
_TOLERANCE = 1e-4
# The reason that training metrics are added up, also in one process; see `require_sums`.
OF_TRAINING = "the steps of an epoch"


def is_metric(value: Any) -> bool:
    """Return whether a value is a TorchMetrics metric."""
    return any(
        kind.__name__ == "Metric" and kind.__module__.partition(".")[0] == "torchmetrics"
        for kind in type(value).__mro__
    )


def unsupported_wrapper(metric: Any) -> str:
    """Return the name of a metric's TorchMetrics wrapper class if that class is not supported.

    Args:
        metric: A metric; its class may also be a user's class that derives from a wrapper.

    Returns:
        The name of the wrapper class; empty if the metric is not a wrapper, or a supported one.
    """
    for kind in type(metric).__mro__:
        if kind.__module__.startswith("torchmetrics.wrappers"):
            return "" if kind.__name__ in _WRAPPERS else kind.__name__
    return ""


class StatefulMetric:
    """Computes the states and the value of one TorchMetrics metric.

    Args:
        name: Name under which the metric is reported.
        metric: The metric; it is moved to the device of the first batch.
        where: The user's `file:line`, for errors.

    Raises:
        DefinitionError: The metric has no states, or keeps values outside them, which checkpoints
            would not contain.
    """

    def __init__(self, name: str, metric: Any, where: str) -> None:
        self.name, self.metric, self._where = name, metric, where
        self._inner: list[Any] = [each for each in metric.modules() if is_metric(each)]
        self._places = [(each, state) for each in self._inner for state in each._defaults]  # noqa: SLF001 - no public name
        for each in self._inner:
            # Each worker has its own batches; their states are summed elsewhere.
            each.sync_on_compute = each._to_sync = False  # noqa: SLF001
            wrapper = unsupported_wrapper(each)
            if wrapper:
                wrapped = next(m for m in each.modules() if is_metric(m) and m is not each)
                raise self._error(
                    f"is a wrapper ({wrapper}) that is not supported: its value depends on more "
                    "than its states, so a resumed training would report other values",
                    f"Use the metric that it wraps ({type(wrapped).__name__}), or a class of your "
                    "own that keeps all values in states: self.add_state(name, default, ...).",
                )
        if not self._places:
            raise self._error("has no state", "Add them by self.add_state(name, default, ...).")
        # The metric's present states as arrays, and the entries of its lists with their arrays.
        self._held: States | None = None
        self._known: list[list[tuple[torch.Tensor, np.ndarray[Any, Any]]]] = []
        is_library = all(type(e).__module__.startswith("torchmetrics.") for e in self._inner)
        # Whether states that declare "sum" add up; None until a user's own metric is tested.
        self._adds = True if is_library else None

    @property
    def higher_is_better(self) -> bool | None:
        """Whether higher values are better; None if the metric does not define it."""
        better: bool | None = getattr(self.metric, "higher_is_better", None)
        return better

    def why_no_sum(self) -> str:
        """Return why the metric's states cannot be added up over batches; empty if they can."""
        for module, name in self._places:
            default, reduction = module._defaults[name], module._reductions[name]  # noqa: SLF001
            if isinstance(default, list):
                return f"its state {name!r} is a list of the values of each batch"
            reduced = getattr(reduction, "__name__", str(reduction)).removeprefix("dim_zero_")
            if reduced != "sum":
                return f"its state {name!r} is reduced by {reduced}"
            if bool(default.any()):
                return f"its state {name!r} does not start at 0"
        return ""

    def require_sum(self, why: str) -> None:
        """Check that the metric's states can be added up over batches.

        Args:
            why: What adds them up, for the error message: "several workers".

        Raises:
            DefinitionError: They cannot be added up.
        """
        reason = self.why_no_sum()
        if reason:
            way_out = "Leave the metric out, or run in one process."
            if why == OF_TRAINING:
                way_out = "Log it in validation_step, where states are carried in one process."
            has_bins = any(getattr(each, "thresholds", 0) is None for each in self._inner)
            raise DefinitionError(
                f"{self._where}: the states of the metric {self.name!r} "
                f"({type(self.metric).__name__}) do not add up: {reason}. They would be added by "
                f"{why}. {way_out}{_BINNED if has_bins else ''}"
            )
        self._check_adds()

    def share(self, outputs: Any, labels: Any) -> States:
        """Return the states of one batch alone, to be added to those of other batches.

        Used where workers share the batches; in one process, `carried` is used.

        Raises:
            DefinitionError: A user's own metric keeps data outside its states, or its states do not
                add up.
        """
        self._try_on(outputs, labels)
        self._check_adds()
        self.begin(None)
        self._update(outputs, labels)
        return self.end(carried=False)

    def try_first_update(self, *args: Any, **kwargs: Any) -> None:
        """Test a user's own metric before a step updates it for the first time.

        Later calls do nothing. The test leaves the metric's states unchanged.

        Args:
            args: Arguments of the update.
            kwargs: Its keyword arguments.

        Raises:
            DefinitionError: The metric keeps data outside its states.
        """
        if self._adds is None:
            states = self._read()
            self._try_on(*args, **kwargs)
            self._load(states)

    def carried(self, so_far: States | None, outputs: Any, labels: Any) -> States:
        """Return the states after a batch that continues from the states before it.

        Used in one process, which passes the states of all earlier batches as `so_far`. None: the
        batch is the first, so start from empty states.
        """
        self._try_on(outputs, labels)
        self.begin(so_far)
        self._update(outputs, labels)
        return self.end(carried=True)

    def begin(self, so_far: States | None) -> None:
        """Load states into the metric before the user's code updates it.

        If `so_far` is None, reset the metric.
        """
        if so_far is None:
            self._reset()
        else:
            self._load(so_far)

    def end(self, *, carried: bool) -> States:
        """Return the metric's states after a batch.

        Args:
            carried: Whether the next batch starts from these states. If so, the metric also
                remembers them, so that `begin` need not load them again.
        """
        states = self._read()
        self._held = states if carried else None
        return states

    def result(self, states: States) -> dict[str, float | list[float]]:
        """Compute the metric's values from states: name -> value; a metric may have several.

        Raises:
            UserCodeError: `compute` raised.
            DefinitionError: The value is neither numbers nor a dict of numbers.
        """
        self._load(states)
        for each in self._inner:
            each._computed = None  # noqa: SLF001
        try:
            with torch.no_grad():
                value = self.metric.compute()
        except ElasticDLError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"{raised_at(error, self._where)}: compute() of the metric {self.name!r} "
                f"({type(self.metric).__name__}) raised:\n{users_traceback(error)}"
            ) from error
        named = (
            {f"{self.name}_{key}": each for key, each in value.items()}
            if isinstance(value, Mapping)
            else {self.name: value}
        )
        return {name: self._in_numbers(each) for name, each in named.items()}

    def check_update(self, outputs: Any, labels: Any, *, sums: bool) -> None:
        """Test the metric before training: update it with a batch, compute its value and reset it.

        Args:
            outputs: Outputs of the model.
            labels: Labels of the batch.
            sums: Whether states are summed over batches; otherwise they are carried from batch to
                batch.

        Raises:
            DefinitionError: The metric has a state or a value that is not permitted.
        """
        with warnings.catch_warnings():
            # A few examples may be too few for the metric.
            warnings.simplefilter("ignore")
            states = self.share(outputs, labels) if sums else self.carried(None, outputs, labels)
            with contextlib.suppress(UserCodeError):
                self.result(states)
        self._reset()

    # --- states -----------------------------------------------------------------------------------

    def _update(self, *args: Any, **kwargs: Any) -> None:
        self._move_to([*args, *kwargs.values()])
        with torch.no_grad():
            self.metric.update(*args, **kwargs)

    def _move_to(self, batch: Any) -> None:
        device = next((tensor.device for tensor in _tensors_in(batch)), self.metric.device)
        if self.metric.device != device:
            self.metric.to(device)

    def _reset(self) -> None:
        self._held, self._known = None, [[] for _ in self._places]
        for each in self._inner:
            each.reset()
        for module, name in self._places:
            if isinstance(module._defaults[name], list):  # noqa: SLF001
                # Not cleared, because the old list may still be read later.
                setattr(module, name, [])

    def _read(self) -> States:
        lengths, codes, flat = [], [], []
        for number, (module, name) in enumerate(self._places):
            value = getattr(module, name)
            if not isinstance(value, list):
                flat.append(self._to_array(value, name))
                continue
            known = self._known[number]
            for i, entry in enumerate(value):
                if i >= len(known) or known[i][0] is not entry:
                    known[i:] = [(entry, self._to_array(entry, name))]
                flat.append(known[i][1])
                codes.append(_DTYPES.index(entry.dtype))
            del known[len(value) :]
            lengths.append(len(value))
        counts = [each._update_count for each in self._inner]  # noqa: SLF001
        head = (np.asarray(numbers, np.float64) for numbers in (counts, lengths, codes))
        return (*head, *flat)

    def _load(self, states: States) -> None:
        held = self._held or ()
        # Usually the states of the last call.
        if len(held) == len(states) and all(map(operator.is_, held, states)):
            return
        self._reset()
        counts, lengths, codes, *flat = states
        of_lists, of_entries, arrays = iter(lengths), iter(codes), iter(flat)
        for number, (module, name) in enumerate(self._places):
            default = module._defaults[name]  # noqa: SLF001
            if not isinstance(default, list):
                tensor = _to_tensor(next(arrays), default.dtype, module.device)
                setattr(module, name, tensor)
                continue
            for _ in range(int(next(of_lists))):
                array = next(arrays)
                entry = _to_tensor(array, _DTYPES[int(next(of_entries))], module.device)
                self._known[number].append((entry, array))
            setattr(module, name, [entry for entry, _ in self._known[number]])
        for each, count in zip(self._inner, counts, strict=True):
            each._update_count = int(count)  # noqa: SLF001
        self._held = tuple(states)

    def _to_array(self, value: Any, name: str) -> np.ndarray[Any, Any]:
        if not isinstance(value, torch.Tensor) or value.dtype not in _DTYPES:
            what = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            raise self._error(
                f"keeps a {what} in its state {name!r}", "Keep tensors of numbers in states."
            )
        # In float64, sums of counts and integers below 2^53 are exact.
        return np.array(value.detach().cpu().double().numpy())

    # --- testing a metric -------------------------------------------------------------------------

    def _try_on(self, *args: Any, **kwargs: Any) -> None:
        """Test, on the first batch only, whether a user's own metric keeps all data in its states.

        It also records whether the states add up over batches: that matters if workers share the
        batches, which may become known only later.

        Args:
            args: Arguments of an update, such as the model's outputs and the labels.
            kwargs: Its keyword arguments.

        Raises:
            DefinitionError: The metric keeps data outside its states.
        """
        if self._adds is not None:
            return
        batch = (args, kwargs)
        twice = self._after(batch, batch, looks=True)
        once = self._after(batch)
        pairs = [(twice, [once, once])]
        rows = _num_rows(batch)
        if rows > 1:
            parts = [
                map_tensors(operator.itemgetter(part), batch)
                for part in (slice(0, rows // 2), slice(rows // 2, rows))
            ]
            pairs.append((self._after(*parts), [self._after(part) for part in parts]))
        self._reset()
        self._adds = all(_is_sum(total, parts) for total, parts in pairs)

    def _check_adds(self) -> None:
        if self._adds is False:
            raise self._error(
                'declares "sum" for its states, but two updates do not give the sum of both',
                "Let update() add to its states, or run in one process.",
            )

    def _after(self, *batches: tuple[Any, Any], looks: bool = False) -> States:
        self._reset()
        for number, (args, kwargs) in enumerate(batches):
            before = self._attributes() if looks and number else {}
            self._update(*args, **kwargs)
            now = self._attributes() if before else {}
            changed = [name for name, seen in now.items() if before.get(name) != seen]
            if changed:
                raise self._error(
                    f"keeps data in self.{changed[0]}, which is not one of its states",
                    "Add it by self.add_state(name, default, dist_reduce_fx=...).",
                )
        return self._read()

    def _attributes(self) -> dict[str, str]:
        known = {*(name for _, name in self._places), *_attributes_of_all(self.metric)}
        return {
            name: digest(value)
            for each in self._inner
            for name, value in vars(each).items()
            if name not in known
        }

    def _in_numbers(self, value: Any) -> float | list[float]:
        if isinstance(value, (int, float)):
            return float(value)
        if not isinstance(value, torch.Tensor):
            raise self._error(
                f"returns a {type(value).__name__}, which is not a number",
                "Use a metric with one number, or one number per class, such as the area under a "
                "curve.",
            )
        array = value.detach().cpu().double().numpy()
        if array.ndim > 1:
            raise self._error(
                f"returns an array of shape {list(array.shape)}",
                "Use a metric with one number, or one number per class.",
            )
        numbers: float | list[float] = float(array) if array.ndim == 0 else array.tolist()
        return numbers

    def _error(self, problem: str, way_out: str) -> DefinitionError:
        return DefinitionError(
            f"{self._where}: the metric {self.name!r} ({type(self.metric).__name__}) {problem}. "
            f"{way_out}"
        )


def _attributes_of_all(metric: Any) -> set[str]:
    """Return the names of the attributes that every TorchMetrics metric has, private ones too.

    They change with an update, but are no data that a user's own metric keeps outside its states.
    """
    base = next(kind for kind in type(metric).__mro__ if kind.__name__ == "Metric")
    methods = {"update": lambda _: None, "compute": lambda _: None}
    return {*vars(type("Empty", (base,), methods)()), "training"}


def _to_tensor(array: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(np.asarray(array, np.float64)).to(dtype).to(device)


def _num_rows(outputs: Any) -> int:
    sizes = {len(tensor) if tensor.ndim else 0 for tensor in _tensors_in(outputs)}
    return sizes.pop() if len(sizes) == 1 else 0


def _tensors_in(outputs: Any) -> list[torch.Tensor]:
    return [each for each in leaves(as_plain_containers(outputs)) if isinstance(each, torch.Tensor)]


def _is_sum(total: States, parts: Sequence[States]) -> bool:
    if any(len(part) != len(total) for part in parts):
        return False
    for whole, *pieces in zip(total, *parts, strict=True):
        if any(np.shape(piece) != np.shape(whole) for piece in pieces):
            return False
        scale = max([1e-12, *(float(np.abs(piece).max(initial=0.0)) for piece in pieces)])
        if not np.allclose(
            whole, sum(pieces), rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True
        ):
            return False
    return True
