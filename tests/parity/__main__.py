"""Writes `docs/trust/compatibility.md`: `python -m tests.parity`."""

from tests.parity.features import all_features
from tests.parity.page import PAGE, page

if __name__ == "__main__":
    PAGE.write_text(page(all_features()))
