"""GPT-2 of Hugging Face: labels of -100, tied embeddings, activation checkpointing, warm-up."""

import numpy as np
import torch
from shared import tokens_schema
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

GROUP = "Models"

data_schema = tokens_schema


def input_fn(records):
    ids = np.stack([record["tokens"] for record in records])
    features = {"input_ids": ids, "attention_mask": np.int64(ids != 0)}
    return features, np.where(ids == 0, -100, ids)


def custom_model():
    config = GPT2Config(
        vocab_size=20, n_positions=12, n_embd=8, n_layer=2, n_head=2, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    model.activation_checkpointing_enable()
    return model


def optimizer(parameters):
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    # The bias of keys has a gradient of rounding only; a larger eps takes no steps of it.
    return torch.optim.AdamW(groups, lr=0.01, eps=1e-4)


def lr_scheduler(optimizer):
    return {"scheduler": get_linear_schedule_with_warmup(optimizer, 4, 18), "interval": "step"}


def eval_metrics_fn(predictions, labels):
    right = (predictions.logits[:, :-1].argmax(-1) == labels[:, 1:]).float()
    there = (labels[:, 1:] != -100).float()
    return {"metric": (right * there).sum(1) / there.sum(1)}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    schedule = lr_scheduler(stepping)["scheduler"]
    history = {"loss": [], "val_loss": [], "val_metric": []}

    def outputs_of(records):
        features, labels = input_fn(records)
        batch = {name: torch.tensor(values) for name, values in features.items()}
        labels = torch.tensor(labels)
        # The first token is predicted from nothing.
        return model(**batch, labels=labels), labels, (labels[:, 1:] != -100).sum().item()

    def batches(records):
        return [records[i : i + data.batch_size] for i in range(0, len(records), data.batch_size)]

    for _ in range(data.epochs):
        model.train()
        total = counted = 0.0
        for records in batches(data.train):
            stepping.zero_grad()
            outputs, labels, count = outputs_of(records)
            outputs.loss.backward()
            stepping.step()
            schedule.step()
            total += outputs.loss.item() * count
            counted += count
        history["loss"].append(total / counted)
        model.eval()
        total = counted = measured = 0.0
        with torch.no_grad():
            for records in batches(data.validation):
                outputs, labels, count = outputs_of(records)
                total += outputs.loss.item() * count
                counted += count
                measured += eval_metrics_fn(outputs, labels)["metric"].sum().item()
        history["val_loss"].append(total / counted)
        history["val_metric"].append(measured / len(data.validation))
    return history, model
