"""A state is restored into the same variables, and that of another model is refused."""

import re

import pytest
from tests.training.keras.test_trainer import definition_of, trainer_of

from elasticdl.errors import CheckpointMismatchError


@pytest.fixture(autouse=True)
def keras():
    import keras

    return keras


def test_a_state_of_another_optimizer_is_refused_by_its_class(keras):
    adam = trainer_of(definition_of(create_optimizer=lambda: keras.optimizers.AdamW(0.1)))

    with pytest.raises(CheckpointMismatchError) as refused:
        trainer_of(definition_of()).load_state(adam.state())

    lines = str(refused.value).splitlines()
    assert lines[1] == "  optimizer: AdamW in the checkpoint, SGD in the model file"
    assert "The checkpoint is intact." in lines[2]


def test_a_state_is_loaded_in_any_order():
    trainer = trainer_of(definition_of())

    trainer.load_state(dict(reversed(trainer.state().items())))


def test_a_checkpoint_of_another_model_is_refused_with_the_difference(keras):
    wider = trainer_of(
        definition_of(lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)]))
    )

    with pytest.raises(CheckpointMismatchError, match=r"kernel: float32\[4, 5\] in the checkpoint"):
        trainer_of(definition_of()).load_state(wider.state())


def test_the_first_differences_from_a_checkpoint_are_named_and_the_others_counted(keras):
    layers = [keras.layers.Dense(3) for _ in range(5)]
    deeper = trainer_of(definition_of(lambda: keras.Sequential([keras.Input((4,)), *layers])))

    with pytest.raises(CheckpointMismatchError) as caught:
        trainer_of(definition_of()).load_state(deeper.state())

    lines = str(caught.value).splitlines()
    assert len(lines) == 8
    assert re.fullmatch(r"  and \d+ more", lines[6])
