"""A config that cannot be used is refused with its key, its line and the way out."""

import pytest

from elasticdl.artifacts.claim import claim
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.errors import DataError, DefinitionError, OutputTakenError, UsageError
from elasticdl.job import Workers
from elasticdl.sessions.project import open_session, session_names


@pytest.fixture
def opened(project):
    """Return what opens the session of a project with other lines in its config."""

    def opened(settings=(), data_dir=None, more="", **lines):
        root = project(more, **lines)
        return open_session("first", project_root=root, settings=settings, data_dir=data_dir)

    return opened


@pytest.fixture
def refused(opened):
    """Return what gives the message a config is refused with."""

    def refused(kind=DefinitionError, **options):
        with pytest.raises(kind) as caught:
            opened(**options)
        return str(caught.value)

    return refused


# --- which session --------------------------------------------------------------------------


def test_a_session_is_in_the_runs_of_its_project(opened, tmp_path):
    session = opened()

    root = tmp_path / "project"
    assert (session.name, session.project) == ("first", root)
    assert session.folder == root / "runs" / "first"
    assert session.source == root / "src"
    assert session.data == str(root / "data")
    assert session.output == root / "runs" / "first" / "training"


def test_an_experiment_is_named_by_the_config_or_the_folder(opened):
    assert opened().experiment == "project"
    assert opened(project_name="digits").experiment == "digits"


def test_two_config_files_are_named(project):
    root = project()
    (root / "runs" / "first" / "old.yml").write_text("a: 1")

    with pytest.raises(UsageError, match="exactly one YAML file.*it has config.yaml, old.yml"):
        open_session("first", project_root=root)


def test_a_folder_without_a_config_is_not_a_session(project):
    root = project()
    (root / "runs" / "empty").mkdir()

    assert session_names(root) == ["first"]
    with pytest.raises(UsageError, match="exactly one YAML file.*it has none"):
        open_session("empty", project_root=root)


def test_the_only_config_file_may_have_another_name(project):
    root = project()
    (root / "runs" / "first" / "config.yaml").rename(root / "runs" / "first" / "mine.yml")

    assert open_session("first", project_root=root).config_file.name == "mine.yml"


@pytest.mark.parametrize(
    ("name", "said"), [("frist", "Did you mean 'first'?"), ("zzz", "There are: first.")]
)
def test_an_unknown_session_is_refused_with_the_existing_ones(project, name, said):
    with pytest.raises(UsageError) as caught:
        open_session(name, project_root=project())

    assert str(caught.value).endswith(f"there is no session with this name. {said}")


def test_a_folder_without_runs_is_not_a_project(tmp_path):
    with pytest.raises(UsageError, match="--project_root"):
        open_session("first", project_root=tmp_path)


@pytest.mark.parametrize("name", ["", ".", "..", "../first", "first/", "a/first", "/tmp"])
def test_a_session_name_cannot_point_outside_the_runs(project, name):
    with pytest.raises(UsageError, match="expected the name of a folder in runs/"):
        open_session(name, project_root=project())


# --- the config -----------------------------------------------------------------------------

REQUIRED = (
    "src_code_path",
    "data_loader_class",
    "preprocessor_class",
    "model_builder_class",
    "epochs",
    "batch_size",
)


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named_with_the_file(refused, key):
    message = refused(**{key: None})

    assert "config.yaml: the config has no key" in message
    assert f"'{key}'" in message


def test_a_misspelt_key_is_detected(refused):
    assert "Did you mean epoch (" in refused(epochs=None, epoch=2)


