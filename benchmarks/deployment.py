"""A federation of commands: what a round costs, where its seconds go, and what a dead party costs.

Two parties and an aggregator on this machine train an MLP on scikit-learn's digits, dealt out iid,
one epoch a round, and each round evaluates on records that nobody trains on. Ours are the three
commands of a person, with TLS and keys; the only thing added writes down when a party was asked
(`timed_party.py`). It asks once a round: who trains measures first what it was sent, and the last
model is measured after the last round. The peer is Flower's own deployment, which ours is built on:
`flower-superlink`, two `flower-supernode`, `flwr run` with its FedAvg (`peers/flower_deployment/`),
with its own defaults, which are a process for each message and the polling it comes with; plain
(`--insecure`), telemetry and installation of packages off. Of each run the first round and the last
do not count.

`parts` is a round of ours, divided by what the supernode's log tells and the party's own times; of
two parties, the one that answered last. `flower_sleeps` are the lines of Flower's that are waited
for in it.

Then a party is killed with all its processes, right after it was asked to train. Ours waits for
`max_timeout` of 10 s, Flower until it has missed two heartbeats. Ours asks a dead party again until
Flower has noticed as well, so some rounds after it take as long; they are told too. Both sides may
go on with one party.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import socket
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.commands import Commands
from benchmarks.record import ratio

HERE = Path(__file__).parent
PARTIES = ("party0", "party1")
NUM_EPOCHS, MINIBATCH_SIZE, SEED = 1, 32, 0
NUM_ROUNDS, NUM_ROUNDS_OF_FLOWER = 8, 5
# With a dead party: enough that the last ones come after Flower has noticed.
NUM_ROUNDS_WITH_KILL, ROUNDS_BEFORE_KILL = 12, 2
MAX_TIMEOUT_S = 10.0

ROUND_BAR_S = 6.0
KILL_BAR_S = MAX_TIMEOUT_S + 1.0

# What a supernode prints of a message; it is killed when it has all of one.
_ASKED, _RECEIVED = "Receiving: train message", "Received successfully"
_FETCHED, _SENT = "Sending: train message", "Sent successfully"
# Of a round, in their order; the names of what lies between two times.
_PARTS = (
    "aggregator_keeps_the_round_before",
    "until_the_supernode_asks",
    # Flower starts the process while the weights are still on their way.
    "weights_and_a_process_for_them",
    "party_measures_and_trains",
    "until_the_supernode_looks_for_the_answer",
    "weights_to_the_superlink",
    "aggregator_fetches_and_fuses",
)
_SLEEPS_IN = "flwr.supernode.start_client_internal"
_SLEEPS = {_PARTS[1]: "time.sleep(3)", _PARTS[4]: "time.sleep(0.5)"}


def run():
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        _write_digits(work)
        rounds, parts, accuracy = _our_rounds(work / "ours")
        print(f"ours: {rounds}", flush=True)
        peer, peer_accuracy = _rounds_of_flower(work / "flower")
        print(f"Flower: {peer}", flush=True)
        killed = _our_kill(work / "our_kill")
        print(f"ours, with a kill: {killed}", flush=True)
        peer_killed = _kill_of_flower(work / "flower_kill")
        print(f"Flower, with a kill: {peer_killed}", flush=True)
    return {
        "flower": importlib.metadata.version("flwr"),
        "round_s": _held(statistics.median(rounds), ROUND_BAR_S),
        "round_s_beside_flower": ratio(rounds, peer, 1.0, higher_is_better=False),
        f"accuracy_after_{NUM_ROUNDS_OF_FLOWER}_rounds": {"ours": accuracy, "peer": peer_accuracy},
        "parts": parts,
        "flower_sleeps": _sleeps(),
        "round_with_a_kill_s": {**_held(killed.pop("round_s"), KILL_BAR_S), **killed},
        "from_kill_s": ratio(
            [killed["from_kill_s"]], [peer_killed["from_kill_s"]], 1.0, higher_is_better=False
        ),
    }


def _held(ours, bar):
    return {"ours": ours, "bar": bar, "met": ours <= bar}


def _write_digits(work):
    from sklearn.datasets import load_digits

    from elasticdl.data import recordio
    from elasticdl.data.example import encode

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(x))
    for name, rows in (("test", order[:360]), ("train", order[360:])):
        with recordio.Writer(str(work / f"{name}.recordio")) as writer:
            for i in rows:
                image = x[i].astype(np.float32)
                writer.write(encode({"image": image, "label": np.int64([y[i]])}))


def _dealt(folder, num_rounds):
    """Deal the digits out to parties, and write the configs; returns their paths."""
    from elasticdl import federated

    return federated.init(
        str(folder / "h"),
        data=str(folder.parent / "train.recordio"),
        validation_data=str(folder.parent / "test.recordio"),
        num_parties=len(PARTIES),
        model_zoo=str(HERE / "zoo"),
        model_def="digits_mlp",
        num_rounds=num_rounds,
        num_epochs=NUM_EPOCHS,
        minibatch_size=MINIBATCH_SIZE,
        seed=SEED,
    )


def _free_ports(number):
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)
        ]
        return [server.getsockname()[1] for server in servers]


def _json_lines(path):
    if not path.exists():
        return []
    # The last one may be on its way.
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


# --- ours ----------------------------------------------------------------------------------------


class _Ours:
    """A federation of ours: its configs, its commands, and what they left.

    Args:
        folder: For all of it; it is made.
        num_rounds: How many.
        **hyperparams: Further `hyperparams.global` of the aggregator.
    """

    def __init__(self, folder, num_rounds, **hyperparams):
        from elasticdl import federated

        folder.mkdir()
        self.folder = folder
        self.files = _dealt(folder, num_rounds)
        keys = folder / "keys"
        federated.make_keys(str(keys), parties=list(PARTIES), hosts=["127.0.0.1"])
        at = {"ip": "127.0.0.1", "port": _free_ports(1)[0]}
        tls = _paths(keys / "aggregator", certificate="server.crt", private_key="server.key")
        _change(self.files.aggregator, hyperparams, connection={"info": {**at, "tls_config": tls}})
        for name, path in zip(PARTIES, self.files.parties, strict=True):
            tls = _paths(keys / "parties" / name, private_key="node.key")
            info = {"id": name, "tls_config": tls}
            _change(path, {}, connection={"info": info}, aggregator=at)

    @contextlib.contextmanager
    def started(self):
        """Run the commands until the block ends; yields them."""
        with Commands(self.folder, {"BENCHMARK_TIMES": str(self.folder)}) as commands:
            for name, path in zip(PARTIES, self.files.parties, strict=True):
                program = HERE / "timed_party.py"
                commands.start(name, [sys.executable, program, "federated", "party", path])
                state = path.with_suffix("") / "state"
                commands.follow(f"{name}'s supernode", state / "flower" / "supernode.log")
            command = [sys.executable, "-m", "elasticdl.cli.main", "federated", "aggregator"]
            aggregator = commands.start("aggregator", [*command, self.files.aggregator])
            self.is_over = lambda: aggregator.poll() == 0
            yield commands

    def rounds(self):
        return self._events("round_finished")

    def accuracy(self, number):
        """Return that of the model of a round."""
        found = {event["step"]: event["metrics"] for event in self._events("evaluated")}
        return found[number]["accuracy"]

    def _events(self, kind):
        output = self.files.aggregator.parent / "trained_model"
        return [e for e in _json_lines(output / "events.jsonl") if e["event"] == kind]

    def answers(self, party):
        """Return round -> when a party was asked to train and when it had."""
        lines = _json_lines(self.folder / f"{party}.jsonl")
        return {line["round"]: line for line in lines if line["kind"] == "train"}


def _paths(folder, **names):
    """Return the paths in a folder of keys, which has a `ca.crt` as well."""
    return {
        name: str(folder / file) for name, file in {**names, "ca_certificate": "ca.crt"}.items()
    }


def _change(path, hyperparams, **sections):
    import yaml

    values = {**yaml.safe_load(path.read_text()), **sections}
    if hyperparams:
        values["hyperparams"]["global"].update(hyperparams)
    path.write_text(yaml.safe_dump(values))


def _our_rounds(folder):
    """Return seconds from round to round, what they divide into, and an accuracy."""
    ours = _Ours(folder, NUM_ROUNDS)
    with ours.started() as commands:
        commands.wait_for(ours.is_over, "the last round of ours")
    rounds = ours.rounds()
    seconds = _differences([event["time"] for event in rounds])
    return seconds, _parts(ours, commands, rounds), ours.accuracy(NUM_ROUNDS_OF_FLOWER)


def _differences(times):
    """Return the seconds from each to the next, but for the last."""
    return [after - before for before, after in pairwise(times[:-1])]


def _parts(ours, commands, rounds):
    """Return medians of the parts of a round, in their order; seconds."""
    table = []
    for before, event in pairwise(rounds[:-1]):
        begin, end = event["time"] - event["seconds"], event["time"]
        marks = []
        for party in PARTIES:
            supernode, answer = f"{party}'s supernode", ours.answers(party)[event["step"]]
            asked, fetched, sent = (
                next(at for at in commands.times(supernode, text) if begin < at)
                for text in (_ASKED, _FETCHED, _SENT)
            )
            marks.append((asked, answer["begin"], answer["end"], fetched, sent))
        last = max(marks, key=lambda times: times[-1])
        times = [before["time"], begin, *last, end]
        table.append([after - before for before, after in pairwise(times)])
    medians = [statistics.median(column) for column in zip(*table, strict=True)]
    return {**dict(zip(_PARTS, medians, strict=True)), "rounds": table}


def _sleeps():
    """Return part of a round -> the line of a supernode's loop that it sleeps in."""
    source = Path(importlib.util.find_spec(_SLEEPS_IN).origin).read_text().split("\n")
    found = {}
    for part, sleep in _SLEEPS.items():
        numbers = [number for number, line in enumerate(source, 1) if sleep in line]
        found[part] = f"{_SLEEPS_IN}, line {numbers[0]}: {sleep}" if numbers else None
    return found


