"""Options and prints that commands share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from elasticdl.engines.progress import Silent


def reporter_for(quiet: bool) -> Silent | None:
    """Return a silent reporter if asked for, else None: the terminal decides."""
    return Silent() if quiet else None


def print_metrics(metrics: Mapping[str, Any]) -> None:
    """Print one metric a line, names aligned."""
    width = max((len(name) for name in metrics), default=0)
    for name, value in metrics.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        click.echo(f"  {name:<{width}}  {text}")
