"""LoRA as in loralib: `eval()` merges adapters into frozen weights, `train()` removes them."""

import math

import torch
from shared import classes, loop, table_schema
from torch import nn
from torch.nn import functional

GROUP = "Parameters and buffers"
EXPECT = "refused: merge after the training; it trains with `merge_weights=False`"
REFUSAL = r"eval\(\) changes 0\.weight"

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss()


class LoRALayer:
    def __init__(self, r, lora_alpha, merge_weights):
        self.r = r
        self.lora_alpha = lora_alpha
        self.merged = False
        self.merge_weights = merge_weights


class Linear(nn.Linear, LoRALayer):
    def __init__(self, in_features, out_features, r=2, lora_alpha=4, merge_weights=True):
        nn.Linear.__init__(self, in_features, out_features)
        LoRALayer.__init__(self, r, lora_alpha, merge_weights)
        self.lora_A = nn.Parameter(self.weight.new_zeros((r, in_features)))
        self.lora_B = nn.Parameter(self.weight.new_zeros((out_features, r)))
        self.scaling = self.lora_alpha / self.r
        self.weight.requires_grad = False
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def train(self, mode=True):
        nn.Linear.train(self, mode)
        if mode:
            if self.merge_weights and self.merged:
                self.weight.data -= self.lora_B @ self.lora_A * self.scaling
                self.merged = False
        elif self.merge_weights and not self.merged:
            self.weight.data += self.lora_B @ self.lora_A * self.scaling
            self.merged = True
        return self

    def forward(self, x):
        result = functional.linear(x, self.weight, self.bias)
        if not self.merged:
            result += x @ self.lora_A.transpose(0, 1) @ self.lora_B.transpose(0, 1) * self.scaling
        return result


def custom_model():
    model = nn.Sequential(Linear(8, 6), nn.Tanh(), Linear(6, 3))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora_" in name
    return model


def optimizer(parameters):
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=0.05)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
