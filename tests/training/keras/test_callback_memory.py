"""What callbacks change that no checkpoint stores is named; what they only read is not."""

import collections
import dataclasses
import enum
import functools
import logging
import pathlib

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def keras():
    import keras

    return keras


def memory_of(*callbacks, known=(), stored=tuple):
    from elasticdl.training.keras.callback_memory import UnstoredMemory

    return UnstoredMemory(callbacks, lambda: known, stored)


def scheduler(schedule):
    import keras

    return keras.callbacks.LearningRateScheduler(schedule)


def callback(**methods):
    """Return an object of a class `Own` of callbacks with these methods."""
    import keras

    return type("Own", (keras.callbacks.Callback,), {"__module__": __name__, **methods})()


class Counting:
    def __init__(self):
        self.n = 0

    def __call__(self, epoch, rate):
        self.n += 1
        return 0.01 / self.n

    def rate(self, epoch, rate):
        return self(epoch, rate)


class OfClass:
    n = 0

    def __call__(self, epoch, rate):
        OfClass.n += 1
        return 0.01 / OfClass.n


def through_type():
    class OfType:
        n = 0

        def rate(self, epoch, rate):
            type(self).n += 1
            return 0.01 / self.n

    return OfType().rate


def counting():
    n = 0

    def rate(epoch, rate):
        nonlocal n
        n += 1
        return 0.01 / n

    return rate


def iterating():
    rates = iter([0.01, 0.02, 0.005, 0.001])
    return lambda epoch, rate: next(rates)


def drawing():
    draws = np.random.default_rng(0)
    return lambda epoch, rate: draws.uniform(0.01, 0.02)


def collected(found, epoch, rate):
    found.append(epoch)
    return 0.01 / len(found)


def of_default(epoch, rate, found={"n": 0}):  # noqa: B006 - the subject of a test
    found["n"] += 1
    return 0.01 / found["n"]


def of_function(epoch, rate):
    of_function.n += 1
    return 0.01 / of_function.n


of_function.n = 0
NUMBER = 0


def of_file(epoch, rate):
    global NUMBER  # noqa: PLW0603 - the subject of a test
    NUMBER += 1
    return 0.01 / NUMBER


def calling(epoch, rate):
    return of_file(epoch, rate)


CHANGING = {
    "callable object": (Counting, "Counting, which", "Counting.n"),
    "method": (lambda: Counting().rate, "Counting.rate, which", "Counting.n"),
    "partial": (lambda: functools.partial(collected, []), "collected, which", "found"),
    "partial by name": (lambda: functools.partial(of_default, found={"n": 0}), "of_d", "found"),
    "nonlocal": (counting, "rate, which", "n"),
    "iterator": (iterating, "its schedule, which", "rates"),
    "generator": (drawing, "its schedule, which", "draws"),
    "default": (lambda: of_default, "of_default, which", "found"),
    "function attribute": (lambda: of_function, "of_function, which", "of_function.n"),
    "global": (lambda: of_file, "of_file, which", "NUMBER"),
    "global through another function": (lambda: calling, "calling, which", "NUMBER"),
    "class attribute": (OfClass, "OfClass, which", "OfClass.n"),
    "attribute of the type": (through_type, "through_type.<locals>", "OfType.n"),
}


@pytest.mark.parametrize("name", [each for each in CHANGING if "through" not in each])
def test_a_schedule_that_changes_what_it_keeps_is_named_before_training(name):
    create, function, variable = CHANGING[name]
    memory = memory_of(scheduler(create()))
    (said,) = memory.suspected()

    if "<locals>" not in function:
        assert f"the callback LearningRateScheduler calls {function}" in said
    assert f"which changes {variable}. A checkpoint cannot store it, so it is reset when" in said
    assert "keep it in an attribute of a callback" in said


@pytest.mark.parametrize("name", CHANGING)
def test_a_change_is_named_once_at_the_checkpoint_after_it(name):
    create, _, variable = CHANGING[name]
    schedule = create()
    memory = memory_of(scheduler(schedule))
    assert list(memory.changed()) == []
    schedule(0, 0.1)
    (said,) = memory.changed()
    schedule(1, 0.1)

    assert f"which uses {variable}, whose value has changed. A checkpoint" in said
    assert list(memory.changed()) == []


def test_a_change_that_was_suspected_is_not_named_again():
    schedule = Counting()
    memory = memory_of(scheduler(schedule))
    assert len(list(memory.suspected())) == 1
    schedule(0, 0.1)

    assert list(memory.changed()) == []


