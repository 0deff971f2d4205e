"""What a check has found: values, which a program can read and a person as well."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticdl.errors import ElasticDLError


class Severity(StrEnum):
    """What a finding means for the session."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        severity: An error ends the session sooner or later; a warning lets it run, though
            probably not as it was meant.
        what: What it is, with its value, and what was expected.
        where: `file:line`, or what else names the place; empty if `what` does.
        fix: What to do.
    """

    severity: Severity
    what: str
    where: str = ""
    fix: str = ""

    def __str__(self) -> str:
        """Return it as a person reads it, without the severity."""
        place = f"{self.where}: " if self.where else ""
        lines = [f"{place}{self.what}", *([self.fix] if self.fix else [])]
        return "\n".join(lines).replace("\n", "\n  ")


def of_error(problem: ElasticDLError) -> Finding:
    """Return an error that was raised as a finding; what it says stays the same."""
    found = re.match(r"(\S+:\d+): (.*)", str(problem), re.DOTALL)
    return error(str(problem)) if found is None else error(found[2], found[1])


def error(what: str, where: object = "", fix: str = "") -> Finding:
    """Return a finding that will end the session."""
    return Finding(Severity.ERROR, what, str(where), fix)


def warning(what: str, where: object = "", fix: str = "") -> Finding:
    """Return a finding that lets the session run, though probably not as it was meant."""
    return Finding(Severity.WARNING, what, str(where), fix)


def info(what: str, where: object = "", fix: str = "") -> Finding:
    """Return a finding that is good to know."""
    return Finding(Severity.INFO, what, str(where), fix)


@dataclass(frozen=True)
class Group:
    """What was looked at together.

    Attributes:
        title: What it is called.
        looked_at: What there is, in a line; or why it was not looked at.
        findings: In the order they were found.
        seconds: How long it took.
        skipped: It was not looked at.
    """

    title: str
    looked_at: str
    findings: Sequence[Finding]
    seconds: float
    skipped: bool = False

    def of(self, severity: Severity) -> list[Finding]:
        """Return the findings of a severity."""
        return [finding for finding in self.findings if finding.severity is severity]


@dataclass(frozen=True)
class Report:
    """What a check came to.

    Attributes:
        session: Name of the session.
        groups: What was looked at, in order.
    """

    session: str
    groups: Sequence[Group]

    def of(self, severity: Severity) -> list[Finding]:
        """Return all findings of a severity, in order."""
        return [finding for group in self.groups for finding in group.of(severity)]

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.of(Severity.ERROR)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return sum(group.seconds for group in self.groups)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "session": self.session,
            "ok": self.ok,
            "errors": len(self.of(Severity.ERROR)),
            "warnings": len(self.of(Severity.WARNING)),
            "seconds": round(self.seconds, 3),
            "groups": [asdict(group) for group in self.groups],
        }
