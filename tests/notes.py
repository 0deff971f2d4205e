"""A reporter that keeps what a person would read."""

from elasticdl.engines.progress_bar import Silent


class Notes(Silent):
    """Keeps each note in `texts`; shows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def note(self, message: str) -> None:
        """Keep a note."""
        self.texts.append(message)
