"""Whole jobs in this process, through the public door."""

import csv
import json
import os

import numpy as np
import pytest
from tests.engines.conftest import write_records

import elasticdl
from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.cli.main import _run
from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.data.sources import open_source
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import (
    DataError,
    NonFiniteLossError,
    OutputError,
    OutputTakenError,
    UsageError,
)
from elasticdl.event_file import read_events
from elasticdl.events import (
    Checkpointed,
    EpochFinished,
    Evaluated,
    JobFailed,
    JobFinished,
    JobStarted,
    StepCommitted,
)
from elasticdl.job import Job


def events(tmp_path, kind=None):
    happened = read_events(tmp_path / "out" / "events.jsonl")
    return [event for event in happened if kind is None or isinstance(event, kind)]


def weights(output):
    return dict(load_trained_model(str(output)).params)


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    assert [path for path in one if one[path].tobytes() != other[path].tobytes()] == []


def test_training_gives_a_model_that_evaluates_and_predicts(train, data, tmp_path):
    outcome = train(num_epochs=5, validation_data=str(data))

    evaluated = elasticdl.evaluate(trained_model=outcome.output, data=str(data), reporter=Silent())

    assert evaluated.metrics["accuracy"] > 0.8
    assert evaluated.metrics["loss"] == pytest.approx(outcome.metrics["val_loss"], rel=1e-6)
    saved = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert saved["metrics"] == evaluated.metrics
    assert saved["num_records"] == 150


def test_a_trained_model_has_the_names_of_its_classes(zoo, train, tmp_path):
    zoo('classes = ["setosa", "versicolor", "virginica"]')
    train(max_steps=1)

    named = load_trained_model(str(tmp_path / "out")).description.classes
    assert named == ("setosa", "versicolor", "virginica")


def test_predictions_have_class_name_and_probability(zoo, train, data, tmp_path):
    zoo('classes = ["setosa", "versicolor", "virginica"]')
    train(num_epochs=5)
    file = tmp_path / "p.csv"

    elasticdl.predict(
        trained_model=str(tmp_path / "out"), data=str(data), output=str(file), reporter=Silent()
    )

    first, *rows = csv.reader(file.read_text().splitlines())
    assert first == ["key", "prediction", "probability", "output_0", "output_1", "output_2"]
    labels = [r["label"].item() for r in open_source(str(data)).read_records(0, 150, None)]
    names = ["setosa", "versicolor", "virginica"]
    right = [names[label] == row[1] for label, row in zip(labels, rows, strict=True)]
    assert sum(right) > 120
    logits = np.float64([row[3:] for row in rows])
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    assert np.float64([row[2] for row in rows]) == pytest.approx(1 / odds.sum(axis=1), rel=1e-5)


def test_a_script_may_draw_random_numbers_after_a_training(train):
    """TensorFlow's op determinism, which a training needs, refuses it without a seed."""
    import tensorflow as tf
    from tensorflow.python.framework import config

    train(num_epochs=1)

    assert not config.is_op_determinism_enabled()
    assert tf.random.uniform([2]).shape == (2,)


def test_the_users_determinism_setting_survives_a_training(train):
    import tensorflow as tf
    from tensorflow.python.framework import config

    tf.config.experimental.enable_op_determinism()
    try:
        train(num_epochs=1)

        assert config.is_op_determinism_enabled()
    finally:
        config.disable_op_determinism()


def test_events_describe_the_training(train, data, tmp_path):
    train(num_epochs=2, validation_data=str(data), evaluation_steps=4, checkpoint_steps=5)

    assert [e.step for e in events(tmp_path, Evaluated)] == [4, 8, 12, 16, 20]
    assert {5, 10, 15, 20} <= {e.step for e in events(tmp_path, Checkpointed)}
    assert [(e.epoch, e.step) for e in events(tmp_path, EpochFinished)] == [(0, 10), (1, 20)]
    assert isinstance(events(tmp_path)[0], JobStarted)
    assert isinstance(events(tmp_path)[-1], JobFinished)
    assert sum(e.num_records for e in events(tmp_path, StepCommitted)) == 300
    rows = [row for e in events(tmp_path, StepCommitted) for row in e.rows]
    batches = [(epoch, n) for epoch, _, _, first, stop in rows for n in range(first, stop)]
    assert batches == [(epoch, n) for epoch in (0, 1) for n in range(10)]


