"""What a process finds of its data, beside what a checkpoint says of them."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace

import pytest
from tests.engines.conftest import write_records

from elasticdl import job_options
from elasticdl.data import recordio, sources
from elasticdl.data.recordio import RecordIOSource
from elasticdl.engines.training_context import open_context
from elasticdl.errors import DefinitionError, NoDataError

# --- what others need not find again -----------------------------------------------------------


def job_of(zoo, data, validation_data=None):
    return job_options.training_job(
        model_zoo=str(zoo()), model_def="small", data=str(data), output="nowhere",
        validation_data=None if validation_data is None else str(validation_data),
    )  # fmt: skip


def test_a_worker_with_indexes_lists_and_opens_nothing(zoo, data, tmp_path, monkeypatch) -> None:
    job = job_of(zoo, data, write_records(tmp_path / "validation.recordio", 20))
    driver, _ = open_context(job)
    monkeypatch.setattr(sources, "find_files", None)
    monkeypatch.setattr(recordio, "_open", None)

    worker, _ = open_context(job, plan=driver.plan, indexes=driver.indexes())

    assert worker.data.files == driver.data.files
    assert worker.validation.num_shards == driver.validation.num_shards
    assert len(next(worker.validation.batches(0)).features) == 20


def test_a_custom_reader_has_no_index(zoo, data) -> None:
    job = job_of(zoo, data, data)
    definition = open_context(job)[0].definition
    own = replace(definition, open_source=lambda data: RecordIOSource([data]))

    assert open_context(job, definition=own)[0].indexes() == {}


LOADER = """
import torch

def train_dataloader(data):
    items = [(torch.ones(2), torch.ones(1))] * 8
    return torch.utils.data.DataLoader(items, 4, shuffle=True)

def custom_model():
    return torch.nn.Linear(2, 1)

loss = torch.nn.MSELoss()

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({}, None),
        ({"minibatch_size": 16}, "--minibatch_size=16 has no effect: "),
        ({"minibatch_size": 16, "shuffle": False}, "=16 and --no-shuffle have no effect"),
    ],
)
def test_options_that_a_loader_does_not_use_are_reported(tmp_path, options, note) -> None:
    (tmp_path / "loading.py").write_text(LOADER)
    job = job_options.training_job(
        model_zoo=str(tmp_path), model_def="loading", data="d", output="nowhere", **options
    )

    notes = open_context(job)[0].notes()

    assert [note in each for each in notes] == [True] * (note is not None)


def test_missing_data_of_a_file_with_a_misspelt_loader_name_it(tmp_path) -> None:
    (tmp_path / "loading.py").write_text(LOADER.replace("train_dataloader", "train_loader"))
    job = job_options.training_job(
        model_zoo=str(tmp_path), model_def="loading", data="nowhere", output="nowhere"
    )

    with pytest.raises(NoDataError, match=r"nowhere(?s:.*)train_loader is not used.*train_datalo"):
        open_context(job)


VALIDATION_LOADER = """
def val_dataloader(data):
    return torch.utils.data.DataLoader([(torch.ones(2), torch.ones(1))] * 8, 4)
"""


@pytest.mark.parametrize(("given", "is_file"), [(None, True), ("other", True), (None, False)])
def test_a_validation_loader_that_receives_the_training_data_is_noted(
    tmp_path, given, is_file
) -> None:
    (tmp_path / "loading.py").write_text(LOADER + VALIDATION_LOADER)
    data = tmp_path / "data"
    if is_file:
        data.mkdir()
    job = job_options.training_job(
        model_zoo=str(tmp_path), model_def="loading", data=str(data), validation_data=given,
        output="nowhere",
    )  # fmt: skip

    notes = open_context(job)[0].notes()

    line = LOADER.count("\n") + 2
    expected = f"loading.py:{line}: val_dataloader() receives --data={job.data}, because there is"
    assert [expected in each for each in notes] == [True] * (given is None and is_file)


