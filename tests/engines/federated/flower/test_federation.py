"""Two parties over TLS, with keys, behind the front; and who is not let in."""

import contextlib
import http.client
import ssl
import time

import numpy as np
import pytest

from elasticdl.engines.federated.flower.commands import Child, ask_flwr, environment, free_port
from elasticdl.engines.federated.flower.keys import PartyKeys, make_keys
from elasticdl.engines.federated.flower.supernode import Supernode, explain, knock
from elasticdl.errors import TrainingError

pytestmark = pytest.mark.flower


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_parties_answer_with_arrays_that_are_what_was_sent(federation):
    sent = {"layer/kernel": np.float32([[1, 2], [3, 4]]), "steps": np.array(5), "none": np.zeros(0)}

    answers = federation.ask(sent, 30, round=1, rate=0.5)

    assert sorted(answers) == ["north", "south"]
    for name, (arrays, facts) in answers.items():
        assert facts["party"] == name
        assert facts["was told"] == {"round": 1, "rate": 0.5}
        assert {key: array.dtype for key, array in arrays.items()} == {
            key: array.dtype for key, array in sent.items()
        }
        np.testing.assert_array_equal(arrays["layer/kernel"], [[2, 4], [6, 8]])
        assert arrays["steps"] == 10


def test_each_party_can_be_asked_something_of_its_own(federation):
    requests = {"north": ({"w": np.ones(1)}, {"n": 1}), "south": ({"w": np.zeros(2)}, {"n": 2})}

    answers = {
        name: (arrays, facts) for name, arrays, facts in federation.parties.ask(requests, 30)
    }

    assert answers["north"][1]["was told"] == {"n": 1}
    assert answers["north"][0]["w"].tolist() == [2]
    assert answers["south"][0]["w"].tolist() == [0, 0]


def test_a_party_is_one_process_over_all_rounds(federation):
    first = federation.ask({}, 30, ["north"])["north"][1]["asked"]

    assert federation.ask({}, 30, ["north"])["north"][1]["asked"] == first + 1


def test_an_answer_is_had_before_the_slowest_party_has_answered(federation):
    federation.processes["south"].answer_after(6)
    started_s = time.monotonic()
    came = {
        name: time.monotonic() - started_s
        for name, *_ in federation.parties.ask(dict.fromkeys(("north", "south"), ({}, {})), 30)
    }
    federation.processes["south"].answer_after(0)

    assert came["south"] - came["north"] > 2


def test_nobody_is_waited_for_longer_than_was_said(federation):
    federation.processes["south"].answer_after(9)
    started_s = time.monotonic()

    answers = federation.ask({}, 7)

    assert list(answers) == ["north"]
    assert time.monotonic() - started_s < 8
    federation.processes["south"].answer_after(0)
    # Its late answer is not taken for one to the next question.
    assert federation.ask({}, 30, round=2)["south"][1]["was told"] == {"round": 2}


@pytest.mark.chaos  # a run may be between two
def test_the_federation_is_flowers(federation):
    """Flower's own commands know the run and the parties."""
    home = environment(federation.link.folder / "flwr")

    runs = ask_flwr(["ls", "elasticdl"], home)["runs"]
    nodes = ask_flwr(["supernode", "ls", "elasticdl"], home)["nodes"]

    assert runs[0]["status"] == "running"
    assert runs[0]["fab-id"] == "elasticdl/elasticdl-federated"
    assert runs[0]["network-traffic"]["total-bytes"] > 0
    assert [node["status"] for node in nodes].count("online") == 2
    assert federation.flower("flower-superlink")


# --- what is not let in -----------------------------------------------------------------------


def post(federation, path, context):
    host, _, port = federation.link.address.rpartition(":")
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", path, b"", {"Content-Type": "application/x-protobuf"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")


@pytest.fixture
def trusted(federation):
    return ssl.create_default_context(cafile=federation.folder / "keys/aggregator/ca.crt")


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/control/list-nodes", "/v1/runtime/acquire-task"]
)
def test_the_front_serves_no_control_and_no_runtime(federation, trusted, path):
    assert post(federation, path, trusted) == (404, "Only parties of a federation are served here.")


def test_flowers_command_cannot_start_a_run_through_the_front(federation, tmp_path):
    home = tmp_path / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.outside]\naddress = "{federation.link.address}"\n'
        f'root-certificates = "{federation.folder}/keys/parties/north/ca.crt"\n'
    )

    with pytest.raises(
        TrainingError, match="Client error '404 Not Found' for url .*/v1/control/start-run"
    ):
        ask_flwr(
            ["run", str(federation.link.folder / "elasticdl-federated"), "outside"],
            environment(home),
        )