def _our_kill(folder):
    """Return what a round took in which a party was killed, and all there were."""
    ours = _Ours(folder, NUM_ROUNDS_WITH_KILL, max_timeout=MAX_TIMEOUT_S, perc_quorum=0.5)
    with ours.started() as commands:
        commands.wait_for(lambda: len(ours.rounds()) >= ROUNDS_BEFORE_KILL, "rounds of ours")
        log, since = f"{PARTIES[0]}'s supernode", ours.rounds()[-1]["time"]
        killed = _kill_when_asked(commands, PARTIES[0], log, since)
        commands.wait_for(ours.is_over, "the last round of ours", timeout_s=300)
    rounds = ours.rounds()
    found = next(event for event in rounds if event["time"] > killed)
    assert list(found["left_out"]) == [PARTIES[0]], found
    return {
        "round_s": found["seconds"],
        "from_kill_s": found["time"] - killed,
        "all_rounds_s": [event["seconds"] for event in rounds],
        "left_out": found["left_out"],
    }


def _kill_when_asked(commands, name, log, since):
    """Kill a command once its supernode has got a question after a time; returns when."""
    commands.wait_for(
        lambda: any(at > since for at in commands.times(log, _RECEIVED)), f"a question to {name}"
    )
    return commands.kill(name)


