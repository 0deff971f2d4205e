"""After a resume, callbacks refer to the same objects and call the same functions as before."""

import pytest
from tests.training.keras.test_hooks import Checkpointed

from elasticdl.errors import DefinitionError


@pytest.fixture(autouse=True)
def keras():
    import keras

    return keras


class OfFile:
    """A class at the top level of the user's file."""


def tenth(step):
    return 0.1


def callback(**methods):
    """Return a function that creates an object of a class `Own` of callbacks with these methods."""
    import keras

    return lambda: [type("Own", (keras.callbacks.Callback,), {"__module__": __name__, **methods})()]


def resumed(**methods):
    """Return the callback and its training after an epoch and a resume."""
    job = Checkpointed(callback(**methods))
    job.epoch(0, val_loss=1.0)
    job.resume()
    return job.callbacks[0], job.trainer


def at_epoch_end(change):
    return {"on_epoch_end": lambda self, epoch, logs=None: change(self)}


def test_weights_of_the_model_in_a_callback_are_those_of_the_resumed_model():
    def keep(self):
        self.weights = {"all": list(self.model.weights), "first": self.model.weights[0].value}
        self.rate, self.layers = self.model.optimizer.learning_rate, tuple(self.model.layers)
        self.loss, self.itself = self.model.loss, self.model

    own, trainer = resumed(**at_epoch_end(keep))

    assert all(
        mine is theirs
        for mine, theirs in zip(own.weights["all"], trainer.model.weights, strict=True)
    )
    assert own.weights["first"] is trainer.model.weights[0].value
    assert own.rate is trainer.optimizer.learning_rate
    assert own.layers == tuple(trainer.model.layers)
    assert (own.loss, own.itself) == (trainer.model.loss, trainer.model)


