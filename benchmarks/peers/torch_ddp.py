"""A plain PyTorch script: the network of `zoo/cnn_torch.py` with DistributedDataParallel.

    torch_ddp.py NUM_PROCESSES NUM_THREADS MINIBATCH_SIZE NUM_RECORDS SECONDS memory | loader

As PyTorch's tutorial does it: one process a rank, Gloo, an optimizer on each. The data are tensors
in memory (which nothing has to be read or put together for: the best case), or a `Dataset` behind a
`DataLoader` with a `DistributedSampler`. Prints records/s of all processes, from a third of the
seconds to their end. Each step ends with a sum over all, so one process can count for all.
"""

import os
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "zoo"))

import cnn_torch
import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

NUM_STEPS_BETWEEN_LOOKS = 8


class Options(NamedTuple):
    num_processes: int
    num_threads: int
    minibatch_size: int
    num_records: int
    seconds: float
    source: str


class Pictures(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


def minibatches(images, labels, rank, options):
    """Yield minibatches of this rank for ever, each epoch in another order."""
    num_processes, size = options.num_processes, options.minibatch_size
    if options.source == "loader":
        dataset = Pictures(images, labels)
        sampler = DistributedSampler(dataset, num_processes, rank)
        loader = DataLoader(dataset, batch_size=size, sampler=sampler, drop_last=True)
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            yield from loader
            epoch += 1
    generator = torch.Generator().manual_seed(0)
    while True:
        mine = torch.randperm(len(labels), generator=generator)[rank::num_processes]
        for which in mine.split(size):
            if len(which) == size:
                yield images[which], labels[which]


def train(rank, options, port):
    torch.set_num_threads(options.num_threads)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=options.num_processes)
    torch.manual_seed(0)
    images = torch.randn(options.num_records, *cnn_torch.SHAPE)
    labels = torch.randint(cnn_torch.CLASSES, (options.num_records, 1))
    model = DistributedDataParallel(cnn_torch.custom_model())
    optimizer = cnn_torch.optimizer(model.parameters())
    begin, looks = time.monotonic(), []
    for step, (image, label) in enumerate(minibatches(images, labels, rank, options), 1):
        optimizer.zero_grad()
        cnn_torch.loss(model(image), label).backward()
        optimizer.step()
        if step % NUM_STEPS_BETWEEN_LOOKS:
            continue
        now = time.monotonic()
        if now - begin > options.seconds / 3:
            looks.append((now, step))
        # One clock decides, so that no rank waits for one that has stopped.
        is_over = torch.tensor(now - begin > options.seconds)
        distributed.broadcast(is_over, 0)
        if is_over:
            break
    if rank == 0:
        (first_s, first), (last_s, last) = looks[0], looks[-1]
        num_records = (last - first) * options.minibatch_size * options.num_processes
        print("records/s", num_records / (last_s - first_s))
    distributed.destroy_process_group()


def main():
    *numbers, seconds, source = sys.argv[1:]
    options = Options(*map(int, numbers), float(seconds), source)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(train, (options, port), options.num_processes)


if __name__ == "__main__":
    main()
