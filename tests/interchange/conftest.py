"""The table of what was trained, after the tests: dialect x engine, as far as it was run."""

import pytest
from tests.interchange import written
from tests.interchange.experiments import EXPERIMENTS

_TITLES = {
    "training": "losses and validation: greatest difference from the reference",
    "evaluate": "evaluate: greatest difference of a metric from the reference's",
    "report": "evaluate --report: greatest difference of a number from the reference's",
    "predict": "predict: greatest difference of an output from the reference's",
}


@pytest.fixture(scope="module", autouse=True)
def weights_only(weights_only):
    """Export nothing here."""
    return weights_only


def pytest_terminal_summary(terminalreporter):
    """Print each cell's difference, or that it is refused; `-` where it was not run."""
    cells = {
        (aspect, dialect, experiment): found
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, (aspect, dialect, experiment, found) in report.user_properties
        if name == "interchange"
    }
    if not cells:
        return
    for aspect, title in _TITLES.items():
        terminalreporter.section(title)
        terminalreporter.line(f"{'':30}" + "".join(f"{name:>13}" for name in EXPERIMENTS))
        for dialect in written.DIALECTS:
            row = (cells.get((aspect, dialect, name)) for name in EXPERIMENTS)
            terminalreporter.line(f"{dialect:30}" + "".join(f"{_shown(each):>13}" for each in row))
    for refusal in sorted({found for found in cells.values() if isinstance(found, str)}):
        terminalreporter.line(f"refused: {refusal}")


def _shown(found):
    if found is None:
        return "-"
    return "refused" if isinstance(found, str) else f"{found:.1e}"
