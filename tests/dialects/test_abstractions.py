"""The components of a session become one definition, or say what is wrong in the user's words."""

import itertools
import textwrap
from pathlib import Path

import numpy as np
import pytest

from elasticdl.config_file import read_config
from elasticdl.definition import Mode
from elasticdl.dialects.abstractions import NAME, Components
from elasticdl.dialects.component_batches import weighted
from elasticdl.dialects.component_classes import OPTIONAL_KEYS
from elasticdl.errors import DefinitionError, UsageError, UserCodeError
from elasticdl.job import ModelReference
from elasticdl.zoo import define
from elasticdl.zoo.load_model_code import load

# Ten examples, in batches of four: the last batch of an epoch is short.
PARTS = """
import itertools
import numpy as np
from abstractions import (
    AugmentorBase, DataLoaderBase, EvaluatorBase, ModelBuilderBase, PreprocessorBase
)

N = 10

def examples():
    return [(np.float32([i, -i]), np.int64(i % 3), np.float32(1)) for i in range(N)]

class NoParams:
    def _set_defaults(self): ...
    def _load_params(self, config): ...

class Loader(NoParams, DataLoaderBase):
    def create_training_generator(self):
        return iter(examples()), N
    def create_validation_generator(self):
        return iter(examples()), N
    def create_test_generator(self):
        return ((x, y, f"image_{y}.jpg") for x, y, _ in examples()), N

class Preprocessor(NoParams, PreprocessorBase):
    def add_image_preprocess(self, gen):
        return ((x / 2, y, w) for x, y, w in gen)
    def add_label_preprocess(self, gen):
        return ((x, y + 1, w) for x, y, w in gen)
    def batchify(self, gen, n):
        def batches():
            while part := list(itertools.islice(gen, 4)):
                yield tuple(np.stack(column) for column in zip(*part))
        return batches(), -(-n // 4)

class Builder(NoParams, ModelBuilderBase):
    def get_compiled_model(self):
        return "a compiled model"
"""
CONFIG = """\
model_builder_class: parts.Builder
data_loader_class: parts.Loader
preprocessor_class: parts.Preprocessor
data_dir: data/of/the/config
batch_size: 4
"""
KEYS = ("data_loader_class", "preprocessor_class", "augmentor_class", "evaluator_class")


@pytest.fixture
def reference_of(tmp_path, monkeypatch):
    """Return what writes a project, and gives the reference to its model builder."""
    monkeypatch.chdir(tmp_path)

    def reference_of(more="", config=""):
        (tmp_path / "parts.py").write_text(PARTS + textwrap.dedent(more))
        # What is said again replaces what was said before.
        said = [line.split(":")[0] for line in config.splitlines()]
        kept = [line for line in CONFIG.splitlines() if line.split(":")[0] not in said]
        text = "\n".join([*kept, textwrap.dedent(config)])
        (tmp_path / "config.yaml").write_text(text)
        values = read_config(text, "config.yaml").to_dict()
        return ModelReference(
            zoo=str(tmp_path),
            model_def=values["model_builder_class"],
            dialect=NAME,
            params=values,
            overrides={key: values[key] for key in KEYS if values.get(key)},
            config_file="config.yaml",
        )

    return reference_of


@pytest.fixture
def components(reference_of):
    """Return what makes the components of a project."""
    return lambda more="", config="": Components(load(reference_of(more, config)))


@pytest.fixture
def refused(components):
    """Return what gives the message a project is refused with."""

    def refused(more="", config="", kind=DefinitionError):
        with pytest.raises(kind) as caught:
            components(more, config)
        return str(caught.value)

    return refused


def line_of(text, file="parts.py"):
    lines = Path(file).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if text in line]
    return f"{file}:{number}"


def epoch_of(components, epoch=0, mode=Mode.TRAINING):
    epochs = components.open_epochs("folder", mode)
    return list(itertools.islice(epochs.begin(epoch, 0), epochs.num_batches + 1))


def firsts(batches):
    """Return the first value of each example, doubled: its number."""
    return [[int(2 * x) for x in batch.features[:, 0]] for batch in batches]


# --- who is asked for what -----------------------------------------------------------------


def test_a_session_becomes_a_definition(reference_of):
    definition = define(reference_of())

    assert definition.create_model() == "a compiled model"
    assert (definition.compiled, definition.framework) == (True, "keras")
    assert definition.origin.dialect == "abstractions"
    assert definition.params["batch_size"] == 4