# --- Flower's own --------------------------------------------------------------------------------


class _Flower:
    """A deployment of Flower's own, as its documentation has it.

    Args:
        folder: For all of it; it is made.
        num_rounds: How many.
        min_parties: With how many it goes on.
    """

    def __init__(self, folder, num_rounds, min_parties):
        folder.mkdir()
        self.folder = folder
        self._superlink, *self._ports = _free_ports(1 + len(PARTIES))
        self._times = folder / "times.jsonl"
        arrays = folder / "arrays.npz"
        _write_arrays(_dealt(folder, num_rounds), arrays)
        self._config = {
            "arrays-file": str(arrays),
            "times-file": str(self._times),
            "num-rounds": num_rounds,
            "num-epochs": NUM_EPOCHS,
            "minibatch-size": MINIBATCH_SIZE,
            "seed": SEED,
            "min-parties": min_parties,
        }
        (folder / "flwr").mkdir()
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "ours"\n\n[superlink.ours]\n'
            f'address = "127.0.0.1:{self._superlink}"\ninsecure = true\n'
        )

    @contextlib.contextmanager
    def started(self):
        """Run the commands until the block ends; yields them when the rounds have begun."""
        bin_ = Path(sys.executable).parent
        variables = {
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PYTHONUNBUFFERED": "1",
            # It starts its commands by their bare names.
            "PATH": os.pathsep.join((str(bin_), os.environ["PATH"])),
        }
        with Commands(self.folder, variables) as commands:
            link = ["--insecure", "--host", "127.0.0.1", "--port"]
            superlink = [bin_ / "flower-superlink", *link, self._superlink]
            commands.start("superlink", [*superlink, "--disable-runtime-dependency-installation"])
            for number, (name, port) in enumerate(zip(PARTIES, self._ports, strict=True)):
                to = ["--superlink", f"127.0.0.1:{self._superlink}"]
                config = ["--node-config", f"partition-id={number}"]
                commands.start(name, [bin_ / "flower-supernode", *link, port, *to, *config])
            commands.wait_for(
                lambda: all(commands.times(name, "SuperNode ID") for name in PARTIES),
                "Flower's supernodes",
            )
            config = " ".join(f"{key}={json.dumps(value)}" for key, value in self._config.items())
            app = HERE / "peers" / "flower_deployment"
            commands.start("run", [bin_ / "flwr", "run", app, "ours", "--run-config", config])
            yield commands

    def ends(self, phase):
        """Return a line for each round in which a phase has ended."""
        return [line for line in _json_lines(self._times) if line["phase"] == phase]


