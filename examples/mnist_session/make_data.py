"""Write scikit-learn's handwritten digits as pictures: train, validation and test.

    python make_data.py datasets/digits

Each folder gets a `labels.csv` that names its pictures. They are real pictures, 8 by 8 pixels
small, and come along with scikit-learn: nothing is downloaded.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SPLITS = {"train": slice(0, 1200), "validation": slice(1200, 1500), "test": slice(1500, None)}


def main(folder):
    digits = load_digits()
    # Of 16 steps, as scikit-learn has them, to the 256 of a picture.
    images = np.uint8(digits.images * 255 / 16)
    for split, rows in SPLITS.items():
        target = Path(folder) / split
        target.mkdir(parents=True, exist_ok=True)
        labels = digits.target[rows]
        names = [f"{split}_{number:04d}.png" for number in range(len(labels))]
        for name, image in zip(names, images[rows], strict=True):
            Image.fromarray(image).save(target / name)
        with (target / "labels.csv").open("w", newline="") as table:
            writer = csv.writer(table)
            writer.writerow(["picture", "label"])
            writer.writerows(zip(names, labels, strict=True))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "datasets/digits")
