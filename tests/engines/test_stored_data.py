"""A job on data in memory does what it does on files, and leaves no copy of the data."""

import contextlib
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.notes import Notes

import elasticdl
from elasticdl import scratch
from elasticdl.data import in_memory
from elasticdl.engines.class_numbers import check_not_numbers
from elasticdl.engines.stored_data import file_names
from elasticdl.errors import (
    DataError,
    OutputError,
    OutputTakenError,
    SchemaError,
    UsageError,
    UserCodeError,
)

MODEL = """
import numpy as np, torch

def data_schema():
    return [
        {"name": "x", "shape": [4], "dtype": "float32"},
        {"name": "y", "shape": [], "dtype": "int64"},
    ]

def input_fn(records):
    return np.stack([r["x"] for r in records]), np.array([r["y"] for r in records])

loss = torch.nn.CrossEntropyLoss()

def custom_model():
    return torch.nn.Linear(4, 3)

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""
KERAS = """
import keras, numpy as np

def input_fn(records):
    return np.stack([r["x"] for r in records]), np.array([r["y"] for r in records]).ravel()

def custom_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])

def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs)

def optimizer():
    return keras.optimizers.SGD()
"""
OWN_PREDICTIONS = """
import keras, numpy as np

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.scores = keras.layers.Dense(3)

    def call(self, inputs):
        return self.scores(inputs)

    def default_input(self, records, mode):
        return np.stack([r["x"] for r in records]), np.array([r["y"] for r in records]).ravel()

    def default_loss(self, outputs, labels):
        return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)

    def default_optimizer(self):
        return keras.optimizers.SGD()

    def default_predictions(self, outputs):
        return {"animal": np.array(["cat", "dog", "owl"])[np.argmax(outputs, axis=1)]}
