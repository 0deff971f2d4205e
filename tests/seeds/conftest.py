"""The documents that asked for ElasticDL, as code: their blocks, with the fewest corrections.

The documents are not part of this repository. They are looked for where ELASTICDL_SEEDS says,
or in `shared/seeds` beside the repository; without them these tests are skipped. Nothing of
their text is written here but the few words a correction replaces.

Each correction has a name and a reason, and must find what it corrects: a document that
changes is noticed, not silently trained in some other way.
"""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

MODEL_BUILDING = "elasticdl-model-building.md"
HIGH_LEVEL_API = "elasticdl-high-level-api.md"
ABSTRACTIONS = "abstractions-training-job.md"


@dataclass(frozen=True)
class Correction:
    """One change to the code of a document.

    Attributes:
        reason: Why the code cannot be used as it stands.
        wrong: What stands there.
        right: What replaces it.
    """

    reason: str
    wrong: str
    right: str

    def apply(self, code: str) -> str:
        assert code.count(self.wrong) == 1, f"not there once, so not to correct: {self.wrong!r}"
        return code.replace(self.wrong, self.right)


IMAGE_IS_READ = Correction(
    "`image` is scaled before anything was assigned to it: UnboundLocalError.",
    wrong="image /= 255",
    right="image = r['image'] / 255",
)
OPTIMIZER_EXISTS = Correction(
    "The optimizers of TensorFlow 1 are gone; this is the same one of today.",
    wrong="tf.train.GradientDescentOptimizer",
    right="tf.keras.optimizers.SGD",
)
OUTPUTS_IS_CALLED_SO = Correction(
    "The argument is called `outputs`: NameError.",
    wrong="logits=output,",
    right="logits=outputs,",
)
KEY_IS_NOT_IN_ITS_VALUE = Correction(
    "The value of evaluator_class begins with its own key.",
    wrong="'evaluator_class: evaluation.Evaluator'",
    right="'evaluation.Evaluator'",
)
# What the modules of a session use and do not import.
_NOT_IMPORTED = {
    "dataset": "import pathlib\nimport pandas as pd\nimport tensorflow as tf\n",
    "preprocessing": "import numpy as np\nimport tensorflow as tf\n"
    "from abstractions.utils import ConfigStruct\n",
    "evaluation": "import tensorflow.keras as tfk\n",
}
_COMPONENTS = {
    "models": ["class ModelBuilder("],
    "dataset": ["class DataLoaderTF(", "class DataLoader("],
    "preprocessing": ["class PreprocessorTF(", "class Preprocessor("],
    "evaluation": ["class Evaluator("],
}
IMPORTS = "import numpy as np\nimport PIL.Image\nimport tensorflow as tf\n"
"""The documents show functions without what they import."""


