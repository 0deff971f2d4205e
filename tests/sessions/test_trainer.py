"""Sessions from Python: a trainer for notebooks, and the orchestrator, under their old names."""

import itertools

import numpy as np
import pytest
from tests.sessions.conftest import Notes, weight_of

from elasticdl.config_file import ConfigKeyError, ConfigStruct
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import UsageError
from elasticdl.event_file import read_events
from elasticdl.events import EpochFinished, JobStarted
from elasticdl.sessions.orchestrator import Orchestrator
from elasticdl.sessions.trainer import TFKerasTrainer, Trainer

# Ten batches of two examples; the weight learns from the labels alone.
BATCHES = [(np.ones((2, 1), np.float32), np.float32([i, i]), np.ones(2)) for i in range(10)]


class Builder:
    """A weight from 0 on, of which each batch takes its label."""

    def get_compiled_model(self):
        import keras

        def product(y_true, y_pred):
            return y_true * y_pred

        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        model.compile(keras.optimizers.SGD(1.0), loss=product)
        return model


def config(epochs=1, metric="loss", mode="min"):
    return ConfigStruct({"epochs": epochs, "export": {"metric": metric, "mode": mode}})


@pytest.fixture
def trainer(tmp_path):
    return lambda **options: TFKerasTrainer(config(**options), tmp_path / "run")


def endless():
    return itertools.cycle(BATCHES)


def dataset():
    import tensorflow as tf

    x, y, weights = map(np.concatenate, zip(*BATCHES, strict=True))
    return tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(2).repeat()


def sequence():
    import keras

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return len(BATCHES)

        def __getitem__(self, i):
            return BATCHES[i]

    return Batches()


@pytest.mark.parametrize("generator", [endless, dataset, sequence, lambda: BATCHES])
def test_each_batch_of_an_epoch_is_trained_on_once(trainer, generator, tmp_path):
    outcome = trainer().train(Builder(), None, generator(), 10, reporter=Silent())

    assert outcome.step == 10
    # 0 + 1 + ... + 9
    assert weight_of(tmp_path / "run" / "training") == -45


@pytest.mark.parametrize(
    ("generator", "weight"), [(endless, -(0 + 1 + 2 + 3 + 4 + 5)), (dataset, -2 * (0 + 1 + 2))]
)
def test_endless_generators_continue_and_restartable_ones_restart(
    trainer, generator, weight, tmp_path
):
    trainer(epochs=2).train(Builder(), None, generator(), 3, reporter=Silent())

    assert weight_of(tmp_path / "run" / "training") == weight


def test_a_second_call_does_nothing_but_more_epochs_continue(trainer, tmp_path):
    first = trainer().train(Builder(), None, dataset(), 10, reporter=Silent())
    second = trainer().train(Builder(), None, dataset(), 10, reporter=Silent())
    third = trainer(epochs=2).train(Builder(), None, dataset(), 10, reporter=Silent())

    assert (first.already_done, second.already_done, third.already_done) == (False, True, False)
    assert (first.step, second.step, third.step) == (10, 10, 20)
    events = read_events(tmp_path / "run" / "training" / "events.jsonl")
    begun = [event.resumed_from_step for event in events if isinstance(event, JobStarted)]
    assert begun == [0, 10]


@pytest.mark.parametrize("generator", [endless, dataset, sequence])
def test_the_model_with_the_best_validation_is_exported(trainer, generator, tmp_path):
    made = trainer(epochs=3, metric="val_loss", mode="max")

    made.train(Builder(), None, generator(), 10, dataset(), 10, reporter=Silent())

    # The labels' mean times the weight: -45 * 4.5, then more.
    events = read_events(tmp_path / "run" / "training" / "events.jsonl")
    losses = [event.metrics["val_loss"] for event in events if isinstance(event, EpochFinished)]
    assert losses == pytest.approx([-45 * 4.5, -90 * 4.5, -135 * 4.5])
    assert weight_of(tmp_path / "run" / "training") == -45
    assert made.export() == tmp_path / "run" / "training" / "saved_model"
    assert (made.export() / "saved_model.pb").is_file()


