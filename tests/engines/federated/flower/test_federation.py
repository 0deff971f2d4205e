"""Two parties over TLS, with keys, behind the front; and who is not let in."""

import contextlib
import http.client
import re
import shutil
import ssl
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.engines.federated.flower.conftest import wait_until

from elasticdl.engines.federated.flower.certificate_check import check_connection
from elasticdl.engines.federated.flower.commands import Child, environment, free_port, program
from elasticdl.engines.federated.flower.keys import PartyKeys, make_keys
from elasticdl.engines.federated.flower.supernode import Supernode, refusal
from elasticdl.errors import TrainingError

# The time of the first test is that of its federation's start as well.
pytestmark = [pytest.mark.flower, pytest.mark.timeout(300)]

BOTH = ["north", "south"]
ARRAYS = {"layer/kernel": np.float32([[1, 2], [3, 4]]), "steps": np.array(5), "none": np.zeros(0)}


@pytest.fixture(scope="module")
def answers(federation):
    """Return three rounds' answers, asked for at once: Flower sleeps before the first one only."""
    rounds = [
        dict.fromkeys(BOTH, (ARRAYS, {"round": 1, "rate": 0.5})),
        {"north": ({"w": np.ones(1)}, {"n": 1}), "south": ({"w": np.zeros(2)}, {"n": 2})},
        dict.fromkeys(BOTH, ({}, {})),
    ]
    asked = [federation.parties.ask(requests, 60) for requests in rounds]
    return [{name: (arrays, facts) for name, arrays, facts in one} for one in asked]


def test_parties_return_the_arrays_they_were_sent(answers):
    assert sorted(answers[0]) == BOTH
    for name, (arrays, facts) in answers[0].items():
        assert facts["party"] == name
        assert facts["was told"] == {"round": 1, "rate": 0.5}
        assert {key: array.dtype for key, array in arrays.items()} == {
            key: array.dtype for key, array in ARRAYS.items()
        }
        np.testing.assert_array_equal(arrays["layer/kernel"], [[2, 4], [6, 8]])
        assert arrays["steps"] == 10


def test_each_party_can_get_its_own_request(answers):
    north, south = (answers[1][name] for name in BOTH)

    assert north[1]["was told"] == {"n": 1}
    assert north[0]["w"].tolist() == [2]
    assert south[0]["w"].tolist() == [0, 0]


@pytest.mark.parametrize("name", BOTH)
def test_a_party_is_one_process_over_all_rounds(name, answers):
    asked = sorted(answers[number][name][1]["asked"] for number in range(3))

    assert asked == list(range(asked[0], asked[0] + 3))


def test_answers_arrive_before_the_slowest_party_has_answered(federation):
    south = federation.processes["south"]
    south.hold()
    answers = federation.parties.ask(dict.fromkeys(BOTH, ({}, {})), 60)

    first, *_ = next(answers)

    south.release()
    assert first == "north"
    assert [name for name, *_ in answers] == ["south"]


def test_waiting_ends_after_the_timeout(federation):
    south = federation.processes["south"]
    south.hold()
    # On a slow machine the question may not have reached it in the shorter time.
    for timeout_s in (5, 20):
        started_s = time.monotonic()

        assert federation.ask({}, timeout_s, ["south"]) == {}

        assert time.monotonic() - started_s < timeout_s + 1
        if south.is_held:
            break
    assert south.is_held
    south.release()
    # Its late answer is not taken for one to the next question.
    assert federation.ask({}, 60, ["south"], round=2)["south"][1]["was told"] == {"round": 2}


def test_flowers_commands_show_the_federation(federation, answers):
    """Flower's own commands know the run and the parties."""
    # The newest run is another test's, if that one was first.
    ours = (federation.link.folder / "run").read_text()

    with ThreadPoolExecutor() as pool:
        runs = pool.submit(federation.flwr, "ls", "elasticdl", "--run-id", ours)
        nodes = pool.submit(federation.flwr, "supernode", "ls", "elasticdl")

    (run,) = runs.result()["runs"]
    assert run["status"] == "running"
    assert run["fab-id"] == "elasticdl/elasticdl-federated"
    assert run["network-traffic"]["total-bytes"] > 0
    assert [node["status"] for node in nodes.result()["nodes"]].count("online") == 2
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
def test_the_proxy_serves_neither_control_nor_runtime_requests(federation, trusted, path):
    assert post(federation, path, trusted) == (
        404,
        "Only requests of the parties of a federation are served here.",
    )


