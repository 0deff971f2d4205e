"""An app for Flower's own deployment: FedAvg of an MLP on digits, training and evaluating.

The arrays in `arrays-file` are `x0`, `y0`, `x1`, ... of the parties, and `x_test0`, `y_test0`, ...
that they evaluate on. When the answers to a phase of a round have become one, a line goes to
`times-file`: {"round": ..., "phase": ..., "time": ..., "metrics": {...}}.

`flwr run` takes the folder; see `benchmarks/deployment.py`.
"""

import json
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn


def new_model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


# --- a party -------------------------------------------------------------------------------------

client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    config, party = context.run_config, context.node_config["partition-id"]
    model = received(message, config)
    x, y = read(config, f"x{party}", f"y{party}")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(config["seed"] + party)
    for _ in range(config["num-epochs"]):
        rows_of_all = torch.randperm(len(x), generator=generator)
        for rows in rows_of_all.split(config["minibatch-size"]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(x)}),
        }
    )
    return Message(content=content, reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    config, party = context.run_config, context.node_config["partition-id"]
    model = received(message, config)
    x, y = read(config, f"x_test{party}", f"y_test{party}")
    with torch.no_grad():
        accuracy = float((model(x).argmax(1) == y).float().mean())
    metrics = MetricRecord({"num-examples": len(x), "accuracy": accuracy})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


def received(message, config):
    model = new_model(config["seed"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


def read(config, *names):
    with np.load(config["arrays-file"]) as arrays:
        return [torch.from_numpy(arrays[name]) for name in names]


# --- the aggregator ------------------------------------------------------------------------------

server = ServerApp()


class TimedFedAvg(FedAvg):
    """FedAvg that writes down when a phase is over."""

    def __init__(self, times_file, **options):
        super().__init__(fraction_train=1.0, fraction_evaluate=1.0, **options)
        self._times_file = Path(times_file)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self._write(server_round, "train", metrics)
        return arrays, metrics

    def aggregate_evaluate(self, server_round, replies):
        metrics = super().aggregate_evaluate(server_round, replies)
        self._write(server_round, "evaluate", metrics)
        return metrics

    def _write(self, server_round, phase, metrics):
        line = {
            "round": server_round,
            "phase": phase,
            "time": time.time(),
            "metrics": dict(metrics or {}),
        }
        with self._times_file.open("a") as file:
            file.write(json.dumps(line) + "\n")


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    num = config["min-parties"]
    strategy = TimedFedAvg(
        config["times-file"], min_train_nodes=num, min_evaluate_nodes=num, min_available_nodes=num
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(new_model(config["seed"]).state_dict()),
        num_rounds=config["num-rounds"],
    )
