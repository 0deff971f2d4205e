"""From a place in the ledger to batches, again and again the same."""

import dataclasses
import functools
import random
import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse

from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.data.field import STRING
from elasticdl.data.schema import Field, Schema
from elasticdl.data.sources import open_source
from elasticdl.definition import DatasetInput, Mode, ModelDefinition, Origin, RecordInput
from elasticdl.engines import missing_fields
from elasticdl.engines.feed import training_batches
from elasticdl.engines.input_calls import make_batch
from elasticdl.engines.prefetch import Prefetch
from elasticdl.engines.record_data import RecordData, batches_in_order, shard_batches
from elasticdl.errors import DataError, DefinitionError, SchemaError, UserCodeError
from elasticdl.sharding.epoch_order import ShardPlan
from elasticdl.sharding.ledger import Ledger, ShardLease
from elasticdl.sharding.left_out import BatchId
from elasticdl.testing.memory_source import MemorySource

SCHEMA = Schema((Field("x", (1,), np.dtype("float32")), Field("label", (1,), np.dtype("int64"))))


def source_of(num_records):
    return MemorySource(
        [{"x": np.float32([i]), "label": np.int64([i % 2])} for i in range(num_records)]
    )


def definition_of(how, line=7):
    return ModelDefinition(
        origin=Origin("test", "model.py", line, "model", "zoo"),
        framework="keras",
        create_model=lambda: None,
        input=how,
        loss=None,
        create_optimizer=lambda: None,
    )


def stack_fields(records):
    return (
        {"x": np.stack([r["x"] for r in records])},
        np.stack([r["label"] for r in records]),
    )


def noisy(records):
    features, labels = stack_fields(records)
    return {"x": features["x"] + np.random.rand() + random.random()}, labels  # noqa: NPY002 - users do


def values(batches):
    return [fed.batch.features["x"].ravel().tolist() for fed in batches]


def reader_of(definition, source):
    return RecordData(definition, source).reader


def from_shard(definition, num_records, plan, epoch, lease):
    reader = reader_of(definition, source_of(num_records))
    return shard_batches(definition, reader, plan, epoch, lease)


def feed(definition, source, plan, ledger=None, num_epochs=1):
    return training_batches(
        functools.partial(shard_batches, definition, reader_of(definition, source), plan),
        ledger or Ledger(plan.num_shards),
        rank=0,
        ranks=[0],
        num_epochs=num_epochs,
    )


def test_each_epoch_has_every_record_once_in_another_order():
    plan = ShardPlan(25, 2, 3)
    fed = list(feed(definition_of(RecordInput(stack_fields, SCHEMA)), source_of(25), plan, None, 2))

    by_epoch = [[v for b in values(f for f in fed if f.epoch == e) for v in b] for e in (0, 1)]

    assert Counter(by_epoch[0]) == Counter(by_epoch[1]) == Counter(range(25))
    assert by_epoch[0] != by_epoch[1]


@pytest.mark.parametrize("committed", [0, 1, 2])
def test_a_batch_can_be_recreated_from_its_position(committed):
    plan = ShardPlan(12, 2, 3)
    definition = definition_of(RecordInput(noisy, SCHEMA))
    whole = values(from_shard(definition, 12, plan, 1, ShardLease(0)))
    np.random.rand(17)  # noqa: NPY002 - as above

    rest = values(from_shard(definition, 12, plan, 1, ShardLease(0, committed)))

    assert rest == whole[committed:]


def test_only_the_last_batch_of_a_shard_is_marked_finished():
    plan = ShardPlan(5, 2, 3)

    fed = list(feed(definition_of(RecordInput(stack_fields, SCHEMA)), source_of(5), plan))

    assert [f.finished for f in fed] == [False, False, True]
    assert [f.batch.num_examples for f in fed] == [2, 2, 1]