# --- names of the classes ----------------------------------------------------------------------


class Folders(RecordIOSource):
    """Records of classes that have names."""

    classes = ("cat", "dog", "fox")


def test_classes_are_named_by_the_model_or_else_by_the_data(zoo, data) -> None:
    job = job_of(zoo, data, data)
    definition = replace(open_context(job)[0].definition, open_source=lambda data: Folders([data]))
    of_model = replace(definition, classes=("a", "b", "c"))

    assert open_context(job, definition=definition)[0].classes == ("cat", "dog", "fox")
    assert open_context(job, definition=of_model)[0].classes == ("a", "b", "c")
    assert open_context(job, definition=replace(definition, open_source=None))[0].classes == ()
    split = replace(job, validation_data=None, validation_split=0.2)
    assert open_context(split, definition=definition)[0].classes == ("cat", "dog", "fox")


# --- what schedules and callbacks monitor --------------------------------------------------------

EARLY_STOPPING = """
    def callbacks():
        return [keras.callbacks.EarlyStopping(monitor={monitor!r}, mode="max")]
"""
OWN_CALLBACK = """
    class Adds(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["val_acc"] = 0.5

    class Stops(Adds):
        monitor = "val_auc"

    class Raises(Adds):
        @property
        def monitor(self):
            raise KeyError("not set yet")

    def callbacks():
        early = keras.callbacks.EarlyStopping(monitor="val_acc", mode="max")
        return [Adds(), Raises(), early, Stops()]
"""


def test_an_unmeasured_metric_is_refused_before_the_first_epoch(zoo, tmp_path):
    data = write_records(tmp_path / "d.recordio", 8)
    expected = r"EarlyStopping monitors 'val_acc', which is not measured; did you mean 'val_accura"

    with pytest.raises(DefinitionError, match=expected):
        context, _ = open_context(
            job_of(lambda: zoo(EARLY_STOPPING.format(monitor="val_acc")), data, data)
        )
        context.create_trainer()


PLATEAU = """
def eval_metrics_fn(outputs, labels):
    return {"accuracy": (outputs > 0.5).eq(labels > 0.5).float()}

def lr_scheduler(optimizer):
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max")
    return {"scheduler": plateau, "monitor": MONITOR}
"""


@pytest.mark.parametrize("monitor", ["accuracy", "val_accuracy", "loss"])
def test_a_schedule_that_monitors_a_validation_metric_without_val_is_refused_at_once(
    tmp_path, monitor
):
    (tmp_path / "loading.py").write_text(
        LOADER + VALIDATION_LOADER + PLATEAU.replace("MONITOR", repr(monitor))
    )
    job = job_options.training_job(
        model_zoo=str(tmp_path), model_def="loading", data="d", output="nowhere"
    )
    context, _ = open_context(job)
    is_wrong = monitor == "accuracy"
    expected = "Plateau monitors 'accuracy', which is measured in validation, not in training; did"

    with pytest.raises(DefinitionError, match=expected) if is_wrong else nullcontext():
        context.create_trainer()


@pytest.mark.parametrize(("monitor", "instead"), [("val_accuracy", "loss"), ("val_loss", "loss")])
def test_monitoring_validation_without_validation_data_is_refused(zoo, tmp_path, monitor, instead):
    data = write_records(tmp_path / "d.recordio", 8)
    context, _ = open_context(job_of(lambda: zoo(EARLY_STOPPING.format(monitor=monitor)), data))

    with pytest.raises(
        DefinitionError,
        match=f"EarlyStopping monitors '{monitor}', and there is no validation data.*"
        f"--validation_split, or let it monitor '{instead}'",
    ):
        context.create_trainer()


def saving(name):
    return EARLY_STOPPING.replace(
        'EarlyStopping(monitor={monitor!r}, mode="max")', f'ModelCheckpoint("{name}")'
    )


