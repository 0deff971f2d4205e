"""Words for features that a model does not accept, with and without an input function.

Callers: `keras/inputs.py`, `torch/inputs.py`.
"""

from __future__ import annotations


def source_of_features(*, is_default: bool) -> str:
    """Return where the features come from, as the object of "the model cannot take".

    Args:
        is_default: Whether the model file has no input function.
    """
    return "the fields of the records" if is_default else "what the input function returns"


def how_to_change_features(expected: str, *, is_default: bool) -> str:
    """Return a sentence that says how to pass other features to the model.

    Args:
        expected: What the features must fit, such as "the model's `forward`".
        is_default: Whether the model file has no input function.
    """
    if not is_default:
        return f"Make the input function return what {expected} expects."
    return (
        f"The file has no input_fn(records), so all fields but the label are passed to {expected}, "
        "several as a dict by their names. Write input_fn(records), which returns features and "
        "labels, or pass the features as one array, such as x = frame[columns].to_numpy(). An "
        "image or array gets another shape in data_schema()."
    )
