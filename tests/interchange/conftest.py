"""The table of what was trained, after the tests: dialect x engine, as far as it was run."""

from tests.interchange import written

_COLUMNS = ("in_process", "elastic", "federated")


def pytest_terminal_summary(terminalreporter):
    """Print the greatest difference of a loss in each cell; `-` where it was not run."""
    cells = {
        (dialect, engine): found
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, (dialect, engine, found) in report.user_properties
        if name == "interchange"
    }
    if not cells:
        return
    terminalreporter.section("greatest difference of an epoch's loss from the reference")
    terminalreporter.line(f"{'':30}" + "".join(f"{engine:>12}" for engine in _COLUMNS))
    for dialect in written.DIALECTS:
        row = [cells.get((dialect, engine)) for engine in _COLUMNS]
        shown = ("-" if found is None else f"{found:.1e}" for found in row)
        terminalreporter.line(f"{dialect:30}" + "".join(f"{each:>12}" for each in shown))
