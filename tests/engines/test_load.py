"""`elasticdl.load` returns the model of the framework, with the weights that were trained."""

import copy
import datetime as dt
import re
import traceback

import numpy as np
import pandas as pd
import pytest

import elasticdl
from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.engines.loaded_model import ArrayEvaluator
from elasticdl.errors import DataError, ElasticDLError, UsageError

INPUT = """
import copy

import numpy as np

def data_schema():
    return [
        {"name": "x", "shape": [4], "dtype": "float32"},
        {"name": "kind", "shape": [], "dtype": "string"},
        {"name": "y", "shape": [], "dtype": "float32"},
    ]

KINDS = [b"a", b"b"]

def input_fn(records):
    kinds = [[KIND] for r in records]
    x = np.concatenate([np.stack([r["x"] for r in records]), np.float32(kinds)], axis=1)
    return x, np.stack([r["y"] for r in records])[:, None]
"""
KERAS = """
import keras

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([keras.layers.Dense(3), keras.layers.Dropout(0.9)])
        self.outer = keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.outer(self.inner(x, training=training))

def custom_model():
    return Net()

def loss(labels, predictions):
    return keras.losses.mean_squared_error(labels, predictions)

def optimizer():
    return keras.optimizers.SGD(0.01)
"""
TORCH = """
import torch

def custom_model():
    return torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Dropout(0.9), torch.nn.Linear(3, 1))

loss = torch.nn.MSELoss()

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01)
"""
X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
FRAME = pd.DataFrame({"x": list(X), "kind": ["a", "b"] * 20, "y": X.sum(axis=1)})


def trained(tmp_path, code, kind="0"):
    (tmp_path / "model.py").write_text(INPUT.replace("KIND]", f"{kind}]") + code)
    outcome = elasticdl.train(
        data=FRAME, model_zoo=str(tmp_path), model_def="model", output=str(tmp_path / "out")
    )
    return outcome.output


def predicted(folder, tmp_path):
    output = str(tmp_path / "predicted.parquet")
    elasticdl.predict(trained_model=folder, data=FRAME, output=output)
    return pd.read_parquet(output)["output"].to_numpy()


def called(model, x):
    if not hasattr(model, "state_dict"):
        return np.asarray(model(x))[:, 0]
    import torch

    return model(torch.from_numpy(x)).detach().numpy()[:, 0]


@pytest.mark.parametrize("code", [KERAS, TORCH], ids=["keras", "torch"])
def test_a_loaded_model_matches_predict(tmp_path, code):
    folder = trained(tmp_path, code)

    model = elasticdl.load(folder)

    x = np.concatenate([X, np.zeros((40, 1), np.float32)], axis=1)
    found = np.concatenate([np.ravel(each) for each in predicted(folder, tmp_path)])
    np.testing.assert_allclose(called(model, x), found, rtol=1e-5, atol=1e-6)
    assert model.classes is None


def test_code_that_rejects_zeros_needs_records(tmp_path):
    folder = trained(tmp_path, TORCH, kind='KINDS.index(r["kind"].item())')
    FRAME.to_parquet(tmp_path / "rows.parquet")

    with pytest.raises(
        UsageError, match=r"does not accept zeros in place of a record.*\n"
    ) as caught:
        elasticdl.load(folder)
    assert str(caught.value).endswith("data=...).")
    for data in (str(tmp_path / "rows.parquet"), FRAME):
        model = elasticdl.load(folder, data=data)
        assert called(model, np.zeros((2, 5), np.float32)).shape == (2,)