class Decaying:
    def __init__(self):
        self.base, self.decay, self.path = 0.01, 0.5, pathlib.Path("logs")

    def rate(self, epoch, rate=0.0):
        return self.base * self.decay**epoch

    def __call__(self, epoch):
        return self.rate(epoch)


@dataclasses.dataclass(frozen=True)
class Config:
    base: float = 0.01
    names: tuple = ("a", "b")

    def rate(self, epoch):
        return self.base / (epoch + 1)


class Owner:
    def __init__(self):
        self.config = Config()

    def schedule(self, epoch):
        return self.config.rate(epoch)


@functools.lru_cache
def cached(epoch):
    return 0.01 / (1 + epoch)


def of_constants(table=(1.0, 0.5), rates=[0.1, 0.2], by_epoch={0: 0.1}):  # noqa: B006
    options = {"k": 1.0}
    seen = set()

    def rate(epoch, rate):
        found = [each for each in table if each not in seen]
        found.append(rates[epoch])
        found[0] += by_epoch.get(epoch, 0.0)
        return found[0] * options["k"]

    return rate


PURE = {
    "method": lambda: Decaying().rate,
    "callable object": Decaying,
    "lambda": lambda: lambda epoch: 0.01 / (epoch + 1),
    "partial of a method": lambda: functools.partial(Decaying.rate, Decaying(), rate=0.0),
    "frozen dataclass": lambda: Config().rate,
    "method that calls another": lambda: Owner().schedule,
    "constant lists and dicts": of_constants,
    "cache": lambda: lambda epoch, rate: cached(epoch),
}


@pytest.mark.parametrize("name", PURE)
def test_a_schedule_that_only_reads_what_it_keeps_is_not_named(name):
    schedule = PURE[name]()
    memory = memory_of(scheduler(schedule))
    assert list(memory.suspected()) == []
    try:
        schedule(0, 0.1)
    except TypeError:
        schedule(0)

    assert list(memory.changed()) == []


class Mode(enum.Enum):
    A = 1
    B = 2


def test_constants_in_attributes_of_a_callback_are_not_named(keras):
    class Monitoring(keras.callbacks.Callback):
        def __init__(self, config=Config()):
            super().__init__()
            self.config, self.mode, self.kind = config, Mode.A, Config
            self.log = logging.getLogger("mine")
            self.longest = functools.partial(max, 1.0)
            self.losses = collections.defaultdict(list)

        def on_epoch_end(self, epoch, logs=None):
            self.losses["loss"].append(self.longest(self.config.base))
            self.last = epoch

    monitoring = Monitoring()
    memory = memory_of(monitoring)
    assert list(memory.suspected()) == []
    monitoring.on_epoch_end(0)

    assert list(memory.changed()) == []
    assert all(memory.watches(monitoring, name) for name in ("config", "mode", "longest"))


def test_the_default_of_an_argument_that_keras_passes_is_not_named(keras):
    def add(logs={}):  # noqa: B006 - the subject of the test
        logs["added"] = 1

    def on_epoch_end(self, epoch, logs={}):  # noqa: B006
        logs["more"] = epoch
        add(logs)

    own = callback(on_epoch_end=on_epoch_end)
    memory = memory_of(own, keras.callbacks.LambdaCallback(on_epoch_end=own.on_epoch_end))
    assert list(memory.suspected()) == []
    own.on_epoch_end(0, {})

    assert list(memory.changed()) == []


class Settings:
    def __init__(self):
        self.rate, self.n = 0.01, 0

    def count(self):
        self.n += 1


SETTINGS = Settings()


@pytest.mark.parametrize("change", [lambda each: each.count(), lambda each: None])
def test_an_argument_of_a_callback_whose_contents_change_is_named(keras, change):
    class Using(keras.callbacks.Callback):
        def __init__(self, settings):
            super().__init__()
            self.settings = settings

        def on_epoch_begin(self, epoch, logs=None):
            change(self.settings)
            setattr(self.settings, "n", self.settings.n + 1)  # noqa: B010 - not seen in the code

    using = Using(SETTINGS)
    memory = memory_of(using)
    using.on_epoch_begin(0)
    (said,) = memory.changed()

    assert "the callback Using uses self.settings.n, whose value has changed" in said