def test_an_input_function_error_names_records_and_line():
    plan = ShardPlan(9, 2, seed=1)

    def broken(records):
        return records[0]["missing"]

    with pytest.raises(UserCodeError) as caught:
        list(feed(definition_of(RecordInput(broken, SCHEMA)), source_of(9), plan))

    first, second = sorted(plan.record_numbers(0, 0)[:2].tolist())
    assert f"raised on memory, records {first} and {second}:" in str(caught.value)
    assert 'return records[0]["missing"]' in str(caught.value)
    assert "engines/feed.py" not in str(caught.value)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (
            (np.zeros((2, 1)), np.zeros(3)),
            r"from 2 records, arrays of the shapes \[\[2, 1\], \[3\]\]",
        ),
        ((np.float32(1), np.zeros(2)), "one entry per example"),
        (
            (np.array([[1], [1, 2]], dtype=object), np.zeros(2)),
            r"Python objects \(dtype object\) of the shape \[2\], the first of them: list",
        ),
        ((np.zeros(2), np.array([object(), object()])), "the first of them: object"),
        (iter([np.zeros(2)]), "from 2 records, a list_iterator; expected the arrays of one batch"),
        (
            (scipy.sparse.csr_matrix(np.eye(2)), np.zeros(2)),
            r"a sparse matrix \(csr_matrix\), which is not .*: matrix\.toarray\(\)",
        ),
        (({"x": np.zeros((2, 1))},) * 3, "sample weights that are a dict"),
        (({"x": np.zeros((2, 1))},) * 4, "or \\(features, labels, sample weights\\)"),
        ({"x": np.zeros((2, 1))}, "returned no labels"),
    ],
)
def test_an_invalid_batch_is_refused(made, problem):
    definition = definition_of(RecordInput(lambda records: made, SCHEMA))

    with pytest.raises(DefinitionError, match=problem):
        list(feed(definition, source_of(2), ShardPlan(2, 2)))


def test_a_ragged_tensor_is_refused_with_how_to_pad_it():
    import tensorflow as tf

    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    definition = definition_of(RecordInput(lambda records: (ragged, np.zeros(2)), SCHEMA))

    with pytest.raises(DefinitionError, match=r"a RaggedTensor, .* Pad .*: ragged\.to_tensor\(\)"):
        list(feed(definition, source_of(2), ShardPlan(2, 2)))


def test_an_input_function_may_return_sample_weights():
    def weighted(records):
        return np.zeros((len(records), 1)), np.zeros(len(records)), np.array([1, 3])

    fed = feed(definition_of(RecordInput(weighted, SCHEMA)), source_of(2), ShardPlan(2, 2))

    weights = next(iter(fed)).batch.weights
    assert weights.dtype == np.float32
    assert weights.tolist() == [1.0, 3.0]


def test_records_without_labels_can_be_predicted():
    unlabelled = MemorySource([{"x": np.float32([i])} for i in range(3)])
    definition = definition_of(RecordInput(stack_fields, SCHEMA))

    batches = list(batches_in_order(definition, unlabelled, 2, Mode.PREDICTION))

    assert [start for start, _ in batches] == [0, 2]
    assert batches[1][1].features["x"].tolist() == [[2.0]]


def test_evaluating_records_without_a_label_suggests_predict():
    unlabelled = MemorySource([{"x": np.float32([i])} for i in range(3)])
    featureless = MemorySource([{"label": np.int64([1])}])
    definition = definition_of(RecordInput(stack_fields, SCHEMA))

    with pytest.raises(
        SchemaError, match="no 'label', the label of the model. An .*, or use predict"
    ):
        list(batches_in_order(definition, unlabelled, 2, Mode.EVALUATION))
    with pytest.raises(DataError, match="the records have no 'x', which model.py:7 needs"):
        list(batches_in_order(definition, featureless, 2, Mode.EVALUATION))


VOCABULARY = {"basic": 1, "plus": 2}


