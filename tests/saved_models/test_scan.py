"""Nothing of a file runs because the file says so."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from tests.saved_models.conftest import sequential

from elasticdl.errors import ModelFileError
from elasticdl.saved_models import built_in, saved_model
from elasticdl.saved_models.file_format import ModelFile, identify, sha256_of
from elasticdl.saved_models.loading import load
from elasticdl.saved_models.saved_model import Function, SavedModel
from elasticdl.saved_models.scan import (
    MAX_LAYERS,
    _exported,
    _foreign_operations,
    check_architecture,
    scan,
)
from elasticdl.saved_models.trust import Trust

FILE = ModelFile(Path("model.h5"), "h5", "tf_keras")


def dense(**config):
    return {"class_name": "Dense", "config": {"name": "dense", "units": 3, **config}}


def of(*layers):
    return {"class_name": "Sequential", "config": {"name": "s", "layers": list(layers)}}


def refused(config, known=()) -> str:
    with pytest.raises(ModelFileError) as raised:
        check_architecture(FILE, config, known=known)
    return str(raised.value)


def not_loaded(path, **options) -> str:
    with pytest.raises(ModelFileError) as raised:
        load(identify(path), **options)
    return str(raised.value)


LAMBDA = {"class_name": "Lambda", "config": {"name": "evil", "function": ["4wA=", None, None]}}


# --- configs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        of(LAMBDA),
        of({"class_name": "TimeDistributed", "config": {"name": "t", "layer": LAMBDA}}),
        of(of(dense(), LAMBDA)),
        of(dense(activation=LAMBDA)),
        of(dense(more=[[{"deep": [LAMBDA]}]])),
        of(dense(text=json.dumps(LAMBDA))),
        of({**LAMBDA, "module": "keras.layers", "registered_name": None}),
        of({"class_name": "Dense", "registered_name": "Lambda", "config": {"name": "evil"}}),
        of(dense(activation={"class_name": "__lambda__", "config": {"value": "4wA="}})),
    ],
)
def test_a_lambda_is_found_anywhere(config) -> None:
    message = refused(config)

    assert "Python code from its author" in message
    assert "model.trust: {allow_lambda: true, sha256:" in message


@pytest.mark.parametrize("name", sorted(built_in.EXECUTING))
def test_layers_that_run_code_from_the_file_are_refused(name) -> None:
    assert "none of it has run" in refused(of({"class_name": name, "config": {"name": "x"}}))


@pytest.mark.parametrize(
    "function", ["io.write_file", "py_function", "numpy_function", "raw_ops.WriteFile", None, ["x"]]
)
def test_a_layer_may_not_call_functions_beyond_computation(function) -> None:
    layer = {"class_name": "TFOpLambda", "config": {"name": "op", "function": function}}

    assert "allow_lambda" in refused(of(layer))


@pytest.mark.parametrize("function", ["__operators__.add", "math.multiply", "reshape", "nn.relu"])
def test_a_layer_may_call_computing_functions(function) -> None:
    layer = {"class_name": "TFOpLambda", "config": {"name": "op", "function": function}}

    assert check_architecture(FILE, of(layer)) == ()


@pytest.mark.parametrize(
    "value",
    [
        {"class_name": "system", "module": "os", "config": {}},
        {"class_name": "get_file", "module": "keras.utils", "config": {}},
        {"class_name": "Dense", "module": "evil.layers", "config": {}},
        {"class_name": "Dense", "module": "keras_evil", "config": {}},
        {"class_name": "function", "module": "builtins", "config": "eval"},
        {"class_name": "function", "module": "os", "config": "system"},
        {"class_name": "__typespec__", "module": "os", "config": {}, "spec_name": "x"},
        {"class_name": "__tuple__", "module": "os", "config": {}},
        {"class_name": "MyLayer", "config": {}},
        {"class_name": None, "config": {}},
        {"class_name": "WhileLoop", "module": "keras.src.ops.core", "config": {}},
    ],
)
def test_an_undeclared_class_is_refused_anywhere(value) -> None:
    for config in (of(value), of(dense(kernel_initializer=value)), of(dense(more=[[value]]))):
        message = refused(config)

        assert (
            "which is not part of Keras. Nothing is imported just because a file names it"
            in message
        )
        assert "custom_objects: [{key:" in message


def test_a_class_may_be_declared() -> None:
    mine = {"class_name": "MyLayer", "module": "my.layers", "config": {}}
    named = {**mine, "registered_name": "mine>MyLayer"}
    function = {"class_name": "function", "module": "my.layers", "config": "swish2"}

    known = ["MyLayer", "mine>MyLayer", "swish2"]
    assert check_architecture(FILE, of(mine, named, dense(activation=function)), known=known) == ()
    # Keras would look for the registered name, and import the module when it is not there.
    assert "'mine>MyLayer'" in refused(of(named), known=["MyLayer"])


def test_a_declared_class_does_not_allow_a_lambda() -> None:
    assert "Python code" in refused(of(LAMBDA), known=["Lambda"])


@pytest.mark.parametrize("layer", ["StringLookup", "IntegerLookup", "TextVectorization"])
def test_a_layer_that_reads_a_local_file_is_refused(layer) -> None:
    reading = {"class_name": layer, "config": {"name": "x", "vocabulary": "/etc/passwd"}}
    values = {"class_name": layer, "config": {"name": "x", "vocabulary": ["a", "b"]}}

    assert "reads the file '/etc/passwd'" in refused(of(reading))
    assert check_architecture(FILE, of(values)) == ()


@pytest.mark.parametrize(
    "layer",
    [
        dense(units=10**12),
        {"class_name": "Embedding", "config": {"input_dim": 10**6, "output_dim": 10**6}},
        {"class_name": "InputLayer", "config": {"batch_input_shape": [None, 10**6, 10**6]}},
        {"class_name": "InputLayer", "config": {"batch_shape": [None, 10**12]}},
        {"class_name": "RepeatVector", "config": {"n": 10**12}},
        {"class_name": "Hashing", "config": {"num_bins": 10**12}},
    ],
)
def test_unrealistic_sizes_are_refused(layer) -> None:
    assert "built to exhaust memory" in refused(of(layer))


def test_a_layer_larger_than_its_weights_file_is_refused() -> None:
    file = ModelFile(Path("model.h5"), "h5", "tf_keras", num_values=100)

    assert check_architecture(file, of(dense(units=100))) == ()
    with pytest.raises(ModelFileError, match="the weights in the file have 100 numbers"):
        check_architecture(file, of(dense(units=101)))


def test_thousands_of_layers_are_refused() -> None:
    assert check_architecture(FILE, of(*[dense()] * MAX_LAYERS)) == ()
    assert "more than 4,000 layers" in refused(of(*[dense()] * (MAX_LAYERS + 1)))


def test_a_config_nested_too_deeply_is_refused() -> None:
    config = dense()
    for _ in range(300):
        config = {"class_name": "TimeDistributed", "config": {"layer": config}}

    assert "nested deeper" in refused(config)


# --- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_every_layer_of_the_installed_libraries_was_reviewed(library, tfk) -> None:
    import inspect

    import keras

    layers = {"keras": keras, "tf_keras": tfk}[library].layers
    theirs = {
        name
        for name, value in vars(layers).items()
        if inspect.isclass(value) and issubclass(value, layers.Layer)
    }

    looked_at = built_in.LAYERS | set(built_in.EXECUTING) | {"Layer", "Wrapper"}
    assert theirs - looked_at == set()


def test_allowed_operations_are_tensorflow_operations() -> None:
    from tensorflow.python.framework import op_def_registry

    tables = built_in.OPERATIONS | built_in.RANDOM_OPERATIONS | built_in.CHECKPOINT_OPERATIONS
    assert sorted(name for name in tables if op_def_registry.get(name) is None) == []


@pytest.mark.parametrize(
    "operation",
    [
        "ReadFile",
        "WriteFile",
        "PyFunc",
        "EagerPyFunc",
        "PyFuncStateless",
        "MatchingFiles",
        "LoadLibrary",
        "InitializeTableFromTextFileV2",
        "TextLineDataset",
        "RpcCall",
        "DebugIdentityV2",
        "PrintV2",
    ],
)
def test_operations_with_side_effects_are_not_listed(operation) -> None:
    assert operation not in built_in.OPERATIONS


def test_a_function_name_cannot_hide_an_operation() -> None:
    hiding = (Function("", {"WriteFile"}), Function("WriteFile", {"Identity"}))

    assert _foreign_operations(SavedModel(hiding)) == ["WriteFile"]


@pytest.mark.parametrize(
    ("functions", "callables"),
    [
        ((Function("__a", {"SaveV2"}), Function("__b", calls={"__a"})), ()),
        ((Function("__a", {"SaveV2"}), Function("__b", {"__a"})), ()),
        ((Function("__a", {"SaveV2"}),), ("__a",)),
    ],
)
def test_only_the_main_graph_may_save_weights(functions, callables) -> None:
    whole = Function("", {"StatefulPartitionedCall"}, {"__a"})

    assert _foreign_operations(SavedModel((whole, *functions), (), frozenset(callables))) == [
        "SaveV2"
    ]
    assert _foreign_operations(SavedModel((whole, functions[0]))) == []


# --- real files of Keras -------------------------------------------------------------------------


@pytest.fixture
def lambda_h5(tfk, tmp_path, quiet):
    """Return a file of tf_keras that writes `canary` when it is loaded, and the canary."""
    canary = tmp_path / "canary"
    text = f"lambda x: (open({str(canary)!r}, 'w').write('ran'), x)[1]"
    model = tfk.Sequential(
        [tfk.layers.InputLayer(input_shape=(4,)), tfk.layers.Lambda(eval(text), name="evil")]
    )
    canary.unlink(missing_ok=True)
    model.add(tfk.layers.Dense(2))
    canary.unlink(missing_ok=True)
    model.save(tmp_path / "model.h5")
    canary.unlink(missing_ok=True)
    return tmp_path / "model.h5", canary


def test_code_in_a_file_runs_when_tf_keras_loads_it(tfk, lambda_h5, quiet) -> None:
    path, canary = lambda_h5

    tfk.models.load_model(path, safe_mode=True)

    assert canary.exists(), "so the test below says nothing"


def test_code_in_a_file_does_not_run(lambda_h5) -> None:
    path, canary = lambda_h5

    message = not_loaded(path)

    assert not canary.exists()
    assert "layer 'evil' is a Lambda layer" in message
    assert "allow_lambda" in message


def test_code_in_a_trusted_file_runs_and_is_reported(lambda_h5, caplog, quiet) -> None:
    path, canary = lambda_h5
    digest = sha256_of(path)

    load(identify(path), trust=Trust(allow_lambda=True, sha256=digest))

    assert canary.exists()
    assert f"{path} (sha256 {digest}) is trusted by allow_lambda" in caplog.text


def test_code_in_a_file_other_than_the_trusted_one_does_not_run(lambda_h5) -> None:
    path, canary = lambda_h5

    message = not_loaded(path, trust=Trust(allow_lambda=True, sha256="0" * 64))

    assert not canary.exists()
    assert f"this one has {sha256_of(path)}" in message
    assert "Lambda" in message


def test_other_trust_does_not_cover_lambdas(lambda_h5) -> None:
    path, canary = lambda_h5

    not_loaded(path, trust=Trust(allow_pickle=True, sha256=sha256_of(path)))

    assert not canary.exists()


def test_code_in_a_keras_3_archive_does_not_run(tmp_path, quiet) -> None:
    import keras

    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(2)(keras.layers.Lambda(lambda x: x * 2, name="evil")(inputs))
    path = tmp_path / "model.keras"
    keras.Model(inputs, outputs).save(path)

    assert "layer 'evil' is a Lambda layer" in not_loaded(path)
    model = load(identify(path), trust=Trust(allow_lambda=True, sha256=sha256_of(path)))
    assert model.count_params() == 10


def test_code_in_a_saved_model_folder_does_not_run(tfk, tmp_path, quiet) -> None:
    model = tfk.Sequential([tfk.layers.InputLayer(input_shape=(4,))])
    model.add(tfk.layers.Lambda(lambda x: x * 2, name="evil"))
    model.add(tfk.layers.Dense(2))
    model.save(tmp_path / "folder", save_format="tf")

    assert "'evil'" in not_loaded(tmp_path / "folder")


@pytest.fixture
def writing_folder(tfk, tmp_path, quiet):
    """Return a SavedModel whose layer writes a file whenever it is called, and that file."""
    import tensorflow as tf

    canary = tmp_path / "canary"

    class Writing(tfk.layers.Layer):
        def call(self, x):
            with tf.control_dependencies([tf.io.write_file(str(canary), "ran")]):
                return tf.identity(x)

    model = tfk.Sequential([tfk.layers.InputLayer(input_shape=(4,)), Writing()])
    model.add(tfk.layers.Dense(2))
    model.save(tmp_path / "folder", save_format="tf")
    canary.unlink(missing_ok=True)
    return tmp_path / "folder", canary


def test_a_graph_that_writes_files_does_not_run(writing_folder) -> None:
    folder, canary = writing_folder

    message = not_loaded(folder)

    assert not canary.exists()
    assert "its graph has the operation WriteFile," in message
    assert "allow_lambda" in message


def test_a_trusted_graph_runs(writing_folder, caplog, quiet) -> None:
    folder, canary = writing_folder

    load(identify(folder), trust=Trust(allow_lambda=True, sha256=sha256_of(folder)))

    assert canary.exists()
    assert "WriteFile" in caplog.text


@pytest.mark.parametrize("operation", ["ReadFile", "EagerPyFunc"])
def test_a_graph_that_reads_files_or_calls_python_does_not_run(
    tfk, tmp_path, quiet, operation
) -> None:
    import tensorflow as tf

    class Reaching(tfk.layers.Layer):
        def call(self, x):
            if operation == "ReadFile":
                number = tf.strings.length(tf.io.read_file("/etc/hostname"))
            else:
                number = tf.py_function(lambda: 1, [], tf.int32)
            return x + tf.cast(tf.reshape(number, []), x.dtype)

    model = tfk.Sequential([tfk.layers.InputLayer(input_shape=(4,)), Reaching()])
    model.add(tfk.layers.Dense(2))
    model.save(tmp_path / "folder", save_format="tf")

    assert operation in not_loaded(tmp_path / "folder")


def test_a_step_that_writes_weights_to_a_file_does_not_run(tfk, tmp_path, quiet) -> None:
    import tensorflow as tf

    class Saving(tfk.layers.Layer):
        def call(self, x):
            saved = tf.raw_ops.SaveV2(
                prefix=str(tmp_path / "out"), tensor_names=["x"], shape_and_slices=[""], tensors=[x]
            )
            with tf.control_dependencies([saved]):
                return tf.identity(x)

    model = tfk.Sequential([tfk.layers.InputLayer(input_shape=(4,)), Saving()])
    model.save(tmp_path / "folder", save_format="tf")

    assert "SaveV2" in not_loaded(tmp_path / "folder")


def test_ordinary_files_run_nothing(tfk, tmp_path, quiet) -> None:
    layers = tfk.layers
    image, words = tfk.Input((16, 16, 3)), tfk.Input((5,), dtype="int64")
    x = layers.SeparableConv2D(4, 3)(layers.Rescaling(1 / 255)(layers.RandomFlip()(image)))
    x = layers.SpatialDropout2D(0.1)(layers.DepthwiseConv2D(3)(layers.LeakyReLU()(x)))
    x = layers.GlobalAveragePooling2D()(layers.LayerNormalization()(x))
    y = layers.Embedding(20, 8, mask_zero=True)(words)
    y = layers.MultiHeadAttention(2, 4)(y, y)
    y = layers.Bidirectional(layers.LSTM(4, dropout=0.1))(y)
    model = tfk.Model([image, words], layers.Dense(2)(layers.Concatenate()([x, y]) * 2.0))
    model.save(tmp_path / "model.h5")
    model.save(tmp_path / "model.keras")

    for name in ("model.h5", "model.keras"):
        assert scan(identify(tmp_path / name)) == (), name


def test_an_ordinary_graph_runs_nothing(tfk, tmp_path, quiet) -> None:
    layers = tfk.layers
    model = tfk.Sequential(
        [layers.Embedding(20, 8, mask_zero=True, input_length=5), layers.GRU(4, dropout=0.1)]
    )
    model.save(tmp_path / "folder", save_format="tf")

    assert scan(identify(tmp_path / "folder")) == ()


def test_ordinary_keras_3_files_run_nothing(tmp_path, quiet) -> None:
    import keras

    layers = keras.layers
    image = keras.Input((16, 16, 3))
    x = layers.SeparableConv2D(4, 3, depthwise_initializer="he_normal")(image)
    x = layers.BatchNormalization()(layers.ReLU()(x))
    x = layers.Dense(3, activation="gelu", kernel_constraint="max_norm")(layers.Flatten()(x))
    layered = keras.Model(image, x)
    layered.save(tmp_path / "model.h5")
    # Operations in a model cannot be read back from an h5 file, by anybody.
    whole = keras.Model(image, keras.ops.exp(x) * keras.ops.mean(x, axis=-1, keepdims=True) + 1)
    whole.save(tmp_path / "model.keras")
    (tmp_path / "model.json").write_text(whole.to_json())

    for name in ("model.keras", "model.h5", "model.json"):
        assert scan(identify(tmp_path / name)) == (), name
        assert load(identify(tmp_path / name)).count_params() == whole.count_params()


def test_a_damaged_graph_is_refused(tfk_folder, tmp_path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(tfk_folder, folder)
    for content in (
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0f",
        b"\x0a\x05a",
        b"",
    ):
        (folder / "saved_model.pb").write_bytes(content)
        with pytest.raises(ModelFileError):
            saved_model.read(folder)


# --- real files of PyTorch -----------------------------------------------------------------------


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        import os

        return os.system, (f"touch {self.canary}",)


@pytest.fixture
def evil_pt(tmp_path):
    import torch

    canary = tmp_path / "canary"
    model = sequential()
    model.evil = Evil(canary)
    torch.save(model, tmp_path / "evil.pt")
    return tmp_path / "evil.pt", canary


def test_a_command_in_a_pickle_does_not_run(evil_pt) -> None:
    path, canary = evil_pt

    message = not_loaded(path)

    assert not canary.exists()
    assert "posix.system" in message
    assert "allow_pickle" in message


def test_a_command_in_a_trusted_pickle_runs_and_is_reported(evil_pt, caplog) -> None:
    path, canary = evil_pt

    load(identify(path), trust=Trust(allow_pickle=True, sha256=sha256_of(path)))

    assert canary.exists()
    assert "posix.system" in caplog.text


def test_a_command_in_a_file_other_than_the_trusted_one_does_not_run(evil_pt) -> None:
    path, canary = evil_pt

    message = not_loaded(path, trust=Trust(allow_pickle=True, sha256="0" * 64))

    assert not canary.exists()
    assert "It is a different file or was changed" in message


def test_a_hook_is_refused(tmp_path) -> None:
    import torch

    model = sequential()
    model.register_forward_hook(print)
    torch.save(model, tmp_path / "hook.pt")

    assert "__builtin__.print" in not_loaded(tmp_path / "hook.pt").replace(
        "builtins", "__builtin__"
    )


def test_the_loader_refuses_what_the_scan_misses(evil_pt, monkeypatch) -> None:
    from elasticdl.saved_models import torch as loader

    path, canary = evil_pt
    monkeypatch.setattr(loader, "scan", lambda *_, **__: ())

    assert "cannot be loaded" in not_loaded(path)
    assert not canary.exists()


@pytest.mark.parametrize("fixture", ["torch_old", "torch_script"])
def test_programs_and_old_pickles_need_trust(request, fixture) -> None:
    path = request.getfixturevalue(fixture)

    assert "allow_pickle" in not_loaded(path)
    assert "a different file" in not_loaded(path, trust=Trust(allow_pickle=True, sha256="0" * 64))


def exported_with(original, path, change):
    """Write an exported program with one of its descriptions changed."""
    with zipfile.ZipFile(original) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename.endswith(".json"):
                text = content.decode()
                content = change(info.filename, text).encode()
            new.writestr(info.filename, content)
    return path


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("torch.ops.aten.linear.default", "torch.serialization.os.system", "calls torch.serial"),
        ('"use_pickle": false', '"use_pickle": true', "are pickled"),
        ("builtins.tuple", "collections.defaultdict", "PyTorch would import"),
    ],
)
def test_operations_of_an_exported_program_are_found(
    torch_exported, tmp_path, old, new, said
) -> None:
    found = []

    def change(name, text):
        found.append(old in text)
        return text.replace(old, new)

    path = exported_with(torch_exported, tmp_path / "evil.pt2", change)

    assert any(found), "so this says nothing"
    assert said in not_loaded(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expr_str", "__import__('os').system('touch x')"),
        ("expr_str", "s0.__class__"),
        ("guards_code", ["__import__('os').system('touch x')"]),
        ("guards_code", ["L['x'].__class__"]),
        ("target", "torch.load"),
        ("target", "_operator.attrgetter"),
        ("as_operator", "torch.hub.load"),
        ("name", "x, y=print(1)"),
        ("in_spec", '[1, {"type": "os.x", "context": "", "children_spec": []}]'),
        ("in_spec", '{"__enum__": 1}'),
        ("path_name", "opaque_obj_0"),
    ],
)
def test_strings_of_an_exported_program_are_not_evaluated(key, value) -> None:
    assert _exported("model.json", {"graph": [{key: value}]}) != []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expr_str", "s0"),
        ("expr_str", "2*s77 + Max(1, u0)//4"),
        ("guards_code", ["L['x'].size()[0] >= 2", "L['args'][0].stride()[1] == 1"]),
        ("target", "torch.ops.aten._native_batch_norm_legit_functional.default"),
        ("name", "p_getattr_l__self___0_weight"),
    ],
)
def test_an_exported_program_may_compute(key, value) -> None:
    assert _exported("model.json", {"graph": [{key: value}]}) == []


@pytest.mark.parametrize("name", ["exported/models/more", "exported/data/aotinductor/model/a.so"])
def test_all_parts_pytorch_reads_of_an_exported_program_are_scanned(
    torch_exported, tmp_path, name
) -> None:
    path = exported_with(torch_exported, tmp_path / "evil.pt2", lambda _, text: text)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, json.dumps({"target": "torch.load"}))

    assert "allow_pickle" in not_loaded(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_ambiguous_archive_is_refused(torch_exported, tmp_path) -> None:
    path = exported_with(torch_exported, tmp_path / "evil.pt2", lambda _, text: text)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("exported/models/model.json", "{}")

    with pytest.raises(ModelFileError, match="have the same name"):
        identify(path)


def test_objects_in_an_exported_program_are_not_unpickled(torch_exported, tmp_path) -> None:
    import torch

    canary = tmp_path / "canary"
    torch.save(Evil(canary), tmp_path / "evil.pt")
    path = tmp_path / "evil.pt2"
    with zipfile.ZipFile(torch_exported) as old, zipfile.ZipFile(path, "w") as new:
        names = [info.filename for info in old.infolist()]
        assert any(name.endswith(".pt") for name in names), "so this says nothing"
        for name in names:
            is_object = name.endswith(".pt")
            new.writestr(name, (tmp_path / "evil.pt").read_bytes() if is_object else old.read(name))

    assert "objects other than tensors" in not_loaded(path)
    assert not canary.exists()
