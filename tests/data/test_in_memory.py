"""Data in memory becomes a file of rows: the same file for the same data."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
import torch

from elasticdl.data import in_memory
from elasticdl.data.array_shapes import shape_of
from elasticdl.data.in_memory import arrow_rows
from elasticdl.data.schema import Schema
from elasticdl.data.sources import open_source
from elasticdl.errors import DataError, SchemaError, UsageError, UserCodeError

X = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
Y = np.array([3, 1, 2, 0])
BFLOAT16 = (
    r"a tensor of the dtype torch.bfloat16, which NumPy does not have. Keep the data in float32, "
    r"and .* forward\(\): x = x.to\(torch.bfloat16\)"
)


def rows_of(data):
    rows = arrow_rows(data)
    return pa.Table.from_batches(rows.batches, rows.schema)


def store(data, folder, scratch, on_rows):
    return in_memory.store(arrow_rows(data), folder, scratch, on_rows)[0]


def plain(data):
    return rows_of(data).to_pydict()


class OfArrow:
    """Any object with Arrow's interface, such as a DataFrame of polars."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


TABLE = {"age": [30, 40], "name": ["a", None]}


@pytest.mark.parametrize(
    "make", [pa.table, pd.DataFrame, lambda columns: OfArrow(pa.table(columns))]
)
def test_tables_keep_their_columns_and_missing_values(make):
    assert plain(make(TABLE)) == TABLE


def test_only_a_named_index_becomes_a_column():
    frame = pd.DataFrame({"age": [30, 40]}, index=[7, 8])

    assert plain(frame) == {"age": [30, 40]}
    assert plain(frame.rename_axis("id")) == {"age": [30, 40], "id": [7, 8]}


def test_an_index_that_is_also_a_column_is_stored_once():
    frame = pd.DataFrame({"id": [7, 8], "age": [30, 40]})

    assert plain(frame.set_index("id", drop=False)) == {"id": [7, 8], "age": [30, 40]}
    with pytest.raises(DataError, match="a column 'id', and an index of this name with other"):
        plain(frame.set_index(pd.Index([1, 2], name="id")))


def test_a_list_of_dicts_is_a_list_of_rows():
    rows = [{"age": 30, "x": np.float32([1, 2])}, {"age": np.int64(40), "name": "b"}]

    assert plain(rows) == {"age": [30, 40], "x": [[1, 2], None], "name": [None, "b"]}


def test_missing_pandas_values_are_missing_in_rows_and_columns():
    frame = pd.DataFrame(
        {
            "word": ["a", None, "b"],
            "day": pd.to_datetime(["2024-01-01", None, "2024-01-03"]),
            "size": [1.5, None, 2.5],
        }
    )
    frame["word"] = frame["word"].where(frame["word"].notna(), np.nan).astype(object)

    for data in (frame.to_dict("records"), frame.to_dict("list"), dict(frame)):
        found = plain(data)
        assert found["word"] == ["a", None, "b"]
        assert found["day"][1] is None
        assert [value is None or value != value for value in found["size"]] == [False, True, False]  # noqa: PLR0124


def test_the_shape_of_a_row_is_kept(tmp_path):
    uri = store((X, Y), str(tmp_path), tmp_path, lambda _: None)
    source = open_source(uri)

    assert source.read_records(1, 2, None)[0]["x"].tolist() == X[1].tolist()
    turned = store((X.transpose(0, 2, 1).copy(), Y), str(tmp_path), tmp_path, lambda _: None)
    flat = store((X.reshape(4, 6), Y), str(tmp_path), tmp_path, lambda _: None)
    assert len({uri, turned, flat}) == 3


@pytest.mark.parametrize(
    ("shape", "fits"), [([3, 2], True), ([3, 2, 1], True), ([6], True), ([2, 3], False)]
)
def test_a_shape_that_differs_from_the_schema_is_refused(tmp_path, shape, fits):
    uri = store((X, Y), str(tmp_path), tmp_path, lambda _: None)
    schema = Schema.from_user([{"name": "x", "shape": shape, "dtype": "float32"}], "here")

    if fits:
        (record,) = open_source(uri).read_records(2, 3, schema)
        assert record["x"].tolist() == X[2].reshape(shape).tolist()
    else:
        with pytest.raises(
            SchemaError, match=r"'x' has the shape \[3, 2\] in the data; .* \[2, 3\]"
        ):
            open_source(uri).read_records(2, 3, schema)


