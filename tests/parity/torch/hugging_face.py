"""A Hugging Face model, from_pretrained of a folder, which computes its loss from the labels."""

import tempfile

import numpy as np
import torch
from shared import tokens_schema
from transformers import AutoModelForSequenceClassification, BertConfig
from transformers import BertForSequenceClassification as Bert

GROUP = "Models"
KILLED = True

data_schema = tokens_schema


def input_fn(records):
    ids = np.stack([record["tokens"] for record in records])
    features = {"input_ids": ids, "attention_mask": np.int64(ids != 0)}
    return features, np.int64([record["y"][0] > 0 for record in records])


def custom_model():
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        Bert(config).save_pretrained(folder)
        return AutoModelForSequenceClassification.from_pretrained(folder)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def eval_metrics_fn(predictions, labels):
    return {"metric": (predictions.logits.argmax(1) == labels).float()}


def plain(data):
    model = custom_model()
    made = optimizer(model.parameters())
    history = {"loss": [], "val_loss": [], "val_metric": []}

    def outputs_of(records):
        features, labels = input_fn(records)
        batch = {name: torch.tensor(values) for name, values in features.items()}
        return model(**batch, labels=torch.tensor(labels)), torch.tensor(labels)

    def batches(records):
        return [records[i : i + data.batch_size] for i in range(0, len(records), data.batch_size)]

    for _ in range(data.epochs):
        model.train()
        total = 0.0
        for records in batches(data.train):
            made.zero_grad()
            outputs, labels = outputs_of(records)
            outputs.loss.backward()
            made.step()
            total += outputs.loss.item() * len(labels)
        history["loss"].append(total / len(data.train))
        model.eval()
        total = right = 0.0
        with torch.no_grad():
            for records in batches(data.validation):
                outputs, labels = outputs_of(records)
                total += outputs.loss.item() * len(labels)
                right += (outputs.logits.argmax(1) == labels).sum().item()
        history["val_loss"].append(total / len(data.validation))
        history["val_metric"].append(right / len(data.validation))
    return history, model