def test_a_file_that_the_code_cannot_open_is_not_blamed_on_zeros(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("a\nb\n")
    folder = trained(
        tmp_path, KERAS.replace("return Net()", 'open("words.txt").close(); return Net()')
    )
    (tmp_path / "words.txt").unlink()

    with pytest.raises(ElasticDLError, match=r"words\.txt") as caught:
        elasticdl.load(folder)

    assert "zeros" not in str(caught.value)


def test_the_training_data_is_suggested_to_load_code_that_rejects_zeros(tmp_path):
    FRAME.to_parquet(tmp_path / "rows.parquet")
    code = INPUT.replace("KIND]", 'KINDS.index(r["kind"].item())]') + TORCH
    (tmp_path / "model.py").write_text(code)
    data, output = str(tmp_path / "rows.parquet"), str(tmp_path / "out")
    elasticdl.train(data=data, model_zoo=str(tmp_path), model_def="model", output=output)

    with pytest.raises(UsageError) as caught:
        elasticdl.load(output)

    assert str(caught.value).endswith(f"elasticdl.load({output!r}, data={data!r}).")


def test_code_with_restricted_labels_can_predict_without_labels(tmp_path):
    code = TORCH.replace("MSELoss", "CrossEntropyLoss").replace("Linear(3, 1)", "Linear(3, 2)")
    (tmp_path / "model.py").write_text(
        f"""
import numpy as np

KINDS = ["a", "b"]

def data_schema():
    return [
        {{"name": "x", "shape": [4], "dtype": "float32"}},
        {{"name": "kind", "shape": [], "dtype": "string"}},
    ]

def input_fn(records):
    kinds = [KINDS.index(r["kind"].item().decode()) for r in records if "kind" in r]
    return np.stack([r["x"] for r in records]), np.int64(kinds)
{code}"""
    )
    output = str(tmp_path / "out")
    elasticdl.train(data=FRAME, model_zoo=str(tmp_path), model_def="model", output=output)

    model = elasticdl.load(output)

    np.testing.assert_array_equal(
        model.predict(FRAME[["x"]]), model.predict(FRAME), err_msg="The label changed the outputs"
    )


# --- predict and classes -----------------------------------------------------------------------

TABLE = pd.DataFrame(
    {
        "z": X[:, 0],
        "b": X[:, 1],
        "word": ["x", "y"] * 20,
        "kind": np.where(X[:, 0] > 0, "yes", "no"),
    }
)


@pytest.fixture(scope="module")
def table_model(tmp_path_factory):
    """A loaded model of a table, and where it was loaded from."""
    output = str(tmp_path_factory.mktemp("table") / "out")
    params = 'label="kind", classes=["no", "yes"]'
    elasticdl.train(data=TABLE, model_def="classifier.DNN", params=params, output=output)
    return elasticdl.load(output), output


def test_a_wrong_type_error_mentions_only_what_the_user_has(
    table_model,
):
    model, output = table_model
    wrong = TABLE.assign(word=range(len(TABLE)))
    expected = "data, record 0: field 'word' is stored as integers; the model needs string."

    for use in (
        lambda: model.predict(wrong),
        lambda: elasticdl.evaluate(trained_model=output, data=wrong),
    ):
        with pytest.raises(DataError) as caught:
            use()
        assert str(caught.value) == (
            f"{expected} Convert the column, as with astype() in pandas. If it was text such as "
            '00700, read it as text from the start (pandas: dtype={"word": str}), because the '
            "numbers have lost their leading zeros."
        )


def test_dates_in_place_of_text_are_reported_with_a_conversion(table_model):
    model, _ = table_model
    times = pd.date_range("2024-02-01", periods=len(TABLE))

    for values in (times, times.date):
        with pytest.raises(DataError) as caught:
            model.predict(TABLE.assign(word=values))
        assert re.fullmatch(
            r"data, record 0: column 'word' holds (dates|timestamps), such as "
            r"'2024-02-01( 00:00:00)?'; the model needs text\. Convert the column to text as in "
            r"the training data, in pandas with pd\.to_datetime\(df\['word'\]\)\.dt\.strftime"
            r"\('%Y-%m-%d'\) or the like\.",
            str(caught.value),
        )


@pytest.mark.parametrize(
    ("value", "words", "advice"),
    [
        (
            dt.time(10, 30),
            "times of day, such as '10:30:00'",
            r", in pandas with df.*astype\(str\)",
        ),
        (dt.timedelta(2), "durations, such as '2 days, 0:00:00'", r", .* with df.*astype\(str\)"),
        ([dt.date(2024, 2, 1)], "lists of dates, such as ", ""),
    ],
)
def test_other_times_in_place_of_text_have_a_conversion_of_their_own(
    table_model, value, words, advice
):
    model, _ = table_model
    data = TABLE.assign(word=pd.Series([None] * 2 + [value] * (len(TABLE) - 2), dtype=object))

    with pytest.raises(
        DataError,
        match=rf"^data, record 2: column 'word' holds {words}.*; the model needs text\. Convert "
        rf"the column to text as in the training data{advice}\.$",
    ):
        model.predict(data)


def test_text_in_place_of_numbers_is_reported_with_a_conversion(table_model):
    model, output = table_model
    wrong = TABLE.assign(b=[f"{row}.00000" for row in range(len(TABLE))])

    for use in (
        lambda: model.predict(wrong),
        lambda: elasticdl.evaluate(trained_model=output, data=wrong),
    ):
        with pytest.raises(
            DataError,
            match=r"^data, record 0: column 'b' holds text, such as '0\.00000'; the model "
            r"needs numbers\. Convert the column, as with pandas\.to_numeric\(\)\.$",
        ):
            use()


def test_a_traceback_of_a_loaded_models_predict_ends_at_the_callers_line(table_model, monkeypatch):
    model, _ = table_model

    def frames_of_elasticdl():
        with pytest.raises(DataError) as caught:
            model.predict(TABLE.drop(columns="b"))
        files = [frame.filename for frame in traceback.extract_tb(caught.tb)]
        return [file.rpartition("/")[2] for file in files if "src/elasticdl" in file]

    assert frames_of_elasticdl() == ["errors.py"]
    monkeypatch.setenv("ELASTICDL_DEBUG", "1")
    assert len(frames_of_elasticdl()) > 2


def test_the_error_on_a_misspelled_column_suggests_renaming_it(table_model):
    model, output = table_model
    misspelled = TABLE.rename(columns={"word": "wort"})

    for use in (
        lambda: model.predict(misspelled),
        lambda: elasticdl.evaluate(trained_model=output, data=misspelled),
    ):
        with pytest.raises(
            DataError,
            match=r"the records have no 'word', which the model needs for its inputs\. .*"
            r"\. Rename 'wort' to 'word' in the data\.$",
        ):
            use()


@pytest.mark.parametrize("code", [KERAS, TORCH], ids=["keras", "torch"])
def test_a_loaded_model_predicts_the_rows_of_a_frame(tmp_path, code):
    folder = trained(tmp_path, code)

    outputs = elasticdl.load(folder).predict(FRAME)

    found = np.concatenate([np.ravel(each) for each in predicted(folder, tmp_path)])
    np.testing.assert_array_equal(outputs[:, 0], found)
    FRAME.to_parquet(tmp_path / "rows.parquet", index=False)
    of_file = elasticdl.load(folder).predict(str(tmp_path / "rows.parquet"))
    np.testing.assert_array_equal(of_file, outputs)


def test_a_table_model_loads_without_data_and_has_its_classes(table_model, tmp_path):
    model, output = table_model
    file = str(tmp_path / "p.parquet")
    elasticdl.predict(trained_model=output, data=TABLE, output=file)

    outputs = model.predict(TABLE[["word", "b", "z"]])

    assert model.classes == ("no", "yes")
    words = [model.classes[i] for i in outputs.argmax(axis=1)]
    assert words == pd.read_parquet(file)["prediction"].tolist()


@pytest.mark.parametrize("labels", [[3, 7], [False, True]])
def test_classes_of_a_table_model_are_values_of_the_label(tmp_path, labels):
    frame = TABLE.assign(kind=[labels[i % 2] for i in range(len(TABLE))])
    output = str(tmp_path / "out")
    elasticdl.train(
        model_def="classifier.DNN", data=frame, params={"label": "kind"}, output=output,
        num_epochs=1, quiet=True,
    )  # fmt: skip

    model = elasticdl.load(output)

    assert model.classes == tuple(labels)
    assert [*map(type, model.classes)] == [*map(type, labels)]


def test_a_table_model_predicts_columns_and_refuses_an_array(table_model):
    model, _ = table_model
    features = TABLE[["word", "b", "z"]]

    outputs = model.predict({name: features[name].to_numpy() for name in features})

    np.testing.assert_array_equal(outputs, model.predict(features, verbose=0, batch_size=2))
    np.testing.assert_array_equal(outputs, model.predict(features.to_dict("records")))
    with pytest.raises(UsageError, match="no argument after the table; got 7, 'steps'"):
        model.predict(features, 7, steps=3)
    with pytest.raises(UsageError, match=r"array of shape \(.*, 3\).*Give a DataFrame"):
        model.predict(np.ones((4, 3), np.float32))


NAMED_FIELDS = """
import numpy as np

def data_schema():
    return [{"name": name, "shape": [], "dtype": "float32"} for name in "aby"]

def input_fn(records):
    x = np.float32([[r["a"].item(), r["b"].item()] for r in records])
    return x, np.float32([[r["y"].item()] for r in records])
"""


@pytest.mark.parametrize("code", [NAMED_FIELDS, NAMED_FIELDS.replace("data_schema", "unused")])
def test_an_array_for_a_torch_model_that_reads_names_is_refused(tmp_path, code):
    (tmp_path / "model.py").write_text(code + TORCH)
    frame = pd.DataFrame(X[:, :3], columns=list("aby"))
    folder = str(tmp_path / "out")
    elasticdl.train(data=frame, model_zoo=str(tmp_path), model_def="model", output=folder)
    model = elasticdl.load(folder, data=frame)

    with pytest.raises(UsageError, match=r"array of shape \(40, 2\).*Give a DataFrame"):
        model.predict(X[:, :2])


ALL_FIELDS = """
import keras
import numpy as np

def custom_model():
    return keras.Sequential([keras.layers.Dense(1)])

def input_fn(records):
    fields = sorted(set(records[0]) - {"y"})
    y = [r.get("y", [0]) for r in records]
    return np.stack([np.concatenate([r[f] for f in fields]) for r in records]), np.stack(y)

loss = "mse"

def optimizer():
    return keras.optimizers.SGD(0.01)
"""
FIELDS = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": X[:, 2]})


def test_a_keras_model_of_text_takes_arrays_of_text(tmp_path):
    (tmp_path / "model.py").write_text(
        """
import keras, numpy as np

def input_fn(records):
    return np.array([r["t"].item() for r in records]), np.array([r["y"] for r in records])

def custom_model():
    words = keras.layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=2)
    text = keras.Input((), dtype="string")
    x = keras.layers.Embedding(4, 2)(words(text))
    return keras.Model(text, keras.layers.Dense(1)(keras.layers.Flatten()(x)))

def loss(labels, outputs):
    return keras.losses.mean_squared_error(labels, outputs)

def optimizer():
    return keras.optimizers.SGD(0.01)
"""
    )
    data = pd.DataFrame({"t": ["a", "b a", "b"], "y": [0.0, 1.0, 0.0]})
    output = str(tmp_path / "out")
    elasticdl.train(data=data, model_zoo=str(tmp_path), model_def="model", output=output)
    model = elasticdl.load(output)

    text = np.array(data["t"].to_list())

    for array in (text, text.astype("S")):
        np.testing.assert_allclose(model.predict(array), model.predict(data), rtol=1e-5)


def test_only_lists_with_arrays_are_rebuilt_for_keras():
    evaluate = ArrayEvaluator(None, lambda x: x)
    words, plain = np.array(["a", "b"]), [["a"], (1.0, 2.0)]

    assert evaluate(plain) is plain
    assert evaluate([words])[0].dtype == object
    assert evaluate(({"a": [words]},))[0]["a"][0].dtype == object


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns="b"), "they have no 'b'. Use"),
        (lambda frame: frame.assign(extra=np.float32(1)), "they also have 'extra'. Use"),
    ],
)
def test_different_columns_are_named_without_a_schema(tmp_path, change, message):
    (tmp_path / "model.py").write_text(ALL_FIELDS)
    output = str(tmp_path / "out")
    elasticdl.train(data=FIELDS, model_zoo=str(tmp_path), model_def="model", output=output)
    frame = change(FIELDS)

    with pytest.raises(DataError, match=message):
        elasticdl.load(output).predict(frame)
    with pytest.raises(DataError, match=message):
        elasticdl.predict(trained_model=output, data=frame, output=str(tmp_path / "p.csv"))


