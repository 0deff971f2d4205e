"""Packs the running ElasticDL as a wheel: its installed files and their metadata.

The running code itself is packed, without a build and without network access: an installed wheel
and an editable source tree have the same files. Equal files produce equal bytes, so that the
engine does not rebuild the image's layer.

Format: https://packaging.python.org/specifications/binary-distribution-format/
Callers: `build.py`.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path

from elasticdl.errors import UsageError

# As in pyproject.toml.
PACKAGES = ("abstractions", "elasticdl")
_TAG = "py3-none-any"
# The earliest date that a zip file can store.
_DATE = (1980, 1, 1, 0, 0, 0)
_WHEEL = f"Wheel-Version: 1.0\nGenerator: elasticdl\nRoot-Is-Purelib: true\nTag: {_TAG}\n"


def wheel(found: Distribution) -> tuple[str, bytes]:
    """Build a wheel of the installed ElasticDL; return its file name and bytes.

    Args:
        found: The installed ElasticDL.

    Raises:
        UsageError: One of its files cannot be read.
    """
    words = f"{found.name}-{found.version}.dist-info"
    members = dict(_files())
    members[f"{words}/METADATA"] = (found.read_text("METADATA") or "").encode()
    members[f"{words}/WHEEL"] = _WHEEL.encode()
    entry_points = found.read_text("entry_points.txt")
    if entry_points:
        members[f"{words}/entry_points.txt"] = entry_points.encode()
    record = "".join(f"{name},{_hash(data)},{len(data)}\n" for name, data in members.items())
    members[f"{words}/RECORD"] = f"{record}{words}/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, _DATE)
            info.external_attr = 0o644 << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return f"{found.name}-{found.version}-{_TAG}.whl", packed.getvalue()


def _files() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        folders = [] if spec is None else [*(spec.submodule_search_locations or ())]
        if not folders:
            raise UsageError(
                f"The package {package!r} of ElasticDL is not installed as files. Install "
                "ElasticDL with pip."
            )
        root = Path(folders[0])
        for path in sorted(root.rglob("*")):
            inner = path.relative_to(root)
            if path.is_file() and not any(map(_is_left_out, inner.parts)):
                try:
                    yield f"{package}/{inner.as_posix()}", path.read_bytes()
                except OSError as error:
                    raise UsageError(f"{path}: {error.strerror}.") from error


def _is_left_out(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__" or name.endswith((".pyc", ".pyo"))


def _hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
