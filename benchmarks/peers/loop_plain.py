"""A plain PyTorch loop over a DataLoader; see `loop_parts.py` for its arguments."""

import loop_parts
import torch


def main():
    options = loop_parts.options()
    zoo = loop_parts.zoo_of(options)
    torch.manual_seed(0)
    model = zoo.custom_model()
    optimizer = zoo.optimizer(model.parameters())
    loader = loop_parts.loader_of(options, zoo)
    clock = loop_parts.Clock(options.seconds)
    while True:
        model.train()
        total = torch.zeros(())
        for features, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = zoo.loss(model(**features), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            if clock.step_is_last():
                clock.print_rate(options.minibatch_size)
                return


main()
