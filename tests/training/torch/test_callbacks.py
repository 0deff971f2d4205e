"""Callbacks of a PyTorch model: what is called, what a checkpoint keeps, and what is refused."""

import copy
import csv
import enum
import io
import json
import logging
import random
import re
import threading
from collections import Counter, OrderedDict, deque
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import batch_of, definition_of, same_bits, trainer_of
from torch import nn

from elasticdl.errors import DefinitionError, UserCodeError
from elasticdl.training.torch.callbacks import MOMENTS


def trained_with(*callbacks, **more):
    return trainer_of(definition_of(create_callbacks=lambda: list(callbacks), **more))


def begin(trainer, *, resumes=False):
    trainer.hooks.train_begin(num_epochs=3, num_steps=2, resumes=resumes)
    return trainer


def moved(trainer, create):
    """Return a trainer that goes on from another one, as a resumed attempt does."""
    state = json.loads(json.dumps(trainer.hooks.state()))
    arrays, tensors = trainer.hooks.arrays(), trainer.state()
    other = create()
    other.load_state(tensors)
    resumed = other.state()
    begin(other, resumes=True)
    other.load_state(resumed)
    other.hooks.load_state(state, arrays)
    return other


class Recorder:
    """Writes down what is called."""

    def __init__(self):
        self.calls = []


def _recording(moment):
    if "epoch" in moment or "batch" in moment:

        def record(self, number, logs):
            self.calls.append((moment, number, logs, self.model.training))

    else:

        def record(self, logs):
            self.calls.append((moment, logs, self.model.training))

    return record


for _moment in MOMENTS:
    setattr(Recorder, _moment, _recording(_moment))


def test_hooks_have_keras_names_and_arguments_and_a_model_mode():
    recorder = Recorder()
    hooks = begin(trained_with(recorder)).hooks

    hooks.epoch_begin(0)
    hooks.batch_begin(0)
    hooks.batch_end(0, {"loss": 1.0})
    hooks.test_begin()
    hooks.test_batch_begin(0)
    hooks.test_batch_end(0, {"loss": 2.0})
    hooks.test_end({"loss": 2.0})
    hooks.epoch_end(0, {"loss": 1.0, "val_loss": 2.0})
    hooks.train_end({"loss": 1.0})

    assert recorder.calls == [
        ("on_train_begin", {}, True),
        ("on_epoch_begin", 0, {}, True),
        ("on_train_batch_begin", 0, {}, True),
        ("on_train_batch_end", 0, {"loss": 1.0}, True),
        ("on_test_begin", {}, False),
        ("on_test_batch_begin", 0, {}, False),
        ("on_test_batch_end", 0, {"loss": 2.0}, False),
        ("on_test_end", {"loss": 2.0}, False),
        ("on_epoch_end", 0, {"loss": 1.0, "val_loss": 2.0}, False),
        ("on_train_end", {"loss": 1.0}, False),
    ]
    assert hooks.observes_batches
    assert hooks.observes_test_batches


def test_steps_are_grouped_if_no_callback_observes_batches():
    class AtEpochs:
        def on_epoch_end(self, epoch, logs):
            pass

    hooks = trained_with(AtEpochs()).hooks

    assert not hooks.observes_batches
    assert not hooks.observes_test_batches


def test_callbacks_share_logs_in_the_order_of_their_list():
    class Adds:
        def on_epoch_end(self, epoch, logs):
            logs["mine"] = 3.0

    class Reads:
        def on_epoch_end(self, epoch, logs):
            self.read = logs["mine"]

    reads = Reads()

    begin(trained_with(Adds(), reads)).hooks.epoch_end(0, {"loss": 1.0})

    assert reads.read == 3.0


def test_model_and_optimizer_are_set_without_replacing_attributes():
    class Given:
        def on_train_begin(self):
            self.seen = self.model, self.optimizer

    class Named(Given):
        def __init__(self):
            self.optimizer = "adam"

    class BySetModel:
        def set_model(self, model):
            self.net = model

        def on_train_begin(self):
            pass

    given, named, by_method = Given(), Named(), BySetModel()

    trainer = begin(trained_with(given, named, by_method))

    assert given.seen == (trainer.model, trainer.optimizer)
    assert named.seen == (trainer.model, "adam")
    assert by_method.net is trainer.model
    assert not hasattr(by_method, "model")


