"""Does an exported model load elsewhere, and say the same? Run as a program, in a new process.

    python -m elasticdl.training.keras.verify PROBE MODEL [MODEL ...]

PROBE is what `write_probe` wrote: a batch, and what the model said of it. Prints one JSON line a
model: its largest difference, or what it failed with. None of the user's code is imported, as in
whatever will serve the model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.data.batch import Arrays, leaves

_STRUCTURE = "structure"


def write_probe(file: Path, features: Arrays, outputs: Arrays) -> None:
    """Write a batch and what a model said of it.

    Args:
        file: An `.npz` file.
        features: An array, or a dict or list of arrays.
        outputs: The model's, in whichever nesting.
    """
    arrays = {f"x{i}": _served(array) for i, array in enumerate(leaves(features))}
    arrays |= {f"y{i}": np.asarray(array) for i, array in enumerate(leaves(outputs))}
    names = list(features) if isinstance(features, Mapping) else None
    several = isinstance(features, (list, tuple))
    structure = json.dumps({"names": names, "several": several})
    np.savez(file, allow_pickle=False, **arrays, **{_STRUCTURE: np.array(structure)})


def _served(array: Any) -> Any:
    # Signatures have the model's own type; a model takes what NumPy computes with by itself.
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _read_probe(file: Path) -> tuple[Arrays, list[Any]]:
    with np.load(file, allow_pickle=False) as found:
        structure = json.loads(str(found[_STRUCTURE]))
        inputs = [found[f"x{i}"] for i in range(sum(name[0] == "x" for name in found))]
        outputs = [found[f"y{i}"] for i in range(sum(name[0] == "y" for name in found))]
    if structure["names"] is not None:
        return dict(zip(structure["names"], inputs, strict=True)), outputs
    return inputs if structure["several"] else inputs[0], outputs


def _outputs_of(model: Path, features: Arrays) -> list[Any]:
    if model.is_dir():
        import tensorflow as tf  # noqa: PLC0415 - each kind by what reads it

        # Its functions do not keep its variables.
        loaded = tf.saved_model.load(str(model))
        return leaves(loaded.serve(features))
    import keras  # noqa: PLC0415 - as above

    return leaves(keras.saving.load_model(model, compile=False)(features, training=False))


def main(arguments: list[str]) -> None:
    """Check the models named on the command line."""
    features, expected = _read_probe(Path(arguments[0]))
    for name in arguments[1:]:
        answer: dict[str, Any] = {"model": name}
        try:
            outputs = [np.asarray(array) for array in _outputs_of(Path(name), features)]
            answer["difference"] = max(
                float(np.abs(one.astype(np.float64) - other).max()) if one.size else 0.0
                for one, other in zip(outputs, expected, strict=True)
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the model cannot be used so
            answer["error"] = f"{type(error).__name__}: {error}"
        sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
