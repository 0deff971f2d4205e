"""Checks, in a new process, that an exported model loads and returns the same outputs.

    python -m elasticdl.training.keras.verify_export PROBE MODEL [MODEL ...]

PROBE is a file that `write_probe` has written: a batch, and the model's outputs for it. Prints one
JSON line per model: its largest difference, or the error. Does not import user code, like a process
that will serve the model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.data.batch import Arrays, leaves
from elasticdl.errors import plain

_STRUCTURE = "structure"


def write_probe(file: Path, features: Arrays, outputs: Arrays) -> None:
    """Write a batch and a model's outputs for it, to compare an exported model with.

    Args:
        file: An `.npz` file.
        features: An array, or a dict or list of arrays.
        outputs: The model's outputs, in any nesting.
    """
    arrays = {f"x{i}": _served(array) for i, array in enumerate(leaves(features))}
    named = _named(outputs)
    arrays |= {f"y{i}": np.asarray(array) for i, array in enumerate(named.values())}
    names = list(features) if isinstance(features, Mapping) else None
    several = isinstance(features, (list, tuple))
    structure = json.dumps({"names": names, "several": several, "outputs": list(named)})
    np.savez(file, allow_pickle=False, **arrays, **{_STRUCTURE: np.array(structure)})


def _served(array: Any) -> Any:
    # Signatures have the model's own type; a Keras model also accepts NumPy's float64.
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _named(tree: Any, name: str = "") -> dict[str, Any]:
    """Flatten a nested structure to a dict of path (`/0/name`) -> array.

    Paths are compared rather than positions, because a SavedModel reorders dicts.
    """
    if isinstance(tree, Mapping):
        parts = list(tree.items())
    elif isinstance(tree, (list, tuple)):
        parts = list(enumerate(tree))
    else:
        return {name: tree}
    return {at: leaf for key, part in parts for at, leaf in _named(part, f"{name}/{key}").items()}


def _read_probe(file: Path) -> tuple[Arrays, dict[str, Any]]:
    with np.load(file, allow_pickle=False) as found:
        structure = json.loads(str(found[_STRUCTURE]))
        inputs = [found[f"x{i}"] for i in range(sum(name[0] == "x" for name in found))]
        outputs = {name: found[f"y{i}"] for i, name in enumerate(structure["outputs"])}
    if structure["names"] is not None:
        return dict(zip(structure["names"], inputs, strict=True)), outputs
    return inputs if structure["several"] else inputs[0], outputs


def _outputs_of(model: Path, features: Arrays) -> Any:
    if model.is_dir():
        import tensorflow as tf  # noqa: PLC0415 - each kind by what reads it

        # The loaded functions do not keep the variables alive.
        loaded = tf.saved_model.load(str(model))
        ((asked, *_), _) = loaded.serve.concrete_functions[0].structured_input_signature
        return loaded.serve(_arranged(features, asked))
    import keras  # noqa: PLC0415 - as above

    return keras.saving.load_model(model, compile=False)(features, training=False)


def _arranged(features: Arrays, asked: Any) -> Arrays:
    """Convert features to the form that a SavedModel requires; Keras accepts more forms.

    Args:
        features: An array, or a dict or list of arrays.
        asked: The model's input signature: a spec, or a dict or list of specs.
    """
    if hasattr(asked, "dtype") and isinstance(features, Mapping) and len(features) == 1:
        # A model of one input may receive its entry by name.
        return next(iter(features.values()))
    if not isinstance(asked, (list, tuple)) or isinstance(features, (list, tuple)):
        return features
    if isinstance(features, Mapping):
        return [features[spec.name] for spec in asked]
    return [features]


def _difference(outputs: Any, expected: Mapping[str, Any]) -> float:
    """Return the largest difference between outputs and the expected ones.

    It is infinite if only one of two values is NaN.

    Raises:
        ValueError: The names of the outputs, or the shape of one, differ from the expected ones.
    """
    found = _named(outputs)
    if found.keys() != expected.keys():
        raise ValueError(f"it has the outputs {list(found)}, not {list(expected)}")
    return max(_distance(np.asarray(found[name]), expected[name]) for name in expected)


def _distance(one: Any, other: Any) -> float:
    if one.shape != other.shape:
        raise ValueError(f"an output has the shape {one.shape}, not {other.shape}")
    one, other = one.astype(np.float64), other.astype(np.float64)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other)
    return float(np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart)).max(initial=0.0))


def main(arguments: list[str]) -> None:
    """Check the models named on the command line, and print one JSON line for each."""
    features, expected = _read_probe(Path(arguments[0]))
    for name in arguments[1:]:
        answer: dict[str, Any] = {"model": name}
        try:
            answer["difference"] = _difference(_outputs_of(Path(name), features), expected)
        except Exception as error:  # noqa: BLE001 - whatever the error is, the model cannot be used
            answer["error"] = f"{type(error).__name__}: {plain(error)}"
        sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
