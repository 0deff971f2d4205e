"""Flower's own simulation of the same federation: a ServerApp, a ClientApp, its Ray backend.

    flower_simulation.py ARRAYS.npz NUM_PARTIES NUM_ROUNDS NUM_EPOCHS MINIBATCH_SIZE SEED

The arrays are `x0`, `y0`, `x1`, ... of the parties and `x_test`, `y_test`. Prints the accuracy of
the last global model on the test set.
"""

import os
import sys

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

FILE, *NUMBERS = sys.argv[1:]
NUM_PARTIES, NUM_ROUNDS, NUM_EPOCHS, MINIBATCH_SIZE, SEED = map(int, NUMBERS)


def new_model():
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    party = context.node_config["partition-id"]
    with np.load(FILE) as arrays:
        x, y = torch.from_numpy(arrays[f"x{party}"]), torch.from_numpy(arrays[f"y{party}"])
    model = new_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(SEED + party)
    for _ in range(NUM_EPOCHS):
        for rows in torch.randperm(len(x), generator=generator).split(MINIBATCH_SIZE):
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


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=NUM_PARTIES)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(new_model().state_dict()),
        num_rounds=NUM_ROUNDS,
        train_config=ConfigRecord({}),
    )
    model = new_model()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    with np.load(FILE) as arrays, torch.no_grad():
        said = model(torch.from_numpy(arrays["x_test"])).argmax(1).numpy()
        print("accuracy", float(np.mean(said == arrays["y_test"])), flush=True)


run_simulation(
    server_app=server,
    client_app=client,
    num_supernodes=NUM_PARTIES,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
)
