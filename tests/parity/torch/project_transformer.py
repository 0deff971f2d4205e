"""A transformer: warm-up, bfloat16, clipping, no weight decay of norms and biases."""

import numpy as np
import torch
from shared import loop, tokens_schema
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

GROUP = "Projects"
KILLED = True
EXPECT = {
    "two workers": "equal within 0.1: bfloat16 has eight significant bits, two halves of a "
    "batch round differently from the whole, and Adam divides small gradients by their size"
}

data_schema = tokens_schema
loss = nn.CrossEntropyLoss(ignore_index=0)
precision = "bf16"
gradient_clipping = 1.0


def input_fn(records):
    tokens = np.stack([record["tokens"] for record in records])
    # The next token is predicted, also in the padding, so that each example counts the same.
    return tokens[:, :-1], tokens[:, 1:] + 1


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 8), nn.Embedding(9, 8)
        layer = nn.TransformerEncoderLayer(
            8, 2, 16, 0.0, batch_first=True, norm_first=True, bias=False
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 22, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(9))

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight
        x = self.layers(x, mask=self.mask, is_causal=True)
        return self.head(self.norm(x)).transpose(1, 2)


def custom_model():
    return Transformer()


def optimizer(model):
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.98), eps=1e-6)


def lr_scheduler(optimizer):
    def rate(step):
        return min((step + 1) / 4, ((step + 1) / 4) ** -0.5)

    return {"scheduler": LambdaLR(optimizer, rate), "interval": "step"}


def plain(data):
    model = custom_model()
    stepping = optimizer(model)
    return loop(
        data,
        model,
        stepping,
        loss,
        input_fn,
        count=lambda labels: labels.numel(),
        clip=lambda parameters: clip_grad_norm_(parameters, gradient_clipping),
        precision=torch.bfloat16,
        after_update=lr_scheduler(stepping)["scheduler"].step,
    )