def test_generators_and_metrics_of_layers_are_those_of_the_resumed_model(keras):
    class Noisy(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seeds, self.mean = keras.random.SeedGenerator(0), keras.metrics.Mean()

        def call(self, inputs):
            return inputs

    def model():
        return keras.Sequential([keras.Input((2,)), Noisy()])

    from elasticdl.training.keras.callback_references import References

    first, second = model(), model()
    stored, restored = References(first, []), References(second, [])
    stored.find()
    restored.find()

    for name in ("seeds", "mean"):
        place = stored.place(getattr(first.layers[0], name))
        assert restored.at(place) is getattr(second.layers[0], name)


def test_ids_of_weights_are_those_of_the_resumed_model():
    def keep(self):
        self.averages = {id(weight): 1.0 for weight in self.model.weights}

    own, trainer = resumed(**at_epoch_end(keep))

    assert own.averages == {id(weight): 1.0 for weight in trainer.model.weights}


def test_a_metric_of_keras_that_a_callback_creates_later_is_restored(keras):
    def keep(self):
        self.mean = keras.metrics.Mean()
        self.mean.update_state([1.0, 3.0])

    own, _ = resumed(**at_epoch_end(keep))

    assert float(own.mean.result()) == 2.0


def test_own_metrics_and_callbacks_created_later_cause_a_warning(keras, caplog):
    class Total(keras.metrics.Sum):
        pass

    def keep(self):
        self.total, self.inner = Total(), keras.callbacks.EarlyStopping()

    own, _ = resumed(**at_epoch_end(keep))

    assert "Own keeps a tests.training.keras.test_callback_references.Total in self.total" in (
        caplog.text
    )
    assert "EarlyStopping in self.inner, which a checkpoint cannot store" in caplog.text
    assert not hasattr(own, "total")
    assert not hasattr(own, "inner")


def test_metrics_and_variables_of_a_callback_keep_their_identity(keras):
    import tensorflow as tf

    class Total(keras.metrics.Sum):
        pass

    def begin(self, logs=None):
        self.one, self.other, self.active = Total(), Total(), None
        self.first, self.second, self.chosen = tf.Variable(1.0), keras.Variable(1.0), []

    def end(self, epoch, logs=None):
        self.active, self.chosen = self.other, [self.second, self.first]
        self.one.update_state(1.0)
        self.active.update_state(2.0)
        self.first.assign(3.0)
        self.second.assign(4.0)

    own, _ = resumed(on_train_begin=begin, on_epoch_end=end)

    assert own.active is own.other
    assert [*map(float, (own.one.result(), own.other.result()))] == [1.0, 2.0]
    assert own.chosen[0] is own.second
    assert own.chosen[1] is own.first
    assert [*map(float, (own.first, own.second))] == [3.0, 4.0]


def test_a_metric_that_the_resumed_callback_lacks_is_refused(keras):
    created = []

    def begin(self, logs=None):
        created.append(self)
        self.totals, self.active = [keras.metrics.Sum()] * (len(created) < 2), None

    def end(self, epoch, logs=None):
        self.active = self.totals[0]

    with pytest.raises(DefinitionError, match="the callbacks had other metrics or variables when"):
        resumed(on_train_begin=begin, on_epoch_end=end)


def test_a_metric_that_has_its_variables_later_is_refused(keras):
    def begin(self, logs=None):
        self.score = keras.metrics.F1Score()

    def end(self, epoch, logs=None):
        self.score.update_state([[1.0, 0.0]], [[0.9, 0.1]])

    with pytest.raises(DefinitionError, match="a metric with all of its variables"):
        resumed(on_train_begin=begin, on_epoch_end=end)


def test_functions_that_have_a_name_are_restored(caplog):
    def begin(self, logs=None):
        self.phase, self.rate, self.kind = self.first, None, None

    def keep(self):
        self.phase, self.rate, self.kind = self.second, [tenth], OfFile

    def first(self):
        return 1

    def second(self):
        return 2

    own, _ = resumed(on_train_begin=begin, first=first, second=second, **at_epoch_end(keep))

    assert (own.phase(), own.rate, own.kind) == (2, [tenth], OfFile)
    assert "cannot store" not in caplog.text


@pytest.mark.parametrize("is_new", [True, False])
def test_only_a_local_function_that_was_replaced_causes_a_warning(caplog, is_new):
    def begin(self, logs=None):
        self.rate = lambda step: 0.1

    def keep(self):
        if is_new:
            self.rate = lambda step: 0.2

    resumed(on_train_begin=begin, **at_epoch_end(keep))

    named = [each for each in caplog.messages if "Own keeps a function in self.rate" in each]
    assert len(named) == is_new
    assert all("Use a method of the callback, or a function or class" in each for each in named)


@pytest.mark.parametrize("is_new", [True, False])
def test_only_an_object_of_an_own_class_that_was_replaced_causes_a_warning(caplog, is_new):
    def begin(self, logs=None):
        self.policy = OfFile()

    def keep(self):
        if is_new:
            self.policy = OfFile()

    resumed(on_train_begin=begin, **at_epoch_end(keep))

    assert sum("OfFile in self.policy" in each for each in caplog.messages) == is_new


def test_an_argument_that_a_callback_has_set_back_is_restored(keras):
    class Pulls(keras.callbacks.Callback):
        def __init__(self, active=False):
            super().__init__()
            self.active = active

        def on_train_begin(self, logs=None):
            self.active = True

        def on_epoch_end(self, epoch, logs=None):
            self.active = False

    job = Checkpointed(lambda: [Pulls()])
    job.epoch(0, val_loss=1.0)
    job.resume()

    assert job.callbacks[0].active is False


def test_an_attribute_that_a_callback_has_deleted_stays_deleted():
    def begin(self, logs=None):
        self.first = True

    def end(self, epoch, logs=None):
        del self.first

    own, _ = resumed(on_train_begin=begin, on_epoch_end=end)

    assert not hasattr(own, "first")
