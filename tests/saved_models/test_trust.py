"""Trust is for one file, said by a person, and told."""

import logging

import pytest

from elasticdl.errors import DefinitionError, ModelFileError
from elasticdl.saved_models import trust
from elasticdl.saved_models.file_format import identify, sha256_of
from elasticdl.saved_models.trust import Trust, TrustUsed

DIGEST = "a" * 64


def test_nothing_is_trusted_by_default() -> None:
    assert trust.of(None, "party.yml:3") == Trust()
    assert trust.of({}, "party.yml:3") == Trust()


def test_a_flag_and_a_digest_grant_trust() -> None:
    said = {"allow_pickle": True, "sha256": DIGEST.upper()}

    assert trust.of(said, "party.yml:3") == Trust(allow_pickle=True, sha256=DIGEST)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"allow_pickle": True}, "allow_pickle: true and no sha256"),
        ({"allow_lambda": True, "sha256": "abc"}, "sha256 is 'abc'"),
        ({"allow_lambda": True, "sha256": 12}, "sha256 is 12"),
        ({"allow_lambda": "true", "sha256": DIGEST}, "expected true or false"),
        ({"allow_lamda": True, "sha256": DIGEST}, "Did you mean allow_lambda?"),
        ({"everything": True}, "has no key 'everything'"),
    ],
)
def test_an_ambiguous_trust_setting_is_an_error(said, message) -> None:
    with pytest.raises(DefinitionError, match="^party.yml:3: ") as raised:
        trust.of(said, "party.yml:3")

    assert message in str(raised.value)


def test_a_use_of_trust_is_logged_and_returned(old_h5, caplog) -> None:
    digest = sha256_of(old_h5)
    caplog.set_level(logging.WARNING)

    used = trust.check(
        identify(old_h5), Trust(allow_lambda=True, sha256=digest), "allow_lambda", "it"
    )

    assert used == TrustUsed(str(old_h5), digest, "allow_lambda", "it")
    assert str(old_h5) in caplog.text
    assert digest in caplog.text


def test_a_use_of_trust_is_reported_once_and_returned_each_time(old_h5, caplog) -> None:
    allowed = Trust(allow_lambda=True, sha256=sha256_of(old_h5))
    caplog.set_level(logging.WARNING)

    used = [trust.check(identify(old_h5), allowed, "allow_lambda", "it runs") for _ in range(3)]
    trust.check(identify(old_h5), allowed, "allow_lambda", "something else")

    assert used[0] == used[1] == used[2]
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "it runs.",
        "something else.",
    ]


@pytest.mark.parametrize(
    "said",
    [
        Trust(),
        Trust(allow_pickle=True, sha256=DIGEST),
        Trust(allow_lambda=True, sha256=DIGEST),
        Trust(allow_lambda=True),
    ],
)
def test_untrusted_files_are_refused(old_h5, said, caplog) -> None:
    with pytest.raises(ModelFileError, match="allow_lambda|sha256"):
        trust.check(identify(old_h5), said, "allow_lambda", "it runs")

    assert caplog.text == ""