@pytest.mark.parametrize("own", [False, True])
def test_stop_training_of_model_or_callback_requests_the_end(own):
    class Stop:
        def on_epoch_end(self, epoch, logs):
            (self if own else self.model).stop_training = True

    trainer = begin(trained_with(Stop()))
    hooks = trainer.hooks
    assert not hooks.stop_requested

    hooks.epoch_end(0, {})

    assert hooks.stop_requested
    again = moved(trainer, lambda: trained_with(Stop()))
    assert again.hooks.stop_requested


# --- what a checkpoint keeps ----------------------------------------------------------------------


class Remembering:
    """Holds what `remember` puts there, when an epoch ends."""

    def __init__(self, remember=None):
        self.remember = remember

    def on_epoch_end(self, epoch, logs):
        self.value = self.remember(self)


class Meter:
    def __init__(self):
        self.total, self.history = 0.0, []


REMEMBERED = {
    "number": lambda _: 1.5,
    "infinity": lambda _: float("inf"),
    "text": lambda _: "best",
    "none": lambda _: None,
    "list": lambda _: [1, [2.0, "three"], (4, None)],
    "dict": lambda _: {"best": 1.0, 2: [3]},
    "set": lambda _: {1, 2},
    "deque": lambda _: deque([1, 2], maxlen=2),
    "counter": lambda _: Counter("aab"),
    "array": lambda _: np.arange(6.0).reshape(2, 3),
    "array of numpy's number": lambda _: np.float32(3.5),
    "tensor": lambda _: torch.arange(3),
    "bfloat16": lambda _: torch.ones(2, dtype=torch.bfloat16),
    "weights": lambda self: copy.deepcopy(self.model.state_dict()),
    "list of weights": lambda self: [p.detach().clone() for p in self.model.parameters()],
}


def same(one, other):
    if isinstance(one, (torch.Tensor, np.ndarray)):
        return type(one) is type(other) and one.dtype == other.dtype and bool((one == other).all())
    if isinstance(one, dict):
        return type(one) is type(other) and one.keys() == other.keys() and all(
            same(value, other[key]) for key, value in one.items()
        )  # fmt: skip
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("what", REMEMBERED)
def test_the_state_of_a_callback_is_restored(what):
    callback = Remembering(REMEMBERED[what])
    trainer = begin(trained_with(callback))
    trainer.hooks.epoch_end(0, {})
    again = Remembering(REMEMBERED[what])

    moved(trainer, lambda: trained_with(again))

    assert same(callback.value, again.value)


def test_references_to_weights_stay_references_after_a_resume():
    class Keeps:
        def on_epoch_end(self, epoch, logs):
            self.best = self.model.state_dict()
            self.first = next(self.model.parameters())
            self.layer = self.model

    trainer = begin(trained_with(Keeps()))
    trainer.hooks.epoch_end(0, {})
    again = Keeps()

    other = moved(trainer, lambda: trained_with(again))
    other.train_steps([batch_of(8)])

    assert torch.equal(again.best["weight"], other.model.weight)
    assert isinstance(again.best, OrderedDict)
    assert again.first is other.model.weight
    assert again.layer is other.model


def test_objects_are_restored_in_place():
    class Holds:
        def __init__(self):
            self.meter, self.python = Meter(), random.Random(1)
            self.numpy, self.torch = np.random.default_rng(1), torch.Generator().manual_seed(1)

        def on_train_begin(self):
            self.teacher = copy.deepcopy(self.model)
            self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)

        def on_epoch_end(self, epoch, logs):
            self.meter.total += 1.5
            self.meter.history.append(epoch)
            self.draw()
            with torch.no_grad():
                self.teacher.weight.add_(1.0)
            self.optimizer.step()
            self.schedule.step()

        def draw(self):
            draws = self.python.random(), self.numpy.random()
            return (*draws, torch.rand(1, generator=self.torch).item())

    callback, again = Holds(), Holds()
    trainer = begin(trained_with(callback))
    trainer.hooks.epoch_end(0, {})

    other = moved(trainer, lambda: trained_with(again))

    assert (again.meter.total, again.meter.history) == (1.5, [0])
    assert again.draw() == callback.draw()
    assert torch.equal(again.teacher.weight, callback.teacher.weight)
    assert again.schedule.last_epoch == 1
    assert other.optimizer.param_groups[0]["lr"] == 0.05


class Settings(dict):
    """As the `hparams` of a LightningModule."""


class Kind(enum.StrEnum):
    OWN = "own"


