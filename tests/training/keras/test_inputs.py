"""Features are passed to a model in the form that it takes."""

import numpy as np
import pytest

from elasticdl.definition import Origin
from elasticdl.errors import DefinitionError

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")
FEATURES = {"numbers": np.ones((2, 4), np.float32), "kind": np.ones((2, 1), np.int64)}


def test_an_input_of_one_number_gets_features_without_a_last_axis() -> None:
    import keras

    from elasticdl.training.keras import inputs

    numbers, kind = keras.Input((4,), name="numbers"), keras.Input((), name="kind", dtype="int64")
    embedded = keras.layers.Embedding(3, 2)(kind)
    model = keras.Model([numbers, kind], keras.layers.Concatenate()([numbers, embedded]))

    adapt = inputs.build(model, FEATURES, ORIGIN)

    assert [each.shape for each in adapt(FEATURES)] == [(2, 4), (2,)]


def test_only_some_of_many_fields_are_listed_in_natural_order() -> None:
    import keras

    from elasticdl.training.keras import inputs

    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(1)])
    columns = {str(i): np.zeros((2, 1), np.float32) for i in sorted(range(64), key=str)}

    with pytest.raises(DefinitionError, match=r"2 float32\[2, 1\].* and 59 more, of the") as caught:
        inputs.build(model, columns, ORIGIN, is_default=True)

    assert "10 float32" not in str(caught.value)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize(
    ("is_default", "words"),
    [
        (False, r"cannot take what the input function returns .* Make the input function return"),
        (True, r"cannot take the fields of the records .* no input_fn.*frame\[columns\]"),
    ],
)
def test_features_that_do_not_fit_are_refused_with_what_to_change(is_default, words) -> None:
    import keras

    from elasticdl.training.keras import inputs

    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])

    with pytest.raises(DefinitionError, match=f"(?s){words}"):
        inputs.build(model, FEATURES, ORIGIN, is_default=is_default)


def test_a_list_of_features_that_do_not_fit_is_refused() -> None:
    import keras

    from elasticdl.training.keras import inputs

    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])

    with pytest.raises(DefinitionError, match="Make the input function return"):
        inputs.build(model, [np.zeros((2, 3), np.float32)] * 2, ORIGIN)


def test_one_array_for_several_inputs_is_refused_with_how_a_tuple_is_read() -> None:
    import keras

    from elasticdl.training.keras import inputs

    a, b, c = (keras.Input((2,), name=name) for name in "abc")
    model = keras.Model([a, b, c], keras.layers.Concatenate()([a, b, c]))

    with pytest.raises(DefinitionError, match="cannot take what the input function") as caught:
        inputs.build(model, np.zeros((2, 2), np.float32), ORIGIN)

    assert str(caught.value).endswith(
        'Return features for several inputs as a dict, {"a": ..., ...}, or a list. If '
        "the input function returns a tuple, it is read as (features, labels) or (features, "
        "labels, sample weights), in prediction too."
    )


def test_the_schema_is_named_for_images_of_a_size_that_the_model_does_not_take() -> None:
    import keras

    from elasticdl.training.keras import inputs

    model = keras.Sequential([keras.Input((64 * 64 * 3,)), keras.layers.Dense(1)])
    images = np.zeros((2, 32, 32, 3), np.float32)

    with pytest.raises(DefinitionError, match=r"resized to the shape in data_schema\(\)"):
        inputs.build(model, images, ORIGIN)


@pytest.mark.parametrize("is_functional", [False, True])
def test_more_channels_than_the_one_of_the_model_are_refused(is_functional) -> None:
    import keras

    from elasticdl.training.keras import inputs

    layers = [keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    if is_functional:
        model = keras.Model(model.inputs, model.outputs)
    images = np.zeros((2, 8, 8, 3), np.float32)

    message = r"expected shape=\(None, 8, 8, 1\), found shape=\(None, 8, 8, 3\)"
    with pytest.raises(DefinitionError, match=message):
        inputs.build(model, images, ORIGIN, is_default=True)


@pytest.mark.parametrize("shape", [(12, 1), (12,)])
def test_the_error_for_another_length_shows_the_shape_of_the_data(shape) -> None:
    import keras

    from elasticdl.training.keras import inputs

    given = keras.Input((24, 1))
    model = keras.Model(given, keras.layers.LSTM(2)(given))

    with pytest.raises(DefinitionError) as caught:
        inputs.build(model, np.zeros((2, *shape), np.float32), ORIGIN, is_default=True)

    assert f"expected shape=(None, 24, 1), found shape={(None, *shape)}" in str(caught.value)


def test_more_channels_are_taken_where_no_layer_depends_on_their_number() -> None:
    import keras

    from elasticdl.training.keras import inputs

    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.GlobalAveragePooling2D()])

    inputs.build(model, np.zeros((2, 8, 8, 3), np.float32), ORIGIN, is_default=True)