def test_a_read_only_trained_model_can_be_evaluated(train, data, tmp_path, caplog):
    train()
    model = tmp_path / "out"
    # Root may write into any folder; nobody can write through a folder that is in the way.
    (model / "evaluation.json").mkdir()

    outcome = elasticdl.evaluate(trained_model=str(model), data=str(data))

    assert outcome.metrics["loss"] > 0
    assert outcome.output == ""
    assert "The metrics are not saved" in caplog.text
    with pytest.raises(OutputError):
        elasticdl.evaluate(
            trained_model=str(model), data=str(data), output=str(model / "evaluation.json")
        )


def test_top_level_random_numbers_are_equal_in_all_processes(train, zoo, data, tmp_path):
    zoo("""
        CENTRES = np.random.normal(size=(4, 4)).astype("float32")

        def input_fn(records):
            labels = np.stack([r["label"] for r in records])
            return np.stack([r["x"] @ CENTRES for r in records]), labels
    """)
    outcome = train(num_epochs=1, validation_data=str(data), output=str(tmp_path / "one"))
    # As another process would have been, by now.
    np.random.random(100)  # noqa: NPY002 - users call np.random.*
    train(num_epochs=1, validation_data=str(data), output=str(tmp_path / "two"))

    assert_same_bits(weights(tmp_path / "one"), weights(tmp_path / "two"))
    measured = elasticdl.evaluate(trained_model=str(tmp_path / "one"), data=str(data))
    assert measured.metrics["loss"] == pytest.approx(outcome.metrics["val_loss"], rel=1e-6)


def test_a_finished_job_is_not_trained_again(train, tmp_path):
    first = train()
    again = train()

    assert again.already_done
    assert again.step == first.step
    assert len(events(tmp_path, JobStarted)) == 1


@pytest.mark.parametrize("checkpoint_steps", [0, 3])
def test_continuing_with_more_epochs_equals_one_run(train, tmp_path, checkpoint_steps):
    train(num_epochs=1, output=str(tmp_path / "two"), checkpoint_steps=checkpoint_steps)
    train(num_epochs=3, output=str(tmp_path / "two"))
    train(num_epochs=3, output=str(tmp_path / "one"))

    assert_same_bits(weights(tmp_path / "two"), weights(tmp_path / "one"))


def test_stopping_within_an_epoch_and_resuming_leaves_no_trace(train, tmp_path):
    train(num_epochs=2, max_steps=7, output=str(tmp_path / "two"))
    outcome = train(num_epochs=2, output=str(tmp_path / "two"))
    train(num_epochs=2, output=str(tmp_path / "one"))

    assert outcome.step == 20
    assert_same_bits(weights(tmp_path / "two"), weights(tmp_path / "one"))


def test_metrics_at_max_steps_cover_the_epoch_so_far(train, tmp_path):
    whole = train(num_epochs=1, output=str(tmp_path / "whole"))
    within = train(num_epochs=2, max_steps=17, output=str(tmp_path / "within"))

    assert within.metrics["loss"] < whole.metrics["loss"]


def test_evaluation_and_checkpoints_do_not_change_the_training(train, data, tmp_path):
    train(output=str(tmp_path / "blind"))
    train(
        output=str(tmp_path / "looking"),
        validation_data=str(data),
        evaluation_steps=3,
        checkpoint_steps=2,
    )

    assert_same_bits(weights(tmp_path / "blind"), weights(tmp_path / "looking"))


def test_another_seed_gives_another_model(train, tmp_path):
    train(seed=1, output=str(tmp_path / "one"))
    train(seed=2, output=str(tmp_path / "two"))

    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert any(not np.array_equal(one[path], two[path]) for path in one)


def test_the_best_checkpoint_has_the_lowest_validation_loss(train, tmp_path):
    # Labels that have nothing to do with the features: the more is learned, the worse it gets.
    unrelated = tmp_path / "unrelated.recordio"
    rng = np.random.default_rng(5)
    with recordio.Writer(str(unrelated)) as writer:
        for i in range(60):
            x = (np.eye(3, 4)[i % 3] * 3 + rng.normal(size=4)).astype("float32")
            writer.write(encode({"x": x, "label": np.int64([(i + 1) % 3])}))

    train(num_epochs=3, validation_data=str(unrelated), evaluation_steps=5, keep_checkpoint_max=2)

    evaluated = events(tmp_path, Evaluated)
    best = min(evaluated, key=lambda e: e.metrics["loss"])
    assert best.step < evaluated[-1].step
    store = CheckpointStore(OutputFolder(tmp_path / "out"))
    assert store.best_step() == best.step
    assert store.load(best.step).step == best.step


# The first epoch changes the labels least: the loss gets worse and worse.
WORSE = """
def optimizer():
    return keras.optimizers.SGD(-0.01)
"""


