"""Limits the weights that Keras creates while it builds the model of a file.

A config of one kilobyte may declare two layers of 60,000 units, whose weights take 14 GB. The size
of a layer's weights follows from the shapes of all layers before it, so it is known only when Keras
creates them: each weight is counted at that point, before it is allocated.

Callers: `keras.py`, `tf_keras.py`. Imports neither Keras nor tf_keras.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from elasticdl.errors import ModelFileError
from elasticdl.saved_models import bounds

if TYPE_CHECKING:
    from elasticdl.saved_models.file_format import ModelFile

_ITEM_BYTES, _ITEM_BYTES_OF_64_BITS = 4, 8


@contextlib.contextmanager
def bounded(layer_class: Any, file: ModelFile, held_bytes: int) -> Iterator[None]:
    """Context manager that rejects weights beyond the file's memory limit (`bounds.py`).

    In the block, each weight that a layer creates is counted before it is allocated.

    Args:
        layer_class: `Layer` of Keras 3 or of tf_keras, whose `add_weight` is counted.
        file: The file being loaded, for the error.
        held_bytes: Size of the file that holds the weights; `bounds.MAX_BYTES` if there is none.

    Raises:
        ModelFileError: The layers need more memory.
    """
    original = layer_class.add_weight
    signature = inspect.signature(original)
    claimed_bytes = 0
    refusal: ModelFileError | None = None

    @functools.wraps(original)
    def add_weight(*args: Any, **kwargs: Any) -> Any:
        nonlocal claimed_bytes, refusal
        given = signature.bind(*args, **kwargs).arguments
        shape = [each for each in _sizes(given.get("shape")) if isinstance(each, int)]
        is_64_bits = "64" in str(given.get("dtype") or "")
        item_bytes = _ITEM_BYTES_OF_64_BITS if is_64_bits else _ITEM_BYTES
        claimed_bytes += bounds.num_values(shape) * item_bytes
        name = getattr(given["self"], "name", "?")
        what = f"with the others, a weight of shape {shape} in the layer {name!r}"
        try:
            bounds.check(file.path, what, claimed_bytes, held_bytes)
        except ModelFileError as error:
            refusal = error
            raise
        return original(*args, **kwargs)

    layer_class.add_weight = add_weight
    try:
        yield
    except Exception:
        # Keras wraps an exception of a layer in one of its own.
        if refusal is not None:
            raise refusal from None
        raise
    finally:
        layer_class.add_weight = original


def _sizes(shape: Any) -> list[Any]:
    if shape is None:
        return []
    as_list = getattr(shape, "as_list", None)
    if as_list is not None:
        return list(as_list())
    return list(shape) if isinstance(shape, (list, tuple)) else [shape]
