"""A federation whose configs name the components of a training session."""

import re
import shutil

import numpy as np
import pytest
import yaml

from elasticdl import api, federated
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.federated.config.reading import read_aggregator, read_party
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import DataError, DefinitionError, UsageError, UserCodeError
from elasticdl.job import Job

# One weight w that starts at 0 and sees 1; the loss is the output, so each step takes 1 off it.
PARTS = """
import numpy as np
import keras
import tensorflow as tf
from abstractions import DataLoaderBase, ModelBuilderBase, PreprocessorBase


class Loader(DataLoaderBase):
    def _set_defaults(self): ...
    def _load_params(self, config): ...
    def create_training_generator(self):
        number = int((self.data_dir / "number").read_text())
        rows = np.ones((number, 1), "float32"), np.zeros(number, "float32")
        return tf.data.Dataset.from_tensor_slices(rows), number
    create_validation_generator = create_test_generator = create_training_generator


class Preprocessor(PreprocessorBase):
    def _set_defaults(self): ...
    def _load_params(self, config):
        self.batch_size = config.batch_size
    def add_image_preprocess(self, generator): return generator
    def add_label_preprocess(self, generator): return generator
    def batchify(self, generator, n):
        return generator.batch(self.batch_size), -(-n // self.batch_size)


class Builder(ModelBuilderBase):
    def _set_defaults(self): ...
    def _load_params(self, config):
        self.rate = config.model_builder.rate
        self.epochs = config.get("epochs")
    def get_compiled_model(self):
        assert self.epochs in (None, 20), self.epochs
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((1,)), dense])
        model.compile(keras.optimizers.SGD(self.rate), lambda y_true, y_pred: y_pred)
        return model
"""
CONFIG = {
    "src_code_path": "src",
    "data_loader_class": "parts.Loader",
    "preprocessor_class": "parts.Preprocessor",
    "model_builder_class": "parts.Builder",
    "batch_size": 4,
    "model_builder": {"rate": 1.0},
}