def test_what_the_state_dict_of_a_module_omits_is_restored():
    class Average(nn.Module):
        num_updates = 0

        def __init__(self, model):
            super().__init__()
            self.inner, self.ages = copy.deepcopy(model), [0]
            self.register_buffer("decay", torch.zeros(1), persistent=False)
            self.register_buffer("grown", torch.zeros(1), persistent=False)
            self.register_buffer("learned", torch.zeros(1, requires_grad=True), persistent=False)
            self.memory = nn.LSTM(1, 2)
            self.settings, self.size, self.kind = Settings(a=1), torch.Size([2]), Kind.OWN

    class Averages:
        def on_train_begin(self):
            self.average = Average(self.model)

        def on_epoch_end(self, epoch, logs):
            self.average.num_updates += 1
            self.average.inner.seen = torch.ones(2)
            self.average.ages.append(epoch)
            self.average.decay += 0.5
            self.average.grown = torch.ones(3)
            self.average.inner.eval()

    callback, again = Averages(), Averages()
    trainer = begin(trained_with(callback))
    trainer.hooks.epoch_end(7, {})

    moved(trainer, lambda: trained_with(again))

    average = again.average
    # Attributes of an LSTM refer to its weights.
    assert average.memory._flat_weights[0] is average.memory.weight_ih_l0
    assert (average.size, average.kind) == (torch.Size([2]), Kind.OWN)
    assert average.grown.tolist() == [1, 1, 1]
    assert (average.num_updates, average.ages, average.decay.item()) == (1, [0, 7], 0.5)
    assert average.inner.seen.tolist() == [1, 1]
    assert average.training
    assert not average.inner.training


def test_a_callback_with_a_state_dict_determines_what_is_kept():
    class Own:
        def __init__(self):
            self.count, self.lock = 0, iter([])

        def on_epoch_end(self, epoch, logs):
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    trainer = begin(trained_with(Own()))
    trainer.hooks.epoch_end(0, {})
    again = Own()

    moved(trainer, lambda: trained_with(again))

    assert again.count == 1


def test_new_arguments_win_over_kept_ones_unless_changed():
    class Patient:
        def __init__(self, patience, wait=0):
            self.patience, self.wait = patience, wait

        def on_epoch_end(self, epoch, logs):
            self.wait += 1

    trainer = begin(trained_with(Patient(3)))
    trainer.hooks.epoch_end(0, {})
    again = Patient(5)

    moved(trainer, lambda: trained_with(again))

    assert (again.patience, again.wait) == (5, 1)


def test_an_argument_that_is_set_back_and_a_deleted_attribute_are_kept():
    class Pulls:
        def __init__(self, active=False):
            self.active = active

        def on_train_begin(self, logs):
            self.active, self.first = True, True

    def create():
        return trained_with(Pulls())

    trainer = create()
    begin(trainer)
    (callback,) = trainer.hooks.callbacks
    callback.active = False
    del callback.first

    (again,) = moved(trainer, create).hooks.callbacks

    assert again.active is False
    assert not hasattr(again, "first")


def test_class_attributes_are_kept_too():
    def create():
        class Counts:
            losses = []  # noqa: RUF012 - as users write it
            best = 9.0

            def on_epoch_end(self, epoch, logs):
                self.losses.append(logs["loss"])
                type(self).best = 1.0

        return Counts()

    trainer = begin(trained_with(create()))
    trainer.hooks.epoch_end(0, {"loss": 2.0})
    again = create()

    moved(trainer, lambda: trained_with(again))

    assert (again.losses, again.best) == ([2.0], 1.0)


def test_dates_ranges_functions_and_writers_are_kept():
    class Keeps:
        def __init__(self):
            self.better, self.pattern, self.lock = np.less, re.compile("x"), threading.Lock()
            self.began, self.day, self.waited = None, date(2024, 1, 1), timedelta(0)
            self.shape, self.rows = torch.Size([2]), range(3)

        def on_train_begin(self):
            self.writer = csv.writer(io.StringIO())

        def on_epoch_end(self, epoch, logs):
            self.began, self.waited, self.rows = (
                datetime(2024, 5, 6, tzinfo=UTC),
                timedelta(3, 4),
                range(9),
            )

    trainer = begin(trained_with(Keeps()))
    trainer.hooks.epoch_end(0, {})
    again = Keeps()

    moved(trainer, lambda: trained_with(again))

    assert again.began == datetime(2024, 5, 6, tzinfo=UTC)
    assert (again.day, again.waited) == (date(2024, 1, 1), timedelta(3, 4))
    assert (again.rows, again.better) == (range(9), np.less)


def test_files_and_loggers_are_recreated_by_the_code(tmp_path):
    class Writes:
        def on_train_begin(self):
            self.log, self.file = logging.getLogger("mine"), (tmp_path / "log").open("a")

        def on_train_end(self):
            self.file.close()

    trainer = begin(trained_with(Writes()))
    again = Writes()

    other = moved(trainer, lambda: trained_with(again))

    assert not again.file.closed
    for each in (trainer, other):
        each.hooks.train_end({})


