"""What a model file claims is bounded by what it holds, before anything is allocated."""

import io
import json
import pickle
import shutil
import tracemalloc
import zipfile
import zlib
from collections import OrderedDict

import numpy as np
import pytest
import torch
from tests.saved_models.conftest import of_keras_2_2_4, sequential

from elasticdl.errors import ModelFileError
from elasticdl.saved_models import bounds
from elasticdl.saved_models.file_format import identify, sha256_of
from elasticdl.saved_models.loading import load
from elasticdl.saved_models.trust import Trust

VAST = 4_000_000_000


def refused(path, **options) -> str:
    with pytest.raises(ModelFileError) as raised:
        load(identify(path), **options)
    return str(raised.value)


def rewritten(original, path, change):
    """Write an archive with some of its members changed."""
    with zipfile.ZipFile(original) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            new.writestr(info.filename, change(info.filename, content))
    return path


# --- the rule ------------------------------------------------------------------------------------


def test_a_file_may_claim_20_times_its_size_within_limits() -> None:
    mib = 2**20

    assert bounds.allowed_bytes(1) == 64 * mib
    assert bounds.allowed_bytes(10 * mib) == 200 * mib
    assert bounds.allowed_bytes(1024 * mib) == 8 * 1024 * mib


def test_the_size_of_a_shape_is_computed_without_huge_integers() -> None:
    assert bounds.num_values([2, -1, 3]) == 6
    assert bounds.num_values([2**62, 0]) == 0
    assert bounds.num_values([2**62] * 100_000) == 2**63


# --- PyTorch -------------------------------------------------------------------------------------


def pt_of(path, objects: bytes, **members: bytes):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", objects)
        archive.writestr("a/version", b"3\n")
        archive.writestr("a/byteorder", b"little")
        for name, content in members.items():
            archive.writestr(f"a/data/{name}", content)
    return path


# M is a number of two bytes; R calls what lies below with the tuple above.
CALLS = {
    "layer": b"\x80\x02ctorch.nn.modules.linear\nLinear\nM`\xeaM`\xea\x86R.",
    "layer without a stack": b"\x80\x02(M`\xeaM`\xeaitorch.nn.modules.linear\nLinear\n.",
    "layer on a mark": b"\x80\x02(ctorch.nn.modules.linear\nLinear\nM`\xeaM`\xeao.",
    "new layer": b"\x80\x02ctorch.nn.modules.linear\nLinear\nM`\xeaM`\xea\x86\x81.",
    "tensor": b"\x80\x02ctorch\nTensor\nM`\xeaM`\xea\x86R.",
    "new tensor": b"\x80\x02ctorch\nTensor\nM`\xeaM`\xea\x86\x81.",
    "storage": b"\x80\x02ctorch\nFloatStorage\nJ\x00\x28\x6b\x6e\x85R.",
    "memoized": b"\x80\x04\x8c\x17torch.nn.modules.linear\x8c\x06Linear\x93\x94h\x00"
    b"M`\xeaM`\xea\x86R.",
}


@pytest.mark.parametrize("objects", CALLS.values(), ids=CALLS)
def test_pickles_may_not_call_functions_that_allocate_any_size(tmp_path, objects) -> None:
    path = pt_of(tmp_path / "bomb.pt", objects)
    trusted = Trust(allow_pickle=True, sha256=sha256_of(path))

    assert "to create an object of any size" in refused(path)
    assert "to create an object of any size" in refused(path, trust=trusted)


def test_a_14_gb_layer_in_a_tiny_pickle_is_refused_in_little_memory(tmp_path, run_python) -> None:
    path = pt_of(tmp_path / "bomb.pt", CALLS["layer"])

    said = run_python(
        "from pathlib import Path\n"
        "from elasticdl.errors import ModelFileError\n"
        "from elasticdl.saved_models.loading import load\n"
        "from elasticdl.saved_models.file_format import identify\n"
        f"try: load(identify({str(path)!r}))\n"
        "except ModelFileError: pass\n"
        # Not ru_maxrss, which a process takes over from its parent.
        "status = Path('/proc/self/status').read_text()\n"
        "print(status.split('VmHWM:')[1].split()[0])"
    )

    assert int(said.stdout.split()[-1]) < 200_000