def test_of_many_columns_without_the_named_inputs_some_are_listed() -> None:
    import keras

    from elasticdl.training.keras import inputs

    age, plan = keras.Input((1,), name="age"), keras.Input((1,), name="plan")
    model = keras.Model([age, plan], keras.layers.Add()([age, plan]))
    columns = {f"x{i}": np.zeros((2, 1), np.float32) for i in range(64)}

    with pytest.raises(DefinitionError, match=r"; the data have x0, .* and 59 more. Missing: age"):
        inputs.build(model, columns, ORIGIN, is_default=True)


def test_a_last_axis_of_size_1_may_be_missing_in_a_sequential_model_too() -> None:
    import keras

    from elasticdl.training.keras import inputs

    layers = [keras.Input((8, 8, 1)), keras.layers.Conv2D(3, 8)]
    model, features = keras.Sequential(layers), np.ones((2, 8, 8), np.float32)

    adapt = inputs.build(model, features, ORIGIN)

    assert model(adapt(features)).shape == (2, 1, 1, 3)


def test_a_shape_that_does_not_fit_is_shown_with_its_number_of_examples() -> None:
    import keras

    from elasticdl.training.keras import inputs

    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(3, 8)])
    images = np.ones((2, 16, 16, 3), np.float32)

    with pytest.raises(DefinitionError) as caught:
        inputs.build(model, images, ORIGIN, is_default=True)
    message = str(caught.value)
    assert "(float32[2, 16, 16, 3], of the first 2 examples)" in message
    assert "an example has the shape [16, 16, 3]. Build the model for this shape, or" in message
    assert "frame[columns]" not in message


def test_whole_numbers_are_named_if_the_model_takes_floats() -> None:
    import keras
    import tensorflow as tf

    from elasticdl.training.keras import inputs

    class Half(keras.Model):
        def call(self, x):
            return tf.matmul(x, self.weight)

        def build(self, shape):
            self.weight = self.add_weight(shape=(4, 1))

    with pytest.raises(DefinitionError, match=r"whole numbers.*in input_fn\(records\): x\.astype"):
        inputs.build(Half(), np.ones((2, 4), np.int64), ORIGIN, is_default=True)


def test_a_wrong_name_of_a_feature_stands_first_beside_the_names_there_are() -> None:
    import keras

    from elasticdl.training.keras import inputs

    class Wrong(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, features):
            return self.dense(features["digits"])

    with pytest.raises(DefinitionError) as caught:
        inputs.build(Wrong(), FEATURES, ORIGIN)

    assert (
        ": KeyError: 'digits'. The model 'wrong' gets what the input function returns: "
        "numbers float32[2, 4], kind int64[2, 1].\n  Make the input function return"
    ) in str(caught.value)
    assert not any(sign in str(caught.value) for sign in ("\\n", "\\x1b", "\x1b"))


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_keys_of_a_dict_of_inputs_count_where_they_differ_from_the_names() -> None:
    import keras

    from elasticdl.training.keras import inputs

    left, right = keras.Input((1,), name="left"), keras.Input((1,), name="right")
    model = keras.Model({"right": left, "left": right}, left - right)
    features = {"left": np.float32([[1.0]]), "right": np.float32([[5.0]])}

    adapt = inputs.build(model, features, ORIGIN)

    assert np.array(model(adapt(features))) == np.array(model(features)) == 4.0


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_the_names_of_a_dict_of_inputs_count_where_features_lack_its_keys() -> None:
    import keras

    from elasticdl.training.keras import inputs

    left = keras.Input((1,), name="left")
    model = keras.Model({"a": left}, left * 2.0)
    features = {"left": np.float32([[1.0]]), "b": np.float32([[5.0]])}

    adapt = inputs.build(model, features, ORIGIN)

    assert np.array(model(adapt({"left": np.float32([[3.0]])}))) == 6.0
