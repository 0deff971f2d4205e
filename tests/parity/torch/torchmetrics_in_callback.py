"""Metrics of TorchMetrics that a callback updates with the losses of batches."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torchmetrics.aggregation import CatMetric, RunningMean, SumMetric

GROUP = "Callbacks"
EXPECT = "refused: the state_dict() of a metric omits its states; keep numbers and tensors"
REFUSAL = r"SumMetric in self\.sum, .*Keep sums and counts as numbers or tensors"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Aggregate:
    def __init__(self):
        self.sum, self.cat = SumMetric(), CatMetric()
        self.running = RunningMean(window=5)

    def on_train_batch_end(self, batch, logs):
        self.sum.update(logs["loss"])
        self.cat.update(logs["loss"])
        self.running.update(logs["loss"])
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + self.running.compute().item())

    def on_epoch_end(self, epoch, logs):
        with torch.no_grad():
            self.model[2].bias.add_(0.01 * self.sum.compute() + 0.1 * self.cat.compute().std())


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Aggregate()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
