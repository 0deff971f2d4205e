"""Who was silent is waited for less and less often, until it answers."""

from __future__ import annotations

from elasticdl.engines.federated.server.backoff import Backoff


def waited_for(silences, rounds):
    """Return the rounds that wait for a party which never answers."""
    found = []
    for number in rounds:
        if silences.is_over("a", number):
            found.append(number)
            silences.begin("a", number)
    return found


def test_a_silent_party_is_awaited_ever_less_often():
    assert waited_for(Backoff(), range(1, 40)) == [1, 3, 6, 11, 20, 29, 38]


def test_an_answer_resets_the_backoff():
    silences = Backoff()
    silences.begin("a", 1)
    silences.begin("a", 3)

    silences.end("a")

    assert silences.is_over("a", 4)
    silences.begin("a", 4)
    assert [silences.is_over("a", number) for number in (5, 6)] == [False, True]


def test_other_parties_are_not_affected():
    silences = Backoff()
    silences.begin("a", 1)

    assert silences.is_over("b", 2)