def with_plan(nullable):
    """Return a definition with a feature of words, of which all others count as unknown."""

    def looked_up(records):
        plans = [VOCABULARY.get((r["plan"].item() or b"").decode(), 0) for r in records]
        features = {"x": np.stack([r["x"] for r in records]), "plan": np.array(plans)}
        return features, np.stack([r["label"] for r in records])

    plan = Field("plan", (), STRING, nullable=nullable)
    return definition_of(RecordInput(looked_up, Schema((*SCHEMA.fields, plan))))


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("has_label", [True, False])
def test_a_missing_feature_of_unknown_words_is_refused_in_prediction(nullable, has_label, tmp_path):
    columns = {"x": np.float32([1, 2, 3]), "Plan": ["plus"] * 3, "label": [0, 1, 0]}
    if not has_label:
        columns.pop("label")
    pq.write_table(pa.table(columns), tmp_path / "renamed.parquet")
    source = open_source(str(tmp_path / "renamed.parquet"))

    with pytest.raises(DataError, match="have no 'plan', which .* inputs.*'Plan'"):
        list(batches_in_order(with_plan(nullable), source, 2, Mode.PREDICTION))


def test_a_label_whose_values_the_trial_does_not_show_is_no_feature(tmp_path, caplog):
    missing_fields._reported.clear()
    pq.write_table(pa.table({"x": np.float32([1, 2])}), tmp_path / "x.parquet")
    schema = Schema((*SCHEMA.fields, Field("approved", (), STRING)))

    def two_labels(records):
        features, label = stack_fields(records)
        return features, {"y": label, "a": np.array([r["approved"] == b"yes" for r in records])}

    definition = definition_of(RecordInput(two_labels, schema))
    source = open_source(str(tmp_path / "x.parquet"))

    assert list(batches_in_order(definition, source, 2, Mode.PREDICTION))
    assert "the data has no 'approved'" in caplog.text


def test_a_missing_field_that_is_not_read_is_reported(caplog, tmp_path):
    missing_fields._reported.clear()
    unread = Schema((*SCHEMA.fields, Field("plan", (), STRING)))
    columns = {"x": np.float32([1, 2, 3]), "Plan": ["plus"] * 3, "label": [0, 1, 0]}
    pq.write_table(pa.table(columns), tmp_path / "renamed.parquet")
    source = open_source(str(tmp_path / "renamed.parquet"))
    definition = definition_of(RecordInput(stack_fields, unread))

    for _ in range(2):
        batches = list(batches_in_order(definition, source, 2, Mode.PREDICTION))
        assert len(batches) == 2

    (message,) = [record.getMessage() for record in caplog.records]
    assert "the data has no 'plan'. If the model uses it, it is read as the text '0' in" in message
    assert "Rename 'Plan' to 'plan' in the data." in message


def test_a_missing_feature_of_unknown_words_is_not_called_the_label(tmp_path):
    table = pa.table({"x": np.float32([1, 2]), "Plan": ["plus"] * 2, "label": [0, 1]})
    pq.write_table(table, tmp_path / "renamed.parquet")
    source = open_source(str(tmp_path / "renamed.parquet"))

    with pytest.raises(DataError, match="'plan'") as raised:
        list(batches_in_order(with_plan(False), source, 2, Mode.EVALUATION))

    assert "the label" not in str(raised.value)


@pytest.mark.parametrize("what", ["binary", "NaN", "draws", "restricted"])
def test_a_missing_label_is_neither_needed_nor_reported(what, caplog):
    missing_fields._reported.clear()

    def made(records):
        features = np.stack([record["x"] for record in records])
        if what == "draws":
            features = features + np.random.default_rng().normal()
        labels = [r["kind"].item() for r in records]
        if what == "binary":
            labels = [label == b"yes" for label in labels]
        if what == "restricted":
            labels = [[b"0"].index(label) for label in labels]
        return features, np.array(labels)

    schema = Schema((Field("x", (1,), np.dtype("float32")), Field("kind", (), STRING)))
    x = np.nan if what == "NaN" else 1.0
    unlabelled = MemorySource([{"x": np.float32([x])} for i in range(3)])
    definition = definition_of(RecordInput(made, schema))

    assert len(list(batches_in_order(definition, unlabelled, 2, Mode.PREDICTION))) == 2
    assert not caplog.records


