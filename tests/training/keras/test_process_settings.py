"""Settings of Keras for the process are checked, and names of layers restart."""

import pytest
from tests.training.keras.test_trainer import definition_of, trainer_of

from elasticdl.errors import DefinitionError


@pytest.fixture(autouse=True)
def keras():
    import keras

    return keras


def test_a_second_model_has_the_same_parameter_names():
    assert list(trainer_of(definition_of()).state()) == list(trainer_of(definition_of()).state())


@pytest.mark.parametrize("name", ["max_epochs", "max_steps_per_epoch"])
def test_limits_of_keras_on_fit_are_refused(keras, name):
    set_limit = getattr(keras.config, f"set_{name}")
    set_limit(2)
    try:
        with pytest.raises(DefinitionError, match=rf"set_{name}\(2\).*limits `fit`"):
            trainer_of(definition_of())
    finally:
        set_limit(None)
