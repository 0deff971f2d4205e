"""What a component of a session is, and what its base class does for it."""

import importlib
from pathlib import Path

import pytest

import abstractions
from abstractions import (
    AugmentorBase,
    DataLoaderBase,
    EvaluatorBase,
    ModelBuilderBase,
    PreprocessorBase,
)
from abstractions.utils import ConfigStruct

LOADS = "create_training_generator create_validation_generator create_test_generator"


class Loader(DataLoaderBase):
    def create_training_generator(self):
        return iter([(1, 0, 1)]), 1

    create_validation_generator = create_test_generator = create_training_generator

    def _set_defaults(self):
        self.shuffle, self.files = True, 3

    def _load_params(self, config):
        self.shuffle = config.data_loader.shuffle
        self.folder = self.data_dir


class Doubling(PreprocessorBase):
    def add_image_preprocess(self, generator):
        return ((2 * x, y, w) for x, y, w in generator)

    def add_label_preprocess(self, generator):
        return ((x, -y, w) for x, y, w in generator)

    def batchify(self, generator, n_data_points):
        return list(generator), n_data_points

    def _set_defaults(self):
        pass

    def _load_params(self, config):
        pass


def test_without_a_config_a_component_has_its_defaults():
    loader = Loader(None, "data")

    assert (loader.shuffle, loader.files, loader.config) == (True, 3, None)
    assert loader.data_dir == Path("data")


def test_a_config_is_loaded_over_the_defaults():
    config = ConfigStruct({"data_loader": {"shuffle": False}, "data_dir": "there"})

    here, there = Loader(config, "here"), Loader(config)

    assert (here.shuffle, here.files, here.config) == (False, 3, config)
    assert here.folder == Path("here")
    assert there.folder == Path("there")


def test_a_loader_needs_no_data_folder():
    assert Loader().data_dir is None
    assert Loader(ConfigStruct({"data_loader": {"shuffle": True}})).data_dir is None


def test_preprocessing_covers_images_labels_weights_and_batches():
    class Weighing(Doubling):
        def add_weight_preprocess(self, generator):
            return ((x, y, x + y) for x, y, _ in generator)

    examples = [(1, 5, 1), (2, 6, 1)]

    assert Doubling().add_preprocess(iter(examples), 2) == ([(2, -5, 1), (4, -6, 1)], 2)
    assert Weighing().add_preprocess(iter(examples), 2)[0] == [(2, -5, -3), (4, -6, -2)]


def test_missing_methods_are_named():
    class Half(PreprocessorBase):
        def batchify(self, generator, n_data_points):
            return generator, n_data_points

    with pytest.raises(TypeError, match=r"_load_params.*add_image_preprocess"):
        Half()


def test_an_evaluator_only_needs_functions():
    class Mine(EvaluatorBase):
        def get_eval_funcs(self):
            return {"one": lambda y_true, y_pred: 1.0}

    assert list(Mine(ConfigStruct({})).get_eval_funcs()) == ["one"]


def test_validation_is_augmented_like_training_by_default():
    class Flips(AugmentorBase):
        def add_augmentation(self, generator):
            return ["flipped", generator]

        def _set_defaults(self):
            pass

        def _load_params(self, config):
            pass

    assert Flips().add_validation_augmentation("g") == ["flipped", "g"]


@pytest.mark.parametrize(
    ("base", "methods"),
    [
        (DataLoaderBase, LOADS),
        (AugmentorBase, "add_augmentation"),
        (PreprocessorBase, "add_image_preprocess add_label_preprocess batchify"),
        (ModelBuilderBase, "get_compiled_model"),
        (EvaluatorBase, "get_eval_funcs"),
    ],
)  # fmt: skip
def test_a_class_with_the_methods_counts_as_a_component(base, methods):
    names = methods.split()
    like = type("Like", (), dict.fromkeys(names, lambda self: None))
    unlike = type("Unlike", (), dict.fromkeys(names[1:], lambda self: None))

    assert isinstance(like(), base)
    assert not isinstance(unlike(), base)
    # Not of every class that derives from it.
    assert not isinstance(like(), type("Own", (base,), {}))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("data_loader", "DataLoaderBase"), ("data_loading", "DataLoaderBase"),
        ("augmentor", "AugmentorBase"), ("augmentation", "AugmentorBase"),
        ("preprocessor", "PreprocessorBase"), ("preprocessing", "PreprocessorBase"),
        ("model_builder", "ModelBuilderBase"), ("model_building", "ModelBuilderBase"),
        ("evaluator", "EvaluatorBase"), ("evaluation", "EvaluatorBase"),
    ],
)  # fmt: skip
def test_every_historical_module_name_has_the_same_class(module, name):
    found = importlib.import_module(f"abstractions.{module}")

    assert getattr(found, name) is getattr(abstractions, name)