@pytest.mark.parametrize("what", ["in place", "restricted label", "draws", "NaN beside it"])
def test_a_missing_number_is_refused(what):
    def made(records):
        if what == "in place":
            for record in records:
                record["x"] *= record["width"]
        features = {name: np.stack([r[name] for r in records]) for name in ("x", "width")}
        if what == "in place":
            del features["width"]
        if what == "draws":
            features["noise"] = np.random.default_rng().normal(size=len(records))
        if what == "NaN beside it":
            features = np.concatenate([features["x"], features["width"]], axis=1)
        allowed = [0] if what == "restricted label" else [0, 1]
        return features, np.array([allowed.index(r["label"].item()) for r in records])

    width = Field("width", (1,), np.dtype("float32"))
    definition = definition_of(RecordInput(made, Schema((*SCHEMA.fields, width))))
    x = np.nan if what == "NaN beside it" else 1.0
    unlabelled = MemorySource([{"x": np.float32([x])} for i in range(3)])

    with pytest.raises(DataError, match="no 'width', which model.py:7 needs"):
        list(batches_in_order(definition, unlabelled, 2, Mode.PREDICTION))


def test_missing_features_that_are_multiplied_are_named():
    def area(records):
        return np.stack([r["width"] * r["height"] for r in records]), np.zeros(len(records))

    sides = (Field(name, (1,), np.dtype("float32")) for name in ("width", "height"))
    definition = definition_of(RecordInput(area, Schema((*SCHEMA.fields, *sides))))

    with pytest.raises(DataError, match="no 'width' and 'height', which model.py:7 needs"):
        list(batches_in_order(definition, source_of(3), 2, Mode.PREDICTION))


def test_a_label_that_must_be_known_in_an_evaluation_is_not_reported(caplog):
    def classified(records, mode):
        features = np.stack([record["x"] for record in records])
        if mode is Mode.PREDICTION:
            return features
        return features, np.array([["bad", "good"].index(r["kind"].item()) for r in records])

    schema = Schema((Field("x", (1,), np.dtype("float32")), Field("kind", (), STRING)))
    unlabelled = MemorySource([{"x": np.float32([i])} for i in range(3)])
    definition = definition_of(RecordInput(classified, schema, takes_mode=True))

    assert len(list(batches_in_order(definition, unlabelled, 2, Mode.PREDICTION))) == 2
    assert not caplog.records


def test_a_partly_known_label_may_be_missing():
    kinds = ["bad", "good"]

    def classified(records):
        labels = [kinds.index(r["kind"].item().decode()) for r in records if "kind" in r]
        return np.stack([record["x"] for record in records]), np.array(labels)

    schema = Schema((Field("x", (1,), np.dtype("float32")), Field("kind", (), STRING)))
    unlabelled = MemorySource([{"x": np.float32([i])} for i in range(3)])
    definition = definition_of(RecordInput(classified, schema))

    batches = list(batches_in_order(definition, unlabelled, 2, Mode.PREDICTION))

    assert batches[1][1].features.tolist() == [[2.0]]


def test_records_without_a_feature_are_refused_in_prediction():
    featureless = MemorySource([{"label": np.int64([1])}])
    definition = definition_of(RecordInput(stack_fields, SCHEMA))

    with pytest.raises(DataError, match="the records have no 'x', which model.py:7 needs"):
        list(batches_in_order(definition, featureless, 2, Mode.PREDICTION))


@pytest.mark.parametrize(
    ("have", "message"),
    [
        (
            ["garden", "rooms"],
            (
                r"the records have no 'area', which the model needs for its inputs\. They have "
                r"'garden', 'rooms'\. Add 'area' to the data\.$"
            ),
        ),
        (
            ["garden"],
            (
                r"the records have no 'area' and 'rooms', which the model needs for its inputs\. "
                r"They have 'garden'\. Add 'area' and 'rooms' to the data\.$"
            ),
        ),
        (["garden", "rooms", "aera"], r"Rename 'aera' to 'area' in the data\.$"),
        (
            ["garden", "aera"],
            r"no 'area' and 'rooms', .*\. Rename 'aera' to 'area' in the data, and add 'rooms'\.$",
        ),
    ],
)
def test_an_input_of_the_model_is_not_renamed_to_another_one(have, message):
    fields = tuple(Field(name, (1,), np.dtype("float32")) for name in ("area", "garden", "rooms"))

    def every_field(records):
        return {field.name: np.stack([r[field.name] for r in records]) for field in fields}

    source = MemorySource([{name: np.float32([1]) for name in have}])
    definition = definition_of(RecordInput(every_field, Schema(fields).undeclared()))

    with pytest.raises(DataError, match=message):
        list(batches_in_order(definition, source, 2, Mode.PREDICTION))


