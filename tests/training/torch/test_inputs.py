"""How features reach a module's arguments, and as which numbers."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import (
    ByName,
    TakesDict,
    batch_of,
    definition_of,
    same_bits,
    small_model,
    trainer_of,
)
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer

from elasticdl.data.batch import Batch
from elasticdl.errors import DefinitionError, UserCodeError


class TakesAll(TakesDict):
    def forward(self, x, **others):
        assert "other" in others
        return self.out(x)


class TakesSome(ByName):
    def forward(self, before=None, left=None, right=None):
        assert before is None
        return super().forward(left, right)


class Lazy(nn.Sequential):
    def __init__(self):
        super().__init__(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.LazyLinear(3))


@pytest.mark.parametrize(
    ("features", "model"),
    [
        (lambda x: x, small_model),
        (lambda x: {"anything": x}, small_model),
        (lambda x: {"input": x, "unused": x}, small_model),
        (lambda x: {"x": x}, TakesDict),
        (lambda x: {"x": x, "other": x}, TakesDict),
        (lambda x: {"x": x, "other": x}, TakesAll),
        (lambda x: {"right": x[:, 1:], "left": x[:, :1], "unused": x}, ByName),
        (lambda x: (x[:, :1], x[:, 1:]), ByName),
        (lambda x: {"right": x[:, 1:], "left": x[:, :1]}, TakesSome),
        (lambda x: {"anything": x}, Lazy),
    ],
)
def test_features_reach_the_arguments_with_their_names(features, model, tmp_path):
    batch = batch_of(8, features=features)
    trainer = trainer_of(definition_of(model), batch)

    assert np.isfinite(trainer.train_steps([batch]).losses).all()
    assert trainer.predict(batch.features).shape == (8, 3)


class LazyShift(LazyModuleMixin, nn.Module):
    """It subtracts from its inputs what `value_of` computes from the first ones."""

    cls_to_become = None

    def __init__(self, value_of):
        super().__init__()
        self.value_of = value_of
        self.register_buffer("shift", UninitializedBuffer())

    def initialize_parameters(self, x):
        if self.has_uninitialized_params():
            self.shift.materialize(x.shape[1:])
            self.shift.copy_(self.value_of(x))

    def forward(self, x):
        return x - self.shift


@pytest.mark.parametrize(
    ("value_of", "depends"),
    [
        (lambda x: x.mean(0), True),
        (lambda x: x.std(0), True),
        (lambda x: torch.randn(x.shape[1:]), False),
        (lambda x: torch.ones(x.shape[1:]), False),
    ],
)
@pytest.mark.parametrize("is_sum", [False, True])
def test_initial_values_computed_from_few_records_are_reported(caplog, value_of, depends, is_sum):
    batch = batch_of(8)

    def model():
        return nn.Sequential(LazyShift(value_of), nn.LazyLinear(3))

    trainer = trainer_of(definition_of(model), batch)
    assert "initial values" not in caplog.text
    for _ in range(2):
        if is_sum:
            trainer.gradients(batch)
        else:
            trainer.train_steps([batch])

    assert caplog.text.count("the initial values of '0.shift' depend on the data") == int(depends)


class Denoises(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x, y=None):
        return super().forward(x if y is None else x + y)


def test_an_argument_with_a_default_may_be_a_feature_of_training_only():
    batch = batch_of(8, features=lambda x: {"x": x, "y": np.ones_like(x)})
    without = dataclasses.replace(batch, features={"x": batch.features["x"]})
    trainer = trainer_of(definition_of(Denoises), batch)
    trainer.train_steps([batch])

    expected = nn.functional.linear(
        torch.from_numpy(without.features["x"]), trainer.model.weight, trainer.model.bias
    ).detach()
    np.testing.assert_array_equal(trainer.predict(without.features), expected)
    loss, count = trainer.evaluate(without)["loss"]
    wanted = nn.functional.cross_entropy(expected, torch.from_numpy(batch.labels))
    np.testing.assert_allclose(loss / count, wanted, rtol=1e-6)


def test_an_argument_with_a_default_may_be_a_feature_of_evaluation_only():
    batch = batch_of(8, features=lambda x: {"x": x})
    more = {**batch.features, "y": np.ones_like(batch.features["x"])}
    trainer = trainer_of(definition_of(Denoises), batch)

    expected = trainer.predict({"x": batch.features["x"] + 1})
    np.testing.assert_array_equal(trainer.predict(more), expected)


def test_a_feature_without_a_default_that_a_later_batch_lacks_is_named():
    batch = batch_of(8, features=lambda x: {"left": x[:, :1], "right": x[:, 1:]})
    trainer = trainer_of(definition_of(ByName), batch)

    with pytest.raises(UserCodeError, match=r"missing 1 required positional argument: 'right'"):
        trainer.predict({"left": batch.features["left"]})


def test_missing_features_are_reported():
    batch = batch_of(8, features=lambda x: {"left": x, "middle": x})

    with pytest.raises(DefinitionError, match=r"takes left, right; .* returns left, middle"):
        trainer_of(definition_of(ByName), batch)


def test_the_only_argument_is_compared_with_the_names_too():
    class Takes(nn.Linear):
        def forward(self, age):
            return super().forward(age)

    batch = batch_of(8, features=lambda x: {"ages": x, "plan": x})

    with pytest.raises(DefinitionError, match=r"takes age; .*Missing: age; did you mean 'ages'\?"):
        trainer_of(definition_of(lambda: Takes(4, 3)), batch)


def test_one_array_for_several_arguments_is_reported_with_their_names():
    message = (
        r"(?s)takes left, right; .* one array of features, .*\{\"left\": ..., \"right\": ...\}"
    )

    with pytest.raises(DefinitionError, match=message):
        trainer_of(definition_of(ByName), batch_of(8))


def test_a_model_in_bfloat16_is_answered_with_a_conversion_in_forward():
    def model():
        return nn.Sequential(nn.Linear(4, 3)).to(torch.bfloat16)

    message = r"parameters are torch.bfloat16. Convert .*`forward`: x = x.to\(torch.bfloat16\)"

    with pytest.raises(DefinitionError, match=message):
        trainer_of(definition_of(model), batch_of(8))


@pytest.mark.parametrize(
    ("shape", "num_channels", "dtype", "expression"),
    [
        ((2, 2), 1, "float32", "x[:, None]."),
        ((2, 2), 1, "uint8", 'x[:, None].astype("float32").'),
        ((1, 1, 4), 4, "float32", "np.moveaxis(x, -1, 1)."),
    ],
)
def test_images_without_channels_in_front_are_answered_with_how_to_convert_them(
    shape, num_channels, dtype, expression
):
    def model():
        return nn.Sequential(nn.Conv2d(num_channels, 2, 1), nn.Flatten(), nn.LazyLinear(3))

    batch = batch_of(8, features=lambda x: x.reshape(8, *shape).astype(dtype))

    with pytest.raises(DefinitionError) as caught:
        trainer_of(definition_of(model), batch)

    assert f"Convert them in the input function: {expression}" in str(caught.value)


def test_a_mismatched_shape_is_refused():
    batch = batch_of(8, features=lambda x: {"image": x[:, :3]})

    with pytest.raises(DefinitionError, match=r"(?s)cannot take .*\(image float32\[8, 3\]\).*4x3"):
        trainer_of(batch=batch)


def test_strings_are_refused_by_name():
    batch = Batch({"colour": np.array(["red"] * 8)}, np.zeros(8), 8)

    with pytest.raises(
        DefinitionError, match=r"returns colour text\[8\]; PyTorch accepts only numbers"
    ):
        trainer_of(batch=batch)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ((), r"Name the classes in .*: classes = \[...\]. Return their numbers: np.array\("),
        (("red",), r"needs numbers. Return their numbers in classes: np.array\(\[classes.index\("),
    ],
)
def test_text_labels_are_refused_at_the_input_function(classes, message):
    definition = dataclasses.replace(
        definition_of(), classes=classes, places={"input": ("model.py", 41)}
    )
    batch = dataclasses.replace(batch_of(8), labels=np.array(["red"] * 8))

    with pytest.raises(
        DefinitionError, match=rf"model.py:41: .* labels text\[\d\](?s:.*){message}"
    ):
        trainer_of(definition, batch)


def test_floats_become_float32_and_integers_stay():
    seen = {}

    class Looks(nn.Linear):
        def forward(self, x, ids):
            seen.update(x=x.dtype, ids=ids.dtype)
            return super().forward(x)

    def loss(outputs, labels):
        seen["labels"] = labels.dtype
        return ((outputs.mean(1) - labels) ** 2).mean()

    batch = Batch({"x": np.zeros((8, 4)), "ids": np.zeros(8, np.int32)}, np.linspace(0, 1, 8), 8)
    trainer_of(definition_of(lambda: Looks(4, 3), loss), batch).train_steps([batch])

    assert seen == {"x": torch.float32, "ids": torch.int32, "labels": torch.float32}


def test_a_model_that_works_in_place_does_not_change_the_batch():
    batch = batch_of(8)
    batch.features.flags.writeable = False
    before = batch.features.copy()
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3))
    trainer_of(definition_of(lambda: model)).gradients(batch)

    np.testing.assert_array_equal(batch.features, before)


def test_a_fixed_batch_size_error_states_the_tried_size():
    class OfEight(nn.Linear):
        def forward(self, x):
            return super().forward(x.view(8, 4))

    with pytest.raises(DefinitionError, match="tried on the first 2 examples"):
        trainer_of(definition_of(lambda: OfEight(4, 3)), batch_of(2))


@pytest.mark.parametrize(
    ("is_default", "where"),
    [(True, "in the data, or in input_fn(records)"), (False, "in the input function")],
)
def test_whole_numbers_are_named_if_the_model_takes_floats(is_default, where):
    batch = batch_of(2, features=lambda x: (100 * x).astype(np.int64))
    definition = definition_of()
    how = dataclasses.replace(definition.input, is_default=is_default)

    with pytest.raises(DefinitionError) as caught:
        trainer_of(dataclasses.replace(definition, input=how), batch)
    assert (
        "The features are whole numbers, and the model takes them as floats. Convert them "
        f'{where}: x.astype("float32")'
    ) in str(caught.value)


def test_whole_numbers_of_another_shape_are_not_named():
    batch = batch_of(2, features=lambda x: x[:, :3].astype(np.int64))

    with pytest.raises(DefinitionError) as caught:
        trainer_of(batch=batch)
    assert "whole numbers" not in str(caught.value)


def test_text_labels_are_refused_with_how_to_number_them():
    batch = Batch(np.zeros((8, 4), np.float32), np.array([b"red"] * 8), 8)

    with pytest.raises(DefinitionError) as caught:
        trainer_of(batch=batch)
    assert "returns labels |S3[" in str(caught.value)
    assert "such as 'red', and a loss needs numbers" in str(caught.value)
    assert "classes.index(label.decode())" in str(caught.value)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_model_that_is_compiled_as_a_whole_trains(tmp_path):
    scripted = trainer_of(definition_of(lambda: torch.jit.script(nn.Linear(4, 3))))
    plain = trainer_of()
    for trainer in (scripted, plain):
        trainer.train_steps([batch_of(8)])

    assert same_bits(scripted.state(), plain.state())
    scripted.export(tmp_path)
