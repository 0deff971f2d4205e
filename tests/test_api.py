"""The command line and Python build the same job."""

import dataclasses
import json
import re
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import elasticdl
from elasticdl import api
from elasticdl.cli.main import cli
from elasticdl.engines.engine import Outcome
from elasticdl.errors import ElasticDLError, UsageError
from elasticdl.job import Job, Tracking
from elasticdl.job_options import evaluation_job, prediction_job, training_job
from elasticdl.prediction.target import target_of


def job_of_command(*arguments):
    result = CliRunner().invoke(cli, [*arguments, "--dry_run"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Job.from_json(result.output)


def test_train_gives_the_same_job_from_shell_and_python():
    typed = job_of_command(
        "train",
        "--model_zoo=$HOME/work",
        "--model_def=fintech.MyKerasModel",
        "--input_fn=fintech.credit_data_processor",
        "--params=hidden_units=[10, 100, 20, 5], learning_rate=0.01",
        "--data=gs://bucket-name/tony/imagenet/train/*.recordio",
        "--output=gs://bucket-name/tony/my_trained_model",
        "--num_epochs=3",
        "--no-shuffle",
    )

    called = training_job(
        model_zoo="$HOME/work",
        model_def="fintech.MyKerasModel",
        input_fn="fintech.credit_data_processor",
        params="hidden_units=[10, 100, 20, 5], learning_rate=0.01",
        data="gs://bucket-name/tony/imagenet/train/*.recordio",
        output="gs://bucket-name/tony/my_trained_model",
        num_epochs="3",
        shuffle="false",
    )

    assert typed == called
    assert typed.id == called.id
    assert called.model.params == {"hidden_units": [10, 100, 20, 5], "learning_rate": 0.01}
    assert called.training.num_epochs == 3
    assert called.training.shuffle is False


def test_evaluate_gives_the_same_job_from_shell_and_python():
    typed = job_of_command("evaluate", "--trained_model=my_model", "--data=test/*.csv")

    assert typed == evaluation_job(trained_model="my_model", data="test/*.csv")


def test_predict_gives_the_same_job_from_shell_and_python():
    typed = job_of_command(
        "predict", "--trained_model=m", "--data=a,b", "--output=p/", "--format=csv",
        "--columns=id, name",
    )  # fmt: skip

    given = {"trained_model": "m", "data": "a,b", "output": "p/", "format": "csv"}
    assert typed == prediction_job(**given, columns=["id", "name"])
    assert Job.from_json(typed.to_json()) == typed


def test_a_column_named_twice_is_refused():
    with pytest.raises(UsageError, match="'id' is named twice"):
        prediction_job(trained_model="m", data="a", output="p/", columns="id,name,id")


def test_a_job_survives_a_round_trip():
    job = training_job(model_def="m", data="d", output="o", params="x=(1, 2), y={'a': None}")

    assert Job.from_json(job.to_json()) == Job.from_json(Job.from_json(job.to_json()).to_json())
    assert json.loads(job.to_json())["model"]["params"] == {"x": [1, 2], "y": {"a": None}}


def test_the_length_of_training_is_not_part_of_a_jobs_identity():
    one = training_job(model_def="m", data="d", output="o", num_epochs=1)
    more = training_job(model_def="m", data="d", output="o", num_epochs=5)
    other = training_job(model_def="m", data="d", output="o", seed=5)

    assert one.id == more.id
    assert one.id != other.id


def test_a_relative_path_means_the_same_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    job = prediction_job(trained_model="m", data="x/*.recordio, s3://b/y", output="p")

    assert job.data == f"{tmp_path}/x/*.recordio,s3://b/y"


def test_pathlib_paths_and_strings_name_the_same_job():
    """Every argument that names a file or folder of this machine."""
    model, data, out = Path("/m"), Path("/d.csv"), Path("/o.csv")

    assert prediction_job(trained_model=model, data=data, output=out) == prediction_job(
        trained_model="/m", data="/d.csv", output="/o.csv"
    )
    for report in (True, Path("/r")):
        assert evaluation_job(
            trained_model=model, data=data, output=out, report=report
        ) == evaluation_job(
            trained_model="/m",
            data="/d.csv",
            output="/o.csv",
            report=report if report is True else "/r",
        )
    paths = {"data": data, "output": out, "validation_data": data, "model_zoo": model}
    assert training_job(model_def="m", tracking_uri=Path("/t"), **paths) == training_job(
        model_def="m", tracking_uri="/t", **{name: str(path) for name, path in paths.items()}
    )
    assert training_job(spec=Path("/s.yml"), data=data, output=out) == training_job(
        spec="/s.yml", data="/d.csv", output="/o.csv"
    )


@pytest.mark.parametrize("name", ["o.CSV", "o.Parquet", "o.RecordIO"])
def test_the_format_of_a_file_of_predictions_is_recognised_in_any_case(name):
    job = prediction_job(trained_model="m", data="d", output=name)

    assert job.prediction_format == name[2:].lower()
    assert target_of(job.output).is_file


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_epochs": "many"}, "--num_epochs='many': expected a whole number"),
        ({"minibatch_size": 0}, "--minibatch_size=0: expected at least 1"),
        ({"keep_checkpoint_max": 1}, "expected at least 2"),
        ({"num_epoch": 3}, "no option 'num_epoch'; did you mean 'num_epochs'"),
        ({"shuffle": "perhaps"}, "expected true or false"),
    ],
)
def test_an_invalid_option_is_refused_with_its_value(options, message):
    with pytest.raises(UsageError, match=message):
        training_job(model_def="m", data="d", output="o", **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: elasticdl.train(data="d"),
            "train() lacks output=. It is called as elasticdl.train(data=..., output=...).",
        ),
        (
            elasticdl.evaluate,
            (
                "evaluate() lacks trained_model= and data=. It is called as "
                "elasticdl.evaluate(trained_model=..., data=...)."
            ),
        ),
        (
            lambda: elasticdl.predict(trained_model="m", data="d"),
            (
                "predict() lacks output=. It is called as elasticdl.predict(trained_model=..., "
                "data=..., output=...). For predictions in memory: "
                "elasticdl.load(trained_model).predict(data)."
            ),
        ),
        (elasticdl.load, "load() lacks trained_model=. It is called as elasticdl.load("),
        (
            lambda: elasticdl.train("d", output="o"),
            "The arguments need their names: elasticdl.train(data=..., output=...).",
        ),
    ],
)
def test_a_missing_argument_is_named_with_its_function(call, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        call()


def test_batch_size_is_an_alias_of_minibatch_size():
    job = training_job(model_def="m", data="d", output="o", batch_size="16")

    assert job.training.minibatch_size == 16
    assert job == training_job(model_def="m", data="d", output="o", minibatch_size=16)


@pytest.mark.parametrize("call", [elasticdl.evaluate, elasticdl.predict])
def test_batch_size_is_an_alias_in_evaluate_and_predict(call):
    given = {"trained_model": "m", "data": "d", "output": "o"}

    with pytest.raises(UsageError, match="minibatch_size='x': expected a whole number"):
        call(**given, batch_size="x")
    with pytest.raises(UsageError, match="batch_size and minibatch_size are the same option"):
        call(**given, batch_size=16, minibatch_size=16)


def test_a_batch_size_under_both_names_is_refused():
    with pytest.raises(UsageError, match="batch_size and minibatch_size are the same option"):
        training_job(model_def="m", data="d", output="o", batch_size=16, minibatch_size=16)


@pytest.mark.parametrize(
    "command",
    [
        ["train", "--model_def=m", "--data=d", "--output=o"],
        ["evaluate", "--trained_model=t", "--data=d"],
        ["predict", "--trained_model=t", "--data=d", "--output=o"],
    ],
)
def test_commands_accept_batch_size(command):
    assert job_of_command(*command, "--batch_size=16") == job_of_command(
        *command, "--minibatch_size=16"
    )


@pytest.mark.parametrize(("text", "least", "most"), [("3", 1, 3), ("2..4", 2, 4), (5, 1, 5)])
def test_the_number_of_workers_is_one_number_or_two(text, least, most):
    job = training_job(model_def="m", data="d", output="o", num_workers=text)

    assert (job.workers.min, job.workers.max) == (least, most)
    assert Job.from_json(job.to_json()) == job


@pytest.mark.parametrize("text", ["some", "-1", "1..", "2...4"])
def test_an_invalid_number_of_workers_is_refused(text):
    with pytest.raises(
        UsageError, match=f"--num_workers={re.escape(text)}: expected the number of"
    ):
        training_job(model_def="m", data="d", output="o", num_workers=text)


def test_an_invalid_number_of_workers_is_answered_with_a_remedy():
    job = {"model_def": "m", "data": "d", "output": "o"}
    records = {"trained_model": "m", "data": "d"}

    for use in (
        lambda: training_job(**job, num_workers=0),
        lambda: evaluation_job(**records, num_workers="0"),
        lambda: prediction_job(**records, output="o", num_workers=0),
    ):
        with pytest.raises(UsageError, match="[Ll]eave it out to .* in this process"):
            use()
    with pytest.raises(UsageError, match="4..2: the minimum is larger than the maximum."):
        training_job(**job, num_workers="4..2")


def test_a_job_may_resume_with_another_number_of_workers():
    alone = training_job(model_def="m", data="d", output="o")
    many = training_job(model_def="m", data="d", output="o", num_workers=3)

    assert alone.identity() == many.identity()


def test_a_priority_is_low_or_high():
    job = training_job(model_def="m", data="d", output="o", num_workers=1, priority="high")
    assert job.workers.priority == "high"

    with pytest.raises(UsageError, match="--priority=urgent: expected one of low, high"):
        training_job(model_def="m", data="d", output="o", num_workers=1, priority="urgent")


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_sharing_records_is_the_same_from_shell_and_python(command):
    more = {"output": "p/"} if command == "predict" else {}
    typed = job_of_command(
        command, "--trained_model=m", "--data=d", "--num_workers=3", "--ray_address=head:6379",
        "--give_up_after=60", *(f"--{name}={value}" for name, value in more.items()),
    )  # fmt: skip

    build = {"evaluate": evaluation_job, "predict": prediction_job}[command]
    called = build(
        trained_model="m",
        data="d",
        num_workers=3,
        ray_address="head:6379",
        give_up_after=60,
        **more,
    )

    assert typed == called
    assert (called.workers.max, called.workers.ray_address) == (3, "head:6379")
    assert called.workers.give_up_after_s == 60.0


@pytest.mark.parametrize("text", ["2..4", "some", "-1"])
def test_workers_that_share_records_have_no_minimum(text):
    with pytest.raises(
        UsageError, match=f"--num_workers={re.escape(text)}: expected the number of"
    ):
        prediction_job(trained_model="m", data="d", output="p", num_workers=text)


@pytest.fixture
def environment(monkeypatch):
    """Return a way to set variables; MLflow's are not set before."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return monkeypatch.setenv


def tracking_of(**options):
    return training_job(model_def="m", data="d", output="o", **options).tracking


def test_tracking_gives_the_same_job_from_shell_and_python(environment):
    flags = {"tracking_uri": "runs", "experiment": "e", "run_name": "r"}
    typed = job_of_command(
        "train",
        "--model_def=m",
        "--data=d",
        "--output=o",
        "--tensorboard",
        *(f"--{name}={value}" for name, value in flags.items()),
    )

    assert typed == training_job(model_def="m", data="d", output="o", tensorboard="true", **flags)
    assert typed.tracking.uri.endswith("/runs/mlflow.db")


def test_nothing_is_tracked_by_default(environment):
    environment("MLFLOW_TRACKING_URI", "http://theirs")
    environment("MLFLOW_EXPERIMENT_NAME", "theirs")

    assert tracking_of() is None
    assert tracking_of(tensorboard=True) == Tracking(tensorboard=True)


def test_the_environment_provides_the_tracking_address(environment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert tracking_of(experiment="e") == Tracking(f"sqlite:///{tmp_path}/mlflow.db", "e")
    assert tracking_of(tracking_uri="http://mine") == Tracking("http://mine", "elasticdl")
    environment("MLFLOW_TRACKING_URI", "http://theirs")
    environment("MLFLOW_EXPERIMENT_NAME", "theirs")
    assert tracking_of(experiment="e") == Tracking("http://theirs", "e")
    assert tracking_of(tracking_uri="http://mine") == Tracking("http://mine", "theirs")


def test_a_run_name_alone_is_an_error(environment):
    with pytest.raises(UsageError, match="Add --experiment"):
        tracking_of(run_name="r")


def test_tracking_is_not_part_of_a_jobs_identity(environment):
    plain = training_job(model_def="m", data="d", output="o")
    tracked = training_job(model_def="m", data="d", output="o", experiment="e")

    assert tracked.id == plain.id


def test_the_json_of_a_job_has_no_password(environment):
    job = training_job(
        model_def="m", data="d", output="o", tracking_uri="postgresql://me:secret@host/runs"
    )

    assert "secret" not in job.to_json()
    assert Job.from_json(job.to_json()).identity() == job.identity()


def test_bad_records_can_be_skipped_only_on_workers():
    job = training_job(model_def="m", data="d", output="o", num_workers=1, skip_bad_records=True)

    assert job.workers is not None
    assert job.workers.skip_bad_records
    with pytest.raises(UsageError, match="Add --num_workers"):
        training_job(model_def="m", data="d", output="o", skip_bad_records=True)


OUTPUTS = [
    ["train", "--model_def=m", "--data=d", "--output=PLACE"],
    ["evaluate", "--trained_model=m", "--data=d", "--output=PLACE"],
    ["evaluate", "--trained_model=m", "--data=d", "--report=PLACE"],
    ["predict", "--trained_model=m", "--data=d", "--output=PLACE"],
    ["data", "sample", "digits", "--output=PLACE"],
    ["data", "prepare", "--model_def=m", "--input=d", "--output=PLACE"],
    ["sql", "--models=PLACE"],
    ["sql-server", "--models=PLACE"],
]


@pytest.mark.parametrize("command", OUTPUTS, ids=lambda command: " ".join(command[:2]))
@pytest.mark.parametrize("place", ["memory://model", "simplecache::memory://model"])
def test_an_in_memory_output_is_refused_by_its_name(command, place):
    typed = [part.replace("PLACE", place) for part in command]

    with pytest.raises(UsageError, match=f"--[a-z]+={place} is in the memory of this process"):
        cli.main(typed, standalone_mode=False)


@pytest.mark.parametrize(
    # `--report=` is `--report`.
    "command",
    [command for command in OUTPUTS if "--report=PLACE" not in command],
    ids=lambda command: " ".join(command[:2]),
)
def test_an_empty_output_is_refused(command):
    typed = [part.replace("PLACE", "") for part in command]

    with pytest.raises(UsageError, match="--[a-z]+ is empty; expected a folder"):
        cli.main(typed, standalone_mode=False)


@pytest.mark.parametrize("spec", ["/etc/passwd", "model.py"])
def test_a_spec_that_is_not_yaml_is_refused(spec):
    with pytest.raises(UsageError) as raised:
        training_job(spec=spec, data="d", output="o")

    assert str(raised.value).startswith(f"--spec={spec}: expected a YAML file, whose name ends in")
    assert "group" not in str(raised.value)


def test_numpy_params_become_plain_numbers():
    params = {"units": np.int64(8), "rate": np.float64(0.5), "deep": np.bool_(True), "name": "a"}

    job = training_job(data="d", output="o", model_def="m", params=params)

    assert job.model.params == {"units": 8, "rate": 0.5, "deep": True, "name": "a"}
    assert [type(value) for value in job.model.params.values()] == [int, float, bool, str]


def test_params_that_cannot_be_stored_are_refused_by_name():
    with pytest.raises(
        UsageError, match=r"params\['layer'\] is a builtins.object; expected numbers"
    ):
        training_job(data="d", output="o", model_def="m", params={"layer": object()})


@pytest.mark.parametrize("params", [{1: 2}, {None: 2, "label": "species"}])
def test_names_of_params_are_strings(params, tmp_path):
    with pytest.raises(UsageError, match="^params has the key (1|None); expected names, which are"):
        elasticdl.train(
            model_def="classifier.DNN", data="x", output=str(tmp_path / "out"), params=params
        )


def test_a_model_instead_of_its_name_is_refused():
    with pytest.raises(UsageError, match="model_def is a .*Thing; expected the name of a model"):
        training_job(data="d", output="o", model_def=type("Thing", (), {})())


@pytest.mark.parametrize(
    "call",
    [
        lambda: elasticdl.train(data="no.csv", output="out", model_def="m", model_zoo="/no/zoo"),
        lambda: elasticdl.evaluate(trained_model="/no/model", data="no.csv"),
        lambda: elasticdl.predict(trained_model="/no/model", data="no.csv", output="out"),
        lambda: elasticdl.load("/no/model"),
        lambda: api.audit("/no/model"),
    ],
)
def test_a_traceback_in_a_script_ends_at_its_own_line(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(elasticdl.errors.ElasticDLError) as caught:
        call()

    files = [frame.filename for frame in traceback.extract_tb(caught.tb)]
    assert [file.rpartition("/")[2] for file in files[-1:]] == ["errors.py"]
    assert sum("src/elasticdl" in file for file in files) == 1
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__

    monkeypatch.setenv("ELASTICDL_DEBUG", "1")
    with pytest.raises(elasticdl.errors.ElasticDLError) as caught:
        call()
    assert sum("src/elasticdl" in frame.filename for frame in traceback.extract_tb(caught.tb)) > 2


def test_an_interrupt_ends_at_the_line_of_the_script(tmp_path):
    (tmp_path / "m.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(KeyboardInterrupt) as caught:
        elasticdl.train(
            model_zoo=str(tmp_path),
            model_def="m",
            data=str(tmp_path / "a.csv"),
            output=str(tmp_path / "out"),
        )

    files = [frame.filename for frame in traceback.extract_tb(caught.tb)]
    assert sum("src/elasticdl" in file for file in files) == 1
    assert caught.value.__notes__ == ["Nothing was saved yet; run the same command to start again."]
    # What a notebook shows.
    assert caught.value._render_traceback_() == [
        "KeyboardInterrupt: Nothing was saved yet; make the same call to start again."
    ]


def test_an_interrupted_import_of_a_framework_asks_for_a_new_kernel(tmp_path):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/part.py").write_text("")
    (tmp_path / "tensorflow/__init__.py").write_text(
        "import os, signal\nimport tensorflow.part\nos.kill(os.getpid(), signal.SIGINT)\n"
    )
    (tmp_path / "m.py").write_text("import tensorflow\n")
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    program = (
        "import elasticdl\ntry:\n"
        "    elasticdl.train(model_zoo='.', model_def='m', data='a.csv', output='out')\n"
        "except KeyboardInterrupt as error:\n    print(*error._render_traceback_())\n"
    )

    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout

    assert printed.endswith("was interrupted: restart the kernel first.\n")


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: elasticdl.evaluate(trained_model="m", data="d", ouput="e.json"), "output"),
        (lambda: elasticdl.predict(trained_model="m", data="d", output="p", colums="x"), "columns"),
        (lambda: elasticdl.train(data="d", output="p", model_deff="m"), "model_def"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_right_one(call, meant):
    with pytest.raises(UsageError, match=rf"There is no option .*; did you mean '{meant}'\?$"):
        call()


@pytest.mark.parametrize("name", ["p.xlsx", "p.csv.gz", "P.JSON"])
def test_an_unsupported_prediction_format_is_refused(name):
    with pytest.raises(UsageError, match="predictions are not written as .*Choose a .csv, .parq"):
        prediction_job(trained_model="m", data="d", output=name)
    assert prediction_job(trained_model="m", data="d", output="predicted.v2").output


@pytest.mark.parametrize(
    ("name", "meant"), [("p.parq", "parquet"), ("P.PQ", "parquet"), ("p.cvs", "csv")]
)
def test_a_misspelt_prediction_format_is_answered_with_the_right_one(name, meant):
    with pytest.raises(UsageError, match=rf"did you mean \.{meant}\?.* --output={name}/"):
        prediction_job(trained_model="m", data="d", output=name)
    assert prediction_job(trained_model="m", data="d", output=f"{name}/").output
    assert prediction_job(trained_model="m", data="d", output=name, format="csv").output


def test_a_quiet_call_prints_nothing(tmp_path, monkeypatch, capfd):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(
        "import torch\nloss = torch.nn.MSELoss()\n"
        "def custom_model(): return torch.nn.Linear(2, 1)\n"
        "def optimizer(parameters): return torch.optim.SGD(parameters, 0.1)\n"
    )
    data = (np.ones((8, 2), np.float32), np.ones((8, 1), np.float32))

    elasticdl.train(data=data, output="out", model_def="m", model_zoo=".", quiet=True)
    elasticdl.evaluate(trained_model="out", data=data, quiet=True)
    elasticdl.predict(trained_model="out", data=data[0], output="p.csv", quiet=True)

    assert capfd.readouterr() == ("", "")


def test_the_text_of_an_outcome_has_only_flags_that_are_set() -> None:
    outcome = Outcome("out", 8, {"loss": 0.5})

    assert repr(outcome) == "Outcome(output='out', step=8, metrics={'loss': 0.5})"
    stopped = dataclasses.replace(outcome, stopped=True)
    assert repr(stopped) == f"{repr(outcome)[:-1]}, stopped=True)"


def test_a_model_object_is_refused_with_how_to_name_a_model() -> None:
    """What users with a compiled model in a notebook try first."""
    with pytest.raises(UsageError, match=r"no option 'model'\. Pass the function .*compiled a Ker"):
        elasticdl.train(model=object(), data="x.csv", output="out")


@pytest.mark.parametrize("call", [elasticdl.evaluate, elasticdl.predict, elasticdl.load])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (object(), "an object of type object; expected the folder that a training wrote, its outp"),
        (Outcome("out"), "an object of type Outcome; .* output: pass its attribute output"),
    ],
)
def test_an_object_as_trained_model_is_answered_with_the_folder(call, model, message):
    options = {} if call is elasticdl.load else {"data": "data"}
    options |= {"output": "out.csv"} if call is elasticdl.predict else {}

    with pytest.raises(UsageError, match=f"trained_model is {message}"):
        call(trained_model=model, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"best_metric": "val_accuracy"}, "Add validation_data= or validation_split=, or"),
        ({"validation_split": 2}, "validation_split=2"),
        ({"data": "nowhere/*.csv"}, "nowhere"),
    ],
)
def test_errors_of_functions_mention_keyword_arguments(options, message, tmp_path):
    data = tmp_path / "a.csv"
    data.write_text("x,label\n" + "1,a\n2,b\n" * 5)

    with pytest.raises(ElasticDLError) as caught:
        elasticdl.train(
            **{
                "data": str(data),
                "model_def": "classifier.DNN",
                "output": str(tmp_path / "out"),
                **options,
            }
        )

    assert message in str(caught.value)
    assert "--" not in str(caught.value)