def guarded(records):
    x = np.stack([record["x"] for record in records])
    return x, np.array([record["Label"].item() for record in records if "Label" in record])


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_empty_labels_are_reported_with_the_fields_of_the_records(schema):
    definition = definition_of(RecordInput(guarded, schema))

    def batches(mode):
        return list(batches_in_order(definition, source_of(9), 2, mode))

    with pytest.raises(
        DefinitionError,
        match=r"the labels that the input function made from 2 records are empty\. Does it look "
        r"for a field that the records do not have\? They have .*'label'",
    ):
        batches(Mode.TRAINING)
    with pytest.raises(DefinitionError, match="An evaluation needs labels; use predict for"):
        batches(Mode.EVALUATION)
    assert len(batches(Mode.PREDICTION)) == 5


@pytest.mark.parametrize(("mode", "is_hinted"), [(Mode.PREDICTION, True), (Mode.TRAINING, False)])
def test_a_label_that_is_read_from_data_to_predict_has_a_hint(mode, is_hinted):
    def unguarded(records):
        x = np.stack([record["x"] for record in records])
        return x, np.array([record["target"].item() for record in records])

    unlabelled = MemorySource([{"x": np.float32([i])} for i in range(3)])
    definition = definition_of(RecordInput(unguarded, None))

    with pytest.raises(UserCodeError) as caught:
        list(batches_in_order(definition, unlabelled, 2, mode))

    hint = (
        "  The records have 'x'.\n"
        "  If 'target' is the label: data to predict need none. Read it only where it is: "
        '[... for record in records if "target" in record].'
    )
    assert (hint in str(caught.value)) == is_hinted


@pytest.mark.parametrize("mode", list(Mode))
def test_the_fields_are_listed_with_the_likeliest_first(mode):
    def misspelt(records):
        return np.stack([record["hieght"] for record in records]), np.zeros(len(records))

    source = MemorySource([{name: np.float32([1]) for name in ("age", "height", "weight")}] * 2)

    with pytest.raises(UserCodeError) as caught:
        list(batches_in_order(definition_of(RecordInput(misspelt, None)), source, 2, mode))

    fields = "'height', 'age', 'weight'; did you mean 'height'?"
    assert f"KeyError: 'hieght'\n  The records have {fields}" in str(caught.value)


def test_a_missing_feature_is_reported_without_the_missing_label():
    def two_fields(records):
        batch = np.stack([record["x"] for record in records])
        return batch, np.stack([record["label"] for record in records])

    nothing = MemorySource([{"other": np.int64([1])}])
    definition = definition_of(RecordInput(two_fields, SCHEMA))

    with pytest.raises(DataError, match="the records have no 'x', which"):
        list(batches_in_order(definition, nothing, 2, Mode.PREDICTION))


KINDS = Schema((Field("x", (1,), np.dtype("float32")), Field("kind", (), STRING)))


def by_kind(records):
    kinds = ["bad", "good"]
    labels = [kinds.index(record["kind"].item().decode()) for record in records]
    return np.stack([record["x"] for record in records]), np.array(labels)


def test_records_without_any_field_of_the_schema_are_refused_with_its_names():
    nothing = MemorySource([{"other": np.int64([1])}])
    definition = definition_of(RecordInput(by_kind, KINDS))

    with pytest.raises(DataError, match="no field of data_schema.*'x', 'kind'. They have 'other'."):
        list(batches_in_order(definition, nothing, 2, Mode.PREDICTION))