"""
X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
DATA = (X, X[:, :3].argmax(axis=1))
DIFFERENT = "  data: in memory, and its content is not that of the job in the folder"
TABLE = pd.DataFrame({"x": list(X), "y": DATA[1], "u": 1})


@pytest.fixture
def train(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)

    def train(data=DATA, **more):
        return elasticdl.train(
            data=data, model_zoo=str(tmp_path), num_epochs=2,
            **{"model_def": "model", "output": str(tmp_path / "out"), **more},
        )  # fmt: skip

    return train


def test_a_training_equals_one_on_files(train, tmp_path):
    of_arrays = train(validation_data=DATA)
    (tmp_path / "out").rename(tmp_path / "arrays")
    schema = elasticdl.data.schema.Schema.from_user(
        [
            {"name": "x", "shape": [4], "dtype": "float32"},
            {"name": "y", "shape": [], "dtype": "int64"},
        ]
    )
    file = tmp_path / "rows.recordio"
    with elasticdl.data.recordio.Writer(str(file)) as writer:
        for x, y in zip(*DATA, strict=True):
            writer.write(schema.encode({"x": x, "y": y}))

    of_files = train(str(file), validation_data=[file])

    assert of_arrays.metrics == of_files.metrics
    assert not (tmp_path / "arrays" / "in_memory_data").exists()


@pytest.mark.parametrize("name", ["train.csv", "train.csv/out"])
def test_an_output_that_is_a_file_is_refused_before_data_is_stored(
    train, tmp_path, monkeypatch, name
):
    (tmp_path / "train.csv").write_text("x,y\n")
    monkeypatch.delattr(in_memory, "_copy")

    for data in (DATA, str(tmp_path / "train.csv")):
        with pytest.raises(OutputError) as caught:
            train(data, output=str(tmp_path / name))
        assert str(caught.value) == (
            f"{tmp_path / name}: found a file where a folder is needed. Use another output=."
        )


def test_a_file_in_place_of_the_folder_for_in_memory_data_is_an_output_error(train, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "in_memory_data").touch()

    with pytest.raises(OutputError, match="in_memory_data: the data cannot be stored there: File"):
        train()


def test_a_stopped_training_resumes_only_with_the_same_data(train, tmp_path):
    whole = train()
    (tmp_path / "out").rename(tmp_path / "whole")
    train(max_steps=1)

    with pytest.raises(OutputTakenError, match="data: in memory, and its content is not that of"):
        train((DATA[0] + 1, DATA[1]))
    assert not (tmp_path / "out" / "in_memory_data").exists()
    assert train().metrics == whole.metrics


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (TABLE.assign(p=1), "it has a new column 'p'"),
        (TABLE.drop(columns="u"), "it lacks the column 'u'"),
        (TABLE.astype({"u": "float32"}), "'u' is float32 instead of int64"),
        (TABLE[:30], "30 rows instead of 60"),
        (TABLE[["u", "y", "x"]], "its columns have another order"),
        (TABLE[:30].assign(p=1, q=1), "it has new columns 'p', 'q'; 30 rows instead of 60"),
        (TABLE.assign(u="a"), "'u' is text instead of int64"),
        (TABLE.assign(u=2), ""),
    ],
)  # fmt: skip
def test_a_refusal_says_how_the_data_in_memory_differ(train, tmp_path, other, what):
    train(TABLE, validation_data=TABLE[:10])
    before = sorted((tmp_path / "out").iterdir())

    with pytest.raises(OutputTakenError) as caught:
        train(other, validation_data=TABLE[:10])

    line = f"{DIFFERENT}: {what}" if what else DIFFERENT
    assert str(caught.value).splitlines()[1:-1] == [line]
    assert sorted((tmp_path / "out").iterdir()) == before
    assert train(TABLE, validation_data=TABLE[:10]).already_done


def test_a_refusal_names_no_file_of_data_in_memory(train):
    train(TABLE, validation_data=TABLE[:10])

    with pytest.raises(OutputTakenError) as caught:
        train(TABLE)
    assert str(caught.value).splitlines()[1:-1] == [
        "  validation_data: data in memory in the folder, none in this call"
    ]
    with pytest.raises(OutputTakenError) as caught:
        train(TABLE[:10])
    assert str(caught.value).splitlines()[1:-1] == [
        f"{DIFFERENT}: 10 rows instead of 60",
        "  validation_data: data in memory in the folder, none in this call",
    ]
    with pytest.raises(OutputTakenError) as caught:
        train("/a.csv", validation_data=TABLE[:10])
    assert str(caught.value).splitlines()[1:-1] == [
        "  data: data in memory in the folder, '/a.csv' in this call"
    ]


@pytest.mark.parametrize("move", [Path.rename, shutil.copytree])
def test_a_training_resumes_in_an_output_that_was_moved_or_copied(train, tmp_path, capsys, move):
    undisturbed = train(validation_data=DATA, minibatch_size=16)
    weights = elasticdl.load(undisturbed.output).state_dict()
    shutil.rmtree(tmp_path / "out")
    train(validation_data=DATA, minibatch_size=16, max_steps=2)
    move(tmp_path / "out", tmp_path / "moved")

    moved = str(tmp_path / "moved")
    resumed = train(validation_data=DATA, minibatch_size=16, output=moved)

    assert "Resuming from step 2 in" in capsys.readouterr().err
    assert resumed.metrics == undisturbed.metrics
    again = elasticdl.load(moved).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())


def test_other_data_is_refused_in_an_output_that_was_moved(train, tmp_path):
    train(TABLE, max_steps=1)
    (tmp_path / "out").rename(tmp_path / "moved")

    with pytest.raises(OutputTakenError, match="30 rows instead of 60"):
        train(TABLE[:30], output=str(tmp_path / "moved"))


def test_unused_batches_of_the_data_are_reported(train, capsys):
    def loader(batch_size):
        data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(DATA[1]))
        return torch.utils.data.DataLoader(
            [dict(zip("xy", each, strict=True)) for each in data], batch_size
        )

    train(loader(16), minibatch_size=16, max_steps=1)
    assert "is ignored" not in capsys.readouterr().err
    with pytest.raises(OutputTakenError):
        train(loader(16), minibatch_size=20)

    noted = " ".join(capsys.readouterr().err.split())
    assert "batch size (16) is ignored: its examples are re-batched into batches of 20." in noted


def test_evaluation_and_prediction_accept_in_memory_data(train, tmp_path):
    train()
    model = str(tmp_path / "out")

    evaluated = elasticdl.evaluate(trained_model=model, data=DATA)
    predicted = elasticdl.predict(
        trained_model=model, data={"x": DATA[0], "y": DATA[1]}, output=str(tmp_path / "p.recordio")
    )

    assert evaluated.metrics["loss"] > 0
    assert json.loads(Path(evaluated.output).read_text())["data"] == "data in memory"
    assert predicted.metrics["num_records"] == 60


def test_a_report_on_data_in_memory_names_no_temporary_file(train, tmp_path):
    train()

    elasticdl.evaluate(trained_model=str(tmp_path / "out"), data=DATA, report=True)

    for name in ("eval_report.csv", "report.html"):
        text = (tmp_path / "out" / "report" / name).read_text()
        assert str(scratch.folder()) not in text
        assert name.endswith(".csv") or "data in memory" in text


def test_a_mistake_in_an_option_names_no_address_of_data_in_memory(train):
    with pytest.raises(UsageError, match="validation_split=0.2 and validation_data= both define"):
        train(validation_data=DATA, validation_split=0.2)


def test_a_mistake_in_an_option_is_reported_before_data_is_stored(train, tmp_path):
    with pytest.raises(UsageError, match="num_epoch"):
        train(num_epoch=2)
    assert not (tmp_path / "out").exists()


LOADER = """
import torch