def best_of(output):
    """Return the weights of the best checkpoint."""
    state = CheckpointStore(OutputFolder(output)).best().state
    return {path.removeprefix("model/"): a for path, a in state.items() if path[:6] == "model/"}


@pytest.mark.parametrize(("mode", "step"), [("min", 10), ("max", 30)])
def test_the_trained_model_is_the_best_one_if_requested(train, zoo, data, tmp_path, mode, step):
    zoo(WORSE)
    more = {"num_epochs": 3, "validation_data": str(data), "best_mode": mode}

    outcome = train(**more, restore_best_weights=True)
    train(**more, output=str(tmp_path / "last"))

    assert load_trained_model(outcome.output).description.step == step
    assert_same_bits(weights(outcome.output), best_of(outcome.output))
    losses = [e.metrics["val_loss"] for e in events(tmp_path, EpochFinished)]
    assert outcome.metrics["val_loss"] == (min if mode == "min" else max)(losses)
    assert load_trained_model(str(tmp_path / "last")).description.step == 30


def test_a_finished_job_has_the_metrics_of_its_model(train, zoo, data):
    zoo(WORSE)
    options = {"num_epochs": 3, "validation_data": str(data), "restore_best_weights": True}
    first = train(**options)

    again = train(**options)

    assert again.already_done
    assert (again.step, again.metrics) == (first.step, first.metrics)


def test_the_best_model_has_the_metrics_of_its_epoch(train, zoo, data, tmp_path):
    """Also where evaluations are by steps, one of which ends the epoch."""
    zoo(WORSE)

    outcome = train(
        num_epochs=3, validation_data=str(data), evaluation_steps=10, restore_best_weights=True
    )

    assert load_trained_model(outcome.output).description.step == 10
    assert outcome.metrics == events(tmp_path, EpochFinished)[0].metrics


def test_the_best_model_is_chosen_by_the_named_metric(train, data, tmp_path):
    train(num_epochs=3, validation_data=str(data), best_metric="val_accuracy", best_mode="max")

    finished = events(tmp_path, EpochFinished)
    # Of equals the first stays.
    best = max(finished, key=lambda e: e.metrics["val_accuracy"])
    assert CheckpointStore(OutputFolder(tmp_path / "out")).best_step() == best.step


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("val_accuracy", "best_metric=val_accuracy: there is no validation data"),
        # It is measured in evaluations only.
        ("accuracy", "best_metric=accuracy: no such metric. The metrics are loss."),
        ("losss", "did you mean 'loss'? The metrics are loss."),
    ],
)
def test_an_unmeasured_best_metric_is_refused_before_the_first_step(train, tmp_path, metric, said):
    with pytest.raises(UsageError) as caught:
        train(best_metric=metric)

    assert said in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_best_model_can_be_requested_on_the_command_line(zoo, data, tmp_path):
    zoo(WORSE)
    out = tmp_path / "out"
    flags = [f"--model_zoo={tmp_path / 'zoo'}", "--model_def=small", f"--data={data}"]
    flags += [f"--output={out}", "--minibatch_size=16", "--num_epochs=2", "--quiet"]

    _run(
        ["train", *flags, "--best_metric=loss", "--best_mode=min", "--restore_best_weights"],
        debug=False,
    )

    model = load_trained_model(str(out))
    options = Job.from_json(model.description.job_json).training
    assert (options.best_metric, options.best_mode) == ("loss", "min")
    assert (options.restore_best_weights, model.description.step) == (True, 10)
    assert_same_bits(weights(out), best_of(out))


def test_a_training_stopped_by_callbacks_is_finished_for_a_second_run(train, zoo, tmp_path):
    zoo(
        """
        class Impatient(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.model.stop_training = epoch == 1

        def callbacks():
            return [Impatient()]
        """
    )

    assert train(num_epochs=9).step == 20
    assert train(num_epochs=9).already_done


def test_a_callback_stops_the_training_within_an_epoch(train, zoo, tmp_path):
    zoo(
        f"""
        class Impatient(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                with open({str(tmp_path / "seen")!r}, "a") as file:
                    print(batch, file=file)
                self.model.stop_training = batch == 3

        def callbacks():
            return [Impatient()]
        """
    )

    assert train(num_epochs=9).step == 4
    assert (tmp_path / "seen").read_text().split() == ["0", "1", "2", "3"]


