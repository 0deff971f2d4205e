"""What a person reads when their file or their data is wrong: line, value, records, exit code."""

import re

import numpy as np
import pytest

import elasticdl
from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import DataError, NonFiniteLossError, UserCodeError

KERAS = """
import keras
import numpy as np
import tensorflow as tf

def custom_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(5, activation="softmax")])

def input_fn(records):
    labels = np.array([int(r["y"].item()) for r in records])
    return np.stack([r["x"] for r in records]), labels

def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions)

def optimizer():
    return keras.optimizers.SGD(0.1)
"""
TORCH = """
import numpy as np
import torch

def custom_model() -> torch.nn.Module:
    return torch.nn.Linear(2, 5)

def input_fn(records):
    labels = np.array([int(r["y"].item()) for r in records])
    return np.stack([r["x"] for r in records]), labels

def loss(labels, predictions):
    return torch.nn.functional.cross_entropy(predictions, labels)

def optimizer(parameters):
    return torch.optim.SGD(parameters, 0.1)
"""
FILES = {"keras": KERAS, "torch": TORCH}
FRAMEWORKS = pytest.mark.parametrize("framework", FILES)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that the user works in; `zoo/` has their file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo").mkdir()
    return tmp_path


def write_labels(path, labels):
    with recordio.Writer(str(path)) as writer:
        for number, label in enumerate(labels):
            x = np.float32([number, label]) / 10
            writer.write(encode({"x": x, "y": np.int64([label])}))
    return str(path)


def write_file(folder, text, name="m"):
    (folder / "zoo" / f"{name}.py").write_text(text)


def line_of(text, part):
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


def train(folder, **options):
    return elasticdl.train(
        **{
            "model_zoo": "zoo",
            "model_def": "m",
            "output": str(folder / "out"),
            "minibatch_size": 4,
            "reporter": Silent(),
            **options,
        }
    )


class NoTraining(Silent):
    """Fails when training starts."""

    def started(self, title, total, unit, done=0):
        assert title != "Training"


def refused(kind, act, *args, **options):
    with pytest.raises(kind) as caught:
        act(*args, **options)
    assert type(caught.value) is kind
    said = str(caught.value)
    assert "function_node" not in said
    assert "{{node" not in said
    return said


@FRAMEWORKS
@pytest.mark.parametrize("global_batch_size", [0, 4])
def test_a_label_without_an_output_is_named_with_its_records(framework, folder, global_batch_size):
    write_file(folder, FILES[framework])
    data = write_labels(folder / "d.recordio", [0, 1, 2, 3, 4, 0, 7, 1])

    said = refused(
        DataError,
        train,
        folder,
        data=data,
        shuffle=False,
        **({"global_batch_size": global_batch_size} if global_batch_size else {}),
    )

    assert said.startswith(
        f"zoo/m.py:{line_of(FILES[framework], 'crossentropy(') if framework == 'keras' else 13}: "
        "the data have label 7, but the model has 5 outputs, for labels 0 to 4. Found in "
        f"{data}, record 6.\n  Correct the labels (class numbers begin at 0), or give the model at "
        "least 8 outputs (the highest label + 1)."
    )


NAMELESS = """
import keras

def custom_model():
    return keras.Sequential([keras.layers.Dense(3)])

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def optimizer():
    return keras.optimizers.SGD(0.1)
"""


def test_a_class_number_that_is_nan_is_named_with_its_record(folder):
    write_file(folder, NAMELESS)
    x, y = np.zeros((2, 2), np.float32), np.float32([0, np.nan])

    said = refused(DataError, train, folder, data=(x, y))

    assert said.endswith(
        "the labels have NaN in 1 example of 2 (data, record 1), but this loss needs class "
        "numbers. Leave out these records, or correct them."
    )


@FRAMEWORKS
def test_one_output_for_two_classes_is_answered_with_another_loss(framework, folder):
    one = FILES[framework]
    for old, new in (
        ('5, activation="softmax"', "1"),
        ("entropy(labels, predictions)", "entropy(labels, predictions, from_logits=True)"),
        ("Linear(2, 5)", "Linear(2, 1)"),
    ):
        one = one.replace(old, new)
    write_file(folder, one)
    data = write_labels(folder / "d.recordio", [0, 1, 0, 1])

    said = refused(DataError, train, folder, data=data)

    assert "the data have label 1, but the model has 1 output, for label 0. Found in " in said
    sigmoid = "BinaryCrossentropy() if the output has a sigmoid, else "
    loss = {"keras": f"{sigmoid}BinaryCrossentropy(from_logits=True)", "torch": "BCEWithLogits"}
    assert f"For two classes, 0 and 1, one output needs another loss: {loss[framework]}" in said