def test_a_cyclic_validation_generator_gives_the_same_data(trainer, tmp_path, monkeypatch):
    from elasticdl.engines import iterable_data

    # As where the data is too large to be kept.
    monkeypatch.setattr(iterable_data, "_MAX_BYTES_BEHIND", 1)
    made = trainer(epochs=3, metric="val_loss", mode="max")

    made.train(Builder(), None, dataset(), 10, endless(), 10, reporter=Silent())

    events = read_events(tmp_path / "run" / "training" / "events.jsonl")
    losses = [event.metrics["val_loss"] for event in events if isinstance(event, EpochFinished)]
    assert losses == pytest.approx([-45 * 4.5, -90 * 4.5, -135 * 4.5])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "train_data_gen is None and n_iter_train 0"),
        ((BATCHES, 0), "n_iter_train 0; expected a generator of batches, and the number"),
        ((iter(()), 3), "train_data_gen yields nothing"),
    ],
)
def test_empty_training_data_are_refused(trainer, arguments, said):
    with pytest.raises(UsageError, match=said):
        trainer().train(Builder(), None, *arguments, reporter=Silent())


def test_a_config_without_an_export_is_refused_with_the_key(tmp_path):
    made = TFKerasTrainer(ConfigStruct({"epochs": 1}), tmp_path)

    with pytest.raises(ConfigKeyError, match="no key 'export'"):
        made.train(Builder(), None, endless(), 10, reporter=Silent())


# --- names ----------------------------------------------------------------------------------


def test_old_names_refer_to_the_same_classes():
    import abstractions
    import abstractions.orchestration
    import abstractions.orchestrator
    import abstractions.trainer
    import abstractions.training

    assert abstractions.TFKerasTrainer is abstractions.Trainer is TFKerasTrainer is Trainer
    assert abstractions.training.TFKerasTrainer is abstractions.trainer.Trainer is Trainer
    assert abstractions.Orchestrator is Orchestrator
    assert abstractions.orchestration.Orchestrator is Orchestrator
    assert abstractions.orchestrator.Orchestrator is Orchestrator
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        abstractions.Nothing  # noqa: B018


def test_importing_the_names_imports_no_framework(run_python):
    done = run_python(
        "import sys, abstractions, abstractions.training, abstractions.orchestration\n"
        "print({'tensorflow', 'keras', 'torch', 'mlflow'} & set(sys.modules))"
    )

    assert done.stdout.strip() == "set()"


# --- the orchestrator -----------------------------------------------------------------------


def test_an_orchestrator_runs_a_session_and_writes_its_tables(
    project, in_this_process, tmp_path, rows_of
):
    root = project()
    data = tmp_path / "other"
    data.mkdir()
    made = Orchestrator("first", data, root, tmp_path / "tables")

    status = made.run(Notes(), tracked=False)

    assert (status.state, made.session.data) == ("evaluated", str(data))
    folder = tmp_path / "tables" / "project" / "first"
    assert sorted(path.name for path in folder.iterdir()) == [
        "eval_report.csv",
        "eval_report_summary.csv",
    ]
    assert len(rows_of(folder / "eval_report.csv")) == 10


def test_class_weights_apply_in_training_but_not_in_validation(trainer):
    class Weighing(Builder):
        def get_class_weight(self):
            return {1: 3.0}

    batches = [(np.ones((2, 1), np.float32), np.float32([1, 1]), np.ones(2))]

    outcome = trainer(metric="val_loss").train(
        Weighing(), None, batches, 1, batches, 1, reporter=Silent()
    )

    # The loss is label x weight x class weight: 3 is taken off the weight, which is then evaluated.
    assert outcome.metrics["val_loss"] == pytest.approx(-3)