@pytest.mark.parametrize("key", ["metric", "mode"])
def test_the_export_needs_its_keys(refused, key):
    message = refused(**{key: None})

    assert f"config.yaml:9: export has no key '{key}'" in message


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("epochs", "0", "config.yaml:7: epochs is 0; expected a whole number, at least 1."),
        ("epochs", "2.5", "config.yaml:7: epochs is 2.5; expected"),
        ("epochs", "true", "config.yaml:7: epochs is True; expected"),
        ("epochs", "many", "config.yaml:7: epochs is 'many'; expected"),
        ("batch_size", "-4", "config.yaml:8: batch_size is -4; expected"),
        ("seed", "1.5", "config.yaml:12: seed is 1.5; expected a whole number."),
        ("seed", "false", "config.yaml:12: seed is False; expected a whole number."),
        ("metric", "3", "config.yaml:10: export.metric is 3; expected the name of a metric"),
        ("mode", "best", "config.yaml:11: export.mode is 'best'; expected min or max."),
        ("src_code_path", "nowhere", "config.yaml:1: src_code_path is 'nowhere'; expected a"),
        ("src_code_path", "..", "config.yaml:1: src_code_path is '..'; expected a folder within"),
        ("src_code_path", "/tmp", "config.yaml:1: src_code_path is '/tmp'; expected a folder"),
        ("begun", "2026-11-22", "config.yaml:12: begun is a date, 2026-11-22. Expected"),
        ("days", "[2026-11-22]", "config.yaml:12: days is a list, [datetime.date(2026, 11, 22)]"),
    ],
)
def test_an_invalid_value_is_reported_with_its_line(refused, key, value, said):
    assert said in refused(**{key: value})


def test_an_export_that_is_not_a_section_is_refused(project):
    file = project() / "runs" / "first" / "config.yaml"
    file.write_text(file.read_text().partition("export:")[0] + "export: val_loss\n")

    with pytest.raises(DefinitionError, match="config.yaml:9: export is 'val_loss'; expected a"):
        open_session("first", project_root=file.parents[2])


@pytest.mark.parametrize(
    "key", ["data_loader_class", "preprocessor_class", "model_builder_class", "evaluator_class"]
)
@pytest.mark.parametrize("value", ["Loader", "parts/Loader.py", "parts.", "3", "[parts.Loader]"])
def test_a_class_must_be_given_with_its_file(refused, key, value):
    message = refused(**{key: value})

    assert f": {key} is " in message
    assert "expected the name of a class with its file, such as models.ModelBuilder." in message


def test_a_value_that_repeats_its_key_gets_a_suggestion(refused):
    message = refused(evaluator_class="'evaluator_class: evaluation.Evaluator'")

    assert message.endswith("Did you mean 'evaluation.Evaluator'?")


def test_invalid_yaml_is_refused_with_its_line(refused):
    assert "config.yaml:7: this is not YAML" in refused(epochs="`10`")


# --- --set ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("batch_size=2", "batch_size", 2),
        ("export.mode=max", "export.mode", "max"),
        (" export.mode = max", "export.mode", "max"),
        ("data_loader_class=parts.Other", "data_loader_class", "parts.Other"),
        ("seed=7", "seed", 7),
        ("seed=", "seed", None),
        ("project_name=[1, two, true]", "project_name", [1, "two", True]),
        ("do_train_augmentation=false", "do_train_augmentation", False),
        ("project_name=a=b", "project_name", "a=b"),
    ],
)
def test_a_setting_replaces_a_value(opened, setting, path, value):
    assert opened([setting]).config.flat()[path] == value


def test_a_setting_keeps_the_other_values_of_its_section(opened):
    session = opened(["export.mode=max"])

    assert session.config.export.metric == "val_loss"
    assert session.job().training.best_mode == "max"


def test_a_later_setting_wins(opened):
    assert opened(["epochs=3", "epochs=4"]).config.epochs == 4