@FRAMEWORKS
def test_a_validation_label_without_an_output_is_named(framework, folder):
    write_file(folder, FILES[framework])
    good = write_labels(folder / "d.recordio", [0, 1, 2, 3, 4, 0, 1, 2])
    bad = write_labels(folder / "v.recordio", [0, 1, 9, 8, 4, 0])

    said = refused(DataError, train, folder, data=good, validation_data=bad, reporter=NoTraining())
    train(folder, data=good, output=str(folder / "good"))
    told = refused(
        DataError,
        elasticdl.evaluate,
        trained_model=str(folder / "good"),
        data=bad,
        minibatch_size=4,
        reporter=Silent(),
    )

    for message in (said, told):
        assert "labels 8, 9, but the model has 5 outputs, for labels 0 to 4." in message
        assert f"{bad}, records 2 to 3 (other minibatches were not checked)" in message


_LAYERS = (
    "keras.layers.Embedding(5, 3), keras.layers.Flatten(), "
    'keras.layers.Dense(10, activation="softmax")'
)
EMBEDDINGS = {
    "keras": (f"keras.Sequential([keras.Input((1,)), {_LAYERS}])", "an embedding"),
    "keras, built by its first batch": (f"keras.Sequential([{_LAYERS}])", "an embedding"),
    "torch": (
        "torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Flatten(), torch.nn.Linear(3, 10))",
        "the embedding '0'",
    ),
}


@pytest.mark.parametrize("number", [0, 6])
@pytest.mark.parametrize("kind", EMBEDDINGS)
def test_an_id_without_an_embedding_row_is_named(kind, number, folder):
    framework, (model, layer) = kind.partition(",")[0], EMBEDDINGS[kind]
    text = re.sub(r"return (keras.Seq|torch.nn.Lin).*", f"return {model}", FILES[framework])
    write_file(folder, text.replace('np.stack([r["x"] for r in records])', "labels[:, None]"))
    labels = [0, 1, 2, 3, 4, 0, 2, 1]
    good = write_labels(folder / "good.recordio", labels)
    data = write_labels(folder / "d.recordio", [*labels[:number], 7, *labels[number + 1 :]])
    train(folder, data=good, output=str(folder / "good"))

    said = refused(DataError, train, folder, data=data, shuffle=False)
    told = refused(
        DataError,
        elasticdl.predict,
        trained_model=str(folder / "good"),
        data=data,
        output=str(folder / "predicted"),
        reporter=Silent(),
    )

    for message in (said, told):
        assert f"id 7 in the features, but {layer} has 5 rows, for ids 0 to 4." in message
        assert "or give the embedding at least 8 rows (the highest id + 1)" in message
        assert f"{data}, record" in message


def test_an_error_about_a_nan_loss_mentions_labels_without_outputs(folder):
    # As on a GPU, where TensorFlow gives NaN for such a label.
    nan = """
    known = keras.ops.minimum(labels, 4)
    values = keras.losses.sparse_categorical_crossentropy(known, predictions)
    return tf.where(labels > 4, np.nan, values)"""
    write_file(folder, re.sub(r"\n    return keras.losses.*", nan, KERAS))
    data = write_labels(folder / "d.recordio", [0, 1, 2, 3, 4, 0, 7, 1])

    said = refused(NonFiniteLossError, train, folder, data=data, shuffle=False)

    assert f"{data}, records 4 to 7" in said
    assert "The batch has label 7, but the model has 5 outputs, for labels 0 to 4." in said


RESHAPES = """
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(5, activation="softmax")

    def call(self, x):
        # Only where both are known is it wrong.
        rows = tf.shape(x)[0] + tf.cast(tf.reduce_sum(x) > 2.0, tf.int32)
        x = tf.slice(x, [0, 0], tf.stack([rows, 2]))
        return self.inner(x)


def custom_model():
    return Model()
"""


def test_a_failure_in_a_compiled_step_has_the_users_line(folder):
    text = re.sub(r"def custom_model\(\):\n.*\n", RESHAPES, KERAS)
    write_file(folder, text)
    data = write_labels(folder / "d.recordio", [0, 1, 2, 3, 4, 0, 1, 1])

    said = refused(UserCodeError, train, folder, data=data, shuffle=False)

    assert said.startswith(f"zoo/m.py:{line_of(text, 'tf.slice(x')}: ")
    assert "Expected size[0] in [0, 4], but got 5" in said


RAISES = {
    "input_fn": ("    labels = np.array", '    raise ValueError("no")\n    labels = np.array'),
    "loss": ("    return keras.losses", '    raise ValueError("no")\n    return keras.losses'),
    "optimizer": ("    return keras.opt", '    raise ValueError("no")\n    return keras.opt'),
    "custom_model": ("    return keras.Seq", '    raise ValueError("no")\n    return keras.Seq'),
}
MORE = {
    "data_schema": "def data_schema():\n    raise ValueError('no')\n",
    "eval_metrics_fn": "def eval_metrics_fn():\n    raise ValueError('no')\n",
    "metric": "def odd(labels, predictions):\n    raise ValueError('no')\n\n"
    "def eval_metrics_fn():\n    return {'odd': odd}\n",
    "callbacks": "def callbacks():\n    raise ValueError('no')\n",
    "callback": "class Mine(keras.callbacks.Callback):\n    def on_epoch_begin(self, *_, **__):\n"
    "        raise ValueError('no')\n\ndef callbacks():\n    return [Mine()]\n",
    "class_weight": "def class_weight():\n    raise ValueError('no')\n",
}


