"""Which parties a round need not wait for, because they were silent before.

A party that has died is noticed by Flower after a minute, and each round until then would last
`max_timeout` for nothing. So a party that let a round wait in vain is asked in the next ones as
well, but not waited for, when the others are as many as a round needs: one round after its first
silence, two after the next, then four, at most eight. An answer of any kind ends it.

Callers: `aggregator.py`.
"""

from __future__ import annotations

_MOST_ROUNDS = 8


class Silences:
    """See the module.

    Example:
        >>> silences = Silences()
        >>> silences.begin("north", 4)
        >>> [silences.is_over("north", number) for number in (5, 6)]
        [False, True]
    """

    def __init__(self) -> None:
        # Party -> how often it was silent in a row, and the round it is waited for again.
        self._of: dict[str, tuple[int, int]] = {}

    def is_over(self, party: str, number: int) -> bool:
        """Return whether a round waits for a party."""
        _, again = self._of.get(party, (0, 0))
        return number >= again

    def begin(self, party: str, number: int) -> None:
        """Note that a round waited for a party in vain."""
        times = self._of.get(party, (0, 0))[0] + 1
        self._of[party] = times, number + 1 + min(2 ** (times - 1), _MOST_ROUNDS)

    def end(self, party: str) -> None:
        """Note that a party has answered."""
        self._of.pop(party, None)
