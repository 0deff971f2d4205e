"""What the graph of an exported program may call: compared with PyTorch's own schemas."""

import re

import pytest
import torch

from elasticdl.errors import ModelFileError
from elasticdl.saved_models.file_format import identify
from elasticdl.saved_models.scan import scan
from elasticdl.saved_models.torch_operations import OPERATIONS

# Texts that choose among ways to compute; the others compare or cut strings of TorchScript.
WAYS = {
    "rounding_mode", "equation", "reduce", "mode", "norm", "padding", "indexing", "side", "driver",
    "approximate", "UPLO", "reduction", "ord", "pad_mode", "padding_mode", "interpolation",
    "padding_side", "p", "assert_msg",
}  # fmt: skip
ON_STRINGS = {
    "add",
    "any",
    "copy",
    "eq",
    "ge",
    "gt",
    "index",
    "le",
    "lt",
    "ne",
    "slice",
    "sort",
    "split",
}
DANGEROUS_TYPE = re.compile(r"Storage|Stream|RRef|Future|Params|Any$|__torch__|^Generator$")


def schemas():
    for name in sorted(OPERATIONS):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            yield name, getattr(packet, overload)._schema


def test_every_listed_operation_exists():
    assert [name for name in OPERATIONS if not hasattr(torch.ops.aten, name)] == []


def test_no_listed_operation_takes_a_path_a_pointer_or_a_process():
    taken = [
        (name, argument.name, str(argument.type))
        for name, schema in schemas()
        for argument in schema.arguments
        if DANGEROUS_TYPE.search(str(argument.type))
        or (
            "str" in str(argument.type)
            and argument.name not in WAYS
            and not (name in ON_STRINGS and str(schema).startswith(f"aten::{name}."))
        )
    ]

    assert taken == []


@pytest.mark.parametrize("name", ["from_file", "save", "set_", "set_data", "resize_", "_print"])
def test_operations_beyond_computation_are_not_listed(name):
    assert name not in OPERATIONS


@pytest.mark.parametrize("writes", [True, False])
def test_an_untrusted_program_that_opens_a_file_is_refused(tmp_path, writes):
    victim = tmp_path / "victim"
    victim.write_bytes(b"what was there before..")

    @torch.library.register_fake("aten::from_file", allow_override=True)
    def from_file(filename, shared=None, size=0, *, dtype=None, **_):
        return torch.empty(size, dtype=dtype)

    class Opens(torch.nn.Module):
        def forward(self, x):
            found = torch.ops.aten.from_file.default(str(victim), writes, 21, dtype=torch.uint8)
            if writes:
                found.copy_(torch.zeros(21, dtype=torch.uint8))
            return x + found.sum()

    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Opens(), (torch.zeros(2),)), path)

    with pytest.raises(ModelFileError, match=r"calls torch\.ops\.aten\.from_file"):
        scan(identify(str(path)))
    assert victim.read_bytes() == b"what was there before.."