@pytest.mark.parametrize(
    ("shape", "is_declared", "advice"),
    [
        ([2, 3], True, r"Correct the shape in data_schema\(\), and change the order of axes"),
        ([2, 3], False, r"Change the order of axes in the data, as with numpy\.transpose\(\)"),
        ([28, 28], True, r"Resize the data, or correct the shape in data_schema\(\)"),
        ([28, 28], False, "Resize the data, or use a model for this shape"),
    ],
)
def test_another_order_of_axes_is_told_from_another_size(tmp_path, shape, is_declared, advice):
    uri = store((X, Y), str(tmp_path), tmp_path, lambda _: None)
    schema = Schema.from_user([{"name": "x", "shape": shape, "dtype": "float32"}], "here")

    with pytest.raises(SchemaError, match=rf"has the shape \[3, 2\] .*\]\. {advice}"):
        open_source(uri).read_records(2, 3, schema if is_declared else schema.undeclared())


def test_categories_are_stored_as_their_values():
    frame = pd.DataFrame({"kind": pd.Categorical(["b", "a", "b"], categories=["b", "a"])})

    assert plain(frame) == {"kind": ["b", "a", "b"]}


@pytest.mark.parametrize(
    ("package", "kind", "message"),
    [
        ("pandas", "Series", r"data\.to_frame\(\)"),
        ("polars", "LazyFrame", r"data\.collect\(\)"),
        ("datasets", "DatasetDict", r'data\["train"\]'),
    ],
)
def test_a_collection_without_rows_is_refused_by_name(package, kind, message):
    data = type(kind, (dict,), {"__module__": f"{package}.frame"})(train=1)

    with pytest.raises(UsageError, match=f"data is a {package}.{kind}, which .*{message}"):
        arrow_rows(data)


def test_a_series_that_is_a_row_is_to_be_a_frame_of_one_row():
    frame = pd.DataFrame({"word": ["a"], "price": [2.5]})

    with pytest.raises(UsageError, match=r"one row, .* 'word', 'price'\. .*: df\.iloc\[\[0\]\]"):
        arrow_rows(frame.iloc[0])
    with pytest.raises(UsageError, match=r"is one column\. Give a DataFrame, such as data\.to_fr"):
        arrow_rows(frame["price"])


def test_string_views_as_in_polars_are_text():
    views = pa.array(["a", None, "b"], pa.string_view())
    kinds = pa.DictionaryArray.from_arrays(
        pa.array([1, 0, None], pa.uint32()), pa.array(["b", "a"], pa.string_view())
    )

    table = rows_of(OfArrow(pa.table({"text": views, "kind": kinds})))

    assert table.schema.types == [pa.large_string(), pa.large_string()]
    assert table.to_pydict() == {"text": ["a", None, "b"], "kind": ["a", "b", None]}


@pytest.mark.parametrize("data", [(X, Y), {"x": X, "y": Y}, ({"x": X}, Y), (X, {"y": Y})])
def test_arrays_are_columns_with_the_values_of_a_row(data):
    table = rows_of(data)

    assert table.schema.types == [pa.list_(pa.float32(), 6), pa.int64()]
    np.testing.assert_array_equal(table["x"].to_pylist(), X.reshape(4, 6))
    assert table["y"].to_pylist() == Y.tolist()


def test_numbers_keep_their_types():
    table = rows_of({"a": np.float64([0.1]), "b": np.uint8([1]), "c": np.array(["t"]), "d": [True]})

    assert table.schema.types == [pa.float64(), pa.uint8(), pa.string(), pa.bool_()]


def of_tensorflow():
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((X, Y))


def of_torch():
    torch = pytest.importorskip("torch")
    return torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))


def of_a_loader():
    torch = pytest.importorskip("torch")
    return torch.utils.data.DataLoader(of_torch(), batch_size=3, shuffle=True)


SETS = {
    "tf": of_tensorflow,
    "tf, batches": lambda: of_tensorflow().batch(3),
    "torch": of_torch,
    "torch, loader": of_a_loader,
}