# --- what is changed of the model -----------------------------------------------------------------


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(4, 4), nn.Linear(4, 3), 1.0
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.first.requires_grad_(False)

    def forward(self, x):
        return self.second(self.dropout(self.norm(self.first(x)))) * self.scale


class Changes:
    def on_epoch_begin(self, epoch):
        if epoch == 1:
            self.model.first.requires_grad_(True)
            self.model.second.bias.requires_grad_(False)
            self.model.norm.eval()
            self.model.dropout.p, self.model.scale = 0.0, 2.0


def test_model_changes_made_by_callbacks_are_kept():
    def create():
        return trained_with(Changes(), create_model=Two)

    trainer = begin(create())
    for epoch in range(2):
        trainer.hooks.epoch_begin(epoch)
        trainer.train_steps([batch_of(8, seed=epoch)])

    other = moved(trainer, create)
    for each in (trainer, other):
        each.train_steps([batch_of(8, seed=7)])

    assert same_bits(trainer.state(), other.state())
    assert (other.model.dropout.p, other.model.scale) == (0.0, 2.0)
    assert not other.model.norm.training
    assert other.model.dropout.training


def test_a_param_group_added_at_the_start_is_not_duplicated():
    class Adds:
        def on_train_begin(self):
            self.optimizer.add_param_group({"params": [self.model.second.bias], "lr": 0.5})

    def create():
        return trained_with(Adds(), create_model=Two, optimizer=without_the_last)

    def without_the_last(parameters):
        return torch.optim.SGD(parameters[:3] + parameters[4:], 0.1)

    trainer = begin(create())
    trainer.train_steps([batch_of(8)])

    other = moved(trainer, create)

    assert [group["lr"] for group in other.optimizer.param_groups] == [0.1, 0.5]
    assert same_bits(trainer.state(), other.state())


def test_unfrozen_layers_train_and_frozen_ones_do_not():
    trainer = begin(trained_with(Changes(), create_model=Two))
    trainer.hooks.epoch_begin(0)
    before = trainer.state()
    trainer.train_steps([batch_of(8)])
    middle = trainer.state()
    trainer.hooks.epoch_begin(1)
    trainer.train_steps([batch_of(8)])
    after = trainer.state()

    def moves(path, one, other):
        return one[path].tobytes() != other[path].tobytes()

    assert not moves("model/first.weight", before, middle)
    assert moves("model/first.weight", middle, after)
    assert moves("model/second.bias", before, middle)
    assert not moves("model/second.bias", middle, after)


def test_the_mode_of_a_module_is_reset_each_epoch_as_in_a_plain_loop():
    trainer = begin(trained_with(Changes(), create_model=Two))
    for epoch in range(3):
        trainer.hooks.epoch_begin(epoch)
        trainer.train_steps([batch_of(8)])
        assert trainer.model.norm.training is (epoch != 1)
        trainer.hooks.epoch_end(epoch, {})


def test_an_evaluation_within_an_epoch_sets_all_modules_to_training():
    trainer = begin(trained_with(Changes(), create_model=Two))
    trainer.hooks.epoch_begin(1)
    trainer.train_steps([batch_of(8)])
    trainer.hooks.test_begin()
    trainer.evaluate(batch_of(8))
    trainer.hooks.test_end({})

    trainer.train_steps([batch_of(8)])

    assert trainer.model.norm.training


def test_predicting_does_not_reset_module_modes():
    trainer = begin(trained_with(Changes(), create_model=Two))
    trainer.hooks.epoch_begin(1)

    trainer.predict(batch_of(8).features)
    trainer.train_steps([batch_of(8)])

    assert not trainer.model.norm.training


def test_draws_of_callbacks_depend_only_on_step_and_hook():
    class Draws:
        def on_epoch_end(self, epoch, logs):
            self.drawn = [torch.rand(1).item(), np.random.rand(), random.random()]  # noqa: NPY002

    one, other = Draws(), Draws()
    first, second = (begin(trained_with(each)) for each in (one, other))
    second.rank = 1
    torch.manual_seed(99)

    first.hooks.epoch_end(0, {})
    second.hooks.epoch_end(0, {})

    assert one.drawn == other.drawn


# --- what is refused ------------------------------------------------------------------------------


