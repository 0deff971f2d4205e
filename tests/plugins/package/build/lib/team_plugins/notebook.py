"""A tracker: `--tracking_uri=notebook://FILE` writes each epoch's loss into a text file."""

from pathlib import Path

from elasticdl.tracking.tracker import Kind


class NotebookTracker:
    """Writes one line an epoch; see `elasticdl.tracking.tracker.Tracker`."""

    def __init__(self, tracking, folder, note):
        self._file = Path(tracking.uri.partition("://")[2])
        self._lines = {}

    @property
    def where(self):
        """Name and address, for messages."""
        return f"the notebook {self._file}"

    def start(self, attempt):
        """Begin the page of a job."""
        self._title = f"# {attempt.run_name}"

    def point(self, point):
        """Accept a point; only ends of epochs are written."""
        if point.kind is Kind.EPOCH:
            self._lines[point.epoch] = f"epoch {point.epoch}: loss {point.training['loss']:.4f}"

    def tags(self, values):
        """Ignore tags."""

    def artifact(self, path, folder=""):
        """Ignore files."""

    def end(self, status, error=""):
        """Write the page."""
        lines = [self._title, *(self._lines[epoch] for epoch in sorted(self._lines)), status.value]
        self._file.write_text("\n".join(lines) + "\n")