def train_dataloader(data):
    return torch.utils.data.DataLoader([(torch.zeros(4), 1)] * 8, 4)

loss = torch.nn.CrossEntropyLoss()

def custom_model():
    return torch.nn.Linear(4, 3)

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""


class Draws(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.randn(4), 1


def test_a_misspelled_model_is_reported_before_data_is_stored(train, capsys):
    with pytest.raises(UsageError, match="neither a folder nor a file 'modle'"):
        train(model_def="modle")

    assert "Storing" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, r"label, the name of the column to predict, is not given, .* It has 'x', 'y'\. Name"),
        ({"label": "Y_"}, r"no column 'Y_', the label; .*did you mean 'y'\? .*\"y\""),
        ({"label": "y", "ignore": ["w"]}, "ignore has 'w', which is not a column"),
        (
            {"label": "y", "columns": [{"kind": "number", "column": "w"}]},
            "columns has 'w', which is not a column",
        ),
    ],
)
def test_params_of_a_prebuilt_model_are_checked_before_data_is_stored(
    tmp_path, capsys, params, words
):
    with pytest.raises(UsageError, match=words):
        elasticdl.train(
            model_def="classifier.DNN",
            params=params,
            data={"x": [0.5, 1.5], "y": [0, 1]},
            output=str(tmp_path / "out"),
        )

    assert "Storing" not in capsys.readouterr().err


def test_a_prebuilt_model_is_told_the_name_of_the_series_of_labels(tmp_path):
    with pytest.raises(UsageError, match=r"Name one of them: params=\{\"label\": \"kind\"\}$"):
        elasticdl.train(
            model_def="classifier.DNN",
            data=(pd.DataFrame({"a": [0.5, 1.5]}), pd.Series([0, 1], name="kind")),
            output=str(tmp_path / "out"),
        )


def test_data_in_memory_is_refused_by_a_model_with_its_own_loader(train, tmp_path, capsys):
    (tmp_path / "own.py").write_text(LOADER)
    for data in (DATA, Draws()):
        with pytest.raises(UsageError, match='with its own code.*data="built-in"'):
            train(data, model_def="own")
    train("nothing", model_def="own")

    model = str(tmp_path / "out")
    for data in (DATA, Draws()):
        with pytest.raises(UsageError, match="this model reads its data with its own code"):
            elasticdl.predict(trained_model=model, data=data, output=str(tmp_path / "p.csv"))
        with pytest.raises(UsageError, match=r"it with a predict_dataloader\(data\) or an"):
            elasticdl.load(model).predict(data)
    assert "Storing" not in capsys.readouterr().err


