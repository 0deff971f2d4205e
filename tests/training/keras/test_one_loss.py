"""One loss of Keras for a model with several outputs is refused with what to write."""

import numpy as np
import pytest

import elasticdl
from elasticdl.errors import DefinitionError

FILE = """
import keras
import numpy as np

loss = {loss}


def custom_model():
    inputs = keras.Input((2,))
    price, size = keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)
    return keras.Model(inputs, {outputs})


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    y = x.sum(1, keepdims=True)
    return x, {labels}


def optimizer():
    return keras.optimizers.SGD(0.01)
"""
OBJECT = "keras.losses.MeanSquaredError()"


@pytest.mark.parametrize(
    ("loss", "outputs", "labels", "message"),
    [
        (
            OBJECT,
            '{"price": price}',
            "y",
            r"a dict \('price'\).*labels, outputs\['price'\]\)$",
        ),
        (
            "'mse'",
            '{"a": price, "b": size}',
            '{"a": y, "b": y}',
            r"\(labels\['a'\], .*\['b'\]\)$",
        ),
        (OBJECT, "[price, size]", "(y, y)", r"returns 2 outputs\..*labels\[1\], outputs\[1\]\)$"),
    ],
)
def test_one_loss_for_several_outputs_is_refused(tmp_path, loss, outputs, labels, message):
    text = FILE.format(loss=loss, outputs=outputs, labels=labels)
    (tmp_path / "several.py").write_text(text)

    with pytest.raises(DefinitionError, match=rf"several\.py:5: a loss of Keras .*{message}"):
        elasticdl.train(
            model_zoo=str(tmp_path), model_def="several", data={"x": np.ones((8, 2), np.float32)},
            output=str(tmp_path / "out"),
        )  # fmt: skip