def test_a_label_that_the_data_lacks_is_not_to_be_added_to_the_schema():
    unlabelled = MemorySource([{"x": np.float32([1])}])
    definition = definition_of(RecordInput(by_kind, KINDS))

    with pytest.raises(UserCodeError, match=r"has 'kind', but .* if 'kind' in record\.$"):
        list(batches_in_order(definition, unlabelled, 2, Mode.PREDICTION))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (SCHEMA, "Only fields in data_schema() are read: add 'lable' there if the data has it."),
        (None, "The records have 'label', 'x'; did you mean 'label'?"),
    ],
)
def test_an_unknown_field_is_reported_with_the_existing_ones(schema, message):
    definition = definition_of(RecordInput(lambda records: records[0]["lable"], SCHEMA))
    how = dataclasses.replace(definition.input, schema=schema)
    records = source_of(2).read_records(0, 2, SCHEMA)

    with pytest.raises(UserCodeError) as caught:
        make_batch(definition, how, records, Mode.TRAINING, lambda: "d.csv")

    assert "The records have 'label', 'x'; did you mean 'label'?" in str(caught.value)
    assert str(caught.value).endswith(message)


# --- pipelines ------------------------------------------------------------------------------


def parse(record):
    import tensorflow as tf

    spec = {
        "x": tf.io.FixedLenFeature([1], tf.float32),
        "label": tf.io.FixedLenFeature([1], tf.int64),
    }
    parsed = tf.io.parse_single_example(record, spec)
    return {"x": parsed["x"] + tf.random.uniform([1])}, parsed["label"]


def shuffled(dataset, mode):
    return dataset.map(parse).shuffle(1024)


def test_an_unseeded_pipeline_continues_where_it_stopped():
    plan = ShardPlan(40, 4, 5)
    definition = definition_of(DatasetInput(shuffled))
    whole = list(from_shard(definition, 40, plan, 2, ShardLease(1)))

    rest = from_shard(definition, 40, plan, 2, ShardLease(1, 3, digest=whole[2].digest))

    assert values(rest) == values(whole[3:])
    assert values(whole) != values(from_shard(definition, 40, plan, 3, ShardLease(1)))


def test_an_irreproducible_pipeline_is_named():
    def unrepeatable(dataset, mode):
        noise = time.time_ns() % 1000
        return dataset.map(lambda record: (parse(record)[0]["x"] + noise, 0))

    plan = ShardPlan(8, 2)
    definition = definition_of(DatasetInput(unrepeatable))
    first = next(from_shard(definition, 8, plan, 0, ShardLease(0)))

    with pytest.raises(DefinitionError, match=r"model.py:7: the data pipeline does not yield the"):
        list(from_shard(definition, 8, plan, 0, ShardLease(0, 1, digest=first.digest ^ 1)))


def test_a_number_of_examples_unlike_that_of_records_is_logged_once(caplog):
    def twice(records):
        features, labels = stack_fields(records)
        return {"x": np.concatenate([features["x"], -features["x"]])}, np.tile(labels, (2, 1))

    definition = definition_of(RecordInput(twice, SCHEMA), line=8)
    list(feed(definition, source_of(8), ShardPlan(8, 4)))

    told = [message for message in caplog.messages if "input function" in message]
    assert len(told) == 1
    assert told[0].startswith("model.py:8: the input function made 8 examples from 4 records.")


def told_of(caplog, input_fn, line):
    list(feed(definition_of(RecordInput(input_fn, SCHEMA), line), source_of(8), ShardPlan(8, 4)))
    return [message for message in caplog.messages if "depends on the other records" in message]


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: (x - x.mean(axis=0), y),
        lambda x, y: (x / x.max(), y),
        lambda x, y: (x, np.unique(x, return_inverse=True)[1].reshape(-1)),
        lambda x, y: (x, y, np.full(len(y), 1 / len(y), np.float32)),
    ],
    ids=["mean", "maximum", "classes", "weights"],
)
def test_an_input_function_that_mixes_records_is_reported(caplog, change, request):
    def input_fn(records):
        features, labels = stack_fields(records)
        return change(features["x"], labels)

    line = 100 + hash(request.node.name) % 10**6
    (told,) = told_of(caplog, input_fn, line)

    assert told.startswith(
        f"model.py:{line}: the result of the input function for a record depends"
    )
    assert "differ from those of the first 1 and the last 3" in told


def padded(records):
    longest = max(int(record["x"][0]) for record in records) + 1
    return np.stack([np.pad(r["x"], (0, longest)) for r in records]), np.ones(len(records))