def test_remote_workers_cannot_read_a_temporary_file():
    with pytest.raises(UsageError, match="cannot read the temporary file"):
        elasticdl.evaluate(trained_model="m", data=DATA, num_workers=1, ray_address="10.0.0.1:6379")


@pytest.mark.parametrize(
    ("data", "name"),
    [("a", "a"), (["a", "b"], "a,b"), ([], None), ((X, X), None), (["a", 1], None), ({}, None)],
)
def test_file_names_are_not_in_memory_data(data, name):
    assert file_names(data) == name


def test_a_refused_call_keeps_the_stored_data_of_the_job(train, tmp_path):
    folder = tmp_path / "out" / "in_memory_data"
    train(max_steps=1)
    folder.mkdir()
    x, y = DATA
    uri, *_ = in_memory.store(in_memory.arrow_rows(DATA), str(folder), tmp_path, lambda _: None)

    with pytest.raises(OutputTakenError):
        train((x + 1, y), validation_data=DATA)
    assert [str(file) for file in folder.iterdir()] == [uri]


def test_unsuitable_data_leave_no_copy(train, tmp_path):
    with pytest.raises(SchemaError, match="field 'x' is missing"):
        train(pd.DataFrame({"z": [1.0], "y": [0]}))
    assert not (tmp_path / "out").exists()


def test_an_error_names_the_argument(train, tmp_path):
    with pytest.raises(DataError, match="^validation_data: The data has no rows"):
        train(validation_data=(X[:0], DATA[1][:0]))
    with pytest.raises(UsageError, match="^data is a tuple of three; if it is .*weights"):
        train((X, DATA[1], X[:, 0]))
    with pytest.raises(DataError, match="^data is an empty dict"):
        train({})
    with pytest.raises(UsageError, match="^data is an empty list; expected"):
        train([])
    assert not (tmp_path / "out" / "in_memory_data").exists()


def test_repeated_examples_are_not_held_out(train, tmp_path):
    import tensorflow as tf

    examples = tf.data.Dataset.from_tensor_slices(DATA)

    with pytest.raises(UsageError, match="data has each example 6 times.*set num_epochs=6"):
        train(examples.repeat(2).batch(8).repeat(3), validation_split=0.5)
    assert not (tmp_path / "out").exists()
    assert train(examples.repeat(1), validation_split=0.5).metrics["val_loss"] > 0
    (tmp_path / "out").rename(tmp_path / "once")
    assert train(examples.repeat(2)).metrics["loss"] > 0


def joined_data_sets():
    import datasets
    import tensorflow as tf

    items = [dict(zip("xy", each, strict=True)) for each in zip(*DATA, strict=True)]
    examples = tf.data.Dataset.from_tensor_slices(DATA)
    same = examples.map(lambda x, y: (x, y)).concatenate(examples.cache())
    rows = datasets.Dataset.from_dict({"x": X.tolist(), "y": DATA[1].tolist()})
    left, right = rows.select(range(30)), rows.select(range(30, 60))
    torch_items = torch.utils.data.ConcatDataset([items, items])
    other_items = torch.utils.data.ConcatDataset([items[:30], items[30:]])
    return {
        "concatenate": (same.batch(8), examples.take(30).concatenate(examples.skip(30))),
        "ConcatDataset": (torch.utils.data.DataLoader(torch_items, 8), other_items),
        "concatenate_datasets": (
            datasets.concatenate_datasets([rows, rows]),
            datasets.concatenate_datasets([left, right]),
        ),
        "select": (rows.select([*range(60), 0]), rows.select([*range(1, 60), 0])),
    }


@pytest.mark.parametrize(
    "function", ["concatenate", "ConcatDataset", "concatenate_datasets", "select"]
)
def test_a_data_set_with_the_same_examples_twice_is_not_held_out(train, tmp_path, function):
    same, different = joined_data_sets()[function]

    with pytest.raises(UsageError, match=f"the same examples twice, by {function}"):
        train(same, validation_split=0.5)
    assert not (tmp_path / "out").exists()
    assert train(different, validation_split=0.5).metrics["val_loss"] > 0
    assert train(same, output=str(tmp_path / "all")).metrics["loss"] > 0