@pytest.mark.parametrize("part", [*RAISES, *MORE])
def test_an_error_in_a_function_begins_with_its_line(part, folder):
    text = KERAS.replace(*RAISES[part]) if part in RAISES else KERAS + MORE[part]
    write_file(folder, text)
    data = write_labels(folder / "d.recordio", [0, 1, 2, 3])

    said = refused(UserCodeError, train, folder, data=data, validation_data=data)

    assert said.startswith(f"zoo/m.py:{line_of(text, 'raise ValueError')}: "), said


FEED = """
def parse(record):
    example = tf.io.parse_single_example(
        record,
        {"x": tf.io.FixedLenFeature([2], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)},
    )
    {wrong}
    return example["x"], example["y"]


def {name}(dataset, mode, metadata):
    return dataset.map(parse)
"""


@pytest.mark.parametrize("name", ["feed", "dataset_fn"])
def test_an_error_within_a_pipeline_begins_with_its_line(name, folder):
    feed = FEED.replace("{name}", name).replace("{wrong}", f'raise ValueError("{name}")')
    text = re.sub(r"def input_fn(.|\n)*?\n\n", feed, KERAS)
    write_file(folder, text)
    data = write_labels(folder / "d.recordio", [0, 1, 2, 3])

    said = refused(UserCodeError, train, folder, data=data)

    assert said.startswith(f"zoo/m.py:{line_of(text, 'raise ValueError')}: "), said
    assert "__autograph" not in said


def test_a_failed_pipeline_operation_is_reported_in_plain_words(folder):
    check = 'tf.debugging.assert_less(example["y"], tf.constant(6, tf.int64))'
    feed = FEED.replace("{name}", "feed").replace("{wrong}", check)
    text = re.sub(r"def input_fn(.|\n)*?\n\n", feed, KERAS)
    write_file(folder, text)
    data = write_labels(folder / "d.recordio", [0, 1, 2, 3, 0, 7, 0, 0, 0])

    said = refused(UserCodeError, train, folder, data=data, shuffle=False)

    assert said.startswith(f"zoo/m.py:{line_of(text, 'def feed')}: ")
    assert "in the function given to map(): assertion failed" in said
    # A pipeline reads ahead; the record is found by trying again with fewer.
    assert f"{data}, record 5:" in said


CLASS = """
import keras
import numpy as np


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(5, activation="softmax")

    def call(self, x):
        return self.inner(x)

    def default_input(self, records):
        labels = np.array([int(r["y"].item()) for r in records])
        {wrong}
        return np.stack([r["x"] for r in records]), labels

    def default_loss(self, labels, predictions):
        return keras.losses.sparse_categorical_crossentropy(labels, predictions)

    def default_optimizer(self):
        return keras.optimizers.SGD(0.1)
"""
SPEC = """
import keras
import numpy as np


class Spec:
    def create_model(self):
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(5)])

    def create_dataset(self, records):
        labels = np.array([int(r["y"].item()) for r in records])
        {wrong}
        return np.stack([r["x"] for r in records]), labels

    def create_loss(self, labels, outputs):
        return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)

    def create_optimizer(self):
        return keras.optimizers.SGD(0.1)

    def create_metrics(self, mode, outputs, labels):
        return {}
"""


@pytest.mark.parametrize(("file", "method"), [(CLASS, "default_input"), (SPEC, "create_dataset")])
def test_an_error_in_a_method_begins_with_its_line(file, method, folder):
    data = write_labels(folder / "d.recordio", [0, 1, 2, 3])
    raises = file.replace("{wrong}", 'raise ValueError("no")')
    unlabelled = file.replace("{wrong}", 'return np.stack([r["x"] for r in records])')

    write_file(folder, raises)
    said = refused(UserCodeError, train, folder, data=data)
    write_file(folder, unlabelled, "u")
    told = refused(elasticdl.errors.DefinitionError, train, folder, data=data, model_def="u")

    assert said.startswith(f"zoo/m.py:{line_of(raises, 'raise ValueError')}: the input function")
    # It raises nothing: the function is named.
    assert told.startswith(f"zoo/u.py:{line_of(unlabelled, f'def {method}')}: the input function")


def test_a_missing_export_is_noted_before_the_first_step(folder):
    write_file(
        folder,
        KERAS.replace(
            "def custom_model():\n    return",
            """class Classes(keras.Model):
    def __init__(self):
        super().__init__()
        self.scores = keras.layers.Dense(5, activation="softmax")

    def call(self, x):
        return self.scores(x)

def custom_model():
    return Classes()

def unused():
    return""",
        ),
    )
    data = write_labels(folder / "data.recordio", [0, 1, 2, 3])

    seen = []

    class Recorder(Silent):
        def note(self, message):
            seen.append(message)

        def advanced(self, done, facts):
            seen.append(done)

    elasticdl.train(model_zoo="zoo", model_def="m", data=data, output="out", reporter=Recorder())

    before = seen[: next(i for i, each in enumerate(seen) if isinstance(each, int))]
    (note,) = [each for each in before if "The trained model will have no model.keras" in each]
    assert "Let Classes.__init__ take **kwargs" in note