@pytest.mark.parametrize("make", SETS.values(), ids=SETS)
def test_elements_are_rows_in_their_order(make):
    table = rows_of(make())

    np.testing.assert_array_equal(table["x"].to_pylist(), X.reshape(4, 6))
    assert table["y"].to_pylist() == Y.tolist()


def test_elements_may_be_dicts_with_lists_of_any_length():
    class Rows:
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return {"tokens": np.arange(i + 1), "label": i}

    Rows.__name__ = "Dataset"

    assert plain(Rows()) == {"tokens": [[0], [0, 1]], "label": [0, 1]}


def test_many_rows_are_stored_in_batches_of_bounded_size(monkeypatch, tmp_path):
    monkeypatch.setattr(in_memory, "_BATCH_ROWS", 3)
    counts = []

    for data in ((X, Y), of_torch()):
        uri = store(data, str(tmp_path / "out"), tmp_path, counts.append)
        assert pq.read_table(uri)["y"].to_pylist() == Y.tolist()

    assert counts == [3, 4, 3, 4]


def test_equal_data_are_stored_in_the_same_file(tmp_path):
    def stored(data):
        return store(data, str(tmp_path / "out"), tmp_path, lambda _: None)

    first = stored((X, Y))

    assert stored((X.copy(), Y.copy())) == first
    assert stored(pd.DataFrame({"y": Y})) == stored(pa.table({"y": Y}))
    assert (
        len({first, stored((X + 1, Y)), stored((X[::-1], Y)), stored((X, Y.astype("int32")))}) == 4
    )
    assert not list(tmp_path.glob("*.parquet"))


def test_a_single_array_is_named_x():
    torch = pytest.importorskip("torch")
    alone = [
        X,
        torch.from_numpy(X),
        torch.utils.data.TensorDataset(torch.from_numpy(X)),
        of_tensorflow().map(lambda x, y: x),
        of_tensorflow().map(lambda x, y: x).batch(3),
    ]

    for data in alone:
        assert list(plain(data)) == ["x"]
        np.testing.assert_array_equal(plain(data)["x"], X.reshape(4, -1))


def pairs():
    yield X[0], Y[0]


class Numbered:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return X[i], Y[i]


class PyDataset(Numbered):
    """Named as Keras' class; it is not imported to recognise its objects."""