def _write_arrays(made, path):
    """Write the records of parties as arrays, which Flower's app reads."""
    from elasticdl.data.sources import open_source

    arrays = {}
    for number, config in enumerate(made.parties):
        for what, suffix in (("train", ""), ("test", "_test")):
            source = open_source(str(config.with_suffix("") / f"{what}.recordio"))
            records = list(source.read_records(0, source.num_records, None))
            pixels = np.stack([record["image"] for record in records]) / np.float32(16)
            arrays[f"x{suffix}{number}"] = pixels
            arrays[f"y{suffix}{number}"] = np.stack([r["label"] for r in records])[:, 0]
    np.savez(path, **arrays)


def _rounds_of_flower(folder):
    """Return seconds from round to round, and the accuracy at the end."""
    flower = _Flower(folder, NUM_ROUNDS_OF_FLOWER, min_parties=len(PARTIES))
    with flower.started() as commands:
        commands.wait_for(
            lambda: len(flower.ends("evaluate")) == NUM_ROUNDS_OF_FLOWER,
            "the last round of Flower",
            timeout_s=600,
        )
    rounds = flower.ends("evaluate")
    return _differences([line["time"] for line in rounds]), rounds[-1]["metrics"]["accuracy"]


def _kill_of_flower(folder):
    """Return how long it took from a kill until the party's answer was given up."""
    flower = _Flower(folder, num_rounds=2, min_parties=1)
    with flower.started() as commands:
        commands.wait_for(lambda: flower.ends("evaluate"), "the first round of Flower")
        since = flower.ends("evaluate")[0]["time"]
        killed = _kill_when_asked(commands, PARTIES[0], PARTIES[0], since)
        commands.wait_for(lambda: flower.ends("train")[1:], "Flower to go on", timeout_s=300)
    return {"from_kill_s": flower.ends("train")[1]["time"] - killed}