@pytest.mark.parametrize("input_fn", [stack_fields, noisy, padded])
def test_an_input_function_of_single_records_is_not_reported(caplog, input_fn):
    assert told_of(caplog, input_fn, 90) == []


def test_a_pipeline_may_filter_out_everything():
    plan = ShardPlan(8, 2)
    definition = definition_of(
        DatasetInput(lambda ds, mode: shuffled(ds, mode).filter(lambda x, y: False))
    )

    fed = list(feed(definition, source_of(8), plan))

    assert [(f.batch, f.finished) for f in fed] == [(None, True)]


def test_an_endless_pipeline_reads_a_shard_once():
    plan = ShardPlan(8, 2)
    definition = definition_of(DatasetInput(lambda ds, mode: ds.map(parse).repeat()))

    assert len(list(feed(definition, source_of(8), plan))) == 4


def test_a_pipeline_that_filters_cannot_predict():
    definition = definition_of(
        DatasetInput(lambda ds, mode: ds.map(lambda r: parse(r)[0]).filter(lambda x: x["x"][0] > 3))
    )

    with pytest.raises(DataError, match="yields . examples of 8 records"):
        list(batches_in_order(definition, source_of(8), 4, Mode.PREDICTION))


def test_seeding_without_clearing_kernels_matches_set_seed():
    import tensorflow as tf

    from elasticdl.data import tensorflow

    def drawn():
        shuffled = tf.data.Dataset.range(20).shuffle(20)
        return [tf.random.uniform([3]).numpy().tolist(), list(shuffled.as_numpy_iterator())]

    # Ours first: a seed that was used before would find its kernels in the cache. Jobs do not
    # use one twice in a process, the public call clears them.
    tensorflow.reseed(987_654)
    ours = drawn()
    tf.random.set_seed(987_654)

    assert ours == drawn()


# --- the thread -----------------------------------------------------------------------------


def test_an_error_in_the_thread_is_raised_after_earlier_items():
    def items():
        yield 1
        raise ValueError("broken")

    with Prefetch(items(), lambda item: 0) as feed:
        assert feed.peek() == 1
        assert feed.take() == 1
        with pytest.raises(ValueError, match="broken"):
            feed.peek()


def test_the_thread_respects_its_memory_limit():
    made = []

    def items():
        for i in range(100):
            made.append(i)
            yield i

    with Prefetch(items(), lambda item: 40 * 2**20) as feed:
        feed.peek()
        time.sleep(0.2)

    assert len(made) <= 4


def test_closing_ends_the_thread_of_an_endless_feed():
    def endless():
        while True:
            yield 0

    feed = Prefetch(endless(), lambda item: 2**20)
    feed.close()

    assert not feed._thread.is_alive()


def test_random_numbers_of_a_batch_do_not_depend_on_the_range():
    definition, source = definition_of(RecordInput(noisy, SCHEMA)), source_of(12)

    def drawn(start):
        batches = batches_in_order(definition, source, 2, Mode.EVALUATION, start=start)
        return {first: batch.features["x"].tolist() for first, batch in batches}

    whole, rest = drawn(0), drawn(4)
    assert rest == {first: x for first, x in whole.items() if first >= 4}
    assert len(rest) == 4


@pytest.mark.parametrize("committed", [0, 1, 4])
def test_skipped_records_are_in_no_batch_from_that_epoch_on(committed):
    plan = ShardPlan(25, 3, 5, seed=2)
    bad = BatchId(1, 0, 3)
    gone = set(plan.record_numbers(1, 0)[9:12].tolist())
    reads = []

    def seen(records):
        reads.extend(int(record["x"][0]) for record in records)
        return stack_fields(records)

    definition = definition_of(RecordInput(seen, SCHEMA))
    reader = reader_of(definition, source_of(25))

    def batches(epoch, shard, left_out=()):
        lease = ShardLease(shard, committed if not shard else 0)
        return list(shard_batches(definition, reader, plan, epoch, lease, left_out=left_out))

    before = batches(0, 0, [bad])
    own = batches(1, 0, [bad])
    as_planned = batches(1, 0)
    assert values(before) == values(batches(0, 0))
    assert [fed.number for fed in own] == [fed.number for fed in as_planned]
    assert [fed.finished for fed in own] == [fed.finished for fed in as_planned]
    assert [(fed.number, fed.is_empty) for fed in own if fed.num_left_out] == (
        [(3, True)] if committed <= 3 else []
    )
    reads.clear()
    later = [*batches(2, 0, [bad]), *batches(2, 1, [bad])]
    planned = [*batches(2, 0), *batches(2, 1)]
    for fed, whole in zip(later, planned, strict=True):
        rest = [x for x in values([whole])[0] if x not in gone]
        assert (values([fed])[0] if rest else []) == rest
        assert fed.num_left_out == whole.batch.num_examples - len(rest)


