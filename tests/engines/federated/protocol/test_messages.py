"""Requests and replies, as values and as what is sent."""

import dataclasses
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.engines.federated.protocol.messages import (
    VERSION,
    LocalTraining,
    Refusal,
    Reply,
    RoundRequest,
    architecture_of,
    digest_of,
    read_answer,
    read_request,
)
from elasticdl.errors import MessageError

WEIGHTS = {"dense/kernel": np.float32([[1, 2]]), "seed": np.array(3, np.int64)}
REQUEST = RoundRequest(
    "train",
    "h1",
    3,
    WEIGHTS,
    LocalTraining(num_epochs=2, minibatch_size=32, learning_rate=0.1, rank=1, proximal_mu=0.5),
)
REPLY = Reply(
    party="north",
    kind="train",
    history="h1",
    round=3,
    weights=WEIGHTS,
    num_examples=9,
    training_metrics={"loss": (np.float64([1]), np.float64([9])), "none/a": ()},
    evaluation_metrics={"loss": (np.float64([2]), np.float64([9]))},
    architecture=architecture_of(WEIGHTS),
    seconds=1.5,
)


def plain(value):
    """Return a value in which arrays can be compared."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.shape, value.tobytes()
    return value


def sent(message):
    """Return a message as it arrives: its facts have been JSON."""
    arrays, facts = message.to_message()
    return arrays, json.loads(json.dumps(facts, allow_nan=False))


def test_a_request_survives_a_round_trip():
    assert plain(read_request(*sent(REQUEST))) == plain(REQUEST)


def test_a_reply_survives_a_round_trip():
    assert plain(read_answer(*sent(REPLY))) == plain(REPLY)


def test_a_refusal_survives_a_round_trip():
    refusal = Refusal("north", "DataError", "no record", "h1", 3)

    assert read_answer(*sent(refusal)) == refusal


@given(st.text(max_size=50), st.text(max_size=50), st.integers(0, 2**60))
def test_names_of_every_kind_survive_a_round_trip(party, array, number):
    reply = Reply(party, "join", array, number, architecture={array: ("float32", (number,))})
    weights = {array: np.float32([1])}

    assert plain(read_answer(*sent(reply))) == plain(reply)
    if array:
        request = RoundRequest("train", "h", 1, weights)
        assert plain(read_request(*sent(request))) == plain(request)


def test_a_refusal_omits_quotations_of_its_error():
    refusal = Refusal.of("north", ValueError("bad row 'Ada' in /data/a.csv"), REQUEST)

    assert refusal == Refusal("north", "ValueError", "bad row <text> in <path>", "h1", 3)


def test_a_refusal_is_redacted_on_arrival_too():
    # A party of somebody else's making may not have done it.
    refusal = Refusal("north", "ValueError", "bad row 'Ada'", "h1", 3)

    assert read_answer(*sent(refusal)).text == "bad row <text>"


@pytest.mark.parametrize("message", [REQUEST, REPLY, Refusal("n", "E", "t", "h", 1)])
def test_an_unknown_field_is_refused_with_a_similar_one(message):
    arrays, facts = sent(message)
    read = read_request if message is REQUEST else read_answer

    with pytest.raises(MessageError, match="'histori' is unknown in a .*Did you mean history?"):
        read(arrays, {**facts, "histori": "h1"})


@pytest.mark.parametrize("message", [REQUEST, REPLY, Refusal("n", "E", "t", "h", 1)])
def test_a_missing_field_is_refused_with_its_name(message):
    arrays, facts = sent(message)
    read = read_request if message is REQUEST else read_answer

    for name in facts.keys() - {"version", "message"}:
        with pytest.raises(MessageError, match=f"The field {name} is missing in a "):
            read(arrays, {key: value for key, value in facts.items() if key != name})


def test_unknown_and_missing_options_are_refused():
    arrays, facts = sent(REQUEST)
    without = {name: value for name, value in facts["options"].items() if name != "rank"}

    with pytest.raises(MessageError, match="Did you mean num_epochs?"):
        read_request(arrays, {**facts, "options": {**facts["options"], "num_epoch": 1}})
    with pytest.raises(MessageError, match="The field rank is missing in a request's options"):
        read_request(arrays, {**facts, "options": without})


def test_another_version_is_refused_with_advice():
    arrays, facts = sent(REQUEST)

    with pytest.raises(MessageError, match=rf"version {VERSION + 1}; expected {VERSION}\. Install"):
        read_request(arrays, {**facts, "version": VERSION + 1})
    with pytest.raises(MessageError, match="version None"):
        read_answer({}, {})


def test_a_reply_is_not_a_request():
    with pytest.raises(MessageError, match="is a 'reply'; expected a request"):
        read_request(*sent(REPLY))
    with pytest.raises(MessageError, match="is a 'request'; expected a reply"):
        read_answer(*sent(REQUEST))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "destroy"),
        ("history", 3),
        ("history", "h" * 201),
        ("round", -1),
        ("round", True),
        ("round", 1.0),
        ("num_examples", "9"),
        ("num_examples", True),
        ("seconds", float("nan")),
        ("seconds", -1),
        ("metrics_stay_home", 1),
        ("training_metrics", {"loss": -1}),
        ("training_metrics", ["loss"]),
        ("architecture", {"w": ["float32"]}),
        ("architecture", {"w": ["float32", [-1]]}),
        ("architecture", {"w": [3, [1]]}),
    ],
)
def test_a_field_with_an_invalid_value_is_refused(field, value):
    arrays, facts = sent(REPLY)

    with pytest.raises(MessageError, match=f"The field {field} of a reply has an invalid"):
        read_answer(arrays, {**facts, field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_epochs", -1),
        ("minibatch_size", 0),
        ("learning_rate", float("inf")),
        ("proximal_mu", -0.1),
        ("proximal_mu", "0.1"),
        ("seed", 1.5),
        ("sends_gradients", "yes"),
    ],
)
def test_an_option_with_an_invalid_value_is_refused(field, value):
    arrays, facts = sent(REQUEST)

    with pytest.raises(MessageError, match=f"The field {field} of a request's options has an inv"):
        read_request(arrays, {**facts, "options": {**facts["options"], field: value}})


def test_unannounced_and_missing_arrays_are_refused():
    arrays, facts = sent(REPLY)
    without = {n: a for n, a in arrays.items() if n != "training_metrics/loss/1"}

    with pytest.raises(MessageError, match="'evil' is not listed"):
        read_answer({**arrays, "evil": np.ones(1)}, facts)
    with pytest.raises(MessageError, match="'training_metrics/loss/2' is not listed"):
        read_answer({**arrays, "training_metrics/loss/2": np.ones(1)}, facts)
    with pytest.raises(
        MessageError, match="'training_metrics/loss/1' is listed in its message but missing"
    ):
        read_answer(without, facts)
    with pytest.raises(MessageError, match="The message has 2 arrays of weights; expected 3"):
        read_answer(arrays, {**facts, "num_arrays": 3})


def test_a_count_of_missing_arrays_allocates_no_memory():
    arrays, facts = sent(REPLY)
    tracemalloc.start()
    try:
        with pytest.raises(MessageError, match="is listed in its message but missing"):
            read_answer(arrays, {**facts, "training_metrics": {"loss": 10**5}})
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most_bytes < 10**6


def test_a_refusal_has_no_arrays():
    _, facts = sent(Refusal("n", "E", "t", "h", 1))

    with pytest.raises(MessageError, match="The message has 1 arrays of weights; expected 0"):
        read_answer({"weights/w": np.ones(1)}, facts)


def test_an_invalid_array_is_refused():
    arrays, facts = sent(REQUEST)

    with pytest.raises(MessageError, match="'weights/seed' is a list; expected an array"):
        read_request({**arrays, "weights/seed": [3]}, facts)


def test_a_digest_depends_on_names_shapes_and_values_but_not_order():
    one, two = np.float32([[1, 2], [3, 4]]), np.float32([[1, 3], [2, 4]])
    digest = digest_of({"a": one, "b": one})

    assert digest_of({"b": one, "a": np.asfortranarray(one)}) == digest
    others = [
        {"a": one, "c": one},
        {"a": one, "b": two},
        {"a": one, "b": one.reshape(4)},
        {"a": one, "b": one.view(np.int32)},
        {"a": one},
    ]
    assert len({digest, *map(digest_of, others)}) == 6


def changed_reply(**facts):
    arrays, sent_facts = REPLY.to_message()
    return read_answer(arrays, {**sent_facts, **facts})


@pytest.mark.parametrize(
    "example",
    [
        {"features": {"dtype": "float32", "shape": [10**12]}, "labels": None},
        {"features": {"dtype": "float32", "shape": [10**400]}, "labels": None},
        {"features": {"dtype": "no such", "shape": [1]}, "labels": None},
        {"features": {"dtype": "float32", "shape": [1]}},
        {"features": {"dict": []}, "labels": None},
        {"features": {"set": [None]}, "labels": None},
    ],
)
def test_an_invalid_example_is_refused(example):
    with pytest.raises(MessageError, match="example"):
        changed_reply(example=example)


@pytest.mark.parametrize(
    "facts",
    [
        {"seconds": 10**400},
        {"training_metrics": {f"m{number}": 0 for number in range(1001)}},
        {"training_metrics": {"\x1b[2J": 0}},
    ],
    ids=["400 digits", "too many metrics", "escape"],
)
def test_a_malicious_reply_is_refused(facts):
    with pytest.raises(MessageError, match="has an invalid value"):
        changed_reply(**facts)


def test_control_characters_in_an_error_kind_are_escaped():
    _, facts = Refusal("n", "E", "t", "h", 1).to_message()
    with pytest.raises(MessageError, match="error_kind"):
        read_answer({}, {**facts, "error_kind": "\x1b[2J"})