@pytest.mark.parametrize("trusts", [False, True])
def test_an_expanded_tensor_of_4e9_numbers_is_refused_by_name(tmp_path, trusts) -> None:
    path = tmp_path / "state.pt"
    torch.save({"bias": torch.zeros(2), "kernel": torch.zeros(1).expand(VAST)}, path)
    trust = Trust(allow_pickle=trusts, sha256=sha256_of(path))

    message = refused(path, trust=trust)

    assert "the tensor 'kernel' of 4,000,000,000 numbers, of which 1 are in the file" in message
    assert "nothing was allocated" in message


def test_a_whole_module_with_a_vast_parameter_is_refused(tmp_path) -> None:
    model = sequential()
    model[0].register_buffer("mask", torch.zeros(1).expand(VAST))
    torch.save(model, tmp_path / "model.pt")

    assert "the tensor 'mask' of 4,000,000,000" in refused(tmp_path / "model.pt")


def test_tensors_that_share_a_storage_are_counted_together(tmp_path) -> None:
    million = torch.zeros(1_000_000)
    torch.save({f"w{i}": million[i:] for i in range(200)}, tmp_path / "state.pt")

    assert "with the others, the tensor 'w20'" in refused(tmp_path / "state.pt")


def test_a_small_expanded_tensor_is_loaded(tmp_path) -> None:
    model = sequential()
    model[0].register_buffer("mask", torch.zeros(1).expand(1000))
    torch.save(model, tmp_path / "model.pt")

    assert load(identify(tmp_path / "model.pt"))[0].mask.shape == (1000,)


class _Storage:
    def __init__(self, num_values) -> None:
        self.num_values = num_values


class _Tensor:
    def __init__(self, *arguments) -> None:
        self.arguments = arguments

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, (*self.arguments, False, OrderedDict())


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        if isinstance(obj, _Storage):
            return ("storage", torch.FloatStorage, "0", "cpu", obj.num_values)
        return None


def pickled(obj) -> bytes:
    content = io.BytesIO()
    _Pickler(content, 2).dump(obj)
    return content.getvalue()


def test_a_storage_must_match_the_size_of_its_member(tmp_path) -> None:
    state = OrderedDict(weight=_Tensor(_Storage(1000), 0, (1000,), (1,)))

    for name, content in (("short", bytes(3999)), ("whole", bytes(4000))):
        pt_of(tmp_path / f"{name}.pt", pickled(state), **{"0": content})

    assert identify(tmp_path / "whole.pt").kind == "weights"
    assert "storage '0' in it claims 4,000 bytes and holds 3,999" in refused(tmp_path / "short.pt")
    assert "and holds 0" in refused(pt_of(tmp_path / "none.pt", pickled(state)))


@pytest.mark.parametrize("size", [None, 4, "4", (4.0,), ("4",)])
def test_a_tensor_without_a_size_is_refused(tmp_path, size) -> None:
    state = OrderedDict(weight=_Tensor(_Storage(4), 0, size, (1,)))

    message = refused(pt_of(tmp_path / "a.pt", pickled(state), **{"0": bytes(16)}))

    assert "does not have a storage and a size" in message


def test_a_trusted_torchscript_program_is_bounded(tmp_path, quiet) -> None:
    model = sequential()
    model[0].register_buffer("mask", torch.zeros(1).expand(VAST))
    path = tmp_path / "script.pt"
    torch.jit.script(model).save(str(path))

    trust = Trust(allow_pickle=True, sha256=sha256_of(path))

    assert "4,000,000,000 numbers" in refused(path, trust=trust)