def test_the_superlink_itself_listens_on_this_machine_only(federation):
    (superlink,) = federation.flower("flower-superlink")

    listening = [one.laddr.ip for one in superlink.net_connections() if one.status == "LISTEN"]

    assert set(listening) == {"127.0.0.1"}


def test_a_wrong_ca_is_noticed_before_anything_is_sent(federation, tmp_path):
    make_keys(tmp_path / "keys", ["north"], ["127.0.0.1"])
    keys = PartyKeys.read(tmp_path / "keys/parties/north")

    with pytest.raises(TrainingError, match="was not signed by .*another federation"):
        Supernode(tmp_path, federation.link.address, keys, tmp_path / "s").start()


def test_a_party_without_keys_is_told_that_the_aggregator_speaks_tls(federation):
    with pytest.raises(TrainingError, match="most likely it speaks TLS. Give this party its keys"):
        knock(federation.link.address, None)


def test_nobody_there_is_no_error_but_a_reason(tmp_path):
    assert "nobody listens there. Is the aggregator running?" in knock("127.0.0.1:1", None)


@pytest.fixture
def ended(federation, tmp_path):
    """Return a function: what Flower's own supernode printed, which must end by itself."""

    def run(*arguments):
        command = ["flower-supernode", "--superlink", federation.link.address]
        child = Child(
            [*command, "--port", str(free_port()), *map(str, arguments)],
            environment(tmp_path / "flwr"),
            tmp_path / "log",
        )
        wait_until(lambda: not child.is_alive)
        child.end()
        return child.said()

    return run


def test_a_key_that_is_not_registered_is_not_let_in(federation, ended, tmp_path):
    make_keys(tmp_path / "keys", ["north"], ["127.0.0.1"])
    keys = PartyKeys.read(tmp_path / "keys/parties/north")
    ca = federation.folder / "keys/aggregator/ca.crt"

    said = ended("--root-certificates", ca, "--auth-supernode-private-key", keys.key)

    assert "it does not know the key" in explain(said, keys)


def test_a_node_without_a_key_is_not_let_in(federation, ended):
    said = ended("--root-certificates", federation.folder / "keys/aggregator/ca.crt")

    assert "takes only parties whose keys it knows" in explain(said, None)


def test_a_second_process_with_a_partys_key_is_not_let_in(federation, ended):
    keys = PartyKeys.read(federation.folder / "keys/parties/north")

    said = ended("--root-certificates", keys.ca, "--auth-supernode-private-key", keys.key)

    assert "a process with this key is connected already" in explain(said, keys)
    assert sorted(federation.ask({}, 30)) == ["north", "south"]


# --- the app -----------------------------------------------------------------------------------


def test_a_foreign_app_does_not_run_at_any_party(federation, tmp_path):
    """Who controls the aggregator's machine starts a run of his own: nothing of it is executed."""
    app = tmp_path / "foreign-app"
    app.mkdir()
    evidence = tmp_path / "it-ran"
    (app / "pyproject.toml").write_text(FOREIGN)
    (app / "foreign.py").write_text(FOREIGN_CODE.replace("EVIDENCE", str(evidence)))
    home = environment(federation.link.folder / "flwr")
    (tmp_path / "reasons").touch()

    run = ask_flwr(["run", str(app), "elasticdl", "-c", f'folder="{tmp_path}"'], home)["run-id"]
    wait_until((tmp_path / "done").exists)

    reasons = (tmp_path / "reasons").read_text().splitlines()
    assert len(reasons) == 2
    for reason in reasons:
        assert "runs no app but elasticdl-federated" in reason
    assert not list(tmp_path.glob("it-ran*"))
    assert not list(federation.folder.glob("*/supernode/flwr/apps/*foreign*"))
    assert run
    assert sorted(federation.ask({}, 30)) == ["north", "south"]


FOREIGN = """
[project]
name = "foreign-app"
version = "1.0.0"
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "foreign:server"
clientapp = "foreign:client"
[tool.flwr.app.config]
folder = ""
"""

FOREIGN_CODE = """
import os, sys, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

if "flwr-clientapp" in sys.argv[0]:
    Path("EVIDENCE").touch()
server = ServerApp()
client = ClientApp()

@client.train()
def train(message, context):
    Path(context.run_config["folder"], "it-ran-a-message").touch()
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    folder = Path(context.run_config["folder"])
    out = set(grid.push_messages([Message(RecordDict(), n, "train") for n in grid.get_node_ids()]))
    while out:
        for message in grid.pull_messages(out):
            out.discard(message.metadata.reply_to_message_id)
            with (folder / "reasons").open("a") as file:
                print(message.error.reason if message.has_error() else "none", file=file)
        time.sleep(0.1)
    (folder / "done").touch()
"""