@pytest.fixture
def project(tmp_path):
    """A session's project, and the folders of two parties: 4 and 12 examples."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "parts.py").write_text(PARTS)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    session = {**CONFIG, "export": {"metric": "val_loss", "mode": "min"}, "data_dir": "data"}
    (tmp_path / "runs" / "first" / "config.yaml").write_text(yaml.safe_dump(session))
    for name, number in (("north", 4), ("south", 12)):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "number").write_text(str(number))
    return tmp_path


@pytest.fixture
def made(project):
    """Return what writes the configs of a federation of that session."""

    def make(**options):
        return federated.init(
            str(project / "federation"),
            session_config=str(project / "runs/first/config.yaml"),
            data=str(project / "data" / "*"),
            **{"num_rounds": 2, **options},
        )

    return make


def change(path, **model):
    """Change keys of the section `model`; None removes one."""
    values = yaml.safe_load(path.read_text())
    section = {**values["model"], **model}
    values["model"] = {key: value for key, value in section.items() if value is not None}
    path.write_text(yaml.safe_dump(values))


def weight_of(outcome):
    (weight,) = load_trained_model(outcome.output).params.values()
    return float(np.reshape(weight, ()))


def test_each_party_reads_its_own_folder_and_counts_by_its_examples(made):
    outcome = federated.simulate(str(made().aggregator), reporter=Silent())

    # A round takes 1 off at the party with one batch and 3 off at the other: (4*1 + 12*3) / 16.
    assert weight_of(outcome) == pytest.approx(-5.0)
    assert outcome.metrics["val_loss"] == pytest.approx(-5.0)


def test_each_party_has_its_own_component_config(made):
    found = made()
    change(found.parties[1], batch_size=12)

    outcome = federated.simulate(str(found.aggregator), reporter=Silent())

    assert weight_of(outcome) == pytest.approx(-2.0)


def test_components_see_the_epochs_of_the_config(made):
    found = made(num_rounds=1, num_epochs=3)
    for path in (found.aggregator, *found.parties):
        change(path, epochs=20)

    outcome = federated.simulate(str(found.aggregator), reporter=Silent())

    assert weight_of(outcome) == pytest.approx(-7.5)
    assert (
        "model.epochs: is only passed to the components" in read_party(found.parties[0]).warnings[0]
    )


def test_an_aggregator_may_evaluate_on_its_own_folder(made, project):
    found = made(num_rounds=1)
    values = yaml.safe_load(found.aggregator.read_text())
    data = {"data_dir": str(project / "data" / "north")}
    found.aggregator.write_text(yaml.safe_dump({**values, "data": data}))

    outcome = federated.simulate(str(found.aggregator), reporter=Silent())

    assert weight_of(outcome) == pytest.approx(-2.5)


def test_a_trained_model_is_evaluated_on_the_loaders_validation_data(made, project):
    output = federated.simulate(str(made().aggregator), reporter=Silent()).output

    outcome = api.evaluate(
        trained_model=output, data=str(project / "data" / "north"), reporter=Silent()
    )

    assert outcome.metrics["loss"] == pytest.approx(-5.0)


def test_commands_over_records_refuse_a_component_model(made, project):
    output = federated.simulate(str(made().aggregator), reporter=Silent()).output
    data = str(project / "data" / "north")
    asked = {"trained_model": output, "data": data, "reporter": Silent()}

    with pytest.raises(UsageError, match="elasticdl predict reads records"):
        api.predict(**asked, output=str(project / "p"))
    with pytest.raises(UsageError, match="elasticdl evaluate --report reads records"):
        api.evaluate(**asked, report=True)


def test_a_session_config_keeps_its_keys_except_session_keys(made):
    model = yaml.safe_load(made().aggregator.read_text())["model"]

    assert model == {**CONFIG, "src_code_path": "../src"}


REFUSED = {
    "no_loader": ({"data_loader_class": None}, "model.data_loader_class: is missing"),
    "no_source": ({"src_code_path": None}, "model.src_code_path: is missing"),
    "no_folder": ({"src_code_path": "nowhere"}, "but the folder"),
    "no_class": ({"preprocessor_class": "parts"}, "the name of a class with its file"),
    "records": ({"model_def": "mnist"}, "model.model_def: is for other kinds of models"),
    "data": ({"data_dir": "x"}, "belongs in the section data"),
    "misspelt": ({"agumentor_class": "parts.A", "augmentor_class": "parts"}, "augmentor_class"),
}


@pytest.mark.parametrize(("changes", "expected"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_section_is_reported_with_its_line(made, changes, expected):
    path = made().parties[0]
    change(path, **changes)

    with pytest.raises(DefinitionError, match=re.escape(expected)) as error:
        read_party(path)
    assert re.search(r"party0\.yml:\d+: ", str(error.value))


def test_records_and_a_data_loader_exclude_each_other(made):
    path = made().parties[0]
    values = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**values, "data": {"uri": "x.recordio"}}))

    with pytest.raises(DefinitionError, match="cannot be read by a data_loader_class"):
        read_party(path)
    path.write_text(yaml.safe_dump({**values, "model": {"model_def": "mnist"}}))
    with pytest.raises(DefinitionError, match="data_dir: is a folder for a data_loader_class"):
        read_party(path)


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ({"training": {"batch_size": 8}}, "model.batch_size is 4"),
        ({"optimizer": {"lr": 0.5}}, "a learning rate cannot be given to a model_builder_class"),
    ],
)
def test_settings_that_components_ignore_are_refused(made, local, expected):
    found = made()
    values = yaml.safe_load(found.aggregator.read_text())
    values["hyperparams"]["local"] = local
    found.aggregator.write_text(yaml.safe_dump(values))

    with pytest.raises(DefinitionError, match=re.escape(expected)):
        federated.simulate(str(found.aggregator), reporter=Silent())


def test_a_missing_component_is_reported_with_its_line(made):
    found = made()
    change(found.parties[1], preprocessor_class="parts.Preprocesor")

    with pytest.raises(UsageError, match=r"party1\.yml:\d+: preprocessor_class=parts.Preprocesor"):
        federated.simulate(str(found.aggregator), reporter=Silent())


def test_a_missing_key_of_a_component_is_reported_with_the_config(made):
    found = made()
    change(found.parties[1], model_builder={"rat": 1.0})

    with pytest.raises((DefinitionError, UserCodeError), match=r"party1\.yml:\d+.*rate"):
        federated.simulate(str(found.aggregator), reporter=Silent())


def test_records_cannot_be_distributed_to_components(project):
    with pytest.raises(UsageError, match="is the model builder of a training session"):
        federated.init(
            str(project / "other"),
            model_zoo=str(project / "src"),
            model_def="parts.Builder",
            data=str(project / "data"),
        )
    assert not (project / "other").exists()


def test_options_without_meaning_for_components_are_refused(made):
    with pytest.raises(UsageError, match="--split cannot be used with --session_config"):
        made(split="dirichlet")
    with pytest.raises(DataError, match="matches north, south"):
        made(num_parties=3)


def test_invalid_configs_do_not_remove_existing_files(project):
    shutil.move(str(project / "data"), str(project / "federation"))
    for number, name in enumerate(("north", "south")):
        (project / "federation" / name).rename(project / "federation" / f"party{number}")

    with pytest.raises(UsageError, match="krum with .* needs at least 5 parties"):
        federated.init(
            str(project / "federation"),
            session_config=str(project / "runs/first/config.yaml"),
            data=str(project / "federation" / "*"),
            fusion="krum",
        )
    assert [each.name for each in sorted((project / "federation").iterdir())] == [
        "party0",
        "party1",
    ]


def test_a_federated_job_has_no_number_of_epochs(made):
    output = federated.simulate(str(made().aggregator), reporter=Silent()).output
    job = Job.from_json(load_trained_model(output).description.job_json)

    assert job.training.minibatch_size == 4
    assert "epochs" not in job.model.params
    assert read_aggregator(made_path(output)).model.has_components


def made_path(output):
    return output.removesuffix("trained_model") + "aggregator.yml"