def test_batches_hold_preprocessed_examples_with_weights(components):
    batches = epoch_of(components())

    assert [batch.num_examples for batch in batches] == [4, 4, 2]
    assert firsts(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    labels, weights = batches[0].labels
    assert labels.tolist() == [1, 2, 3, 1]
    assert (weights.tolist(), weights.dtype) == ([1, 1, 1, 1], np.float32)


LOADER_TAKES = """
class Taking(Loader):
    def __init__(self, {signature}):
        self.took = ({names})
"""


@pytest.mark.parametrize(
    ("signature", "names", "took"),
    [
        ("config, data_dir", "data_dir,", (Path("folder"),)),
        ("config, data_dir=None", "data_dir,", (Path("folder"),)),
        ("config=None, data_dir=None", "data_dir,", (Path("folder"),)),
        ("*args", "args[1],", (Path("folder"),)),
        ("config", "config.data_dir,", ("folder",)),
        ("config, *, verbose=False", "config.data_dir, verbose", ("folder", False)),
    ],
)
def test_a_loader_gets_the_folder_through_its_signature(components, signature, names, took):
    made = components(
        LOADER_TAKES.format(signature=signature, names=names), "data_loader_class: parts.Taking"
    )

    assert made.loader("folder").took == took


def test_a_loader_of_the_base_class_gets_the_folder(components):
    assert components().loader("folder").data_dir == Path("folder")


def test_a_type_error_in_a_constructor_is_reported_without_retry(components, tmp_path):
    made = components(
        """
        class Broken(Loader):
            def __init__(self, config, data_dir):
                with open("tries", "a") as file:
                    file.write("one ")
                len(3)
        """,
        "data_loader_class: parts.Broken",
    )

    with pytest.raises(UserCodeError) as caught:
        made.loader("folder")

    assert "len(3)" in str(caught.value)
    assert "TypeError" in str(caught.value)
    assert (tmp_path / "tries").read_text() == "one "


@pytest.mark.parametrize(
    ("head", "gets_it"),
    [
        ("class E(EvaluatorBase):", True),
        ("class E:", False),
        ("class E:\n    def __init__(self, config): self.config = config", True),
        ("class E:\n    def __init__(self): self.config = None", False),
    ],
)
def test_an_evaluator_gets_the_config_if_it_accepts_one(components, head, gets_it):
    code = f"{head}\n    def get_eval_funcs(self): return {{}}"

    made = components(code, "evaluator_class: parts.E")

    assert (getattr(made.evaluator, "config", None) == made.config) == gets_it


def test_augmentor_and_evaluator_are_optional(components):
    made = components()

    assert (made.augmentor, made.evaluator) == (None, None)


DUCKS = """
class DuckLoader:
    def __init__(self, config, data_dir):
        self.data_dir = data_dir
    create_training_generator = Loader.create_training_generator
    create_validation_generator = Loader.create_validation_generator
    create_test_generator = Loader.create_test_generator

class DuckPreprocessor:
    def __init__(self, config): ...
    add_image_preprocess = Preprocessor.add_image_preprocess
    add_label_preprocess = Preprocessor.add_label_preprocess
    batchify = Preprocessor.batchify

class DuckBuilder:
    def __init__(self, config): ...
    def get_compiled_model(self): return "another model"
"""
DUCKS_CONFIG = """\
model_builder_class: parts.DuckBuilder
data_loader_class: parts.DuckLoader
preprocessor_class: parts.DuckPreprocessor
"""


def test_classes_without_our_base_classes_work(components):
    made = components(DUCKS, DUCKS_CONFIG)

    assert firsts(epoch_of(made)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert firsts(epoch_of(made, mode=Mode.EVALUATION)) == firsts(epoch_of(made))
    assert made.create_model() == "another model"
    assert (made.create_callbacks(), made.class_weight()) == ([], None)
    assert made.validation_ids("folder") is None
    assert len(list(made.split("folder", "test").preprocessed())) == 10


# --- what is missing ------------------------------------------------------------------------


def test_a_missing_method_is_reported_with_class_file_and_config(refused):
    message = refused(
        """
        class Forgetful:
            def create_training_generator(self): ...
            def create_test_generator(self): ...
        """,
        "data_loader_class: parts.Forgetful",
    )

    assert message == (
        f"{line_of('class Forgetful')}: Forgetful has no create_validation_generator.\n"
        f"  It is the data_loader_class of {line_of('data_loader_class', 'config.yaml')}.\n"
        "  Add it, or specify another class."
    )


def test_unimplemented_abstract_methods_count_as_missing(refused):
    message = refused(
        "class Bare(PreprocessorBase):\n    def add_image_preprocess(self, gen): ...",
        "preprocessor_class: parts.Bare",
    )

    assert "has no add_label_preprocess, no batchify, no _load_params, no _set_defaults" in message
    assert "Add them" in message


def test_an_object_that_is_not_a_class_is_refused_with_its_line(refused):
    message = refused("def make(config): ...", "evaluator_class: parts.make")

    assert message.startswith(
        f"{line_of('evaluator_class', 'config.yaml')}: evaluator_class names make, which is a "
        "function, not a class."
    )


@pytest.mark.parametrize("key", ["model_builder_class", *KEYS])
def test_an_unknown_class_is_reported_with_the_configs_line(refused, key):
    message = refused(config=f"{key}: parts.Missing", kind=UsageError)

    assert message.startswith(f"{line_of(key, 'config.yaml')}: {key}")
    assert "Missing" in message
    assert "Loader" in message


@pytest.mark.parametrize("key", ["data_loader_class", "preprocessor_class"])
def test_a_missing_class_key_is_reported(refused, key):
    assert f"config.yaml: there is no {key}" in refused(config=f"{key}:")


def test_a_missing_key_is_reported_with_a_similar_one(refused):
    message = refused(
        """
        class Asking(Builder):
            def _load_params(self, config):
                self.size = config.batchsize
        """,
        "model_builder_class: parts.Asking",
    )

    assert message == (
        "config.yaml: the config has no key 'batchsize'. "
        f"Did you mean batch_size ({line_of('batch_size', 'config.yaml')})?"
    )


def test_a_constructor_error_names_the_class_and_the_users_line(refused):
    message = refused(
        """
        class Broken(Builder):
            def _load_params(self, config):
                self.size = config.batch_size / 0
        """,
        "model_builder_class: parts.Broken",
        UserCodeError,
    )

    assert message.startswith(f"{line_of('self.size = config')}: Broken() raised:")
    assert "self.size = config.batch_size / 0" in message


@pytest.mark.parametrize("key", OPTIONAL_KEYS)
def test_a_config_may_omit_unused_keys(components, key):
    config = components(config=f"{key}:" if key == "data_dir" else "").config

    assert getattr(config, key) is None


def test_components_see_the_requested_number_of_epochs(reference_of):
    reference = load(reference_of(config="epochs: 3"), {"num_epochs": 5})

    assert Components(reference).config.epochs == 5


# --- the model ------------------------------------------------------------------------------


def test_callbacks_replaced_by_our_features_are_omitted(components):
    callbacks = components(
        """
        import keras
        class Watched(Builder):
            def get_callbacks(self):
                return [
                    keras.callbacks.ModelCheckpoint("here.keras"),
                    keras.callbacks.TensorBoard("there"),
                    keras.callbacks.EarlyStopping(),
                    ModelCheckpoint(),
                ]
        class ModelCheckpoint(keras.callbacks.Callback):
            "The user's own, of the same name."
        """,
        "model_builder_class: parts.Watched",
    ).create_callbacks()

    assert [type(each).__module__.split(".")[0] for each in callbacks] == ["keras", "parts"]
    assert type(callbacks[0]).__name__ == "EarlyStopping"


def test_get_callbacks_may_return_none(components):
    made = components(
        "class Quiet(Builder):\n    def get_callbacks(self): return None",
        "model_builder_class: parts.Quiet",
    )

    assert made.create_callbacks() == []


@pytest.mark.parametrize("returned", ["[1, 2]", "{'cat': 1.0}", "{0: 'much'}"])
def test_invalid_class_weights_are_refused(components, returned):
    made = components(
        f"class Weighing(Builder):\n    def get_class_weight(self): return {returned}",
        "model_builder_class: parts.Weighing",
    )

    with pytest.raises(DefinitionError, match=r"parts.py:\d+: get_class_weight\(\) returned"):
        made.class_weight()


# --- class weights --------------------------------------------------------------------------

ONE_HOT = np.eye(3)[[0, 1, 2, 1]]


@pytest.mark.parametrize(
    "labels",
    [np.int64([0, 1, 2, 1]), np.float32([[0], [1], [2], [1]]), ONE_HOT],
    ids=["numbers", "column", "one-hot"],
)
def test_class_weights_multiply_example_weights(labels):
    found = weighted(labels, np.float32([1, 1, 1, 10]), {0: 2.0, 1: 3.0})

    assert found.tolist() == [2, 3, 1, 30]
    assert found.dtype == np.float32


def test_weights_with_additional_axes_are_multiplied_per_example():
    found = weighted(np.int64([0, 1]), np.ones((2, 2, 1), np.float32), {1: 3.0})

    assert found[..., 0].tolist() == [[1, 1], [3, 3]]


WEIGHING = "class Weighing(Builder):\n    def get_class_weight(self): return {2: 5.0}"


def test_class_weights_are_applied_to_training_batches(components):
    (batch, *_) = epoch_of(components(WEIGHING, "model_builder_class: parts.Weighing"))

    assert batch.labels[0].tolist() == [1, 2, 3, 1]
    assert batch.labels[1].tolist() == [1, 5, 1, 1]


def test_the_validation_loss_is_not_weighted_by_class(components):
    made = components(WEIGHING, "model_builder_class: parts.Weighing")
    (batch, *_) = epoch_of(made, mode=Mode.EVALUATION)

    assert batch.labels[1].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("labels", ["{'a': y, 'b': y}", "np.zeros((len(y), 2, 2))"])
def test_class_weights_are_refused_if_labels_are_not_classes(components, labels):
    made = components(
        WEIGHING
        + f"""
class Masks(Preprocessor):
    def batchify(self, gen, n):
        batches, n = super().batchify(gen, n)
        return ((x, {labels}, w) for x, y, w in batches), n
""",
        "model_builder_class: parts.Weighing\npreprocessor_class: parts.Masks",
    )

    with pytest.raises(DefinitionError, match="class weights"):
        epoch_of(made)


# --- epochs ---------------------------------------------------------------------------------

BATCHIFY = """
class Batching(Preprocessor):
    def batchify(self, gen, n):
        return {batches}, {number}

def in_batches(gen, size=4):
    while True:
        part = [example for example in itertools.islice(gen, size)]
        if not part:
            return
        yield tuple(np.stack(column) for column in zip(*part))

def greedy(gen):
    while True:
        yield tuple(np.stack(column) for column in zip(*[next(gen) for _ in range(4)]))

def tf_batches(gen, how):
    import tensorflow as tf
    spec = (
        tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float32)
    )
    kept = list(gen)
    return how(tf.data.Dataset.from_generator(lambda: iter(kept), output_signature=spec))
"""
SHORT_LAST = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    "batches",
    [
        "in_batches(gen)",
        "in_batches(itertools.cycle(gen))",
        "itertools.cycle(in_batches(gen))",
        "list(in_batches(gen))",
        "tf_batches(gen, lambda ds: ds.batch(4))",
        "tf_batches(gen, lambda ds: ds.batch(4).repeat())",
        "tf_batches(gen, lambda ds: ds.repeat().batch(4))",
        "tf_batches(gen, lambda ds: ds.batch(4).repeat().prefetch(2))",
    ],
)
@pytest.mark.parametrize("epoch", [0, 3])
def test_an_epoch_has_each_example_once_for_any_batching(components, batches, epoch):
    made = components(
        BATCHIFY.format(batches=batches, number="-(-n // 4)"), "preprocessor_class: parts.Batching"
    )

    assert firsts(epoch_of(made, epoch)) == SHORT_LAST


def test_an_epoch_has_the_declared_number_of_batches(components):
    made = components(
        BATCHIFY.format(batches="in_batches(itertools.cycle(gen))", number="n // 4"),
        "preprocessor_class: parts.Batching",
    )

    assert firsts(epoch_of(made)) == SHORT_LAST[:2]


def test_a_batchify_that_exhausts_its_input_ends_the_epoch(components):
    made = components(
        BATCHIFY.format(batches="greedy(gen)", number="3"), "preprocessor_class: parts.Batching"
    )

    assert firsts(epoch_of(made)) == SHORT_LAST[:2]


PY_DATASET = """
import keras
class Pictures(keras.utils.PyDataset):
    def __init__(self, examples):
        super().__init__()
        self.examples = list(examples)
        self.order = list(range(10))
    def __len__(self):
        return 3
    def __getitem__(self, i):
        made.append(i)
        rows = [self.examples[j] for j in self.order[4 * i: 4 * i + 4]]
        return tuple(np.stack(column) for column in zip(*rows))
    def on_epoch_end(self):
        np.random.shuffle(self.order)
made = []
class Batching(Preprocessor):
    def batchify(self, gen, n):
        return Pictures(gen), 3
"""


def test_a_py_dataset_starts_anywhere_and_shuffles_after_epoch_one(components):
    made = components(PY_DATASET, "preprocessor_class: parts.Batching")
    epochs = made.open_epochs("folder", Mode.TRAINING)

    def whole(epoch):
        np.random.seed(epoch)  # noqa: NPY002 - the user's generator
        return firsts(epochs.begin(epoch, 0))

    def rest(epoch):
        np.random.seed(epoch)  # noqa: NPY002 - as above
        return firsts(epochs.begin(epoch, 2))

    assert (epochs.indexed, epochs.reproducible) == (True, True)
    assert whole(0) == SHORT_LAST
    assert whole(1) != whole(2) != SHORT_LAST
    assert sorted(itertools.chain(*whole(2))) == [*range(10)]
    assert rest(2) == whole(2)[2:]


def test_a_py_dataset_gets_on_epoch_end_once_per_epoch(components):
    counting = PY_DATASET.replace(
        "np.random.shuffle(self.order)", "self.order.append(self.order.pop(0))"
    )
    made = components(counting, "preprocessor_class: parts.Batching")
    epochs = made.open_epochs("folder", Mode.TRAINING)

    assert [firsts(epochs.begin(epoch, 0))[0][0] for epoch in range(3)] == [0, 1, 2]


def test_a_py_dataset_may_have_num_batches_instead_of_a_length(components):
    text = PY_DATASET.replace("def __len__(self)", "@property\n    def num_batches(self)")
    made = components(text, "preprocessor_class: parts.Batching")
    epochs = made.open_epochs("folder", Mode.TRAINING)

    assert epochs.indexed
    assert firsts(epochs.begin(0, 1)) == SHORT_LAST[1:]


def test_an_infinite_py_dataset_is_read_in_order(components):
    text = PY_DATASET.replace("def __len__(self)", "@property\n    def num_batches(self)")
    text = text.replace("return 3\n", "return None\n").replace("4 * i", "4 * (i % 3)")
    made = components(text, "preprocessor_class: parts.Batching")
    epochs = made.open_epochs("folder", Mode.TRAINING)

    assert not epochs.indexed
    assert firsts(epochs.begin(0, 0)) == SHORT_LAST


def test_a_py_dataset_that_changes_its_length_is_refused(components):
    shrinking = PY_DATASET.replace("return 3\n", "return 3 - (self.order[0] > 0)\n").replace(
        "np.random.shuffle(self.order)", "self.order.append(self.order.pop(0))"
    )
    made = components(shrinking, "preprocessor_class: parts.Batching")
    epochs = made.open_epochs("folder", Mode.TRAINING)

    with pytest.raises(
        DefinitionError, match=r"batches in epoch 2 is 2; expected 3, as in the fir"
    ):
        list(epochs.begin(1, 0))


@pytest.mark.parametrize(
    ("batches", "indexed", "reproducible"),
    [
        ("in_batches(gen)", False, False),
        ("list(in_batches(gen))", True, True),
        ("tf_batches(gen, lambda ds: ds.batch(4))", False, True),
    ],
)
def test_the_kind_of_generator_determines_where_it_can_run(
    components, batches, indexed, reproducible
):
    made = components(
        BATCHIFY.format(batches=batches, number=3), "preprocessor_class: parts.Batching"
    )
    epochs = made.open_epochs("folder", Mode.TRAINING)

    assert (epochs.indexed, epochs.reproducible) == (indexed, reproducible)
    assert (epochs.num_batches, epochs.num_examples) == (3, 10)
    assert epochs.name.endswith("Loader.create_training_generator()")


def test_a_loader_that_shuffles_its_own_list_gives_the_same_epoch_each_time(components):
    made = components(
        """
        class Shuffling(Loader):
            def __init__(self, config, data_dir):
                self.order = list(range(10))
            def create_training_generator(self):
                np.random.shuffle(self.order)
                found = examples()
                return (found[i] for i in self.order), 10
        """,
        "data_loader_class: parts.Shuffling",
    )
    epochs = made.open_epochs("folder", Mode.TRAINING)

    def epoch(seed):
        np.random.seed(seed)  # noqa: NPY002 - the user's generator
        return firsts(epochs.begin(1, 0))

    assert epoch(5) == epoch(5) != epoch(6)


# --- what is no batch -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ("x", "yields a ndarray after preprocessing; expected tuples"),
        ("(x,)", "yields a tuple after preprocessing; expected tuples"),
        ("(x, y, w, w)", "yields a tuple after preprocessing; expected tuples"),
        ("(x, y[:2], w)", r"arrays of the shapes \[\[4, 2\], \[2\]\]"),
        ("(x[0, 0], y, w)", "one entry per example along the first axis"),
        ("(x[:0], y[:0], w[:0])", "one entry per example along the first axis"),
        ("(x, y, w[:2])", r"sample weights of the shape \[2\] for 4 examples"),
        ("(x, y, w[0])", r"sample weights of the shape \[\] for 4 examples"),
    ],
)
def test_an_invalid_batch_is_reported_with_the_generators_name(components, batch, problem):
    made = components(
        BATCHIFY.format(batches=f"({batch} for x, y, w in in_batches(gen))", number=3),
        "preprocessor_class: parts.Batching",
    )

    with pytest.raises(DefinitionError, match=problem) as caught:
        epoch_of(made)

    assert str(caught.value).startswith("parts.py:")
    assert "Loader.create_training_generator()" in str(caught.value)