REFUSED = {
    "a number": (
        3,
        UsageError,
        r"data is 3 \(int\); expected the name of files, a DataFrame",
    ),
    "a class": (pd.DataFrame, UsageError, r"data is the class DataFrame; .*: DataFrame\(\.\.\.\)"),
    "no columns": (pd.DataFrame({"a": [1]})[[]], DataError, "The data has no columns"),
    "no rows": (pd.DataFrame({"a": []}), DataError, "The data has no rows"),
    "no elements": ({"x": np.zeros((0, 2))}, DataError, "The data has no rows"),
    "other lengths": (
        (X, Y[:3]),
        DataError,
        "equal numbers of rows: 'x' has 4 rows, 'y' has 3 rows",
    ),
    "a tuple of inputs": (
        ((X, X[:, :1]), Y),
        DataError,
        r"'x' of data is a tuple of 2 arrays with 4 rows .*data=\(\{\"a\": A, \"b\": B\}, y\)",
    ),
    "single values": (
        {"order id": 1, "price": 2.5},
        DataError,
        "a single value for 'order id', 'price'. For one example, give lists of one value",
    ),
    "a single number": ({"x": X, "y": 1}, DataError, "a single value for 'y'"),
    "a sparse matrix": (
        (scipy.sparse.csr_matrix(np.eye(4)), Y),
        DataError,
        r"sparse matrix \(csr_matrix\), which is not supported. Give a dense array: matrix.toarray",
    ),
    "a bfloat16 tensor": ((torch.zeros(4, 2).bfloat16(), Y), DataError, BFLOAT16),
    "a list of bfloat16 tensors": (([torch.zeros(2).bfloat16()] * 4, Y), DataError, BFLOAT16),
    "a dataset of bfloat16 tensors": (
        torch.utils.data.TensorDataset(torch.zeros(4, 2).bfloat16(), torch.from_numpy(Y)),
        DataError,
        BFLOAT16,
    ),
    "a list instead of a tuple": (
        [X, Y],
        UsageError,
        r"data is a list of two; for features x and labels y, pass a tuple: data=\(x, y\)\. For",
    ),
    "a list of pairs": (
        list(zip(X, Y, strict=True)),
        UsageError,
        r"data is a list of pairs \(x, y\)\. Pass one array of each: xs, ys = zip\(\*data\); data",
    ),
    "a list of lists": ([[1.0], [2.0], [3.0]], UsageError, r"a list of lists\. Pass .*np\.array\("),
    "a tuple of one": ((X,), UsageError, r"a tuple of one\. Pass x alone to predict, or a tuple"),
    "four arrays": (
        (X, Y, X[:1], Y[:1]),
        UsageError,
        r"data is a tuple of 4; .*data=\(x_train, y_train\), validation_data=\(x_test, y_test\)\.",
    ),
    "training and test data": (
        ((X, Y), (X[:1], Y[:1])),
        UsageError,
        r"two pairs \(x, y\), such as .*data=data\[0\], validation_data=data\[1\]\.",
    ),
    "no labels": ((X, None), UsageError, r"data is \(x, None\), without labels\. Pass x alone"),
    "an iterator": (
        zip(X, Y, strict=True),
        UsageError,
        r"data is an iterator \(zip\), which can be read only once\. Pass .*from_generator\(",
    ),
    "a function": (plain, UsageError, r"the function plain\. Pass what it returns: data=plain\(\)"),
    "a generator function": (pairs, UsageError, r"the function pairs, a generator\. .*from_gen"),
    "numbered examples": (
        Numbered(),
        UsageError,
        r"Numbered; .*from torch\.utils\.data\.Dataset\.",
    ),
    "a data set of Keras": (
        PyDataset(),
        UsageError,
        r"a keras\.utils\.PyDataset .* tf\.data\.Dataset",
    ),
    "a column of x as labels": (
        (pd.DataFrame({"a": [1, 2], "kind": [0, 1]}), pd.Series([0, 1], name="kind")),
        DataError,
        r"both x and y have a column 'kind'\. .*x\.drop\(columns=\['kind'\]\)\.",
    ),
    "one name twice": (({"y": X}, Y), DataError, "Both x and y have a column 'y'"),
    "two columns": (
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
        DataError,
        "Two columns are called 'a'",
    ),
    "objects": (pd.DataFrame({"a": [object()]}), DataError, "cannot be stored as a table"),
    "rows": ([{"a": 1, "b": 1}, {"a": 1, "b": "?"}], DataError, "That is in the column 'b': give"),
    "rows of objects": ([{"b": object()}], DataError, "'b': give it numbers, text or dates of one"),
    "rows of large integers": (
        [{"b": 2**70}],
        DataError,
        r"a whole number outside of -2\^63 to 2\^63 - 1 must .* to text\. .* column 'b': give",
    ),
    "rows of large negative integers": ([{"b": -(2**63) - 1}], DataError, r"outside of -2\^63 to"),
    "large integers": (pd.DataFrame({"a": [2**70]}), DataError, "cannot be stored as a table"),
    "values of several types": (
        pd.DataFrame({"a": [1, "b"]}),
        DataError,
        "as a table: Conversion failed for column a with type object: Could not convert 'b'",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_unsupported_data_are_refused(what, tmp_path):
    data, error, message = REFUSED[what]

    with pytest.raises(error, match=message):
        store(data, str(tmp_path / "out"), tmp_path, lambda _: None)
    assert not list(tmp_path.rglob("*.parquet"))


MIXED = np.array([[17.5, "benign", True], [2.5, "malignant", False]], object)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (MIXED, "x"),
        (MIXED[:, ::-1], "x"),
        ((MIXED, Y[:2]), "x"),
        ({"a": MIXED}, "a"),
        ((X[:2], MIXED[0, 1:]), "y"),
        (pd.DataFrame({"x": [1.5], "y": ["a"]}).to_numpy(), "x"),
    ],
)
def test_an_array_of_several_types_is_refused_with_an_example_of_each(data, name):
    with pytest.raises(
        DataError,
        match=rf"^The array '{name}' has objects of several types: .*str, such as '(benign|a)'.*\. "
        r"Give a DataFrame, which has one type for each column, or an array of numbers\.$",
    ):
        rows_of(data)