def test_callback_state_that_cannot_be_kept_is_refused_before_training():
    class Locked:
        def on_train_begin(self):
            self.lock = iter([1])

    with pytest.raises(DefinitionError, match=r"Locked keeps builtins.list_iterator in self.lock"):
        begin(trained_with(Locked()))


def test_an_unsupported_object_created_later_is_refused_at_saving():
    class Late:
        def on_epoch_end(self, epoch, logs):
            self.teacher = copy.deepcopy(self.model)

    trainer = begin(trained_with(Late()))
    trainer.hooks.epoch_end(0, {})

    with pytest.raises(DefinitionError, match="a Linear that was created after on_train_begin"):
        trainer.hooks.state()


class Wrong:
    def on_epoch_end(self, trainer, module, outputs):
        pass


class Near:
    def on_validation_end(self, logs):
        pass


class Nothing:
    def epoch_end(self, epoch, logs):
        pass


class Slotted:
    __slots__ = ("model", "optimizer")

    def on_epoch_end(self, epoch, logs):
        pass


def around():
    best = {}

    class Around:
        def on_epoch_end(self, epoch, logs):
            best["loss"] = logs["loss"]

    return Around()


def of_keras():
    import keras

    return keras.callbacks.EarlyStopping()


REFUSED = {
    "does not accept the arguments": (
        Wrong,
        r"on_epoch_end\(epoch, logs=None\)|on_epoch_end\(self, epoch",
    ),
    "has on_validation_end": (Near, r"There is on_test_end\(\)"),
    "has no method that would be called": (Nothing, "There are on_train_begin"),
    "has __slots__": (Slotted, "Remove __slots__"),
    "in best, a variable of the enclosing function": (around, "self.NAME"),
    "is a callback of Keras": (of_keras, "Write your own class"),
    "is a class": (lambda: Wrong, r"\[Wrong\(\)\]"),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_an_invalid_callback_is_refused_when_creating_the_trainer(problem):
    create, way_out = REFUSED[problem]

    with pytest.raises(DefinitionError, match=rf"model.py:1: callbacks\(\): .*{problem}") as raised:
        trained_with(create())
    assert re.search(way_out, str(raised.value))


def trained_and_resumed(create):
    """Return a trainer after four steps, and one that resumed from it after two of them."""
    trained = begin(create())
    trained.train_steps([batch_of(8)] * 2)
    again = moved(trained, create)
    for trainer in (trained, again):
        trainer.train_steps([batch_of(8)] * 2)
    return trained, again


class Averages:
    """Keeps the handle of a hook of gradients, which is a method."""

    def __init__(self):
        self.average = None

    def on_train_begin(self):
        self.handle = self.model.weight.register_hook(self.averaged)

    def averaged(self, gradient):
        before = gradient if self.average is None else self.average
        self.average = 0.5 * (before + gradient)
        return self.average

    def on_train_end(self):
        self.handle.remove()


def test_a_callback_may_keep_the_handle_of_a_hook():
    trained, again = trained_and_resumed(lambda: trained_with(Averages()))
    for trainer in (trained, again):
        trainer.hooks.train_end({})

    assert same_bits(again.state(), trained.state())
    assert not again.model.weight._backward_hooks


def counted(function):
    """Return a hook that passes its last argument and the number of the call to a function."""
    num_calls = 0

    def hook(*args):
        nonlocal num_calls
        num_calls += 1
        return function(args[-1], num_calls)

    return hook


def of_outputs(function):
    return lambda tensors, num_calls: (function(tensors[0], num_calls),)


def on_inputs(hook):
    return lambda module, inputs, outputs: hook(inputs)


def divided(tensor, num_calls):
    return tensor / num_calls


def in_place(parameter, num_calls):
    parameter.grad /= num_calls


REGISTERING = {
    "gradient": lambda layer: layer.weight.register_hook(counted(divided)),
    "accumulated": lambda x: x.weight.register_post_accumulate_grad_hook(counted(in_place)),
    "backward": lambda x: x.register_full_backward_pre_hook(counted(of_outputs(divided))),
    "full backward": lambda x: x.register_full_backward_hook(
        on_inputs(counted(of_outputs(divided)))
    ),
    "forward": lambda layer: layer.register_forward_hook(counted(divided)),
    "forward pre": lambda x: x.register_forward_pre_hook(counted(of_outputs(divided))),
}


@pytest.mark.parametrize("register", REGISTERING.values(), ids=REGISTERING)
def test_the_state_of_a_hook_that_a_callback_registers_is_stored(register):
    class Registers:
        def on_train_begin(self):
            register(self.model.second)

    trained, again = trained_and_resumed(lambda: trained_with(Registers(), create_model=Two))

    assert same_bits(again.state(), trained.state())


class Recording:
    """Appends to a list that another callback has, too."""

    def __init__(self, shared, *, replaces=False):
        self.shared, self.replaces = shared, replaces

    def on_epoch_begin(self, epoch):
        if self.replaces:
            self.shared = [*self.shared]
        self.shared.append(epoch)


def test_callbacks_that_share_a_list_share_it_after_a_resume():
    def create():
        shared = []
        return trained_with(Recording(shared), Recording(shared))

    trained = begin(create())
    trained.hooks.epoch_begin(0)
    again = moved(trained, create)
    again.hooks.epoch_begin(1)
    first, second = again.hooks.callbacks

    assert first.shared is second.shared
    assert first.shared == [0, 0, 1, 1]


def test_a_list_that_a_callback_has_replaced_is_not_shared_after_a_resume():
    def create():
        shared = []
        return trained_with(Recording(shared), Recording(shared, replaces=True))

    trained = begin(create())
    trained.hooks.epoch_begin(0)
    again = moved(trained, create)
    again.hooks.epoch_begin(1)
    first, second = again.hooks.callbacks

    assert (first.shared, second.shared) == ([0, 1], [0, 0, 1])


def test_a_function_has_the_containers_of_its_callback_after_a_resume():
    class Counting:
        def on_train_begin(self):
            numbers, seen, places = np.zeros(2), {}, deque(maxlen=2)
            counter, ordered = Counter(), OrderedDict()
            self.numbers, self.seen, self.places = numbers, seen, places
            self.counter, self.ordered = counter, ordered

            def count(epoch):
                numbers[:] += 1.0
                seen[epoch] = len(places)
                places.append(epoch)
                counter["epochs"] += 1
                ordered[epoch] = counter["epochs"]

            self.count = count

        def on_epoch_begin(self, epoch):
            self.count(epoch)

    trained = begin(trained_with(Counting()))
    trained.hooks.epoch_begin(0)
    again = moved(trained, lambda: trained_with(Counting()))
    again.hooks.epoch_begin(1)
    (callback,) = again.hooks.callbacks

    assert callback.numbers.tolist() == [2.0, 2.0]
    assert callback.seen == {0: 0, 1: 1}
    assert callback.places == deque([0, 1], maxlen=2)
    assert callback.counter == Counter(epochs=2)
    assert callback.ordered == OrderedDict({0: 1, 1: 2})


def test_a_hook_that_a_callback_registers_and_whose_state_cannot_be_stored_is_refused():
    class Registers:
        def on_train_begin(self):
            draws = iter([1.0, 0.5, 0.25])
            self.model.weight.register_hook(lambda gradient: gradient * next(draws))

    with pytest.raises(DefinitionError, match="list_iterator"):
        begin(trained_with(Registers()))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda self: setattr(self.model, "second", nn.Linear(4, 3)), "modules"),
        (lambda self: self.model.register_buffer("seen", torch.zeros(1)), "buffers"),
        (lambda self: self.optimizer.param_groups[0]["params"].pop(), "first parameter groups"),
        (
            lambda self: self.optimizer.register_step_post_hook(lambda *_: None),
            "hooks of the optimizer",
        ),
        (
            lambda self: self.model.register_forward_hook(lambda *_: None),
            "forward hooks",
        ),
        (
            lambda self: list(self.model.parameters())[-1].register_hook(lambda _: None),
            "hooks of gradients",
        ),
        (
            lambda self: self.model.register_full_backward_pre_hook(lambda *_: None),
            "hooks of gradients",
        ),
    ],
)
def test_a_change_that_cannot_be_stored_is_refused_with_its_hook(change, what):
    class Breaks:
        def on_epoch_begin(self, epoch):
            change(self)

    trainer = begin(trained_with(Breaks(), create_model=Two))

    with pytest.raises(
        DefinitionError, match=rf"the {what} of the trained model in on_epoch_begin"
    ):
        trainer.hooks.epoch_begin(0)


