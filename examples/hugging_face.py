"""A Hugging Face model: short reviews are told apart, good from bad.

    python examples/hugging_face.py

The file is the script and the model file. The model is small and starts from random weights; with
a downloaded one, use `AutoModelForSequenceClassification.from_pretrained("FOLDER")` instead.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

import elasticdl

GOOD = ("great", "lovely", "clever", "warm", "bright")
BAD = ("dull", "boring", "weak", "cold", "flat")
OTHERS = ("the", "film", "story", "was", "and", "very", "its", "music", "end", "a", "with")
WORDS = ("[PAD]", *GOOD, *BAD, *OTHERS)
LENGTH = 12


def reviews(count, seed):
    """Return reviews in words, and whether they are good."""
    drawn = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        words = drawn.choice(OTHERS, drawn.integers(3, LENGTH)).tolist()
        label = int(drawn.integers(2))
        words.insert(drawn.integers(len(words) + 1), str(drawn.choice(GOOD if label else BAD)))
        rows.append({"text": " ".join(words), "label": label})
    return rows


def input_fn(records):
    """Return token numbers, padded with zeros, with their mask; and the labels."""
    tokens = np.zeros((len(records), LENGTH), np.int64)
    for row, record in zip(tokens, records, strict=True):
        words = record["text"].item().decode().split()
        row[: len(words)] = [WORDS.index(word) for word in words]
    features = {"input_ids": tokens, "attention_mask": np.int64(tokens > 0)}
    return features, np.array([record["label"].item() for record in records])


def custom_model():
    """Return a small BERT; it computes the loss from the labels itself."""
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=2,
    )
    return BertForSequenceClassification(config)


def optimizer(parameters):
    """Return AdamW."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def eval_metrics_fn(predictions, labels):
    """Return the share of reviews that are right."""
    return {"accuracy": (predictions.logits.argmax(1) == labels).float()}


if __name__ == "__main__":
    outcome = elasticdl.train(
        model_zoo=str(Path(__file__).parent),
        model_def="hugging_face",
        data=reviews(2000, seed=1),
        validation_data=reviews(300, seed=2),
        minibatch_size=32,
        num_epochs=3,
        output="demo/hugging_face_model",
    )
    print(f"{outcome.metrics['val_accuracy']:.1%} of new reviews are right")
