"""Facts about data passed in memory, such as a DataFrame: the number of rows, and the columns.

If a job is started again with other data, these facts let the error message say how the data
differ. The data themselves are stored in a file that is named by a hash and removed when the job is
finished. The facts stay in the output, in one small file: name of the data's file -> the facts.
They serve messages only, so a missing or damaged file with facts is no error: the messages then do
not describe the difference.

Callers: `engines/stored_data.py` writes them, `claim.py` compares them.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from elasticdl.data.wording import listed
from elasticdl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from elasticdl.artifacts.folder import OutputFolder

FACTS_FILE = ".in_memory_data.json"
_MAX_NAMED = 3


@dataclass(frozen=True)
class InMemoryFacts:
    """Number of rows and columns of data passed in memory, such as a DataFrame.

    Attributes:
        num_rows: Number of rows.
        columns: Name -> type, such as `int64`, in order.
    """

    num_rows: int
    columns: Mapping[str, str]


def add_facts(folder: OutputFolder, new: Mapping[str, InMemoryFacts]) -> set[str]:
    """Record the rows and columns of data passed in memory in a job's output, for later messages.

    Facts that the output already has about other data are kept.

    Args:
        folder: The output.
        new: URI of a file in which such data are stored -> the facts about them.

    Returns:
        The URIs whose facts were not there before, so that the caller can remove these again if the
        job is refused.

    Raises:
        OutputError: The file cannot be written.
    """
    known = _read(folder)
    added = {uri for uri in new if _key(uri) not in known}
    if added:
        _write(folder, known | {_key(uri): asdict(facts) for uri, facts in new.items()})
    return added


def remove_facts(folder: OutputFolder, uris: Collection[str]) -> None:
    """Remove what `add_facts` recorded about some stored data, and the file if it is then empty.

    Raises:
        OutputError: The file cannot be written or removed.
    """
    gone = {_key(uri) for uri in uris}
    left = {key: facts for key, facts in _read(folder).items() if key not in gone}
    if left:
        _write(folder, left)
    else:
        folder.delete(FACTS_FILE)


def difference_of(folder: OutputFolder, before: str, now: str) -> str:
    """Describe how the data of a repeated call differs from the data that the job began with.

    Args:
        folder: The output of the job, which has the facts about both data sets.
        before: URI of the file with the data that the job began with.
        now: URI of the file with the data of the repeated call.

    Returns:
        Phrases such as "it has a new column 'p'; 500 rows instead of 1,000". Empty if the facts are
        equal, so that only values in the data differ, or if the facts are unknown.
    """
    known = _read(folder)
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        return difference(InMemoryFacts(**known[_key(before)]), InMemoryFacts(**known[_key(now)]))
    return ""


def difference(before: InMemoryFacts, now: InMemoryFacts) -> str:
    """Describe how columns or the number of rows differ, as phrases for an error message.

    Example:
        >>> difference(
        ...     InMemoryFacts(1000, {"a": "int64"}),
        ...     InMemoryFacts(500, {"a": "float64", "p": "text"}),
        ... )
        "it has a new column 'p'; 'a' is float64 instead of int64; 500 rows instead of 1,000"
    """
    phrases = []
    if new := [name for name in now.columns if name not in before.columns]:
        phrases.append(f"it has {'a new column' if len(new) == 1 else 'new columns'} {_some(new)}")
    if gone := [name for name in before.columns if name not in now.columns]:
        phrases.append(f"it lacks the column{'s' * (len(gone) > 1)} {_some(gone)}")
    if not new and not gone and list(now.columns) != list(before.columns):
        phrases.append("its columns have another order")
    others = [
        f"{name!r} is {now.columns[name]} instead of {type_}"
        for name, type_ in before.columns.items()
        if now.columns.get(name, type_) != type_
    ]
    phrases += others[:_MAX_NAMED] + ["..."] * (len(others) > _MAX_NAMED)
    if now.num_rows != before.num_rows:
        phrases.append(f"{now.num_rows:,} rows instead of {before.num_rows:,}")
    return "; ".join(phrases)


def _some(names: list[str]) -> str:
    return listed(names[:_MAX_NAMED]) + ", ..." * (len(names) > _MAX_NAMED)


def _key(uri: str) -> str:
    return uri.rpartition("/")[2]


def _read(folder: OutputFolder) -> dict[str, Any]:
    found: Any = {}
    with contextlib.suppress(OutputError, ValueError):
        if folder.exists(FACTS_FILE):
            found = json.loads(folder.read_bytes(FACTS_FILE))
    return found if isinstance(found, dict) else {}


def _write(folder: OutputFolder, facts: Mapping[str, Any]) -> None:
    folder.write_bytes(FACTS_FILE, json.dumps(facts).encode())