def test_a_column_with_gaps_that_the_training_data_lacked_is_to_be_left_out(tmp_path):
    (tmp_path / "model.py").write_text(ALL_FIELDS)
    output = str(tmp_path / "out")
    elasticdl.train(data=FIELDS, model_zoo=str(tmp_path), model_def="model", output=output)
    gaps = np.where(np.arange(40) == 3, np.nan, 1.0)
    model = elasticdl.load(output)

    with pytest.raises(
        DataError,
        match=r"^data, record 3: column 'hue' has no value\. The data that the model was trained "
        r"on had no such column: leave it out, as with df\.drop\(columns=\['hue'\]\) in pandas\.$",
    ):
        model.predict(FIELDS.assign(hue=gaps))
    with pytest.raises(DataError, match="column 'a' has no value. Fill it in"):
        model.predict(FIELDS.assign(a=gaps))


def test_missing_columns_are_named_before_additional_ones_with_gaps(tmp_path):
    (tmp_path / "model.py").write_text(ALL_FIELDS)
    output = str(tmp_path / "out")
    elasticdl.train(data=FIELDS, model_zoo=str(tmp_path), model_def="model", output=output)
    gaps = np.where(np.arange(40) == 0, np.nan, 1.0)
    customers = pd.DataFrame({"age": gaps, "size": gaps})
    customers.to_csv(tmp_path / "customers.csv", index=False)
    customers.to_parquet(tmp_path / "customers.parquet")
    message = r"they have no 'a', 'b', 'y', and they also have 'age', 'size'\. Use the fields"

    for data in (customers, str(tmp_path / "customers.csv"), str(tmp_path / "customers.parquet")):
        with pytest.raises(DataError, match=message):
            elasticdl.predict(trained_model=output, data=data, output=str(tmp_path / "p.csv"))
    with pytest.raises(DataError, match=message):
        elasticdl.load(output).predict(customers)
    # A single missing column may be the label, but not in evaluation.
    one = FIELDS.drop(columns="y").assign(age=gaps)
    with pytest.raises(DataError, match="column 'age' has no value.*leave it out"):
        elasticdl.predict(trained_model=output, data=one, output=str(tmp_path / "p.csv"))
    with pytest.raises(DataError, match="they have no 'y', and they also have 'age'"):
        elasticdl.evaluate(trained_model=output, data=one)


