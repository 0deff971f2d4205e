"""The benchmark's CNN under Ray Train's elastic training.

ray_train_elastic.py DATA.npz FOLDER MINIBATCH_SIZE NUM_WORKERS
"""

import sys
import tempfile
from pathlib import Path

import ray
import ray.train
import ray.train.torch


def train_loop(config):
    import ddp_steps
    import torch

    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    model, optimizer = ddp_steps.create()
    step = 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            step = ddp_steps.load(Path(folder, "checkpoint.pt"), model, optimizer)

    def save(step):
        if rank != 0:
            ray.train.report({"step": step})
            return
        with tempfile.TemporaryDirectory() as folder:
            states = ddp_steps.states(step, model, optimizer)
            torch.save(states, Path(folder, "checkpoint.pt"))
            ray.train.report({"step": step}, ray.train.Checkpoint.from_directory(folder))

    ddp_steps.train(
        ray.train.torch.prepare_model(model),
        optimizer,
        step,
        rank=rank,
        world_size=world_size,
        data=config["data"],
        minibatch_size=config["minibatch_size"],
        save=save,
    )


def main():
    data, folder, minibatch_size, num_workers = sys.argv[1], *sys.argv[2:]
    ray.init(
        address="local",
        num_cpus=int(num_workers) + 1,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        # Its workers import what lies beside this file.
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}},
    )
    ray.train.torch.TorchTrainer(
        train_loop,
        train_loop_config={"data": data, "minibatch_size": int(minibatch_size)},
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=(1, int(num_workers))),
        run_config=ray.train.RunConfig(
            storage_path=folder,
            name="ray",
            failure_config=ray.train.FailureConfig(max_failures=-1),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


main()