def labelled(*names):
    import datasets

    features = {
        "x": datasets.List(datasets.Value("float32")),
        "y": datasets.ClassLabel(names=names),
    }
    return datasets.Dataset.from_dict(
        {"x": X.tolist(), "y": DATA[1].tolist()}, datasets.Features(features)
    )


def test_a_share_as_validation_data_is_refused_before_data_is_stored(train, tmp_path, monkeypatch):
    monkeypatch.setattr(in_memory, "store", None)

    with pytest.raises(UsageError, match=r"^validation_data is 0\.2 .*: validation_split=0\.2\.$"):
        train(validation_data=0.2)

    assert not (tmp_path / "out").exists()


def test_an_error_about_a_type_has_the_name_of_the_option(train):
    with pytest.raises(UsageError, match="^validation_data is a pandas.Series, which is one"):
        train(validation_data=pd.Series([1.0]))


def test_a_column_that_the_format_of_a_data_set_hides_is_named(train):
    data = labelled("cat", "dog", "owl").with_format("numpy", columns=["x"])

    with pytest.raises(SchemaError, match=r"hides its column 'y'\. Pass data=DATASET\.reset_form"):
        train(data)


def test_no_label_in_a_class_label_is_no_class_of_a_table_model(tmp_path):
    data = labelled_table([0, 1, 2, -1] * 5, names=("cat", "dog", "owl"))

    with pytest.raises(DataError, match="'y', the label, has no value in 5 rows of 20: it has -1 "):
        train_table(data, tmp_path)

    with pytest.raises(DataError, match="'y', the label, has no value in 5 rows of 20: it has -1 "):
        train_table(data, tmp_path, num_classes=3)

    data = data.filter(lambda row: 0 <= row["y"] <= 2)  # as the error advises
    assert train_table(data, tmp_path).step == 1


def test_names_of_a_class_label_that_predictions_lack_are_noted(tmp_path):
    numbered, named = Notes(), Notes()
    data = labelled_table([0, 1, 2], names=("cat", "dog", "owl"))

    train_table(data, tmp_path / "numbered", reporter=numbered)
    words = data.features["y"].int2str(data["y"])
    data = data.remove_columns("y").add_column("y", words)
    train_table(data, tmp_path / "named", reporter=named)

    (note,) = [text for text in numbered.texts if "not their names ('cat', 'dog', 'owl')" in text]
    assert "data = data.remove_columns('y').add_column('y', words)" in note
    assert not [text for text in named.texts if "names" in text]
    assert elasticdl.load(str(tmp_path / "named" / "out")).classes == ("cat", "dog", "owl")


def labelled_table(numbers, names):
    import datasets

    features = {"x": datasets.Value("float32"), "y": datasets.ClassLabel(names=names)}
    columns = {"x": np.arange(len(numbers), dtype=np.float32), "y": numbers}
    return datasets.Dataset.from_dict(columns, datasets.Features(features))


def train_table(data, folder, reporter=None, **params):
    return elasticdl.train(
        data=data, model_def="classifier.DNN", params={"label": "y", "hidden_units": [2], **params},
        output=str(folder / "out"), reporter=reporter,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "listed", "note"),
    [
        (("cat", "dog", "owl"), "", True),
        (("cat", "dog", "owl"), 'classes = ["Katze", "Hund", "Eule"]\n', False),
        (("cat", "dog", "owl", "elk"), "", False),
        (("0", "1", "2"), "", False),
    ],
)
def test_names_of_a_class_label_that_the_model_file_lacks_are_noted(
    train, tmp_path, names, listed, note
):
    (tmp_path / "noted.py").write_text(MODEL + listed)
    notes = Notes()

    train(labelled(*names), model_def="noted", reporter=notes)

    found = [text for text in notes.texts if "predictions will have class numbers" in text]
    assert len(found) == note
    assert all("noted.py" in text for text in found)
    assert all(text.endswith("add classes = ['cat', 'dog', 'owl']") for text in found)