def test_random_elements_are_refused_because_they_would_be_frozen():
    torch = pytest.importorskip("torch")

    class Augmented(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return X[i] + np.random.rand(), Y[i]  # noqa: NPY002 - as users do

    line = Augmented.__getitem__.__code__.co_firstlineno
    expected = (
        rf"test_in_memory.py:{line}: data is random: Augmented.__getitem__\(2\) gives another 'x' "
        r"when .* input_fn\(records, mode\)\. Or.* train_dataloader\(\) "
        r'.*data="built-in" \(any name\)'
    )
    subset = torch.utils.data.Subset(Augmented(), [2, 3])
    for data in (subset, torch.utils.data.DataLoader(subset, batch_size=2)):
        with pytest.raises(UsageError, match=expected):
            arrow_rows(data)


def test_an_infinite_dataset_is_refused():
    with pytest.raises(UsageError, match=r"infinite. Remove repeat\(\).*assert_cardinality"):
        arrow_rows(of_tensorflow().repeat())


def test_a_stream_is_refused_with_an_alternative():
    torch = pytest.importorskip("torch")

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield X[0], Y[0]

    with pytest.raises(
        UsageError, match="an object of the class Stream without __len__ and __getitem__"
    ):
        arrow_rows(Stream())


def test_an_error_in_a_dataset_names_the_item_and_the_users_line():
    torch = pytest.importorskip("torch")

    class Damaged(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return {"x": X[i], "y": int("x7" if i == 2 else "1")}

    for data in (Damaged(), torch.utils.data.DataLoader(Damaged(), batch_size=2)):
        with pytest.raises(UserCodeError) as caught:
            arrow_rows(data)
        first, *_, last = str(caught.value).splitlines()
        assert re.fullmatch(
            r"\S*test_in_memory.py:\d+: the data set raised on item 2 \(counted from 0\):", first
        )
        assert last == "ValueError: invalid literal for int() with base 10: 'x7'"
        assert "in_memory.py" not in str(caught.value).replace("test_in_memory.py", "")


def test_an_error_in_a_pipeline_names_the_items_before_and_the_users_line():
    tf = pytest.importorskip("tensorflow")

    def parsed(y):
        return np.float32("x7" if y == Y[2] else "1")

    data = of_tensorflow().map(lambda x, y: (x, tf.numpy_function(parsed, [y], tf.float32)))

    message = r"^\S*test_in_memory.py:\d+: the data set raised after \d items:\n  File"
    with pytest.raises(UserCodeError, match=message) as caught:
        arrow_rows(data)
    assert str(caught.value).endswith(
        "in the function given to map(): ValueError: could not convert string to float: 'x7'"
    )


def test_a_subset_of_a_dataset_keeps_its_items():
    torch = pytest.importorskip("torch")

    assert plain(torch.utils.data.Subset(of_torch(), [1, 3]))["y"] == [1, 0]


def test_a_loader_that_chooses_or_changes_items_is_refused():
    torch = pytest.importorskip("torch")
    data = torch.utils.data
    samplers = [
        data.SubsetRandomSampler([1, 2]),
        data.WeightedRandomSampler([1.0] * 4, 4),
        data.RandomSampler(of_torch(), replacement=True),
    ]
    loaders = [data.DataLoader(of_torch(), sampler=sampler) for sampler in samplers]

    for loader in [*loaders, data.DataLoader(of_torch(), collate_fn=lambda rows: rows)]:
        with pytest.raises(UsageError, match="of its own, which would not be used"):
            arrow_rows(loader)


def test_a_frame_as_x_keeps_its_columns():
    frame = pd.DataFrame({"b": [1.0, 2.0], "a": ["u", "v"]})

    assert plain((frame, pd.Series([3, 4], name="label"))) == {
        "b": [1.0, 2.0], "a": ["u", "v"], "label": [3, 4],
    }  # fmt: skip
    assert plain((frame, np.array([3, 4])))["y"] == [3, 4]
    with pytest.raises(DataError, match="x has 2 rows, but y has 1 value"):
        arrow_rows((frame, [3]))


@pytest.mark.parametrize("labels", [np.array([[3], [4]]), pd.DataFrame({"kind": [3, 4]})])
def test_labels_of_one_column_are_numbers_beside_a_frame(labels):
    assert plain((pd.DataFrame({"age": [1, 2]}), labels)) == {"age": [1, 2], "y": [3, 4]}


def test_a_frame_with_duplicate_column_names_is_refused():
    with pytest.raises(DataError, match="Two columns are called 'a'"):
        arrow_rows(pd.DataFrame([[1, 2]], columns=["a", "a"]))


@pytest.mark.parametrize("seeded", [False, True])
def test_random_pipeline_steps_are_refused_despite_a_seed(seeded):
    tf = pytest.importorskip("tensorflow")
    if seeded:
        tf.random.set_seed(1)
    late = (
        of_tensorflow()
        .enumerate()
        .map(lambda i, row: (row[0] + tf.cast(i > 2, tf.float32) * tf.random.uniform(()), row[1]))
    )

    with pytest.raises(UsageError, match=r"data is random: .*input_fn\(records, mode\)"):
        arrow_rows(late)
    for dataset in (of_tensorflow().shuffle(4), of_tensorflow().shuffle(4).batch(2)):
        with pytest.raises(UsageError, match="data is random: .* reshuffle_each_iteration=False"):
            arrow_rows(dataset)


def test_elements_with_weights_are_refused_with_an_alternative():
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y, Y))

    with pytest.raises(UsageError, match="An element of data is a tuple of three; if it is"):
        arrow_rows(dataset)