IMAGES = """
import numpy as np

def input_fn(records):
    x = np.stack([r["image"] for r in records]).astype("float32")
    if "y" not in records[0]:
        return x
    return x, np.array([int(r["y"].item()) for r in records])
"""
KERAS_IMAGES = """
import keras

def custom_model():
    return keras.Sequential([
        keras.Input((None, None, 3)), keras.layers.Conv2D(4, 3),
        keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2),
    ])

def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)

def optimizer():
    return keras.optimizers.SGD(0.01)
"""
TORCH_IMAGES = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.conv(x.permute(0, 3, 1, 2)).mean((2, 3)))

def custom_model():
    return Net()

def loss(labels, outputs):
    return torch.nn.functional.cross_entropy(outputs, labels)

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01)
"""


@pytest.mark.parametrize("code", [KERAS_IMAGES, TORCH_IMAGES], ids=["keras", "torch"])
def test_a_loaded_model_predicts_images_of_another_size(tmp_path, code):
    (tmp_path / "model.py").write_text(IMAGES + code)
    draw = np.random.default_rng(1)
    images = {"image": draw.normal(size=(8, 6, 6, 3)).astype(np.float32), "y": np.arange(8) % 2}
    output = str(tmp_path / "out")
    elasticdl.train(data=images, model_zoo=str(tmp_path), model_def="model", output=output)
    other = {"image": draw.normal(size=(8, 9, 7, 3)).astype(np.float32)}
    grey = {"image": draw.normal(size=(8, 9, 7, 1)).astype(np.float32)}
    file = str(tmp_path / "p.parquet")
    elasticdl.predict(trained_model=output, data=other, output=file)
    model = elasticdl.load(output)

    found = model.predict(other)

    expected = np.stack(pd.read_parquet(file)["output"].to_list())
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ElasticDLError, match="1 vs 3|value 3, but|3 channels, but"):
        model.predict(grey)


def test_a_renamed_field_for_a_prebuilt_table_model_is_refused(tmp_path):
    def write(name, fields):
        with recordio.Writer(str(tmp_path / name)) as writer:
            for row in FIELDS.rename(columns=fields).to_dict("records"):
                writer.write(encode({field: np.float32([value]) for field, value in row.items()}))
        return str(tmp_path / name)

    output = str(tmp_path / "out")
    data = write("train.recordio", {})
    elasticdl.train(data=data, model_def="regressor.DNN", params='label="y"', output=output)

    with pytest.raises(DataError, match="they have no 'a', and they also have 'aa'; did you mean"):
        elasticdl.evaluate(trained_model=output, data=write("new.recordio", {"a": "aa"}))


TWO_INPUTS = """
import keras

