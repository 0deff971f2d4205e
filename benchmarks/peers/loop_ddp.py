"""DistributedDataParallel under torchrun, Gloo; see `loop_parts.py` for its arguments.

Buffers are not broadcast before each step: all ranks' statistics are near enough to each other,
and that is quicker. Prints records/s of all ranks together.
"""

import loop_parts
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

NUM_STEPS_BETWEEN_LOOKS = 8


def main():
    options = loop_parts.options()
    zoo = loop_parts.zoo_of(options)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        zoo.custom_model(), broadcast_buffers=False, gradient_as_bucket_view=True, static_graph=True
    )
    optimizer = zoo.optimizer(model.parameters())
    loader = loop_parts.loader_of(options, zoo, DistributedSampler)
    train(model, optimizer, loader, zoo, options)
    distributed.destroy_process_group()


def train(model, optimizer, loader, zoo, options):
    clock, step, epoch = loop_parts.Clock(options.seconds), 0, 0
    while True:
        loader.sampler.set_epoch(epoch)
        epoch += 1
        for features, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            zoo.loss(model(**features), labels).backward()
            optimizer.step()
            step += 1
            is_last = clock.step_is_last()
            if step % NUM_STEPS_BETWEEN_LOOKS:
                continue
            # One clock decides, so that no rank waits for one that has stopped.
            is_over = torch.tensor(is_last)
            distributed.broadcast(is_over, 0)
            if is_over:
                if distributed.get_rank() == 0:
                    clock.print_rate(options.minibatch_size * distributed.get_world_size())
                return


main()
