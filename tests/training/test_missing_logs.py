"""What is added to a KeyError of a callback."""

import pytest

from elasticdl.training.missing_logs import hint

LOGS = {"loss": 0.5, "val_loss": 0.6, "val_accuracy": 0.9}


@pytest.mark.parametrize(
    ("error", "logs", "expected"),
    [
        (
            KeyError("accuracy"),
            LOGS,
            (
                "\n  The logs have loss, val_loss and val_accuracy. "
                "'accuracy' is measured in validation."
            ),
        ),
        (
            KeyError("val_loss"),
            {"loss": 0.5},
            "\n  The logs have loss. There is no validation data, or no evaluation so far.",
        ),
        (KeyError("lr"), {"loss": 0.5}, "\n  The logs have loss."),
        # Of another dict, or another error.
        (KeyError("loss"), LOGS, ""),
        (KeyError(3), LOGS, ""),
        (ValueError("accuracy"), LOGS, ""),
        (KeyError("accuracy"), None, ""),
        (KeyError("accuracy"), 7, ""),
    ],
)
def test_available_log_names_are_listed(error, logs, expected):
    assert hint(error, logs) == expected