def larger(tensor):
    return torch.cat([tensor.detach(), tensor.detach()])


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("mask", torch.ones(2), persistent=False)


@pytest.mark.parametrize("moment", ["on_train_begin", "on_epoch_begin", "on_train_batch_end"])
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda model: setattr(model.weight, "data", larger(model.weight)),
            "parameter weight from float32[3, 4] to float32[6, 4]",
        ),
        (
            lambda model: setattr(model, "seen", larger(model.seen)),
            "buffer seen from float32[2] to float32[4]",
        ),
        (
            lambda model: model.seen.resize_(3),
            "buffer seen from float32[2] to float32[3]",
        ),
        (lambda model: model.double(), "parameter weight from float32[3, 4] to float64[3, 4]"),
    ],
)
def test_a_callback_that_changes_a_shape_or_dtype_is_refused(change, what, moment):
    def call(self, *_, **__):
        change(self.model)

    trainer = trained_with(type("Grows", (), {moment: call})(), create_model=Counting)

    with pytest.raises(DefinitionError, match="largest shape") as raised:
        begin(trainer)
        trainer.hooks.epoch_begin(0)
        trainer.hooks.batch_end(0, {})
    assert f"a callback changed the model's {what} in {moment}()" in str(raised.value)


def test_a_buffer_that_is_not_kept_may_change_its_shape_in_a_callback():
    class Grows:
        def on_epoch_begin(self, epoch):
            self.model.mask = torch.ones(5)

    trainer = begin(trained_with(Grows(), create_model=Counting))

    trainer.hooks.epoch_begin(0)

    assert trainer.model.mask.shape == (5,)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: nn.utils.parametrize.remove_parametrizations(model.first, "weight"),
        lambda model: setattr(model.first.bias, "data", larger(model.first.bias)),
        lambda model: model.register_forward_hook(lambda *_: None),
    ],
)
def test_a_change_of_layers_at_the_end_is_answered_with_how_to_get_the_trained_model(change):
    class Simplifies:
        def on_train_end(self):
            change(self.model)

    def create():
        model = Two()
        nn.utils.parametrizations.weight_norm(model.first)
        return model

    trainer = begin(trained_with(Simplifies(), create_model=create))

    with pytest.raises(
        DefinitionError, match=r"in on_train_end\(\)\. .*could not be loaded"
    ) as raised:
        trainer.hooks.train_end({})
    assert "after elasticdl.load(" in str(raised.value)
    assert "the same command resumes" in str(raised.value)
    assert "resumed training would continue differently" not in str(raised.value)