def test_a_batch_callback_sees_each_batch_once(train, zoo, tmp_path):
    zoo(
        f"""
        def callbacks():
            def note(batch, logs):
                with open({str(tmp_path / "seen")!r}, "a") as file:
                    print(batch, sorted(logs), file=file)
            return [keras.callbacks.LambdaCallback(on_train_batch_end=note)]
        """
    )

    train()

    assert (tmp_path / "seen").read_text().splitlines() == [f"{n} ['loss']" for n in range(10)]


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(train, zoo, tmp_path):
    zoo(
        """
        def input_fn(records):
            x = np.stack([r["x"] for r in records])
            if len(records) < 16:  # the last batch of the epoch
                x = np.full_like(x, 3e38)
            return x, np.stack([r["label"] for r in records])
        """
    )

    with pytest.raises(
        NonFiniteLossError, match=r"loss is nan at step 10 .*good checkpoint was written at"
    ):
        train(checkpoint_steps=4)

    assert CheckpointStore(OutputFolder(tmp_path / "out")).steps() == [4, 8]
    assert events(tmp_path, JobFailed)[0].kind == "NonFiniteLossError"


def test_an_output_of_another_job_is_refused_with_the_differences(train):
    train()

    with pytest.raises(OutputTakenError, match="seed"):
        train(seed=3)


def test_data_that_changed_during_a_job_is_refused(train, data):
    train(max_steps=3)
    write_records(data, 170)

    with pytest.raises(DataError, match=r"differs from the data of the first 3 steps"):
        train()


def test_code_edited_during_training_is_saved_in_its_original_state(train, zoo, tmp_path):
    before = (tmp_path / "zoo" / "small.py").read_text()
    zoo(
        f"""
        def callbacks():
            def spoil(epoch, logs):
                with open({str(tmp_path / "zoo" / "small.py")!r}, "w") as file:
                    file.write("no python any more")
            return [keras.callbacks.LambdaCallback(on_epoch_end=spoil)]
        """
    )

    train()

    assert (tmp_path / "out" / "zoo" / "small.py").read_text().startswith(before)


def test_records_span_files_so_that_only_the_last_batch_is_short(train, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(15):
        write_records(folder / f"{i:02d}.recordio", 10, seed=i)

    assert train(data=f"{folder}/*.recordio").step == 10


def test_predictions_need_only_the_trained_model(train, zoo, tmp_path):
    outcome = train()
    unlabelled = write_records(tmp_path / "new.recordio", 20, fields=("x",))
    (tmp_path / "zoo" / "small.py").unlink()

    elasticdl.predict(
        trained_model=outcome.output,
        data=str(unlabelled),
        output=str(tmp_path / "predicted"),
        format="csv",
        reporter=Silent(),
    )

    (part,) = (tmp_path / "predicted").glob("part-*.csv")
    lines = part.read_text().splitlines()
    assert len(lines) == 21
    assert lines[0].split(",")[0].strip('"') == "key"
    assert lines[-1].split(",")[0].strip('"') == "new.recordio:19"


def test_a_job_that_never_began_frees_its_output(train):
    with pytest.raises(elasticdl.ElasticDLError):
        train(model_def="smal")

    assert train().step == 10


def test_predicting_other_columns_reports_different_data(train, tmp_path):
    outcome = train()
    with recordio.Writer(str(tmp_path / "wide.recordio")) as writer:
        writer.write(encode({"x": np.zeros(7, "float32"), "label": np.int64([0])}))

    with pytest.raises(DataError, match=r"wide\.recordio"):
        elasticdl.predict(
            trained_model=outcome.output,
            data=str(tmp_path / "wide.recordio"),
            output=str(tmp_path / "p"),
            reporter=Silent(),
        )


def test_a_trained_model_follows_the_users_umask(train, tmp_path):
    train()

    modes = {p.stat().st_mode & 0o777 for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert modes == {0o666 & ~_umask()}


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_predicting_a_table_with_other_columns_reports_the_difference(tmp_path):
    for name, columns in (("iris", 4), ("other", 6)):
        with recordio.Writer(str(tmp_path / f"{name}.recordio")) as writer:
            for i in range(20):
                row = {f"column_{n}": np.float32([i * n]) for n in range(columns)}
                writer.write(encode({**row, "label": np.int64([i % 2])}))
    outcome = elasticdl.train(
        model_def="classifier.DNN",
        data=str(tmp_path / "iris.recordio"),
        output=str(tmp_path / "out"),
        reporter=Silent(),
    )

    with pytest.raises(DataError, match=r"other.recordio: these records do not match .*out"):
        elasticdl.predict(
            trained_model=outcome.output,
            data=str(tmp_path / "other.recordio"),
            output=str(tmp_path / "p"),
            reporter=Silent(),
        )