def test_skipped_records_are_not_decoded(tmp_path):
    plan = ShardPlan(8, 2, 4, shuffle=False)
    lengths = [3 if i == 5 else 1 for i in range(8)]
    path = tmp_path / "numbers.recordio"
    with recordio.Writer(str(path)) as writer:
        for i, n in enumerate(lengths):
            writer.write(encode({"x": np.full(n, i, np.float32), "label": np.int64([0])}))
    source = open_source(str(path))
    definition = definition_of(RecordInput(stack_fields, SCHEMA))
    reader = reader_of(definition, source)

    with pytest.raises(SchemaError):
        list(shard_batches(definition, reader, plan, 0, ShardLease(0)))

    singly = shard_batches(definition, reader, plan, 0, ShardLease(0), one_by_one=lambda: True)
    assert values([next(singly), next(singly)]) == [[0, 1], [2, 3]]
    rest = shard_batches(definition, reader, plan, 0, ShardLease(0), left_out=[BatchId(0, 0, 2)])
    assert [fed.batch is None for fed in rest] == [False, False, True, False]


def one_record(records):
    (record,) = records
    return stack_fields([record])


def test_an_input_function_for_one_record_trains_with_minibatches_of_one():
    data = RecordData(definition_of(RecordInput(one_record, SCHEMA)), source_of(6))

    assert data.example(ShardPlan(6, 1, 3)).num_examples == 1

    with pytest.raises(UserCodeError, match="too many values to unpack"):
        data.example(ShardPlan(6, 2, 3))


def test_an_example_has_two_records_even_if_minibatches_have_one():
    data = RecordData(definition_of(RecordInput(stack_fields, SCHEMA)), source_of(6))

    assert data.example(ShardPlan(6, 1, 3)).num_examples == 2


WORDS = Schema((Field("x", (), np.dtype("float32")), Field("kind", (), STRING)))


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (lambda x, kind: (x, kind == "dog"), "labels"),
        (lambda x, kind: (x, float(kind.item() == "dog")), "labels"),
        (lambda x, kind: ([x, kind == "dog"], x), "features"),
        (lambda x, kind: ([x, {"dog": 1}.get(kind.item(), 0)], x), "features"),
        (lambda x, kind: (x, kind == b"dog"), None),
        (lambda x, kind: (x, kind.item().decode() == "dog"), None),
        (lambda x, kind: (x, kind == b"bird"), None),
        (lambda x, kind: (x, 0), None),
    ],
)
def test_a_comparison_of_bytes_with_str_is_reported(caplog, tmp_path, read, what, request):
    columns = {"x": np.arange(8, dtype=np.float32), "kind": ["cat", "dog"] * 4}
    pq.write_table(pa.table(columns), tmp_path / "kinds.parquet")

    def input_fn(records):
        features, labels = zip(*(read(r["x"], r["kind"]) for r in records), strict=True)
        return np.array(features, np.float32).reshape(len(records), -1), np.float32(labels)

    line = 100 + hash(request.node.name) % 10**6
    definition = definition_of(RecordInput(input_fn, WORDS), line)
    list(feed(definition, open_source(str(tmp_path / "kinds.parquet")), ShardPlan(8, 4)))

    told = [message for message in caplog.messages if "never equal a str" in message]
    assert len(told) == (what is not None)
    assert all(f"the {what} that the input function makes" in message for message in told)