@pytest.mark.parametrize("batch", ["(x, y)", "(x, y, None)", "[x, y]"])
def test_examples_without_a_weight_count_once_each(components, batch):
    made = components(
        BATCHIFY.format(batches=f"({batch} for x, y, w in in_batches(gen))", number=3),
        "preprocessor_class: parts.Batching",
    )

    assert [b.labels[1].tolist() for b in epoch_of(made)] == [[1] * 4, [1] * 4, [1] * 2]


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (
            "data_loader_class",
            "class P(Loader):\n    def create_training_generator(self): return 3",
        ),
        (
            "preprocessor_class",
            "class P(Preprocessor):\n    def batchify(self, gen, n): return gen",
        ),
        (
            "preprocessor_class",
            "class P(Preprocessor):\n    def batchify(self, gen, n): return gen, None",
        ),
    ],
)
def test_a_result_without_generator_and_number_is_refused(components, method, code):
    made = components(code, f"{method}: parts.P")

    with pytest.raises(DefinitionError, match="expected a pair: the generator, and the number"):
        made.open_epochs("folder", Mode.TRAINING)


def test_an_error_in_a_method_is_reported_with_the_users_line(components):
    made = components(
        """
        class Broken(Loader):
            def create_training_generator(self):
                return open("nowhere.csv"), 3
        """,
        "data_loader_class: parts.Broken",
    )

    with pytest.raises(UserCodeError) as caught:
        made.open_epochs("folder", Mode.TRAINING)

    assert str(caught.value).startswith(
        f"{line_of('return open(')}: Broken.create_training_generator() raised:"
    )
    assert 'return open("nowhere.csv"), 3' in str(caught.value)


