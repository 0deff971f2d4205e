"""An error of user code in validation names the records that were evaluated."""

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.engines.validation_errors import in_validation
from elasticdl.errors import UserCodeError


def test_an_error_in_validation_names_its_records() -> None:
    batch = Batch(np.zeros(2), None, 2, where=lambda: "v.csv, records 0 to 1")

    with pytest.raises(UserCodeError) as caught, in_validation(batch):
        raise UserCodeError("m.py:3: the loss raised")

    assert str(caught.value) == (
        "m.py:3: the loss raised\n  This happened in validation: v.csv, records 0 to 1."
    )