class Items(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


@pytest.mark.parametrize("values", [["good", "bad", "b"], [3, 1, 2], [0.5, 1.5, 2.5]])
def test_single_texts_and_numbers_are_named_x(values):
    tf = pytest.importorskip("tensorflow")
    pipeline = tf.data.Dataset.from_tensor_slices((values, [0, 1, 1])).map(lambda x, y: x)
    found = [plain(data) for data in (pipeline, pipeline.batch(2), Items(values))]
    if not isinstance(values[0], str):
        found.append(plain(Items(torch.tensor(values))))

    stored = [each.encode() if isinstance(each, str) else each for each in values]
    for each in found:
        assert list(each) == ["x"]
        assert each["x"] in (values, stored)


def test_an_element_without_a_value_is_refused():
    with pytest.raises(UsageError, match="An element of data is a NoneType; expected a dict, a "):
        plain(Items([None, None]))


def test_a_seeded_shuffle_with_a_fixed_order_is_accepted():
    tf = pytest.importorskip("tensorflow")
    tf.random.set_seed(None)
    once = of_tensorflow().shuffle(9, seed=3, reshuffle_each_iteration=False)
    again = of_tensorflow().shuffle(9, seed=3, reshuffle_each_iteration=False)

    assert plain(once) == plain(again)
    assert plain(once)["y"] != Y.tolist()
    assert sorted(plain(once)["y"]) == sorted(Y.tolist())
    with pytest.raises(UsageError, match=r"shuffle\(reshuffle_each_iteration=False\) has no seed"):
        arrow_rows(of_tensorflow().shuffle(9, reshuffle_each_iteration=False))


def test_batches_of_one_size_are_unbatched():
    data = of_tensorflow().batch(2, drop_remainder=True).prefetch(1)

    assert plain(data)["y"] == Y.tolist()
    assert arrow_rows(data).batch_size == arrow_rows(of_tensorflow().batch(2)).batch_size == 2
    assert arrow_rows(of_tensorflow()).batch_size is None


def test_examples_that_batches_leave_out_are_counted(caplog):
    assert len(Y) % 2 == 0
    arrow_rows(of_tensorflow().batch(2, drop_remainder=True))
    arrow_rows(of_tensorflow().batch(len(Y) - 1))
    assert caplog.messages == []

    arrow_rows(of_tensorflow().batch(len(Y) - 1, drop_remainder=True).prefetch(1))
    arrow_rows(of_tensorflow().filter(lambda x, y: True).batch(2, drop_remainder=True))

    counted, unknown = caplog.messages
    assert f"batch({len(Y) - 1}, drop_remainder=True) leaves out the last example." in counted
    assert "batch(2, drop_remainder=True) leaves out the examples of a last, smaller" in unknown


def test_a_ragged_tensor_is_refused_with_how_to_pad_it():
    import tensorflow as tf

    with pytest.raises(DataError, match=r"data has a RaggedTensor, .*: ragged\.to_tensor\(\)"):
        arrow_rows((tf.ragged.constant([[1.0], [2.0, 3.0]]), np.zeros(2)))


def test_elements_of_a_pipeline_that_are_not_arrays_are_refused_with_what_to_do():
    import tensorflow as tf

    numbers = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0])
    for data, advice in [
        (numbers.window(2), r"a data set, as window\(\) .*window\.batch\(SIZE, drop_remainder"),
        (tf.data.Dataset.from_tensor_slices({"x": [1.0]}).window(1), r"flat_map\("),
        (numbers.map(lambda x: (x, None)), r"contains None: leave it out"),
        (numbers.map(tf.experimental.Optional.from_value), r"get_value\(\)"),
        (numbers.map(lambda x: tf.TensorArray(tf.float32, 1).write(0, x)), r"stack\(\)"),
    ]:
        with pytest.raises(UsageError, match=advice):
            arrow_rows(data)


