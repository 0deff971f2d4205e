"""A FaceLandmarksDataset of a csv of landmarks, with transforms and a collate_fn."""

import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from shared import loader_loop
from skimage import io, transform
from tests.parity.records import for_two_workers, make_data
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

GROUP = "Input"

loss = nn.MSELoss()


@lru_cache
def write_files(part):
    """Write pictures of several sizes and a csv of two landmarks each; return their folder."""
    folder = tempfile.mkdtemp()
    data, rows = make_data(), []
    records = {
        "train": data.train, "validation": data.validation,
        "by_halves": for_two_workers(data.train),
    }[part]  # fmt: skip
    for number, record in enumerate(records):
        pixels = np.uint8(np.clip(record["image"][:, :, [0, 1, 0]] * 150, 0, 255))
        pixels = pixels.repeat(2, 0).repeat(2 + int(record["label"][0]), 1)
        io.imsave(Path(folder) / f"{number}.png", pixels, check_contrast=False)
        rows.append([f"{number}.png", *(8 + 3 * record["x"][:4]).round(2)])
    names = ["image_name", "part_0_x", "part_0_y", "part_1_x", "part_1_y"]
    pd.DataFrame(rows, columns=names).to_csv(Path(folder) / "landmarks.csv", index=False)
    return folder


class FaceLandmarksDataset(Dataset):
    """Face Landmarks dataset."""

    def __init__(self, csv_file, root_dir, transform=None):
        self.landmarks_frame = pd.read_csv(csv_file)
        self.root_dir = root_dir
        self.transform = transform

    def __len__(self):
        return len(self.landmarks_frame)

    def __getitem__(self, idx):
        if torch.is_tensor(idx):
            idx = idx.tolist()
        img_name = Path(self.root_dir) / self.landmarks_frame.iloc[idx, 0]
        image = io.imread(img_name)
        landmarks = self.landmarks_frame.iloc[idx, 1:]
        landmarks = np.array([landmarks], dtype=float).reshape(-1, 2)
        sample = {"image": image, "landmarks": landmarks}
        if self.transform:
            sample = self.transform(sample)
        return sample


class Compose:
    """As in torchvision."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, sample):
        for each in self.transforms:
            sample = each(sample)
        return sample


class Rescale:
    def __init__(self, output_size):
        assert isinstance(output_size, (int, tuple))
        self.output_size = output_size

    def __call__(self, sample):
        image, landmarks = sample["image"], sample["landmarks"]
        h, w = image.shape[:2]
        if isinstance(self.output_size, int):
            if h > w:
                new_h, new_w = self.output_size * h / w, self.output_size
            else:
                new_h, new_w = self.output_size, self.output_size * w / h
        else:
            new_h, new_w = self.output_size
        new_h, new_w = int(new_h), int(new_w)
        img = transform.resize(image, (new_h, new_w))
        landmarks = landmarks * [new_w / w, new_h / h]
        return {"image": img, "landmarks": landmarks}


class RandomCrop:
    def __init__(self, output_size):
        assert isinstance(output_size, (int, tuple))
        if isinstance(output_size, int):
            self.output_size = (output_size, output_size)
        else:
            assert len(output_size) == 2
            self.output_size = output_size

    def __call__(self, sample):
        image, landmarks = sample["image"], sample["landmarks"]
        h, w = image.shape[:2]
        new_h, new_w = self.output_size
        top = np.random.randint(0, h - new_h + 1)  # noqa: NPY002 - as in the tutorial
        left = np.random.randint(0, w - new_w + 1)  # noqa: NPY002 - as in the tutorial
        image = image[top : top + new_h, left : left + new_w]
        landmarks = landmarks - [left, top]
        return {"image": image, "landmarks": landmarks}


class ToTensor:
    """Convert ndarrays in sample to Tensors."""

    def __call__(self, sample):
        image, landmarks = sample["image"], sample["landmarks"]
        image = image.transpose((2, 0, 1))
        return {"image": torch.from_numpy(image), "landmarks": torch.from_numpy(landmarks)}


def faces(part):
    folder = write_files(part)
    return FaceLandmarksDataset(
        csv_file=Path(folder) / "landmarks.csv",
        root_dir=folder,
        transform=Compose([Rescale((10, 10)), ToTensor()]),
    )


def collate(samples):
    batch = default_collate(samples)
    return batch["image"], batch["landmarks"]


def train_dataloader(data):
    part, size = ("by_halves", 4) if "by_halves" in data else ("train", 8)
    return DataLoader(
        faces(part), batch_size=size, shuffle=False, num_workers=0, collate_fn=collate
    )


def val_dataloader(data):
    return DataLoader(faces("validation"), batch_size=8, collate_fn=collate)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4 * 4 * 4, 4)

    def forward(self, image):
        x = nn.functional.max_pool2d(torch.relu(self.conv(image)), 2)
        return self.fc(x.flatten(1)).view(-1, 2, 2)


def custom_model():
    return Net()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def plain(data):
    model = custom_model()

    def batches(loader):
        return Floats(loader)

    return loader_loop(
        model, optimizer(model.parameters()), loss, data.epochs,
        batches(train_dataloader("train")), batches(val_dataloader(None)),
    )  # fmt: skip


class Floats:
    """The batches as `sample["image"].float(), sample["landmarks"].float()`."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for image, landmarks in self.loader:
            yield image.float(), landmarks.float()