class Documents:
    """The code blocks of the documents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def blocks(self, document: str) -> list[str]:
        """Return what stands between fences, in order; indented fences lose their indentation."""
        text = (self.folder / document).read_text(encoding="utf-8")
        found = re.findall(
            r"^([ ]*)```[a-z]*[ ]*\n(.*?)^[ ]*```[ ]*$", text, flags=re.DOTALL | re.MULTILINE
        )
        return [re.sub(f"^{indent}", "", code, flags=re.MULTILINE) for indent, code in found]

    def block(self, document: str, containing: str) -> str:
        """Return the only block with a text in it."""
        found = [block for block in self.blocks(document) if containing in block]
        assert len(found) == 1, f"{document}: {len(found)} blocks have {containing!r}"
        return found[0]

    def model_file(self, model: str) -> str:
        """Return a whole model file of the June 2019 contract.

        Args:
            model: A text of the block that makes the model.
        """
        parts = [
            self.block(MODEL_BUILDING, model),
            corrected(self.block(MODEL_BUILDING, "def input_fn(records):"), [IMAGE_IS_READ]),
            self.block(MODEL_BUILDING, "def data_schema():"),
            self.block(MODEL_BUILDING, "def loss(output, labels):"),
            self.block(MODEL_BUILDING, "def optimizer(lr=0.1):"),
            self.block(MODEL_BUILDING, "def eval_metrics_fn(predictions, labels):"),
            self.block(MODEL_BUILDING, "def prepare_data_for_a_single_file(filename):"),
        ]
        return IMPORTS + "\n\n".join(parts)

    def spec_file(self) -> str:
        """Return a whole model file of the August 2019 contract."""
        spec = corrected(
            self.block(HIGH_LEVEL_API, "class MnistElasticDLSpec(ElasticDLSpec):"),
            [OPTIMIZER_EXISTS, OUTPUTS_IS_CALLED_SO],
        )
        contract = self.block(HIGH_LEVEL_API, "class ElasticDLSpec(object):")
        # The document defines the class it derives from, with a wrong indentation; it is ours now.
        imported = contract.splitlines()[0]
        return f"{IMPORTS}{imported}\nfrom elasticdl import ElasticDLSpec\n\n{spec}"

    def component_files(self) -> dict[str, str]:
        """Return the modules of a session's components, by name; both ways to load data."""
        return {
            module: "\n\n".join(
                [_NOT_IMPORTED.get(module, ""), *(self.block(ABSTRACTIONS, c) for c in classes)]
            )
            for module, classes in _COMPONENTS.items()
        }

    def config(self, flavour: str) -> str:
        """Return the config of a session.

        The document has it as a list in Markdown, with backticks and remarks: they go.

        Args:
            flavour: `TF` for tf.data, empty for Python generators.
        """
        text = (self.folder / ABSTRACTIONS).read_text(encoding="utf-8")
        listed = text[text.index("- `input_height`") : text.index("Put your config at")]
        code = corrected(listed, [KEY_IS_NOT_IN_ITS_VALUE])
        lines = (line.replace("- `", "", 1).replace("`:", ":", 1) for line in code.splitlines())
        return (
            "\n".join(lines)
            .replace("LoaderTF", f"Loader{flavour}")
            .replace("preprocessing.PreprocessorTF", f"preprocessing.Preprocessor{flavour}")
        )

    def write_digits(self, folder: Path, sizes: dict[str, int]) -> Path:
        """Write digits as pictures, with the document's own function."""
        from sklearn.datasets import load_digits

        writing = self.block(ABSTRACTIONS, "def write_images")
        function = writing[writing.index("def write_images") : writing.index("data_dir = ")]
        names: dict[str, Any] = {
            "pd": importlib.import_module("pandas"),
            "skimage": importlib.import_module("skimage"),
        }
        importlib.import_module("skimage.io")
        exec(function, names)
        found = load_digits()
        large = np.kron(found.images, np.ones((4, 4)))[:, 2:-2, 2:-2] * 15.9375
        start = 0
        for name, size in sizes.items():
            (folder / name).mkdir(parents=True)
            stop = start + size
            names["write_images"](
                large[start:stop].astype("uint8"), found.target[start:stop], folder / name
            )
            start = stop
        return folder


def corrected(code: str, corrections: Sequence[Correction]) -> str:
    """Return code with each correction applied."""
    for correction in corrections:
        code = correction.apply(code)
    return code


@pytest.fixture(scope="session")
def documents(repository: Path) -> Documents:
    """Return the documents; skips the test where they are not."""
    folder = Path(os.environ.get("ELASTICDL_SEEDS", repository.parent / "shared" / "seeds"))
    if not (folder / MODEL_BUILDING).is_file():
        pytest.skip(f"the documents are not in {folder}; ELASTICDL_SEEDS says where they are")
    return Documents(folder)


@pytest.fixture(scope="session")
def digit_pictures(documents: Documents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of digits as the documents have them: not a whole number of batches."""
    pytest.importorskip("sklearn.datasets")
    folder = tmp_path_factory.mktemp("datasets") / "mnist"
    return documents.write_digits(folder, {"train": 1000, "validation": 397, "test": 400})