def test_names_of_a_class_label_are_not_noted_if_the_model_writes_its_own(train, tmp_path):
    (tmp_path / "own.py").write_text(OWN_PREDICTIONS)
    notes = Notes()

    train(labelled("cat", "dog", "owl"), model_def="own.Net", reporter=notes)

    assert not [text for text in notes.texts if "predictions will have class numbers" in text]


@pytest.mark.parametrize("framework", ["keras", "torch"])
def test_no_label_in_a_class_label_is_explained_for_a_model_file(train, tmp_path, framework):
    (tmp_path / "keras_file.py").write_text(KERAS)
    data = labelled("cat", "dog", "owl").map(lambda row: {"y": row["y"] or -1})

    with pytest.raises(
        DataError,
        match=r"label -1, but .* 3 outputs, .*\n  If the label is a ClassLabel .* \"no label\": "
        r"leave these rows out, with data = data\.filter\(lambda row: row\[LABEL\] >= 0\), where "
        r"LABEL .* Otherwise, number the classes from 0\.$",
    ):
        train(data, model_def="keras_file" if framework == "keras" else "model")


def test_words_as_classes_of_a_table_model_are_refused_for_class_numbers(tmp_path):
    data = labelled_table([0, 1, 2], names=("cat", "dog", "owl"))

    with pytest.raises(
        UsageError, match=r"classes has 'cat', but .* 'y'.* numbers .*, 0 to 2\. Le"
    ):
        train_table(data, tmp_path, classes=["cat", "dog", "owl"])
    # The names of -1 would be the last one.
    with pytest.raises(DataError, match="'y', the label, has no value in 1 row of 4: it has -1 "):
        train_table(
            labelled_table([0, 1, 2, -1], names=("cat", "dog", "owl")),
            tmp_path, classes=["cat", "dog", "owl"],
        )  # fmt: skip

    numbers = labelled_table([0, 1, 2, -1], names=("cat", "dog", "owl"))
    assert train_table(numbers, tmp_path, classes=["-1", "0", "1", "2"]).step == 1


@pytest.mark.parametrize("classes", [("cat", "dog", "owl"), ("owl", "dog", "cat")])
def test_words_as_classes_beside_all_params_are_refused_for_class_numbers(tmp_path, classes):
    data = labelled_table([0, 1, 2], names=("cat", "dog", "owl"))
    columns = [{"kind": "number", "column": "x"}]

    with pytest.raises(DataError, match=r"In the data, the column 'y' holds class .*int2str\("):
        train_table(data, tmp_path, classes=list(classes), columns=columns)


@pytest.mark.parametrize("names", [("cat", "dog", "owl"), ("owl", "dog", "cat")])
def test_class_numbers_in_the_validation_data_of_a_table_model_trained_on_names_are_refused(
    tmp_path, names
):
    validation_data = labelled_table([0, 1, 2] * 4, names=names)
    words = validation_data.features["y"].int2str(validation_data["y"])
    data = validation_data.remove_columns("y").add_column("y", words)

    with pytest.raises(
        DataError, match=r"In the validation data, the column 'y' holds class .*int2str\("
    ):
        elasticdl.train(
            model_def="classifier.DNN", params={"label": "y"}, data=data,
            validation_data=validation_data, output=str(tmp_path / "out"),
        )  # fmt: skip


def test_class_numbers_are_refused_in_an_evaluation_of_a_table_model_trained_on_names(tmp_path):
    data = labelled_table([0, 1, 2] * 4, names=("cat", "dog", "owl"))
    # As the error advises.
    words = data.features["y"].int2str(data["y"])
    train_table(data.remove_columns("y").add_column("y", words), tmp_path)
    trained = {"trained_model": str(tmp_path / "out")}

    with pytest.raises(
        DataError,
        match=r"'y' holds class numbers .* 'cat', 'dog', 'owl'\. Replace .* words = data\.",
    ):
        elasticdl.evaluate(data=data, **trained)
    reordered = labelled_table([0, 1, 2] * 4, names=("owl", "dog", "cat"))
    elasticdl.predict(data=reordered, output=str(tmp_path / "p.csv"), **trained)