def test_a_trusted_old_file_is_bounded(tmp_path) -> None:
    expanded, short = tmp_path / "expanded.pt", tmp_path / "short.pt"
    torch.save(torch.zeros(1).expand(VAST), expanded, _use_new_zipfile_serialization=False)
    torch.save(torch.zeros(1000), short, _use_new_zipfile_serialization=False)
    # 1,000 becomes 2,130,706,432: in the storage and in the size of the tensor.
    short.write_bytes(short.read_bytes().replace(b"M\xe8\x03", b"J\x00\x00\x00\x7f"))

    for path, said in ((expanded, "4,000,000,000 numbers"), (short, "claim 8,522,825,728 bytes")):
        trust = Trust(allow_pickle=True, sha256=sha256_of(path))
        assert said in refused(path, trust=trust)


class Expanding(torch.nn.Module):
    def __init__(self, size) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.register_buffer("mask", torch.zeros(1).expand(size))
        self.constant = torch.ones(1).expand(size)

    def forward(self, x):
        return self.layer(x) + self.mask[:1] + self.constant[:1]


def exported(path, size):
    program = torch.export.export(Expanding(size), (torch.zeros(2, 4),))
    torch.export.save(program, path)
    return path


def test_an_exported_tensor_of_4e9_numbers_is_refused_by_name(tmp_path, quiet) -> None:
    path = exported(tmp_path / "model.pt2", VAST)

    message = refused(path)

    assert "the tensor 'mask' of 4,000,000,000 numbers" in message or "'constant'" in message
    trust = Trust(allow_pickle=True, sha256=sha256_of(path))
    assert "4,000,000,000 numbers" in refused(path, trust=trust)


def test_a_small_expanded_tensor_of_an_exported_program_is_loaded(tmp_path, quiet) -> None:
    path = exported(tmp_path / "model.pt2", 100)

    assert load(identify(path))(torch.zeros(2, 4)).shape == (2, 3)


def test_a_graph_that_creates_too_many_numbers_is_refused(torch_exported, tmp_path) -> None:
    def change(name, content):
        if not name.endswith("models/model.json"):
            return content
        described = json.loads(content)
        described["graph_module"]["graph"]["nodes"][0]["inputs"].append(
            {"name": "size", "arg": {"as_ints": [100_000, 100_000]}, "kind": 1}
        )
        return json.dumps(described)

    message = refused(rewritten(torch_exported, tmp_path / "model.pt2", change))

    assert "its graph has the size [100000, 100000]" in message


def test_example_inputs_of_an_exported_program_are_bounded(torch_exported, tmp_path) -> None:
    inputs = io.BytesIO()
    torch.save(((torch.zeros(1).expand(VAST),), {}), inputs)

    def change(name, content):
        return inputs.getvalue() if name.endswith(".pt") else content

    path = rewritten(torch_exported, tmp_path / "model.pt2", change)

    assert "4,000,000,000 numbers" in refused(path)


def test_repeatedly_shared_objects_are_scanned_quickly(tmp_path) -> None:
    # Each tuple holds the one before twice: 2**200 values if each were looked at.
    doubling = b"\x80\x02)" + b"2\x86" * 200 + b"."

    assert identify(pt_of(tmp_path / "a.pt", doubling)).format == "torch_zip"


@pytest.mark.parametrize(
    "objects", [b"\x80\x02R.", b"\x80\x02h\x05.", b"\x80\x02\x86.", b"\x80\x02"]
)
def test_an_invalid_pickle_is_damaged(tmp_path, objects) -> None:
    assert "truncated or damaged" in refused(pt_of(tmp_path / "a.pt", objects))


# --- archives ------------------------------------------------------------------------------------


def test_an_archive_that_unpacks_to_a_thousand_times_its_size_is_refused(
    keras_keras, torch_whole, tmp_path
) -> None:
    for original in (keras_keras, torch_whole):
        path = tmp_path / original.name
        shutil.copy(original, path)
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a/data/zeros", bytes(200 * 2**20))

        assert "all that is in this archive claims" in refused(path)


# --- HDF5 ----------------------------------------------------------------------------------------


