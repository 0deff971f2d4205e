"""The documents' session trains to the numbers of `Model.fit` on the same generators."""

import contextlib
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl import api
from elasticdl.config_file import read_config
from elasticdl.engines.progress_bar import Silent
from elasticdl.event_file import read_events
from elasticdl.events import EpochFinished
from elasticdl.sessions.orchestrator import Orchestrator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("weights_only"),
    # Of the documents' model, which gives an `input_shape`, and probabilities as logits.
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
NUM_EPOCHS = 3
# Class weights, and callbacks that change the learning rate: what a model builder may have more.
MORE = """

class Weighing(ModelBuilder):
    def get_class_weight(self):
        return {number: 1 + number / 3 for number in range(10)}

    def get_callbacks(self):
        return [
            tfk.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch)),
            tfk.callbacks.ReduceLROnPlateau(monitor="val_loss", min_delta=10, patience=1),
            tfk.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True),
        ]
"""
# Draws of dropout and shuffling differ from those of `fit`, and nothing else does.
SAME_DRAWS = [("dropout_rate`: 0.2", "dropout_rate`: 0.0"), ("shuffle`: True", "shuffle`: False")]


@pytest.fixture
def project(documents, tmp_path, monkeypatch):
    """Return a function that writes the documents' project."""

    def write(flavour, builder):
        root = tmp_path / "project"
        run = root / "runs" / "baseline"
        run.mkdir(parents=True)
        (root / "src").mkdir()
        for module, code in documents.component_files().items():
            more = MORE if module == "models" else ""
            (root / "src" / f"{module}.py").write_text(code + more)
        config = documents.config(flavour)
        for old, new in [
            *((old.replace("`", ""), new.replace("`", "")) for old, new in SAME_DRAWS),
            ("epochs: 10", f"epochs: {NUM_EPOCHS}"),
            ("models.ModelBuilder", f"models.{builder}"),
        ]:
            assert config.count(old) == 1, old
            config = config.replace(old, new)
        (run / "config.yaml").write_text(config)
        return root

    return write


@contextlib.contextmanager
def modules_of(root):
    """Import a project's modules, as a script beside them would."""
    names = [path.stem for path in (root / "src").glob("*.py")]
    sys.path.insert(0, str(root / "src"))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(root / "src"))
        for name in names:
            sys.modules.pop(name, None)


def plain(root, data, flavour, builder):
    """Return the history of a script without ElasticDL."""
    import keras

    file = root / "runs" / "baseline" / "config.yaml"
    config = read_config(file.read_text(), str(file))
    with modules_of(root) as modules:
        preprocessor = getattr(modules["preprocessing"], f"Preprocessor{flavour}")(config)
        loader = getattr(modules["dataset"], f"DataLoader{flavour}")(config, data)
        training, steps = preprocessor.add_preprocess(*loader.create_training_generator())
        validation, _ = preprocessor.add_preprocess(*loader.create_validation_generator())
        keras.utils.set_random_seed(0)
        made = getattr(modules["models"], builder)(config)
        model = made.get_compiled_model()
        weights = made.get_class_weight()
        if weights is not None:
            # Keras takes either kind of weights, and the generator has some of ones.
            factors = np.float32([weights[label] for label in range(10)])
            training = ((x, y, w * factors[np.asarray(y)]) for x, y, w in iter(training))
        # Validation data end with the last example, as they do in a session.
        x, y, w = (
            np.concatenate([np.asarray(part) for part in parts])[:397]
            for parts in zip(*_first(validation, 50), strict=True)
        )
        history = model.fit(
            training, steps_per_epoch=steps, epochs=NUM_EPOCHS, verbose=0,
            validation_data=(x, y, w), validation_batch_size=8, callbacks=made.get_callbacks(),
        ).history  # fmt: skip
    return history, [np.asarray(v) for v in model.get_weights()]


def _first(batches, number):
    return [batch for batch, _ in zip(iter(batches), range(number), strict=False)]


# The second does all that the documents' own does, and more.
@pytest.mark.parametrize(
    "builder", [pytest.param("ModelBuilder", marks=pytest.mark.exhaustive), "Weighing"]
)
@pytest.mark.parametrize("flavour", ["TF", ""])
def test_a_session_matches_the_results_of_fit(project, digit_pictures, flavour, builder):
    root = project(flavour, builder)

    session = Orchestrator("baseline", data_dir=Path(digit_pictures), project_root=root).session
    # What it exports and reports then is in `test_sessions.py`.
    api.run(session.job(), Silent())

    history, _ = plain(root, digit_pictures, flavour, builder)
    log = read_events(root / "runs" / "baseline" / "training" / "events.jsonl")
    epochs = [event.metrics for event in log if isinstance(event, EpochFinished)]
    for name in ("loss", "val_loss", "val_sparse_categorical_accuracy"):
        found = [epoch[name] for epoch in epochs]
        np.testing.assert_allclose(found, history[name], rtol=1e-4, err_msg=name)
