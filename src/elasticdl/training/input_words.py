"""Phrases for error messages about features and labels that a model or its loss does not accept.

Callers: `dialects/default_input.py`, `keras/inputs.py`, `keras/failures.py`, `keras/trainer.py`,
`torch/inputs.py`, `torch/tensors.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import leaves, map_arrays
from elasticdl.did_you_mean import did_you_mean

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays


LABELS = ("y", "label", "labels", "target")
"""Names of the field that is the label, for a model file without an input function."""

_EACH_LABEL = ("label", "label in labels")
# Up to how many names of features are all listed, and how many of more.
_MAX_NAMES, _MAX_SHOWN = 10, 5
_IMAGE_AXES = 3


def source_of_features(*, is_default: bool) -> str:
    """Return a phrase for the features, such as "what the input function returns".

    It completes an error message that begins with "the model ... cannot take".

    Args:
        is_default: Whether the model file has no input function.
    """
    return "the fields of the records" if is_default else "what the input function returns"


def missing_features(expected: Sequence[str], features: Iterable[str], *, is_default: bool) -> str:
    """Return text for an error message that lists the given features and the missing ones.

    Args:
        expected: Names of the features that the model needs.
        features: Names of the given features. If there are many, only the first few are listed.
        is_default: Whether the model file has no input function.
    """
    names = [*features]
    missing = [name for name in expected if name not in names]
    shown = names if len(names) <= _MAX_NAMES else names[:_MAX_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    has = "the data have" if is_default else "the input function returns"
    unused = [name for name in names if name not in expected]
    near = did_you_mean(missing[0], unused) if len(missing) == 1 else "."
    return f"{has} {', '.join(shown)}{more}. Missing: {', '.join(missing)}{near}"


def how_to_change_features(
    expected: str,
    features: Arrays,
    *,
    is_default: bool,
    needs_floats: bool = False,
    with_channels: str = "",
    image_shape: Sequence[int] | None = None,
) -> str:
    """Return advice on how to change the features so that the model accepts them.

    Args:
        expected: What the features must fit, such as "the model's `forward`".
        features: The features of the example batch.
        is_default: Whether the model file has no input function.
        needs_floats: Whether the model takes these features as floats.
        with_channels: Python expression that adds the axis for channels to an array of features
            `x`, if the model needs one; else empty.
        image_shape: The shape of an image that the model takes, if it is known.
    """
    where = "in the data, or in input_fn(records)" if is_default else "in the input function"
    if needs_floats:
        return (
            "The features are whole numbers, and the model takes them as floats. Convert them "
            f'{where}: x.astype("float32"), or x / np.float32(255) for the pixels of an image.'
        )
    if with_channels:
        return (
            "The convolutions of the model take features of the shape [examples, channels, ...]. "
            f"Convert them {where}: {with_channels}."
        )
    is_image = isinstance(features, np.ndarray) and features.ndim == _IMAGE_AXES + 1
    # Without an input function, image files are uint8.
    may_be_file = is_image and (not is_default or features.dtype == np.uint8)
    if image_shape and may_be_file and [*features.shape[1:]] != [*image_shape]:
        otherwise = "Or convert the features in input_fn(records)."
        if not is_default:
            otherwise = f"Else make the input function return what {expected} expects."
        return (
            "If the data are image files, they are resized if data_schema() gives them the shape "
            f"that the model takes. {otherwise} For data_schema(), add to the model file:\n"
            f"{_schema_code(image_shape, with_label=True)}"
        )
    if not is_default:
        resized = (
            " Image files are resized to the shape in data_schema(): change it there if the model "
            "takes images of another size."
        )
        return (
            f"Make the input function return what {expected} expects.{resized if is_image else ''}"
        )
    if isinstance(features, Mapping):
        return (
            "The file has no input_fn(records), so all fields but the label are passed to "
            f"{expected}, as a dict by their names. Write input_fn(records), which returns "
            "features and labels, or pass the features as one array, such as "
            "x = frame[columns].to_numpy()."
        )
    shape = list(features.shape[1:])
    return (
        f"The file has no input_fn(records), so the features are passed to {expected} as they are: "
        f"an example has the shape {shape}. Build the model for this shape, or convert the "
        "features, in the data or in input_fn(records), which returns features and labels. Image "
        "files are resized to the shape in data_schema()."
    )


def as_floats(features: Arrays) -> Arrays | None:
    """Return features with integers and booleans converted to float32; None if there are none."""
    if not any(array.dtype.kind in "iub" for array in leaves(features)):
        return None
    return map_arrays(
        lambda array: array.astype(np.float32) if array.dtype.kind in "iub" else array, features
    )


def has_text(arrays: Arrays) -> bool:
    """Return whether any of the arrays has strings or bytes."""
    return any(array.dtype.kind in "OSU" for array in leaves(arrays))


def images_of_two_sizes(records: Sequence[Mapping[str, Any]]) -> tuple[int, int] | None:
    """Find two records of image files whose images differ in size.

    Without a schema, the records of image files have the image at its own size, and maybe a label.

    Returns:
        Positions of the two records; None if all sizes are equal, or records are not of images.
    """
    if any(not {"image"} <= record.keys() <= {"image", "label"} for record in records):
        return None
    shapes = [np.shape(record["image"]) for record in records]
    if any(len(shape) != _IMAGE_AXES for shape in shapes):
        return None
    others = (i for i, shape in enumerate(shapes) if shape != shapes[0])
    return next(((0, i) for i in others), None)


def shape_of_image(model: Any) -> list[int] | None:
    """Return the shape of an image that a Keras model takes; None if it does not declare one."""
    shape = getattr(model, "input_shape", None)
    if not isinstance(shape, tuple) or len(shape) != _IMAGE_AXES + 1:
        return None
    return [*shape[1:]] if all(isinstance(size, int) for size in shape[1:]) else None


def how_to_resize(
    records: Sequence[Mapping[str, Any]], pair: tuple[int, int], create_model: Callable[[], Any]
) -> str:
    """Return advice for images of different sizes in a model file without `data_schema()`.

    Args:
        records: Records of image files.
        pair: Positions of two records whose images differ in size.
        create_model: Function () -> the model, which may declare the shape of its input.
    """
    shapes = [list(np.shape(records[i]["image"])) for i in pair]
    wanted = None
    # If the user's code raises, its own mistake is reported once the sizes are right.
    with contextlib.suppress(Exception):
        wanted = shape_of_image(create_model())
    return (
        f"The images have different sizes, such as the shapes {shapes[0]} and {shapes[1]} (height, "
        "width, channels). They are resized if data_schema() gives them one shape. Add to the "
        f"model file:\n{_schema_code(wanted or min(shapes), with_label='label' in records[0])}"
    )


def _schema_code(shape: Sequence[int], *, with_label: bool) -> str:
    label = ', {"name": "label", "shape": [], "dtype": "int64"}' if with_label else ""
    return (
        "    def data_schema():\n"
        f'        return [{{"name": "image", "shape": {[*shape]}, "dtype": "uint8"}}{label}]'
    )


def text_label_advice(labels: Arrays, *, field: str = "", classes: Collection[str] = ()) -> str:
    """Return advice for labels that are text, where a loss needs numbers.

    Args:
        labels: Labels, of which some are text.
        field: The name of their field in the records, if they were taken from there.
        classes: The names of the classes in the model file; empty if it has none.
    """
    first = next(array for array in leaves(labels) if has_text(array)).flat[0]
    is_bytes = isinstance(first, bytes)
    shown = first.decode(errors="replace") if isinstance(first, bytes) else str(first)
    of_each, in_all = (f"record[{field!r}].item()", "record in records") if field else _EACH_LABEL
    of_each += ".decode()" if is_bytes else ""
    name_them = (
        ""
        if classes
        else "Name the classes in the model file, in the order of the outputs: classes = [...]. "
    )
    return (
        f"The labels are text, such as {shown!r}, and a loss needs numbers. {name_them}"
        f"Return {'their numbers in classes' if classes else 'their numbers'}: "
        f"np.array([classes.index({of_each}) for {in_all}]). (np.unique would number only "
        "the classes of one minibatch.)"
    )