def lying(path, size, said):
    """Write an archive whose first member unpacks to more than it says."""
    content = b'{"class_name": "Model", "config": {}}'.ljust(size)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("config.json", "metadata.json", "model.weights.h5"):
            archive.writestr(name, content)
    held = bytearray(path.read_bytes())
    at = held.index(b"PK\1\2")
    # As a loader finds it that believes what it is told: the sum is of what it reads.
    held[at + 16 : at + 20] = zlib.crc32(content[:said]).to_bytes(4, "little")
    held[at + 24 : at + 28] = said.to_bytes(4, "little")
    path.write_bytes(held)
    return path


def test_a_member_that_unpacks_beyond_its_stated_size_is_refused(tmp_path, monkeypatch) -> None:
    path = lying(tmp_path / "m.keras", 50_000_000, said=100)
    monkeypatch.setattr(bounds, "FREE_BYTES", 2**30)
    tracemalloc.start()

    said = refused(path)

    assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    tracemalloc.stop()
    assert (
        "config.json in it declares 100 bytes, but decompresses to 1,048,576 or more bytes" in said
    )


def test_an_archive_of_many_thousand_members_is_refused(keras_keras, tmp_path) -> None:
    shutil.copy(keras_keras, tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras", "a") as archive:
        for number in range(10_000):
            archive.writestr(f"{number}", "")

    assert "10,003 files in this archive; expected at most 10,000" in refused(tmp_path / "m.keras")


def packed_again(original, path, compression):
    with zipfile.ZipFile(original) as old, zipfile.ZipFile(path, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))


def test_a_member_with_another_compression_is_refused(keras_keras, tmp_path) -> None:
    packed_again(keras_keras, tmp_path / "m.keras", zipfile.ZIP_LZMA)

    assert "by a method whose decompressed size cannot be checked" in refused(tmp_path / "m.keras")


def test_a_recompressed_archive_is_loaded(keras_keras, tmp_path) -> None:
    packed_again(keras_keras, tmp_path / "m.keras", zipfile.ZIP_DEFLATED)

    assert load(identify(tmp_path / "m.keras")).count_params() > 0


def test_a_chunk_beyond_the_size_limit_is_refused(tmp_path) -> None:
    import h5py

    path = of_keras_2_2_4(tmp_path / "model.h5")
    with h5py.File(path, "a") as file:
        # One number, in a chunk of 400 MB.
        file.create_dataset("one", (1,), "f4", maxshape=(None,), chunks=(10**8,), compression=1)

    assert "/one, with the others, claims" in refused(path)


def test_a_chunk_that_inflates_beyond_its_size_is_refused(tmp_path) -> None:
    import h5py

    path = of_keras_2_2_4(tmp_path / "model.h5")
    with h5py.File(path, "a") as file:
        data = file.create_dataset("one", (100,), "f4", chunks=(100,), compression="gzip")
        data.id.write_direct_chunk((0,), zlib.compress(bytes(10_000)))

    assert "a chunk of /one decompresses to more than its 400 bytes" in refused(path)


def test_weights_that_are_compressed_with_gzip_are_loaded(tmp_path) -> None:
    import h5py

    path = of_keras_2_2_4(tmp_path / "model.h5")
    with h5py.File(path, "a") as file:
        group = file["model_weights/dense_1/dense_1"]
        kernel = group["kernel:0"][()]
        del group["kernel:0"]
        group.create_dataset("kernel:0", data=kernel, compression="gzip", shuffle=True)

    np.testing.assert_array_equal(load(identify(path)).get_weights()[0], kernel)


def test_weights_with_another_compression_are_refused(tmp_path) -> None:
    import h5py

    path = of_keras_2_2_4(tmp_path / "model.h5")
    with h5py.File(path, "a") as file:
        file.create_dataset("more", data=np.zeros(100), compression="lzf")

    assert "without compression, or with gzip" in refused(path)


# --- Keras ---------------------------------------------------------------------------------------