def test_a_missing_key_in_a_method_is_reported(components):
    made = components(
        """
        class Asking(Builder):
            def get_compiled_model(self):
                return self.config.batchsize
        """,
        "model_builder_class: parts.Asking",
    )

    with pytest.raises(DefinitionError, match=r"^config.yaml: the config has no key 'batchsize'"):
        made.create_model()


def test_an_error_within_an_epoch_is_reported_with_the_users_line(components):
    made = components(
        """
        class Broken(Preprocessor):
            def add_label_preprocess(self, gen):
                for x, y, w in gen:
                    yield x, {0: 1}[int(y)], w
        """,
        "preprocessor_class: parts.Broken",
    )

    with pytest.raises(UserCodeError, match=r"yield x, \{0: 1\}\[int\(y\)\], w") as caught:
        epoch_of(made)

    assert "Loader.create_training_generator() raised" in str(caught.value)


# --- augmentation ---------------------------------------------------------------------------

AUGMENTOR = """
class Augmentor(NoParams, AugmentorBase):
    def add_augmentation(self, gen):
        return ((x + 200, y, w) for x, y, w in gen)
"""
OWN_VALIDATION = """
    def add_validation_augmentation(self, gen):
        return ((x + 400, y, w) for x, y, w in gen)
"""


@pytest.mark.parametrize(
    ("switches", "training", "validation"),
    [
        ("", 200, 0),
        ("do_train_augmentation: true", 200, 0),
        ("do_train_augmentation: false", 0, 0),
        ("do_validation_augmentation: true", 200, 400),
        ("do_validation_augmentation: false", 200, 0),
    ],
)
def test_the_config_determines_whether_examples_are_augmented(
    components, switches, training, validation
):
    made = components(AUGMENTOR + OWN_VALIDATION, f"augmentor_class: parts.Augmentor\n{switches}")

    assert epoch_of(made)[0].features[0, 0] == training / 2
    assert epoch_of(made, mode=Mode.EVALUATION)[0].features[0, 0] == validation / 2


