"""The five components of the documents, in a notebook: without a config, as the text shows them."""

import importlib
import sys

import numpy as np
import pytest


@pytest.fixture
def modules(documents, tmp_path, monkeypatch):
    """Return the documents' modules; both ways to load data in each."""
    blocks = documents.component_files()
    for module, code in blocks.items():
        (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for module in blocks:
        # Other tests import modules of these names.
        monkeypatch.delitem(sys.modules, module, raising=False)
    yield {module: importlib.import_module(module) for module in blocks}
    for module in blocks:
        del sys.modules[module]


@pytest.mark.parametrize("flavour", ["TF", ""])
def test_components_work_in_a_notebook(modules, digit_pictures, flavour):
    loader = getattr(modules["dataset"], f"DataLoader{flavour}")(None, digit_pictures)
    preprocessor = getattr(modules["preprocessing"], f"Preprocessor{flavour}")(None)

    generator, size = loader.create_training_generator()
    batches, num_batches = preprocessor.add_preprocess(generator, size)
    x, y, weight = (np.asarray(part) for part in next(iter(batches)))

    assert (size, num_batches) == (1000, 125)
    assert (x.shape, y.shape, weight.shape) == ((8, 784), (8,), (8,))
    assert list(loader.get_validation_index()[:2]) == ["image_0.jpg", "image_1.jpg"]


# The documents make models as it was done then.
@pytest.mark.filterwarnings("ignore:Do not pass an `input_shape`:UserWarning")
def test_a_model_and_evaluation_functions_need_no_config(modules):
    model = modules["models"].ModelBuilder(None).get_compiled_model()
    functions = modules["evaluation"].Evaluator().get_eval_funcs()

    assert model.output_shape == (None, 10)
    perfect = functions["sparse categorical ce"](3, np.eye(10)[3])
    assert perfect == pytest.approx(0, abs=1e-5)
