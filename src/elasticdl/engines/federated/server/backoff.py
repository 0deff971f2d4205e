"""Backoff for silent parties: decides whether a round waits for a party's reply.

Flower notices a dead party only 38 to 60 s after its death (a party sends heartbeats every 17 to
23 s, and each is valid for 60 s). Until then each round would wait for the whole `max_timeout`. A
party that let a round time out therefore still receives the next requests, but the round does not
wait for it once enough other parties have replied. This lasts one round after the first silence,
two after the next, then four, at most eight. A reply of any kind ends it.

Callers: `client_registry.py`.
"""

from __future__ import annotations

_MAX_ROUNDS = 8


class Backoff:
    """Tells whether a round waits for a party that did not reply in time in an earlier round.

    Each further round without a reply makes the backoff longer.

    Example:
        >>> silences = Backoff()
        >>> silences.begin("north", 4)
        >>> [silences.is_over("north", number) for number in (5, 6)]
        [False, True]
    """

    def __init__(self) -> None:
        # Party -> number of silences in a row, and the first round that waits for it again.
        self._of: dict[str, tuple[int, int]] = {}

    def is_over(self, party: str, number: int) -> bool:
        """Return whether a party's backoff is over, so that a round waits for its reply.

        Args:
            party: Name of the party. One that always replied in time has no backoff.
            number: Number of the round.
        """
        _, again = self._of.get(party, (0, 0))
        return number >= again

    def begin(self, party: str, number: int) -> None:
        """Begin or prolong a party's backoff, because it did not reply in round `number`.

        Rounds do not wait for the party during the backoff. It lasts one round at first, and twice
        as long after each further round without a reply, up to eight rounds.
        """
        times = self._of.get(party, (0, 0))[0] + 1
        self._of[party] = times, number + 1 + min(2 ** (times - 1), _MAX_ROUNDS)

    def end(self, party: str) -> None:
        """End a party's backoff, because it has replied: rounds wait for it again."""
        self._of.pop(party, None)
