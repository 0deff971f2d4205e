"""The five components of the documents, in a notebook: without a config, as the text shows them."""

import importlib
import sys

import numpy as np
import pytest

ABSTRACTIONS = "abstractions-training-job.md"
# What the documents' modules use and do not import.
MISSING = {
    "dataset": "import pathlib\nimport pandas as pd\nimport tensorflow as tf\n",
    "preprocessing": "import numpy as np\nimport tensorflow as tf\n"
    "from abstractions.utils import ConfigStruct\n",
    "evaluation": "import tensorflow.keras as tfk\n",
}


@pytest.fixture(scope="module")
def images(documents, tmp_path_factory):
    """Write digits with the documents' own function: not a whole number of batches of each."""
    datasets = pytest.importorskip("sklearn.datasets")
    writing = documents.block(ABSTRACTIONS, "def write_images")
    function = writing[writing.index("def write_images") : writing.index("data_dir = ")]
    names = {"pd": importlib.import_module("pandas"), "skimage": importlib.import_module("skimage")}
    importlib.import_module("skimage.io")
    exec(function, names)
    folder = tmp_path_factory.mktemp("datasets") / "mnist"
    found = datasets.load_digits()
    pictures = (np.kron(found.images, np.ones((4, 4)))[:, 2:-2, 2:-2] * 15.9375).astype("uint8")
    start = 0
    for name, size in {"train": 1000, "validation": 397, "test": 400}.items():
        (folder / name).mkdir(parents=True)
        stop = start + size
        names["write_images"](pictures[start:stop], found.target[start:stop], folder / name)
        start = stop
    return folder


@pytest.fixture
def modules(documents, tmp_path, monkeypatch):
    """Return the documents' modules; both ways to load data in each."""
    blocks = {
        "models": ["class ModelBuilder("],
        "dataset": ["class DataLoaderTF(", "class DataLoader("],
        "preprocessing": ["class PreprocessorTF(", "class Preprocessor("],
        "evaluation": ["class Evaluator("],
    }
    for module, classes in blocks.items():
        code = [MISSING.get(module, "")]
        code += [documents.block(ABSTRACTIONS, name) for name in classes]
        (tmp_path / f"{module}.py").write_text("\n\n".join(code))
    monkeypatch.syspath_prepend(tmp_path)
    yield {module: importlib.import_module(module) for module in blocks}
    for module in blocks:
        del sys.modules[module]


@pytest.mark.parametrize("flavour", ["TF", ""])
def test_components_work_in_a_notebook(modules, images, flavour):
    loader = getattr(modules["dataset"], f"DataLoader{flavour}")(None, images)
    preprocessor = getattr(modules["preprocessing"], f"Preprocessor{flavour}")(None)

    generator, size = loader.create_training_generator()
    batches, num_batches = preprocessor.add_preprocess(generator, size)
    x, y, weight = (np.asarray(part) for part in next(iter(batches)))

    assert (size, num_batches) == (1000, 125)
    assert (x.shape, y.shape, weight.shape) == ((8, 784), (8,), (8,))
    assert list(loader.get_validation_index()[:2]) == ["image_0.jpg", "image_1.jpg"]


# The documents make models as it was done then.
@pytest.mark.filterwarnings("ignore:Do not pass an `input_shape`:UserWarning")
def test_a_model_and_functions_to_evaluate_it_are_made_without_a_config(modules):
    model = modules["models"].ModelBuilder(None).get_compiled_model()
    functions = modules["evaluation"].Evaluator().get_eval_funcs()

    assert model.output_shape == (None, 10)
    perfect = functions["sparse categorical ce"](3, np.eye(10)[3])
    assert perfect == pytest.approx(0, abs=1e-5)