def test_flowers_command_cannot_start_a_run_through_the_proxy(federation, tmp_path):
    home = tmp_path / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.outside]\naddress = "{federation.link.address}"\n'
        f'root-certificates = "{federation.folder}/keys/parties/north/ca.crt"\n'
    )

    done = subprocess.run(
        [program("flwr"), "run", federation.link.folder / "elasticdl-federated", "outside"],
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert re.search(
        "Client error '404 Not Found' for url .*/v1/control/start-run", done.stdout + done.stderr
    )


def test_the_superlink_itself_opens_no_port(federation):
    (superlink,) = federation.flower("flower-superlink")

    assert [one for one in superlink.net_connections() if one.status == "LISTEN"] == []


def test_a_wrong_ca_is_detected_before_anything_is_sent(federation, tmp_path):
    make_keys(tmp_path / "keys", ["north"], ["127.0.0.1"])
    keys = PartyKeys.read(tmp_path / "keys/parties/north")

    with pytest.raises(TrainingError, match="was not signed by .*another federation"):
        Supernode(tmp_path, federation.link.address, keys, tmp_path / "s").start()


def test_a_party_without_keys_gets_an_error_about_tls(federation):
    with pytest.raises(TrainingError, match="it probably speaks TLS. Set this party's keys"):
        check_connection(federation.link.address, None)


def test_an_unreachable_aggregator_is_a_reason_not_an_error(tmp_path):
    assert "connection refused. Is the aggregator running?" in check_connection("127.0.0.1:1", None)


@pytest.fixture(scope="module", autouse=True)
def refusing(federation, tmp_path_factory):
    """Start Flower's own supernodes that must end by themselves, beside the other tests."""
    folder = tmp_path_factory.mktemp("refused")
    make_keys(folder / "keys", ["north"], ["127.0.0.1"])
    unknown = PartyKeys.read(folder / "keys/parties/north")
    known = PartyKeys.read(federation.folder / "keys/parties/north")
    started = {}
    for what, keys in {"unknown key": unknown, "no key": None, "key in use": known}.items():
        command = ["flower-supernode", "--superlink", federation.link.address]
        command += ["--port", str(free_port()), "--root-certificates", str(known.ca)]
        command += [] if keys is None else ["--auth-supernode-private-key", str(keys.key)]
        child = Child(command, environment(folder / what), folder / f"{what}.log")
        started[what] = (child, keys)
    yield started
    for child, _ in started.values():
        child.end()


@pytest.fixture
def refused(refusing):
    """Return what they printed."""
    wait_until(lambda: not any(child.is_alive for child, _ in refusing.values()))
    return {what: (child.output(), keys) for what, (child, keys) in refusing.items()}


def test_an_unregistered_key_is_refused(refused):
    assert "is not registered" in refusal(*refused["unknown key"])


def test_a_node_without_a_key_is_refused(refused):
    assert "accepts only parties with a registered key" in refusal(*refused["no key"])


def test_a_second_process_with_a_partys_key_is_refused(federation, refused):
    assert "a process with this key is already connected" in refusal(*refused["key in use"])
    assert sorted(federation.ask({}, 30)) == BOTH


def test_one_of_two_simultaneous_parties_with_one_key_is_accepted(federation, start_party):
    """The key identifies a party; the name that the second one reports does not matter."""
    # A socket's path is short.
    folder = Path(tempfile.mkdtemp(prefix="fl-"))
    key = federation.folder / "keys/parties/west"
    address = federation.link.address

    twins = {name: start_party(folder / name, name, address, key) for name in ("west", "east")}
    wait_until(lambda: any("with this key is already connected" in p.log for p in twins.values()))
    wait_until(lambda: "west" in federation.parties.here())

    ((name, _, facts),) = federation.parties.ask({"west": ({}, {})}, 30)
    first = twins.pop(facts["at"])
    (second,) = twins.values()
    assert name == "west"
    assert "with this key is already connected" in second.log
    assert "with this key is already connected" not in first.log
    assert "east" not in federation.parties.here()
    shutil.rmtree(folder, ignore_errors=True)


# --- the app -----------------------------------------------------------------------------------


def test_a_foreign_app_runs_on_no_party(federation, tmp_path):
    """An attacker on the aggregator's machine starts a run: none of it is executed."""
    app = tmp_path / "foreign-app"
    app.mkdir()
    evidence = tmp_path / "it-ran"
    (app / "pyproject.toml").write_text(FOREIGN)
    (app / "foreign.py").write_text(FOREIGN_CODE.replace("EVIDENCE", str(evidence)))
    (tmp_path / "reasons").touch()

    run = federation.flwr("run", str(app), "elasticdl", "-c", f'folder="{tmp_path}"')["run-id"]
    wait_until((tmp_path / "done").exists)

    reasons = (tmp_path / "reasons").read_text().splitlines()
    assert len(reasons) == 2
    for reason in reasons:
        assert "runs only the app elasticdl-federated" in reason
    assert not list(tmp_path.glob("it-ran*"))
    assert not list(federation.folder.glob("*/supernode/flwr/apps/*foreign*"))
    assert run
    assert sorted(federation.ask({}, 30)) == BOTH


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
