"""What is looked at before a checkpoint is written."""

import ml_dtypes
import numpy as np
import pytest

from elasticdl.engines.finite import check_state
from elasticdl.errors import NonFiniteLossError


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64])
def test_infinity_is_found_in_every_kind_of_float(dtype):
    with pytest.raises(NonFiniteLossError, match="model/kernel holds NaN or infinity at step 3"):
        check_state({"model/kernel": np.array([1, np.inf], dtype)}, step=3, last_good=0)


def test_what_a_callback_remembers_may_be_infinite():
    check_state({"callbacks/0/Best/best": np.array(np.inf)}, step=3, last_good=0)
