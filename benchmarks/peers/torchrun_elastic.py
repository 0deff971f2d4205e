"""The benchmark's CNN under torchrun's elastic agents, one worker an agent.

torchrun --nnodes=1:3 --rdzv-backend=c10d ... torchrun_elastic.py DATA.npz FOLDER MINIBATCH_SIZE
"""

import sys
from pathlib import Path

import ddp_steps
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def main():
    data, folder, minibatch_size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    distributed.init_process_group("gloo")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    model, optimizer = ddp_steps.create()
    path, step = folder / "checkpoint.pt", 0
    if path.exists():
        step = ddp_steps.load(path, model, optimizer)

    def save(step):
        if rank == 0:
            new = path.with_suffix(".new")
            torch.save(ddp_steps.states(step, model, optimizer), new)
            new.replace(path)

    ddp_steps.train(
        DistributedDataParallel(model),
        optimizer,
        step,
        rank=rank,
        world_size=world_size,
        data=data,
        minibatch_size=minibatch_size,
        save=save,
    )


main()
