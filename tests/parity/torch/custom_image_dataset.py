"""A CustomImageDataset of a csv of files and labels, with both transforms."""

import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from shared import loader_loop
from tests.parity.records import for_two_workers, make_data
from torch import nn
from torch.utils.data import DataLoader, Dataset

GROUP = "Input"

loss = nn.CrossEntropyLoss()


@lru_cache
def write_files(part):
    """Write pictures, and a csv of their names and labels; return the folder."""
    folder = tempfile.mkdtemp()
    data, rows = make_data(), []
    records = {
        "train": data.train, "validation": data.validation,
        "by_halves": for_two_workers(data.train),
    }[part]  # fmt: skip
    for number, record in enumerate(records):
        pixels = np.uint8(np.clip(record["image"][..., 0] * 150, 0, 255))
        Image.fromarray(pixels).save(Path(folder) / f"tshirt{number}.png")
        rows.append([f"tshirt{number}.png", int(record["label"][0])])
    pd.DataFrame(rows).to_csv(Path(folder) / "labels.csv", index=False)
    return folder


def decode_image(path):
    """As in torchvision."""
    return torch.from_numpy(np.array(Image.open(path))).unsqueeze(0)


class CustomImageDataset(Dataset):
    def __init__(self, annotations_file, img_dir, transform=None, target_transform=None):
        self.img_labels = pd.read_csv(annotations_file)
        self.img_dir = img_dir
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self):
        return len(self.img_labels)

    def __getitem__(self, idx):
        img_path = Path(self.img_dir) / self.img_labels.iloc[idx, 0]
        image = decode_image(img_path)
        label = self.img_labels.iloc[idx, 1]
        if self.transform:
            image = self.transform(image)
        if self.target_transform:
            label = self.target_transform(label)
        return image, label


def images(part):
    folder = write_files(part)
    return CustomImageDataset(
        Path(folder) / "labels.csv",
        folder,
        transform=lambda image: image.float() / 255,
        target_transform=lambda y: torch.zeros(3, dtype=torch.float).scatter_(
            0, torch.tensor(y), value=1
        ),
    )


def train_dataloader(data):
    part, size = ("by_halves", 4) if "by_halves" in data else ("train", 8)
    return DataLoader(images(part), batch_size=size, shuffle=False)


def val_dataloader(data):
    return DataLoader(images("validation"), batch_size=8)


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear_relu_stack = nn.Sequential(
            nn.Linear(8 * 8, 12), nn.ReLU(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3)
        )

    def forward(self, x):
        x = self.flatten(x)
        return self.linear_relu_stack(x)


def custom_model():
    return NeuralNetwork()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loader_loop(
        model, stepping, loss, data.epochs, train_dataloader("train"), val_dataloader(None)
    )