@pytest.mark.parametrize(
    ("setting", "kind", "said"),
    [
        ("epochs", UsageError, "--set epochs: expected key=value"),
        ("=3", UsageError, "--set =3: expected key=value"),
        ("export.=3", UsageError, "expected key=value"),
        ("export=max", UsageError, "export is a section; set one of its keys."),
        ("epochs.x=3", UsageError, "epochs is the value 2, not a section."),
        ("epocks=3", DefinitionError, "no key 'epocks'. Did you mean epochs"),
        ("export.modes=max", DefinitionError, "export has no key 'modes'. Did you mean mode"),
        ("exports.mode=max", DefinitionError, "no key 'exports'. Did you mean export"),
        ("export.seed=3", DefinitionError, "export has no key 'seed'"),
        ("export.get=3", DefinitionError, "export.get cannot be read"),
        ("epochs=0", DefinitionError, "epochs is 0"),
        ("batch_size={a: 1}", DefinitionError, "batch_size is"),
    ],
)
def test_an_invalid_setting_is_refused(refused, setting, kind, said):
    assert said in refused(kind, settings=[setting])


# --- the data -------------------------------------------------------------------------------


def test_the_folder_of_the_command_line_overrides_the_config(opened, tmp_path):
    assert opened(data_dir=str(tmp_path)).data == str(tmp_path)


def test_data_folders_are_relative_to_project_or_shell(opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert opened().data == str(tmp_path / "project" / "data")
    (tmp_path / "data").mkdir()
    assert opened(data_dir="data").data == str(tmp_path / "data")


def test_a_home_folder_is_found(opened, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mnist").mkdir()

    assert opened(data_dir="~/mnist").data == str(tmp_path / "mnist")


def test_a_missing_folder_is_refused_with_its_origin(refused, project):
    file = project() / "runs" / "first" / "config.yaml"
    file.write_text(file.read_text().replace("data_dir: data", "data_dir: nowhere"))

    with pytest.raises(DataError, match="config.yaml:6: there is no folder .*/project/nowhere"):
        open_session("first", project_root=file.parents[2])
    assert "--data_dir: there is no folder /no/where" in refused(DataError, data_dir="/no/where")


def test_a_missing_data_folder_setting_is_refused(project):
    file = project() / "runs" / "first" / "config.yaml"
    file.write_text(file.read_text().replace("data_dir: data\n", ""))

    with pytest.raises(UsageError, match="use --data_dir, or data_dir in .*config.yaml"):
        open_session("first", project_root=file.parents[2])


# --- the job --------------------------------------------------------------------------------


def test_a_job_has_the_settings_of_the_config(opened, tmp_path):
    job = opened(seed=5).job()

    root = tmp_path / "project"
    assert (job.command, job.data, job.validation_data) == ("train", *[str(root / "data")] * 2)
    assert job.output == str(root / "runs" / "first" / "training")
    assert (job.model.zoo, job.model.model_def) == (str(root / "src"), "parts.Builder")
    assert job.model.overrides == {
        "data_loader_class": "parts.Loader",
        "preprocessor_class": "parts.Preprocessor",
        "evaluator_class": "parts.Evaluator",
    }
    assert job.model.config_file == str(root / "runs" / "first" / "config.yaml")
    assert "epochs" not in job.model.params
    assert job.model.params["export"] == {"metric": "val_loss", "mode": "min"}
    options = job.training
    assert (options.num_epochs, options.minibatch_size, options.seed) == (2, 4, 5)
    assert (options.best_metric, options.best_mode) == ("val_loss", "min")
    assert options.restore_best_weights


def test_a_job_may_override_epochs_workers_and_checkpoints(opened):
    job = opened().job(num_epochs=9, workers=Workers(1, 2), checkpoint_steps=3)

    assert (job.training.num_epochs, job.training.checkpoint_steps) == (9, 3)
    assert job.workers == Workers(1, 2)


def test_more_epochs_are_the_same_job(opened):
    assert opened(epochs=2).job().identity() == opened(epochs=9).job().identity()
    assert opened().job(num_epochs=9).identity() == opened().job().identity()


def test_another_value_is_another_job_and_its_key_is_named(opened, tmp_path):
    folder = OutputFolder(tmp_path / "out")
    with claim(folder, opened().job()):
        folder.write_bytes("checkpoints/kept", b"")

    with pytest.raises(OutputTakenError) as caught, claim(folder, opened(mode="max").job()):
        pass

    assert "model.params.export.mode: 'min' in the folder, 'max' in this command" in str(
        caught.value
    )
