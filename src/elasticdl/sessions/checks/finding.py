"""Data classes for what a session check finds; they can be printed or written as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticdl.errors import ElasticDLError


class Severity(StrEnum):
    """How serious a finding of a session check is; only an error makes the check fail."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class CheckFinding:
    """What a session check has found in one place: a problem, or information.

    Attributes:
        severity: An error ends the session sooner or later; a warning lets it run, though probably
            not as intended.
        what: The problem, with the wrong and the expected value.
        where: `file:line`, or another name of the location; empty if `what` names it.
        fix: How to fix it.
        undefined_name: The name that the code uses but never defines; empty for any other problem.
    """

    severity: Severity
    what: str
    where: str = ""
    fix: str = ""
    undefined_name: str = ""

    def __str__(self) -> str:
        """Return the finding as a message for the user, without the severity."""
        place = f"{self.where}: " if self.where else ""
        lines = [f"{place}{self.what}", *([self.fix] if self.fix else [])]
        return "\n".join(lines).replace("\n", "\n  ")


def of_error(problem: ElasticDLError) -> CheckFinding:
    """Convert a raised error to a finding; a `file:line` before its message becomes `where`."""
    found = re.match(r"(\S+:\d+): (.*)", str(problem), re.DOTALL)
    return error(str(problem)) if found is None else error(found[2], found[1])


def error(what: str, where: object = "", fix: str = "") -> CheckFinding:
    """Return a finding about a problem that would make the session fail.

    Args:
        what: The problem, with the wrong and the expected value.
        where: `file:line`, or another name of the location; converted to a string. Empty if `what`
            names it.
        fix: How to fix it.
    """
    return CheckFinding(Severity.ERROR, what, str(where), fix)


def warning(what: str, where: object = "", fix: str = "") -> CheckFinding:
    """Return a finding that lets the session run, though probably not as intended.

    The arguments are those of `error`.
    """
    return CheckFinding(Severity.WARNING, what, str(where), fix)


def info(what: str, where: object = "", fix: str = "") -> CheckFinding:
    """Return a finding for information only; the arguments are those of `error`."""
    return CheckFinding(Severity.INFO, what, str(where), fix)


@dataclass(frozen=True)
class CheckGroup:
    """Result of one group of checks.

    Attributes:
        title: Title of the group.
        looked_at: One-line summary of what was checked, or why it was skipped.
        findings: Findings of the group, in the order they were found.
        seconds: Duration, in seconds.
        skipped: Whether the group was skipped.
    """

    title: str
    looked_at: str
    findings: Sequence[CheckFinding]
    seconds: float
    skipped: bool = False

    def of(self, severity: Severity) -> list[CheckFinding]:
        """Return the group's findings of one severity."""
        return [finding for finding in self.findings if finding.severity is severity]


@dataclass(frozen=True)
class CheckReport:
    """Result of a session check.

    Attributes:
        session: Name of the session.
        groups: Groups of checks, in order.
    """

    session: str
    groups: Sequence[CheckGroup]

    def of(self, severity: Severity) -> list[CheckFinding]:
        """Return the findings of one severity from all groups, in order."""
        return [finding for group in self.groups for finding in group.of(severity)]

    @property
    def ok(self) -> bool:
        """Whether the check found no error."""
        return not self.of(Severity.ERROR)

    @property
    def seconds(self) -> float:
        """Duration of the check, in seconds."""
        return sum(group.seconds for group in self.groups)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "session": self.session,
            "ok": self.ok,
            "errors": len(self.of(Severity.ERROR)),
            "warnings": len(self.of(Severity.WARNING)),
            "seconds": round(self.seconds, 3),
            "groups": [asdict(group) for group in self.groups],
        }