def test_a_checkpoint_of_each_epoch_needs_no_validation_data(zoo, tmp_path):
    data = write_records(tmp_path / "d.recordio", 8)
    context, _ = open_context(job_of(lambda: zoo(saving("a.keras")), data))

    context.create_trainer()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "{val_loss:.2f}.keras",
            (
                r"'.*' of the callback ModelCheckpoint contains 'val_loss', and there is.*"
                r"--validation_split, or rename it, such as {loss:\.2f}\."
            ),
        ),
        ("w}.keras", r":\d+: the file name 'w}.keras' of the callback .* Single '}'"),
    ],
)
def test_a_file_name_that_cannot_be_written_is_refused(zoo, tmp_path, name, message):
    data = write_records(tmp_path / "d.recordio", 8)
    context, _ = open_context(job_of(lambda: zoo(saving(name)), data))

    with pytest.raises(DefinitionError, match=message):
        context.create_trainer()


def test_a_callback_is_named_before_a_file_name_with_its_metric(zoo, tmp_path):
    data = write_records(tmp_path / "d.recordio", 8)
    more = EARLY_STOPPING.format(monitor="val_loss").replace(
        "return [", 'return [keras.callbacks.ModelCheckpoint("{val_loss:.2f}.keras"), '
    )
    context, _ = open_context(job_of(lambda: zoo(more), data))

    with pytest.raises(DefinitionError, match="the callback EarlyStopping monitors 'val_loss'"):
        context.create_trainer()


def test_notes_name_the_callbacks_that_may_lack_their_validation_metric(zoo, tmp_path):
    data = write_records(tmp_path / "d.recordio", 8)

    def notes(*validation):
        context, _ = open_context(job_of(lambda: zoo(OWN_CALLBACK), data, *validation))
        return " ".join(context.model_notes(context.create_trainer()))

    assert "the callback EarlyStopping monitors 'val_acc', and there is no validation" in notes()
    assert "the callback Stops monitors 'val_auc', and there is no validation" in notes()
    assert "monitors" not in notes(data)


@pytest.mark.parametrize(
    "more", [EARLY_STOPPING.format(monitor="val_accuracy"), OWN_CALLBACK], ids=["its own", "added"]
)
def test_metrics_of_validation_and_callbacks_may_be_monitored(zoo, tmp_path, more):
    data = write_records(tmp_path / "d.recordio", 8)
    context, _ = open_context(job_of(lambda: zoo(more), data, data))

    context.create_trainer()


# --- schedules that count updates ----------------------------------------------------------------

SCHEDULE = """
    def optimizer():
        return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9))
"""


def note_of(zoo, data, num_workers, more=SCHEDULE, **training):
    job = job_of(lambda: zoo(more), data)
    context, _ = open_context(replace(job, training=replace(job.training, **training)))
    return context.schedule_note(context.create_trainer(), num_workers)


@pytest.mark.parametrize(
    ("num_workers", "advice"),
    [
        (2, "1/2 as many updates.*add --global_batch_size=8 --minibatch_size=4\\."),
        (3, "1/3 as many updates.*add --global_batch_size=8\\."),
    ],
)
def test_a_schedule_that_counts_updates_is_noted_on_workers(zoo, tmp_path, num_workers, advice):
    data = write_records(tmp_path / "d.recordio", 8)

    note = note_of(zoo, data, num_workers, minibatch_size=8)

    assert re.search(rf"small\.py:\d+: CosineDecay counts updates.*{advice}", note)


def test_no_schedule_is_noted_where_the_number_of_updates_is_fixed(zoo, tmp_path):
    data = write_records(tmp_path / "d.recordio", 8)

    assert note_of(zoo, data, 2, minibatch_size=8, global_batch_size=8) == ""
    assert note_of(zoo, data, 1, minibatch_size=8) == ""
    assert note_of(zoo, data, 2, more="") == ""
