"""What serving needs of a trained Keras model."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path

import keras

_log = logging.getLogger("elasticdl")


def export(model: keras.Model, folder: Path) -> list[str]:
    """Write `model.keras` and `saved_model/` into a folder.

    `saved_model/` can be served without the user's code. `model.keras` is for models made of
    Keras' own layers; a subclass model needs its class to be read back, so it is left out.

    Args:
        model: A built model.
        folder: An existing folder.

    Returns:
        The names that were written. A model that Keras cannot save or TensorFlow cannot export
        trains and predicts all the same: the reason is logged and the name left out.
    """
    written = []
    if isinstance(model, keras.Sequential) or type(model).__name__ == "Functional":
        try:
            with warnings.catch_warnings():
                # Keras' own: it has not followed NumPy's newest word on copies yet.
                warnings.simplefilter("ignore", DeprecationWarning)
                model.save(folder / "model.keras")
            written.append("model.keras")
        except Exception as error:  # noqa: BLE001 - whatever a user's layer cannot say of itself
            (folder / "model.keras").unlink(missing_ok=True)
            _log.warning("The model cannot be saved as model.keras: %s", _first_line(error))
    try:
        # Keras prints the endpoints; the run has its own voice.
        with contextlib.redirect_stdout(io.StringIO()):
            model.export(folder / "saved_model", verbose=False)
        written.append("saved_model")
    except Exception as error:  # noqa: BLE001 - whatever a user's layer cannot do in a graph
        _log.warning("The model cannot be exported for serving: %s", _first_line(error))
    return written


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