@pytest.mark.parametrize(
    ("classes", "names", "is_refused"),
    [
        ("012", "012", False),
        ("01", "012", False),
        ("012", "123", False),
        ("0123", "123", True),
        ("012", "210", True),
        ("123", "123", True),
        (("cat", "dog"), ("cat", "dog"), True),
        (("cat", "dog"), ("Katze", "Hund"), False),
    ],
)
def test_class_numbers_that_are_the_classes_as_text_are_not_refused(classes, names, is_refused):
    error = pytest.raises(DataError) if is_refused else contextlib.nullcontext()

    with error:
        check_not_numbers(list(classes), {"y": list(names)}, "y")


def test_classes_of_other_numbers_in_the_validation_data_are_refused(train, tmp_path):
    data, validation_data = labelled("cat", "dog", "owl"), labelled("cat", "owl", "dog")
    with pytest.raises(UsageError, match="class 1 of the column 'y' is 'owl', but 'dog' in data"):
        train(data, validation_data=validation_data)
    assert not (tmp_path / "out").exists()
    # As the error advises.
    names = data.features["y"].names
    aligned = validation_data.align_labels_with_mapping({n: i for i, n in enumerate(names)}, "y")
    assert train(data, validation_data=aligned).metrics["val_loss"] > 0


def test_classes_of_the_model_file_in_another_order_than_those_of_the_data_are_refused(
    train, tmp_path
):
    (tmp_path / "named.py").write_text(MODEL + 'classes = ["cat", "owl", "dog"]\n')
    data = labelled("cat", "dog", "owl")

    with pytest.raises(
        DataError,
        match="In the data, class 1 of the column 'y' is 'dog', but 'owl' in `classes` of .*"
        r"named.py.*as in the data: classes = \['cat', 'dog', 'owl'\]",
    ):
        train(data, model_def="named")
    assert not (tmp_path / "out").exists()
    # As the error advises.
    aligned = data.align_labels_with_mapping({"cat": 0, "owl": 1, "dog": 2}, "y")
    train(aligned, model_def="named", validation_split=0.2)
    (tmp_path / "out").rename(tmp_path / "aligned")
    (tmp_path / "named.py").write_text(MODEL + 'classes = ["cat", "dog", "owl", "elk"]\n')
    assert train(data, model_def="named").metrics["loss"] > 0


@pytest.mark.parametrize(
    ("classes", "error"),
    [
        (["dog", "cat", "owl"], "class 0 of the column 'y' is 'cat', but 'dog' in `classes`"),
        (
            ["cat", "dog", "oql"],
            r"classes` of .*named\.py:\d+ lacks 'owl'; it has 'oql', .* mean 'owl'\?",
        ),
        (
            ["cat", "owl", "dog", "elk"],
            r"class 1 of .* 'dog', but 'owl' .*: classes = \['cat', 'dog', 'owl', 'elk'\]",
        ),
        (["cat", "dog"], "the column 'y' has 3 classes, and `classes` of .* lacks 'owl'"),
    ],
)
def test_the_first_class_and_the_number_of_classes_are_compared(train, tmp_path, classes, error):
    (tmp_path / "named.py").write_text(MODEL + f"classes = {classes}\n")

    with pytest.raises(DataError, match=error):
        train(labelled("cat", "dog", "owl"), model_def="named")


def test_a_column_that_shares_a_name_with_the_classes_may_not_be_the_label(train, tmp_path):
    (tmp_path / "named.py").write_text(MODEL + 'classes = ["other", "cat", "bird"]\n')

    assert train(labelled("other", "x", "tree"), model_def="named").metrics["loss"] > 0


def test_classes_of_the_model_file_may_translate_those_of_the_data(train, tmp_path):
    (tmp_path / "named.py").write_text(MODEL + 'classes = ["Katze", "Hund", "Eule"]\n')

    assert train(labelled("cat", "dog", "owl"), model_def="named").metrics["loss"] > 0