@pytest.mark.parametrize("name", ["model", "optimizer"])
def test_another_model_or_optimizer_in_a_callback_is_refused(name):
    class Replaces:
        def on_epoch_begin(self, epoch):
            setattr(self, name, copy.deepcopy(getattr(self, name)))

    trainer = begin(trained_with(Replaces()))

    with pytest.raises(DefinitionError, match=rf"Replaces replaced self.{name} in on_epoch_begin"):
        trainer.hooks.epoch_begin(0)


def test_an_error_in_a_callback_names_its_line_and_hook():
    class Fails:
        def on_epoch_begin(self, epoch):
            raise ValueError("no such epoch")

    line = Fails.on_epoch_begin.__code__.co_firstlineno + 1
    trainer = begin(trained_with(Fails()))

    with pytest.raises(
        UserCodeError, match=rf"test_callbacks.py:{line}: the callback Fails raised"
    ):
        trainer.hooks.epoch_begin(0)


def test_callbacks_do_not_see_evaluation_batches_on_workers():
    class Follows:
        def on_test_batch_end(self, batch, logs):
            pass

    with pytest.raises(DefinitionError, match=r"Follows has on_test_batch_end\(\)"):
        trained_with(Follows()).hooks.check_sharing()


# --- what they change of the loss ---------------------------------------------------------------


class Margin:
    """A loss of a user's class, with parts that have state of their own."""

    def __init__(self):
        self.scale, self.steps = 1.0, [1.0]
        self.inner = torch.nn.MSELoss()
        self.teacher = torch.nn.Linear(1, 1)

    def __call__(self, outputs, labels):
        teacher = self.teacher.weight.detach().sum()
        return self.scale * self.steps[-1] * teacher * self.inner(outputs, one_hot(labels))


def one_hot(labels):
    return torch.nn.functional.one_hot(labels, 3).float()


def through_a_function(margin):
    def loss(outputs, labels):
        return margin(outputs, labels)

    return loss


def through_a_method(margin):
    return margin.__call__


@pytest.mark.parametrize("way", [lambda margin: margin, through_a_function, through_a_method])
def test_loss_changes_made_by_callbacks_are_kept(way):
    class Changes:
        def __init__(self, margin):
            self.change = lambda: vars(margin).update(scale=3.0) or margin.steps.append(0.5)
            self.teach = lambda: margin.teacher.weight.data.fill_(7.0)

        def on_epoch_begin(self, epoch):
            if epoch == 1:
                self.change()
                self.teach()

    margins = []

    def create():
        margins.append(Margin())
        return trained_with(Changes(margins[-1]), loss=way(margins[-1]))

    trainer = begin(create())
    for epoch in range(2):
        trainer.hooks.epoch_begin(epoch)
        trainer.train_steps([batch_of(8, seed=epoch)])

    other = moved(trainer, create)
    for each in (trainer, other):
        each.train_steps([batch_of(8, seed=7)])

    assert len(margins) == 2
    assert (margins[1].scale, margins[1].steps) == (3.0, [1.0, 0.5])
    assert margins[1].teacher.weight.item() == 7.0
    assert same_bits(trainer.state(), other.state())