def test_windows_joined_as_advised_are_examples():
    import tensorflow as tf

    windows = tf.data.Dataset.range(5).window(3, shift=1, drop_remainder=True)
    rows = plain(windows.flat_map(lambda window: window.batch(3, drop_remainder=True)))

    assert [*rows.values()] == [[[0, 1, 2], [1, 2, 3], [2, 3, 4]]]


def test_elements_that_may_be_windows_or_batches_are_refused():
    import tensorflow as tf

    windows = tf.data.Dataset.range(6).window(3, shift=3, drop_remainder=True)
    joined = windows.flat_map(lambda window: window.batch(3))

    for unclear in (joined, joined.map(lambda x: x)):
        with pytest.raises(UsageError, match=r"drop_remainder=True\) in flat_map.*\.unbatch\(\)"):
            arrow_rows(unclear)
    assert [*plain(joined.unbatch()).values()] == [[0, 1, 2, 3, 4, 5]]


def test_sparse_columns_are_refused_with_what_to_do():
    sparse = pd.DataFrame({"a": pd.arrays.SparseArray([0.0, 1.0]), "y": [1, 2]})

    with pytest.raises(UsageError, match=r"'a' of data is sparse.*df\['a'\]\.sparse\.to_dense\(\)"):
        arrow_rows(sparse)


def test_arrays_of_unequal_shapes_are_refused_with_what_to_do():
    images = [{"image": np.ones((size, 4)), "y": 1} for size in (3, 5)]
    rows = torch.utils.data.Subset(images, range(2))

    with pytest.raises(
        DataError, match=r"s \[3, 4\], \[5, 4\];.* resizing .*map\(\).*drop_remainder=True"
    ):
        plain(rows)


def test_a_loader_that_would_drop_examples_has_a_note_that_all_are_used(caplog):
    rows = of_torch()
    for batch_size, drops in [(len(Y) - 1, False), (1, True), (len(Y), True)]:
        arrow_rows(torch.utils.data.DataLoader(rows, batch_size, drop_last=drops))
    assert caplog.messages == []

    arrow_rows(torch.utils.data.DataLoader(rows, len(Y) - 1, drop_last=True))

    assert caplog.messages == [
        f"data: its drop_last=True is ignored: all {len(Y)} examples are used."
    ]


def test_batches_that_later_steps_turn_into_examples_are_named(caplog):
    batches = of_tensorflow().batch(2, drop_remainder=True)

    assert len(plain(batches.map(lambda x, y: (x, y)))["y"]) == len(Y) // 2
    (message,) = caplog.messages
    assert "because map() or another step follows batch(2, drop_remainder=True)" in message


def test_batches_keep_their_size_in_later_steps_of_a_pipeline():
    batches = of_tensorflow().batch(2)

    def size(data):
        return arrow_rows(data).batch_size

    assert size(batches.map(lambda x, y: (x, y))) == 2
    assert size(batches.map(lambda x, y: (x, y), num_parallel_calls=2).prefetch(2).take(1)) == 2
    assert size(batches.unbatch().batch(3).filter(lambda x, y: True)) == 3
    assert size(batches.rebatch(3).map(lambda x, y: (x, y))) is None


def of_hugging_face(**columns):
    import datasets

    return datasets.Dataset.from_dict(columns)