def test_methods_of_a_callback_that_change_what_is_no_attribute_of_it_are_named(keras):
    class Writing(keras.callbacks.Callback):
        seen = []  # noqa: RUF012 - the subject of the test

        def __init__(self):
            super().__init__()
            self.settings, self.own = Settings(), []

        def on_train_begin(self, logs=None):
            self.settings.n = 0

        def on_train_batch_begin(self, batch, logs=None):
            global NUMBER  # noqa: PLW0603 - the subject of the test
            NUMBER += 1
            self.own.append(batch)

        def on_epoch_begin(self, epoch, logs=None):
            self.settings.count()
            self.helped()

        def helped(self):
            self.seen.append(1)
            self.model.optimizer.learning_rate = 0.1

    writing = Writing()
    memory = memory_of(writing)
    (suspected,) = memory.suspected()
    writing.settings.count()
    writing.seen.append(1)
    (changed,) = memory.changed()

    assert "on_train_batch_begin() of the callback Writing changes NUMBER. A" in suspected
    assert "the callback Writing uses self.settings.n and Writing.seen, whose values" in changed
    assert "cannot store them, so they are reset" in changed


SEEN = []
LAST = {"loss": 0.0}


def test_variables_of_the_file_that_a_method_changes_are_named():
    def on_epoch_end(self, epoch, logs=None):
        SEEN.append(epoch)
        LAST["loss"] += epoch + 1.0

    own = callback(on_epoch_end=on_epoch_end)
    memory = memory_of(own)
    assert list(memory.suspected()) == []
    own.on_epoch_end(0)
    (said,) = memory.changed()

    assert "on_epoch_end() of the callback Own uses LAST and SEEN, whose values have" in said


def test_what_checkpoints_contain_is_not_named():
    from elasticdl.training.keras.attributes import Attributes

    def make():
        alpha = 1.0

        def set_alpha(value):
            nonlocal alpha
            alpha = value

        def loss(y_true, y_pred):
            return alpha * loss.beta * LAST["loss"] * SETTINGS.rate

        loss.beta = 1.0
        return loss, set_alpha

    loss, set_alpha = make()

    def on_epoch_end(self, epoch, logs=None):
        set_alpha(0.5)
        loss.beta = 0.5
        LAST["loss"] += 1.0
        SETTINGS.rate /= 2.0

    attributes = Attributes(None)
    attributes.track_of_step([loss])
    own = callback(on_epoch_end=on_epoch_end)
    memory = memory_of(own, stored=attributes.stored)
    without = memory_of(own)
    assert list(memory.suspected()) == []
    own.on_epoch_end(0)

    assert list(memory.changed()) == []
    (said,) = without.changed()
    for name in ("alpha", "loss.beta", "LAST", "SETTINGS.rate"):
        assert name in said


def test_functions_of_a_lambda_callback_are_followed(keras):
    class Keep:
        def __init__(self):
            self.values = []

        def on_end(self, epoch, logs):
            self.values.append(epoch)

    best = {"loss": 9.0}

    def at_end(epoch, logs):
        best["loss"] = min(best["loss"], logs["loss"])

    keep = Keep()
    kinds = keras.callbacks.LambdaCallback
    said = list(
        memory_of(
            kinds(on_epoch_end=at_end),
            kinds(on_epoch_end=keep.on_end),
            kinds(on_epoch_end=lambda epoch, logs: best.clear()),
            kinds(on_train_end=lambda logs: keep.values.append(1)),
        ).suspected()
    )

    assert len(said) == 2
    assert "the callback LambdaCallback calls at_end, which changes best." in said[0]
    assert ".on_end, which changes Keep.values." in said[1]


def test_a_variable_of_the_function_around_a_callback_is_named_unless_a_checkpoint_has_it(keras):
    mine, kept = keras.Variable(0.0), keras.Variable(0.0)

    def at_end(epoch, logs):
        mine.assign_add(1.0)
        kept.assign_add(1.0)

    memory = memory_of(keras.callbacks.LambdaCallback(on_epoch_end=at_end), known=[kept])
    at_end(0, {})
    (said,) = memory.changed()

    assert "calls at_end, which uses mine, whose value has changed" in said


def test_objects_of_keras_and_callbacks_are_not_named(keras):
    layer, other = keras.layers.Dense(1), keras.callbacks.Callback()

    def at_end(epoch, logs):
        layer.rate = epoch
        other.rate = epoch

    memory = memory_of(keras.callbacks.LambdaCallback(on_epoch_end=at_end))
    assert list(memory.suspected()) == []
    at_end(1, {})

    assert list(memory.changed()) == []