def test_classes_of_other_numbers_than_in_the_training_are_refused_afterwards(train, tmp_path):
    train(labelled("cat", "dog", "owl"))
    model, other = str(tmp_path / "out"), labelled("cat", "owl", "dog")
    other.to_parquet(str(tmp_path / "other.parquet"))
    differs = "In the data, class 1 of the column 'y' is 'owl', but 'dog' in the training data"

    for data in (other, str(tmp_path / "other.parquet")):
        with pytest.raises(DataError, match=differs):
            elasticdl.evaluate(trained_model=model, data=data)
        with pytest.raises(DataError, match=differs):
            elasticdl.predict(trained_model=model, data=data, output=str(tmp_path / "p.csv"))
    with pytest.raises(DataError, match=differs):
        elasticdl.load(model).predict(other)
    aligned = other.align_labels_with_mapping({"cat": 0, "dog": 1, "owl": 2}, "y")
    assert elasticdl.evaluate(trained_model=model, data=aligned).metrics["loss"] > 0


def test_classes_of_parquet_files_are_compared_like_those_of_data_in_memory(train, tmp_path):
    files = str(tmp_path / "train.parquet"), str(tmp_path / "validation.parquet")
    labelled("cat", "dog", "owl").to_parquet(files[0])
    labelled("cat", "owl", "dog").to_parquet(files[1])

    with pytest.raises(
        DataError, match="In the validation data, class 1 of the column 'y' is 'owl'"
    ):
        train(files[0], validation_data=files[1])


@pytest.mark.parametrize(
    "data", [["A good film.", "Bad. Really bad"], (["one two three", "four"], ["pos", "neg"])]
)
def test_texts_in_place_of_file_names_are_to_be_named(train, data):
    with pytest.raises(UsageError, match='no file .* To pass texts, .*: data={"text": texts}'):
        train(data)


def test_texts_with_labels_are_in_memory() -> None:
    assert file_names((["A really good film."], np.array([1]))) is None


def test_a_list_of_names_with_spaces_is_of_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a long name").touch()
    names = ["a long name", "my new data.csv"]

    assert file_names(names) == ",".join(names)


def test_unnamed_fields_that_the_input_function_names_are_explained(train, tmp_path):
    code = MODEL[MODEL.index("def input_fn") :].replace('["x"]', '["text"]')
    (tmp_path / "named.py").write_text("import numpy as np, torch\n" + code)

    with pytest.raises(
        UserCodeError,
        match=r"The records have 'x', 'y'\. .*; to name them: data={.text.: \.\.\., .y.: \.",
    ):
        train((np.array(["a good film", "bad"]), np.array([1, 0])), model_def="named")


@pytest.mark.parametrize("field", ["data", "validation_data"])
def test_a_dict_of_data_sets_is_refused_with_how_to_choose_one(train, field):
    import datasets

    data = datasets.Dataset.from_dict({"x": X.tolist(), "y": DATA[1].tolist()})
    given = {"data": data, "validation_data": data, field: datasets.DatasetDict(train=data)}

    with pytest.raises(UsageError, match=r'DatasetDict, .* such as data\["train"\]'):
        train(given.pop("data"), **given)


@pytest.mark.parametrize("images", [X.reshape(60, 2, 2), X.reshape(60, 2, 2, 1)])
def test_a_model_without_an_input_function_trains_on_pairs(tmp_path, capsys, images):
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "def custom_model():\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))\n"
        "loss = torch.nn.CrossEntropyLoss()\n"
        "def optimizer(parameters):\n    return torch.optim.Adam(parameters, 0.1)\n"
    )
    model = str(tmp_path / "out")
    file = tmp_path / "p.csv"

    elasticdl.train(
        data=(images, DATA[1]), model_zoo=str(tmp_path), model_def="model", output=model,
        num_epochs=20,
    )  # fmt: skip
    elasticdl.predict(trained_model=model, data={"x": images}, output=str(file))

    assert "model.py has no input_fn(records): the field called y," in capsys.readouterr().err
    right = pd.read_csv(file)["prediction"] == DATA[1]
    assert right.mean() > 0.8
    outputs = elasticdl.load(model).predict({"x": images})
    assert (outputs.argmax(axis=1) == pd.read_csv(file)["prediction"]).all()


def test_no_data_is_refused():
    with pytest.raises(UsageError, match="data is None"):
        elasticdl.predict(trained_model="m", data=None, output="p.csv")