def widened(config):
    """Return a config whose two layers have 60,000 units, between them 14 GB."""
    for layer in config["config"]["layers"]:
        if layer["class_name"] == "Dense":
            layer["config"]["units"] = 60_000
            layer.pop("build_config", None)
    return config


def two_layers(library, **shape):
    layers = library.layers
    return library.Sequential(
        [layers.InputLayer(**shape), layers.Dense(2, name="one"), layers.Dense(2, name="two")]
    )


def with_weights(path, num_values):
    """Let a file hold some more numbers, so that no layer alone is larger than its weights."""
    import h5py

    with h5py.File(path, "a") as file:
        file.create_dataset("more", data=np.zeros(num_values, "float32"))


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
def test_an_h5_file_cannot_request_a_layer_of_14_gb(name, tmp_path, tfk, quiet) -> None:
    import h5py
    import keras

    library, shape = {"keras": (keras, {"shape": (2,)}), "tf_keras": (tfk, {"input_shape": (2,)})}[
        name
    ]
    path = tmp_path / "model.h5"
    two_layers(library, **shape).save(path)
    with_weights(path, 60_000)
    with h5py.File(path, "a") as file:
        config = file.attrs["model_config"]
        file.attrs["model_config"] = json.dumps(widened(json.loads(config)))

    message = refused(path)

    assert "a weight of shape [60000, 60000] in the layer 'two' claims 14,4" in message
    load(identify(of_keras_2_2_4(tmp_path / "again.h5")))


def test_a_keras_3_archive_cannot_request_a_layer_of_14_gb(tmp_path) -> None:
    import h5py
    import keras

    two_layers(keras, shape=(2,)).save(tmp_path / "small.keras")

    def change(name, content):
        if name == "config.json":
            return json.dumps(widened(json.loads(content)))
        if name == "model.weights.h5":
            file = io.BytesIO(content)
            with h5py.File(file, "a") as weights:
                weights.create_dataset("more", data=np.zeros(60_000, "float32"))
            return file.getvalue()
        return content

    message = refused(rewritten(tmp_path / "small.keras", tmp_path / "model.keras", change))

    assert "a weight of shape [60000, 60000] in the layer 'two' claims 14,4" in message


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
def test_an_architecture_larger_than_its_weights_file_is_refused(name, tmp_path, tfk) -> None:
    import keras

    library, shape = {"keras": (keras, {"shape": (2,)}), "tf_keras": (tfk, {"input_shape": (2,)})}[
        name
    ]
    model = two_layers(library, **shape)
    model.save_weights(tmp_path / "model.weights.h5")
    path = tmp_path / "model.json"
    config = json.loads(model.to_json())
    path.write_text(json.dumps(widened(config)))

    assert "[60000, 60000]" in refused(path)
    with pytest.raises(ModelFileError, match=r"\[60000, 60000\]"):
        load(identify(path), identify(tmp_path / "model.weights.h5"))


# --- SavedModel ----------------------------------------------------------------------------------


def test_a_constant_of_one_value_and_a_vast_shape_is_refused(tfk_folder, tmp_path) -> None:
    from tensorflow.core.protobuf import saved_model_pb2

    folder = tmp_path / "folder"
    shutil.copytree(tfk_folder, folder)
    graph = folder / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(graph.read_bytes())
    library = model.meta_graphs[0].graph_def.library
    constants = [n for f in library.function for n in f.node_def if n.op == "Const"]
    tensor = constants[0].attr["value"].tensor
    tensor.tensor_shape.ClearField("dim")
    tensor.tensor_shape.dim.add(size=VAST)
    graph.write_bytes(model.SerializeToString())

    assert "a constant of its graph, with the others, claims 32,00" in refused(folder)


def test_missing_variables_are_refused(tfk_folder, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(tfk_folder, folder)
    file = identify(folder)
    monkeypatch.setattr(bounds, "FREE_BYTES", 0)
    monkeypatch.setattr(bounds, "MAX_EXPANSION", 1e-6)

    with pytest.raises(ModelFileError, match="all that is in its folder `variables` claims"):
        load(file)