@pytest.mark.parametrize("base", ["NoParams, AugmentorBase", "Duck"])
def test_an_augmentor_without_a_validation_method_uses_one_for_both(components, base):
    made = components(
        "class Duck:\n    pass\n" + AUGMENTOR.replace("NoParams, AugmentorBase", base),
        "augmentor_class: parts.Augmentor\ndo_validation_augmentation: true",
    )

    assert epoch_of(made, mode=Mode.EVALUATION)[0].features[0, 0] == 100


def test_augmentation_without_an_augmentor_is_refused(refused):
    message = refused(config="do_train_augmentation: true")

    assert message.startswith(line_of("do_train_augmentation", "config.yaml"))
    assert "augmentor_class" in message


# --- splits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["validation", "test"])
def test_a_split_has_raw_and_preprocessed_examples_side_by_side(components, name):
    split = components().split("folder", name)

    raw, preprocessed = list(split.raw()), list(split.preprocessed())

    assert (split.num_examples, len(raw)) == (10, 10)
    assert [(x[0], y) for x, y, _ in raw] == [(i, i % 3) for i in range(10)]
    assert [(2 * x[0], y - 1) for x, y, _ in preprocessed] == [(i, i % 3) for i in range(10)]


def test_ids_of_a_test_split_are_passed_through_unchanged(components):
    split = components(
        """
        class Weighing(Preprocessor):
            def add_weight_preprocess(self, gen):
                return ((x, y, w * 2) for x, y, w in gen)
        """,
        "preprocessor_class: parts.Weighing",
    ).split("folder", "test")

    assert [third for _, _, third in split.preprocessed()] == [
        f"image_{i % 3}.jpg" for i in range(10)
    ]
    assert [third for _, _, third in split.raw()] == [f"image_{i % 3}.jpg" for i in range(10)]


