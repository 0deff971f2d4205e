"""Requests and answers over an exchange that hands out what the test says."""

import numpy as np
import pytest

from elasticdl.engines.federated.flower.client_daemon import answering
from elasticdl.engines.federated.flower.parties import FlowerParties
from elasticdl.engines.federated.flower.protocol_constants import UNANSWERED
from elasticdl.engines.federated.protocol.messages import Refusal, Reply, RoundRequest


class Exchange:
    """Asks functions."""

    def __init__(self, **parties):
        self.parties = parties
        self.asked = {}

    def here(self):
        return sorted(self.parties)

    def ask(self, requests, timeout_s, check):
        self.asked = requests
        for name, (arrays, facts) in requests.items():
            answer = self.parties[name](arrays, facts)
            if answer is not None:
                yield (name, *answer)


def trained(name):
    """Return a party that adds one."""

    def answer(request):
        weights = {key: array + 1 for key, array in request.weights.items()}
        return Reply(name, request.kind, request.history, request.round, weights, num_examples=3)

    return answering(name, answer)


WEIGHTS = {"dense/kernel": np.zeros((2, 2), np.float32)}
REQUEST = RoundRequest("train", "h", 4, WEIGHTS)


def ask(*names, **parties):
    return list(
        FlowerParties(Exchange(**parties)).ask(dict.fromkeys(names, REQUEST), 10, lambda: None)
    )


def test_a_request_reaches_a_party_and_is_answered():
    (reply,) = ask("north", north=trained("north"))

    assert (reply.party, reply.round, reply.num_examples) == ("north", 4, 3)
    np.testing.assert_array_equal(reply.weights["dense/kernel"], np.ones((2, 2), np.float32))


def test_silent_parties_give_no_answer():
    answers = ask("north", "south", north=trained("north"), south=lambda *_: None)

    assert [answer.party for answer in answers] == ["north"]


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (lambda *_: ({}, {UNANSWERED: "it is not running"}), "NoAnswer", "it is not running"),
        (lambda *_: ({}, {}), "MessageError", "version"),
        (lambda *_: ({}, {UNANSWERED: "x", "more": 1}), "MessageError", "version"),
        (trained("north"), "MessageError", "with the name"),
    ],
    ids=["unanswered", "nothing", "both", "another's name"],
)
def test_an_invalid_reply_counts_as_a_refusal(answer, kind, text):
    (refusal,) = ask("south", south=answer)

    assert isinstance(refusal, Refusal)
    assert (refusal.party, refusal.error_kind) == ("south", kind)
    assert (refusal.history, refusal.round) == ("h", 4)
    assert text in refusal.text


def test_a_request_of_another_version_is_refused_by_the_party():
    arrays, facts = REQUEST.to_message()

    _, answer = trained("north")(arrays, facts | {"version": 99})

    assert (answer["message"], answer["party"], answer["error_kind"]) == (
        "refusal",
        "north",
        "MessageError",
    )


def test_all_parties_get_the_same_array_objects():
    exchange = Exchange(north=trained("north"), south=trained("south"))
    list(FlowerParties(exchange).ask({"north": REQUEST, "south": REQUEST}, 10, lambda: None))

    (north, _), (south, _) = exchange.asked.values()
    assert north["weights/dense/kernel"] is south["weights/dense/kernel"]


def test_remote_parties_need_no_stored_state():
    parties = FlowerParties(Exchange())

    assert parties.state() == ({}, {})
    parties.load_state({}, {})