def test_a_hugging_face_transform_is_applied_to_rows():
    data = of_hugging_face(x=[[1.0, 2.0], [3.0, 4.0]], y=[0, 1])

    table = rows_of(data.with_transform(lambda rows: {"z": [10 * y for y in rows["y"]]}))

    assert table.to_pydict() == {"z": [0, 10]}


def test_a_random_hugging_face_transform_is_refused():
    rng = np.random.default_rng(0)
    data = of_hugging_face(y=[0, 1]).with_transform(lambda rows: {"y": rng.normal(size=2)})

    with pytest.raises(
        UsageError, match="data is random: the transform of the data set, on row 0, gives .* 'y'"
    ):
        arrow_rows(data)


def test_columns_hidden_by_a_hugging_face_format_are_omitted():
    data = of_hugging_face(a=[1.0, 2.0], b=[3, 4], c=["x", "y"])

    assert rows_of(data.with_format("numpy", columns=["a", "c"])).column_names == ["a", "c"]
    shown = data.with_format("numpy", columns=["a"], output_all_columns=True)
    assert rows_of(shown).column_names == ["a", "b", "c"]


def test_hugging_face_arrays_and_images_keep_their_shapes():
    import datasets

    arrays = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    features = {"a": datasets.Array2D((2, 3), "float32"), "image": datasets.Image()}
    data = datasets.Dataset.from_dict(
        {"a": arrays.tolist(), "image": list(pixels)}, features=datasets.Features(features)
    )

    made = arrow_rows(data)

    table = pa.Table.from_batches(made.batches, made.schema)
    assert shape_of(table.schema.field("a")) == (2, 3)
    assert np.float32(table["a"].to_pylist()).tolist() == arrays.reshape(2, -1).tolist()
    assert shape_of(table.schema.field("image")) == (2, 2, 3)
    assert table["image"].to_pylist() == pixels.reshape(2, -1).tolist()


def test_a_hugging_face_stream_is_refused_with_an_alternative():
    stream = of_hugging_face(a=[1.0, 2.0]).to_iterable_dataset()

    with pytest.raises(UsageError, match=r"datasets\.Dataset\.from_list\(list\(data\)\)"):
        arrow_rows(stream)


def test_columns_of_several_levels_have_a_warning_with_their_names(caplog):
    frame = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "x"), ("b", "y")]))

    assert arrow_rows(frame).schema.names == ["('a', 'x')", "('b', 'y')"]

    assert "the names are text such as \"('a', 'x')\"" in caplog.text
    # As the warning advises.
    frame.columns = ["_".join(map(str, name)) for name in frame.columns]
    assert arrow_rows(frame).schema.names == ["a_x", "b_y"]


class Several(torch.utils.data.Dataset):
    def __init__(self, item):
        self._item = item

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self._item


@pytest.mark.parametrize(
    ("item", "name", "kind"),
    [
        (((torch.ones(2), torch.ones(2)), 1), "x", "tuple"),
        (([torch.ones(2), torch.ones(2)], 1), "x", "list"),
        ((torch.ones(2), (torch.tensor(1), torch.tensor(2))), "y", "tuple"),
        ({"image": (np.ones(2), np.ones(3)), "y": 1}, "image", "tuple"),
    ],
)
def test_several_inputs_or_labels_need_names(item, name, kind):
    message = rf"'{name}' is a {kind} of arrays\. For several inputs or labels, use a dict"
    with pytest.raises(DataError, match=message):
        rows_of(Several(item))


def test_several_labels_of_tensorflow_need_names():
    import tensorflow as tf

    with pytest.raises(
        UsageError, match="contains a tuple of arrays as x or y. For several inputs"
    ):
        rows_of(tf.data.Dataset.from_tensor_slices((X, (Y, 2 * Y))))


def test_numbers_in_a_list_or_a_tuple_are_one_array():
    numbers = plain(Several(([1.0, 2.0], (3, 4))))
    scalars = plain(Several(([torch.tensor(1.0), torch.tensor(2.0)], 1)))
    row = plain(Several((tuple(np.arange(2.0)), 1)))

    assert numbers == {"x": 4 * [[1.0, 2.0]], "y": 4 * [[3, 4]]}
    assert scalars["x"] == 4 * [[1.0, 2.0]]
    assert row["x"] == 4 * [[0.0, 1.0]]