def custom_model():
    given = keras.Input((2,), name="series"), keras.Input((1,), name="weekday")
    return keras.Model(given, keras.layers.Dense(1)(keras.layers.Concatenate()(given)))

loss = "mse"
optimizer = keras.optimizers.SGD(0.01)
"""


def test_a_missing_input_is_named_in_prediction(tmp_path):
    (tmp_path / "two.py").write_text(TWO_INPUTS)
    columns = {"series": np.ones((4, 2), np.float32), "weekday": np.ones((4, 1), np.float32)}
    output = str(tmp_path / "m")
    elasticdl.train(
        data=(columns, np.ones(4, np.float32)), model_zoo=str(tmp_path), model_def="two",
        output=output,
    )  # fmt: skip
    series = {"series": columns["series"]}

    with pytest.raises(DataError, match="have 'series', and .* on 'series', .* Missing: 'weekday'"):
        elasticdl.predict(trained_model=output, data=series, output=str(tmp_path / "p.csv"))
    with pytest.raises(DataError, match="Missing: 'weekday'"):
        elasticdl.load(output).predict(series)
    with pytest.raises(ElasticDLError, match="Missing: weekday; did you mean 'weekdy'"):
        elasticdl.load(output).predict(series | {"weekdy": columns["weekday"]})


def test_keras_predict_still_works_on_a_loaded_model(tmp_path):
    model = elasticdl.load(trained(tmp_path, KERAS))
    x = np.ones((2, 5), np.float32)

    np.testing.assert_allclose(model.predict(x, verbose=0), model(x), rtol=1e-5)


def test_a_copy_of_a_loaded_model_is_a_plain_model(tmp_path):
    model = elasticdl.load(trained(tmp_path, TORCH))

    copied = copy.deepcopy(model)

    assert called(copied, np.zeros((2, 5), np.float32)).shape == (2,)
    with pytest.raises(UsageError, match="a copy of one that"):
        copied.predict(FRAME)


PENALIZED = """
import torch

