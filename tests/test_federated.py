"""From configs to jobs: what a federation's files ask for, and what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner
from tests.engines.conftest import write_records
from tests.engines.federated.conftest import TORCH_MODEL

from elasticdl import federated
from elasticdl.cli.main import cli
from elasticdl.data.sources import open_source
from elasticdl.engines.federated.config import jobs
from elasticdl.engines.federated.config.reading import Address, read_aggregator, read_party
from elasticdl.engines.federated.control import control_server
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import (
    DefinitionError,
    OutputTakenError,
    TrainingError,
    UsageError,
)
from elasticdl.job import CentralPrivacy


@pytest.fixture
def made(tmp_path):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "torch_small.py").write_text(TORCH_MODEL)
    write_records(tmp_path / "all.recordio", 90)

    def make(folder="h", **options):
        return federated.init(
            tmp_path / folder,
            data=tmp_path / "all.recordio",
            model_zoo=tmp_path / "zoo",
            model_def="torch_small",
            **{"num_parties": 3, "num_rounds": 1, **options},
        )

    return make


def change(path, **sections):
    values = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**values, **sections}))


def test_every_record_goes_to_one_party(made, tmp_path):
    found = made(validation_data=tmp_path / "all.recordio", split="dirichlet")

    def records(name):
        sources = [open_source(str(p.with_suffix("") / name)) for p in found.parties]
        return sorted(record for s in sources for record in s.read_bytes(0, s.num_records))

    everything = open_source(str(tmp_path / "all.recordio"))
    assert records("train.recordio") == sorted(everything.read_bytes(0, 90))
    assert records("test.recordio") == sorted(everything.read_bytes(0, 90))
    assert int(found.summary.counts.sum()) == 90


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"fusion": "fedavgg"}, r"^--fusion is 'fedavgg': unknown fusion"),
        ({"fusion": "krum"}, r"^--num_parties is invalid: krum .* at least 5 parties"),
        ({"port": 99999}, r"^--port is 99999; expected a whole number"),
        ({"host": ""}, r"--host is ''; expected a host name"),
    ],
)
def test_an_invalid_flag_is_named_and_no_config_is_written(made, tmp_path, option, said):
    with pytest.raises(UsageError, match=said) as raised:
        made(**option)

    assert str(raised.value).endswith(" Nothing was written.")
    assert ".yml" not in str(raised.value)
    assert list((tmp_path / "h").iterdir()) == []


def test_a_config_of_the_other_role_is_one_short_problem(made):
    found = made()

    with pytest.raises(
        DefinitionError, match=r"config of a party, because it has aggregator. Name the"
    ):
        read_aggregator(found.parties[0])
    with pytest.raises(
        DefinitionError, match=r"aggregator's config, because it has fusion and hyperp"
    ):
        read_party(found.aggregator)
    with pytest.raises(UsageError, match=r"Pass a YAML file, such as .*aggregator.yml"):
        read_aggregator(found.aggregator.parent)


def test_written_configs_match_the_request(made):
    found = made(
        fusion="trimmed_mean", num_rounds=7, num_epochs=2, minibatch_size=8, params="rate=0.3"
    )

    parties = [read_party(path) for path in found.parties]
    job = jobs.job_of(read_aggregator(found.aggregator), parties)

    assert job.federation is not None
    assert (job.federation.num_rounds, job.federation.num_local_epochs) == (7, 2)
    assert (job.federation.fusion, job.federation.num_parties) == ("trimmed_mean", 3)
    assert (job.training.minibatch_size, job.model.params) == (8, {"rate": 0.3})
    assert job.output == str(found.aggregator.parent / "trained_model")


def test_all_configs_have_the_address_of_the_aggregator(made):
    here = made("here")
    elsewhere = made("elsewhere", host="fl.example.org", port=5001)

    assert read_aggregator(here.aggregator).listen == Address("127.0.0.1", 5000)
    assert {read_party(path).aggregator for path in here.parties} == {Address("127.0.0.1", 5000)}
    assert read_aggregator(elsewhere.aggregator).listen == Address("0.0.0.0", 5001)
    assert read_party(elsewhere.parties[0]).aggregator == Address("fl.example.org", 5001)


def test_a_federation_is_not_overwritten(made):
    made()

    with pytest.raises(OutputTakenError):
        made()


def test_a_common_learning_rate_is_a_model_param(made):
    found = made()
    local = {"training": {"epochs": 1}, "optimizer": {"lr": 0.5}}
    hyperparams = yaml.safe_load(found.aggregator.read_text())["hyperparams"]
    change(found.aggregator, hyperparams={**hyperparams, "local": local})

    job = jobs.job_of(read_aggregator(found.aggregator), [])

    assert job.model.params == {"learning_rate": 0.5}
    with pytest.raises(DefinitionError, match="cannot be sent to remote parties"):
        change(found.aggregator, connection={"info": {"ip": "127.0.0.1", "port": 5000}})
        federated.aggregator(str(found.aggregator), reporter=Silent())


def test_a_party_records_its_own_metrics_if_requested(made, tmp_path):
    found = made(validation_data=str(tmp_path / "all.recordio"))
    change(
        found.parties[1],
        metrics_recorder={
            "name": "MetricsRecorder",
            "path": "ibmfl.party.metrics.metrics_recorder",
            "output_file": "recorded/metrics.json",
            "output_type": "json",
            "compute_pre_train_eval": False,
        },
        privacy={"metrics": False},
    )

    federated.simulate(str(found.aggregator), num_rounds=2, reporter=Silent())
    federated.simulate(str(found.aggregator), num_rounds=3, reporter=Silent())

    told = json.loads((found.aggregator.parent / "recorded/metrics.json").read_text())
    assert [entry["round"] for entry in told] == [1, 2, 3]
    assert all({"round", "history", "train", "post_train_eval"} == set(entry) for entry in told)
    assert told[0]["train"]["loss"] > told[2]["train"]["loss"]
    assert told[2]["post_train_eval"]["accuracy"] > 0.3


@pytest.mark.parametrize("place", ["", "memory://model", "s3://bucket/model"])
def test_a_federation_requires_a_local_folder(made, place):
    found = made()

    with pytest.raises(UsageError, match="--output"):
        jobs.job_of(read_aggregator(found.aggregator), [], output=place)


def test_the_number_of_parties_must_match_the_config(made):
    found = made()
    found.parties[2].unlink()

    with pytest.raises(UsageError, match="Found 2 configs of parties"):
        federated.simulate(str(found.aggregator), reporter=Silent())


def test_less_than_one_process_is_refused(made):
    with pytest.raises(UsageError, match="num_processes=0: expected at least 1"):
        federated.simulate(str(made().aggregator), num_processes=0, reporter=Silent())


def test_a_simulated_party_that_cannot_join_ends_the_simulation(made, tmp_path):
    found = made()
    model = yaml.safe_load(found.aggregator.read_text())["model"]
    (tmp_path / "zoo" / "other.py").write_text(TORCH_MODEL.replace('"name": "x"', '"name": "z"'))
    change(found.parties[1], model={**model, "model_def": "other"})

    with pytest.raises(TrainingError, match="field 'z'"):
        federated.simulate(str(found.aggregator), reporter=Silent())


def test_a_simulated_party_trains_with_the_params_of_its_config(made):
    def losses(folder, party_rate, common_rate):
        found = made(folder, num_rounds=2, params="rate=0.0")
        for path, rate in zip(found.parties, [party_rate, common_rate, common_rate], strict=True):
            model = yaml.safe_load(path.read_text())["model"]
            change(path, model={**model, "params": {"rate": 0.0, "learning_rate": rate}})
        outcome = federated.simulate(str(found.aggregator), reporter=Silent())
        return outcome.metrics["loss"]

    alike, other, again = losses("a", 0.05, 0.05), losses("b", 0.5, 0.05), losses("c", 0.5, 0.05)

    assert alike == losses("d", 0.05, 0.05)
    assert other == again
    assert abs(other - alike) > 1e-3


def test_a_remote_party_needs_the_aggregators_address(made):
    found = made()
    change(found.aggregator, connection={"info": {}})
    change(found.parties[0], aggregator=None)

    with pytest.raises(DefinitionError, match="no ip and port"):
        federated.aggregator(str(found.aggregator), reporter=Silent())
    with pytest.raises(DefinitionError, match="the section `aggregator`"):
        federated.party(str(found.parties[0]), reporter=Silent())


def test_a_config_can_enable_privacy(made):
    found = made()
    change(found.aggregator, privacy={"central": {"clipping_norm": 2.0, "noise_multiplier": 0.5}})

    job = jobs.job_of(read_aggregator(found.aggregator), [])

    assert job.federation.central_privacy == CentralPrivacy(2.0, noise_multiplier=0.5)


class Heard(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_a_simulation_gets_no_warning_about_late_parties(made):
    found = made()
    hyperparams = yaml.safe_load(found.aggregator.read_text())["hyperparams"]
    del hyperparams["global"]["max_timeout"]
    change(found.aggregator, hyperparams=hyperparams)
    heard = Heard()

    federated.simulate(str(found.aggregator), reporter=heard)

    assert [note for note in heard.notes if "max_timeout" in note] == []
    assert "max_timeout" in str(read_aggregator(found.aggregator).warnings)


def test_duplicate_party_names_are_refused_with_both_files(made):
    found = made()
    for path in found.parties[:2]:
        change(path, connection={"info": {"id": "north"}})

    with pytest.raises(
        DefinitionError,
        match=r"party1.yml: .*'north' is also the name of the party in .*party0.yml",
    ):
        federated.simulate(str(found.aggregator), reporter=Silent())


LISTENING = """
import sys, time
from pathlib import Path
from elasticdl.engines.federated.control.control_server import Control

with Control(Path(sys.argv[1]), lambda verb, options: {}):
    print("listening", flush=True)
    time.sleep(100)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("role", ["party", "aggregator"])
def test_a_stopped_process_has_its_stored_status_and_exit_code_75(role, made, monkeypatch):
    monkeypatch.setattr(control_server, "_ANSWER_S", 0.5)
    found = made()
    config = found.parties[0] if role == "party" else found.aggregator
    folder = read_party(config).state if role == "party" else read_aggregator(config).output
    command = [sys.executable, "-c", LISTENING, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"listening\n"
        process.send_signal(signal.SIGSTOP)
        told = CliRunner().invoke(cli, ["federated", "status", str(config)], standalone_mode=False)
        process.kill()

    assert told.return_value == 75
    assert "not answering" in told.stdout
    assert f"kill -CONT {process.pid}" in told.stderr