class OfAClass:
    value = 1.0


def of_a_class(outputs, labels):
    return OfAClass.value * torch.nn.functional.cross_entropy(outputs, labels)


def of_a_cell():
    value = 1.0

    def loss(outputs, labels):
        return value * torch.nn.functional.cross_entropy(outputs, labels)

    def change():
        nonlocal value
        value = 2.0

    return loss, change


GLOBAL = {"value": 1.0}


def of_a_global(outputs, labels):
    return GLOBAL["value"] * torch.nn.functional.cross_entropy(outputs, labels)


@pytest.mark.parametrize("what", ["GLOBAL, which of_a_global", "value, which", "OfAClass.value"])
def test_a_callback_that_changes_a_variable_of_the_loss_is_refused(what, monkeypatch):
    monkeypatch.setitem(GLOBAL, "value", 1.0)
    monkeypatch.setattr(OfAClass, "value", 1.0)
    loss, change = {
        "G": lambda: (of_a_global, lambda: GLOBAL.update(value=2.0)),
        "v": of_a_cell,
        # A class that the loss names is found by name, not searched.
        "O": lambda: (of_a_class, lambda: setattr(OfAClass, "value", 2.0)),
    }[what[0]]()

    class Changes:
        def __init__(self, change):
            self.change = change

        def on_epoch_begin(self, epoch):
            self.change()

    trainer = begin(trained_with(Changes(change), loss=loss))

    with pytest.raises(DefinitionError, match=what):
        trainer.hooks.epoch_begin(0)


SEEN = []


def filling(outputs, labels):
    value = torch.nn.functional.cross_entropy(outputs, labels)
    SEEN.append(float(value.detach()))
    return value


class Clears:
    def on_epoch_end(self, epoch):
        SEEN.clear()


def test_a_list_filled_by_the_loss_may_be_cleared_by_a_callback():
    trainer = begin(trained_with(Clears(), loss=filling))
    trainer.train_steps([batch_of(8)])

    trainer.hooks.epoch_end(0, {})

    assert SEEN == []


# --- modes that steps set ------------------------------------------------------------------------


class FreezesItsNorm(nn.Module):
    """Puts a BatchNorm into evaluation mode in its second step."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.steps += 1
            if self.steps == 2:
                self.norm.eval()
        return self.out(self.norm(x))


def test_a_mode_that_a_step_sets_is_kept_until_the_next_epoch():
    trainer, other = (trainer_of(definition_of(FreezesItsNorm)) for _ in range(2))
    trainer.train_steps([batch_of(8)] * 2)
    other.load_state(trainer.state())
    other.hooks.load_state(trainer.hooks.state(), {})
    # A check within the training evaluates and continues.
    trainer.predict(batch_of(8).features)
    for each in (trainer, other):
        each.train_steps([batch_of(8)])

    assert not trainer.model.norm.training
    assert same_bits(trainer.state(), other.state())
    trainer.hooks.epoch_begin(1)
    trainer.train_steps([batch_of(8)])
    assert trainer.model.norm.training
    assert trainer.hooks.state() == {"modes": {}}


# --- optimizers that have modes ------------------------------------------------------------------


class HasModes(torch.optim.SGD):
    """Has the methods of a schedule-free optimizer."""

    def train(self):
        pass

    def eval(self):
        pass


class Switches:
    def on_train_begin(self):
        self.optimizer.train()

    def on_train_end(self):
        self.optimizer.eval()


@pytest.mark.parametrize("callbacks", [[], [Switches()]])
def test_an_optimizer_that_no_callback_switches_is_reported(caplog, callbacks):
    def optimizer(parameters):
        return HasModes(parameters, 0.1)

    trainer = trainer_of(definition_of(optimizer=optimizer, create_callbacks=lambda: callbacks))

    trainer.hooks.train_begin(num_epochs=1, num_steps=1, resumes=False)

    reported = [each.getMessage() for each in caplog.records]
    assert len(reported) == (not callbacks)
    assert all("HasModes has train() and eval()" in each for each in reported)