class Net(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x), self.weight.square().sum()

def custom_model():
    return Net(3, 1)

def loss(labels, outputs):
    return ((outputs[0] - labels) ** 2).mean() + outputs[1]

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01)
"""


def test_evaluate_of_a_loaded_keras_model_refuses_a_table_with_advice(table_model):
    model, _ = table_model

    for table in (TABLE, TABLE.to_dict("records"), "table.csv"):
        with pytest.raises(UsageError, match=r"elasticdl\.evaluate\(trained_model='.*', data="):
            model.evaluate(table)


def test_an_output_that_is_one_number_for_a_batch_does_not_prevent_predictions(tmp_path, caplog):
    (tmp_path / "model.py").write_text(PENALIZED)
    x = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    output, report = str(tmp_path / "out"), tmp_path / "report"
    given = {"x": x, "y": x[:, 0]}
    elasticdl.train(data=given, model_zoo=str(tmp_path), model_def="model", output=output)
    elasticdl.evaluate(trained_model=output, data=given, report=str(report))

    found, penalty = elasticdl.load(output).predict({"x": x})

    assert (found.shape, penalty) == ((300, 1), None)
    assert "None for the model's output 'output_1', which is one number" in caplog.text
    assert (report / "report.html").exists()


ONE_NUMBER = """
import keras

class Line(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

def custom_model():
    return Line()

loss = "mse"

def optimizer():
    return keras.optimizers.SGD(0.01)
"""


def test_an_array_of_one_number_per_example_is_predicted_in_the_shape_of_training(tmp_path):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "line.py").write_text(ONE_NUMBER)
    x = np.arange(4, dtype=np.float32)
    elasticdl.train(
        model_zoo=str(tmp_path / "zoo"),
        model_def="line",
        data=(x, 2 * x),
        output=str(tmp_path / "out"),
    )
    model = elasticdl.load(str(tmp_path / "out"))

    np.testing.assert_array_equal(model.predict(x), model.predict(x[:, None]))
