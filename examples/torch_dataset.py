"""A PyTorch Dataset as training data; a `datasets.Dataset` of Hugging Face works in the same way.

    python examples/torch_dataset.py

The file is the script and the model file: `elasticdl.train` reads its functions.
"""

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

import elasticdl


class Digits(Dataset):
    """Handwritten digits, 8 x 8; every fifth is for the test."""

    def __init__(self, *, is_test=False):
        images, labels = load_digits(return_X_y=True)
        chosen = [i for i in range(len(labels)) if (i % 5 == 0) is is_test]
        self.images = torch.tensor(images[chosen], dtype=torch.float32) / 16
        self.labels = torch.tensor(labels[chosen])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def custom_model(hidden=64):
    """Return a network that takes `x` as the data set has it, so there is no input function."""
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


loss = nn.CrossEntropyLoss()


def optimizer(parameters, lr=0.003):
    """Return Adam."""
    return torch.optim.Adam(parameters, lr)


def eval_metrics_fn():
    """Return the share of digits that are right."""
    return {"accuracy": lambda labels, output: (output.argmax(1) == labels).float()}


if __name__ == "__main__":
    outcome = elasticdl.train(
        model_zoo=str(Path(__file__).parent),
        model_def="torch_dataset",
        data=Digits(),
        validation_data=Digits(is_test=True),
        num_epochs=6,
        output="demo/torch_dataset_model",
    )
    print(f"{outcome.metrics['val_accuracy']:.1%} of the test digits are right")
