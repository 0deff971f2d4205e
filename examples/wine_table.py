r"""A table with gaps, text and labels in words: a prebuilt classifier, and no model file.

This script writes such a table from scikit-learn's wines. `data show` lists its columns. The
training derives what each column is, and a missing value needs no treatment.

    python examples/wine_table.py
    elasticdl data show demo/wine/train.csv --limit=3
    elasticdl train --model_def=classifier.DNN --params='label="grower"' \
        --data=demo/wine/train.csv --validation_split=0.2 --num_epochs=15 --minibatch_size=16 \
        --output=demo/wine_model
    elasticdl predict --trained_model=demo/wine_model --data=demo/wine/new.csv \
        --output=demo/wine_predicted.csv --columns=bottle
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine

GROWERS = np.array(["Rossi", "Bianchi", "Ferrari"])

wine = load_wine(as_frame=True)
table = wine.data[["alcohol", "malic_acid", "color_intensity", "proline"]].copy()
table.insert(0, "bottle", [f"no. {number}" for number in range(len(table))])
table["hue"] = np.where(wine.data["hue"] > 1, "purple", "brick")
table["grower"] = GROWERS[wine.target]

random = np.random.default_rng(0)
for column in ("alcohol", "proline", "hue"):
    table.loc[random.random(len(table)) < 0.1, column] = None
table = table.sample(frac=1, random_state=0)

folder = Path("demo/wine")
folder.mkdir(parents=True, exist_ok=True)
table[:150].to_csv(folder / "train.csv", index=False)
table[150:].drop(columns="grower").to_csv(folder / "new.csv", index=False)