def test_a_split_can_be_read_again(components):
    split = components().split("folder", "test")

    assert len(list(split.preprocessed())) == len(list(split.preprocessed())) == 10


def test_a_preprocessor_may_override_all_of_preprocessing(components):
    made = components(
        """
        class Whole:
            def add_preprocess(self, gen, n):
                return in_fours(gen), 3
        def in_fours(gen):
            while part := list(itertools.islice(gen, 4)):
                yield tuple(np.stack(column) for column in zip(*part))
        """,
        "preprocessor_class: parts.Whole",
    )
    split = made.split("folder", "test")

    assert [x[0] for x, _, _ in split.preprocessed()] == list(range(10))
    assert [batch.num_examples for batch in epoch_of(made)] == [4, 4, 2]


def test_a_preprocessor_may_inherit_add_preprocess(components):
    made = components(
        """
        class Parent:
            def add_preprocess(self, gen, n):
                return [(np.zeros((4, 2)), np.zeros(4), np.ones(4))], 1
        class Child(Parent):
            pass
        """,
        "preprocessor_class: parts.Child",
    )

    assert len(list(made.split("folder", "test").preprocessed())) == 4
    assert len(epoch_of(made)) == 1


@pytest.mark.parametrize(
    ("returned", "expected"),
    [("['a', 'b']", ["a", "b"]), ("np.array([3, 5])", [3, 5]), ("None", None)],
)
def test_validation_ids_come_from_the_loader(components, returned, expected):
    made = components(
        f"class Named(Loader):\n    def get_validation_index(self): return {returned}",
        "data_loader_class: parts.Named",
    )

    assert made.validation_ids("folder") == expected


def test_callbacks_beside_a_model_builder_are_refused(refused):
    text = "def callbacks(): return []"

    error = refused(text)

    assert error.startswith(
        f"{line_of(text)}: callbacks would be ignored, because Builder describes the whole model."
    )
    assert error.endswith("Move it into the class as get_callbacks, or give it another name.")
