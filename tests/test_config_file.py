"""A config file of a person's: values as attributes, and errors that know file and line."""

import copy
import pickle

import pytest

from elasticdl.config_file import ConfigStruct, read_config
from elasticdl.errors import DefinitionError

TEXT = """\
batch_size: 8  # required
data_loader_class: dataset.DataLoaderTF

data_loader:
  shuffle: True
  folders: [train, more]
export:
  metric: "val_loss"
  best: {mode: min}
"""


@pytest.fixture
def config():
    return read_config(TEXT, "runs/first/config.yaml", optional=["seed", "batch_size"])


def test_values_are_attributes_and_sections_are_nested(config):
    assert config.batch_size == 8
    assert config.data_loader.shuffle is True
    assert config.data_loader.folders == ["train", "more"]
    assert config.export.best.mode == "min"


def test_a_missing_optional_key_is_none(config):
    assert config.seed is None
    assert "seed" not in config


def test_a_missing_key_is_reported_with_its_place_and_a_similar_name(config):
    with pytest.raises(DefinitionError) as raised:
        _ = config.data_loader.shufle

    assert str(raised.value) == (
        "runs/first/config.yaml:4: data_loader has no key 'shufle'. "
        "Did you mean shuffle (runs/first/config.yaml:5)?"
    )


def test_a_missing_key_without_similar_names_lists_existing_ones(config):
    with pytest.raises(AttributeError, match=r"^runs/first/config.yaml: the config has no key 'x'"):
        _ = config.x
    with pytest.raises(AttributeError, match="It has metric, best. Add it."):
        _ = config.export.folder
    assert not hasattr(config, "x")
    assert getattr(config, "x", 3) == 3


def test_keys_have_their_lines(config):
    assert config.where("batch_size") == "runs/first/config.yaml:1"
    assert config.export.best.where("mode") == "runs/first/config.yaml:9"
    assert config.export.where() == "runs/first/config.yaml:7"


def test_a_config_converts_to_plain_values(config):
    assert config.flat() == {
        "batch_size": 8,
        "data_loader_class": "dataset.DataLoaderTF",
        "data_loader.shuffle": True,
        "data_loader.folders": ["train", "more"],
        "export.metric": "val_loss",
        "export.best.mode": "min",
    }
    assert ConfigStruct(config.to_dict()) == config
    assert vars(config).keys() == set(config) == config.to_dict().keys()


def test_values_can_be_set_in_a_notebook(config):
    config.data_loader.shuffle = False
    config.more = 1

    assert not config.data_loader.shuffle
    assert config.get("more") == 1
    assert config.get("less", 2) == 2


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copied_config_keeps_its_lines(config, again):
    there = again(config)

    assert there == config
    assert there.seed is None
    assert there.export.where("metric") == "runs/first/config.yaml:8"


def test_sections_can_share_yaml_anchors():
    config = read_config(
        "small: &small {units: 8, rate: 0.1}\nbig:\n  <<: *small\n  units: 512\n", "c.yaml"
    )

    assert config.big.to_dict() == {"units": 512, "rate": 0.1}
    assert config.big.where("units") == "c.yaml:4"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "c.yaml is empty"),
        ("# nothing\n", "c.yaml is empty"),
        ("- `batch_size`: 8", "c.yaml:1: this is not YAML"),
        ("- batch_size: 8\n- epochs: 1", "c.yaml:1: this is a list, not `key: value` lines"),
        ("batch_size", "c.yaml:1: this is a single value"),
        ("a: 1\nb: [1", "c.yaml:2: this is not YAML"),
        ("a: 1\nb:\n  c: 1\n  c: 2", "c.yaml:4: the key 'c' is given twice, first on line 3"),
        ("a:\n  1: one", "c.yaml:2: the key '1' is not a name"),
        ("a: !!python/object/apply:os.getcwd []", "c.yaml:1: this is not YAML"),
    ],
)
def test_an_invalid_config_is_reported_with_its_line(text, said):
    with pytest.raises(DefinitionError) as raised:
        read_config(text, "c.yaml")

    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    "text",
    ["a: *secret", "a: !secret 1", "a: !!secret x", "a: [secret", "%secret", "secret\0", "\x01"],
)
def test_errors_never_show_the_content_of_other_files(text):
    with pytest.raises(DefinitionError, match=r"^key\.pem\S*: this is not YAML") as raised:
        read_config(text, "key.pem")

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "where"), [("a: 1\nflat: 2", "f:2: flat"), ("a:\n  get: 2", "f:2: a.get")]
)
def test_a_key_named_like_a_method_is_refused_with_its_line(text, where):
    with pytest.raises(DefinitionError, match=f"^{where} cannot be read"):
        read_config(text, "f")


def test_aliases_of_aliases_are_refused_before_they_are_expanded():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 11)]

    with pytest.raises(DefinitionError, match=r"spec.yml:6: .* more than 100,000 values"):
        read_config("\n".join(levels), "spec.yml")


def test_merged_sections_count_towards_limits():
    levels = ["a0: &a0 {x: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}"]
    levels += [
        f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}" for i in range(1, 9)
    ]
    levels.append("all: {<<: *a8}")

    with pytest.raises(DefinitionError, match="more than 100,000 values"):
        read_config("\n".join(levels), "spec.yml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("a: &a [*a]", "contains itself"), ("a: " + "[" * 3000 + "]" * 3000, "nested too deeply")],
)
def test_recursive_and_deeply_nested_values_are_refused(text, problem):
    with pytest.raises(DefinitionError, match=problem):
        read_config(text, "spec.yml")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("9" * 200_000, "a number of 200,000 characters"),
        (":".join(["59"] * 100_000), "a number of 299,999 characters"),
        ("0x" + "f" * 300_000, "a number of 300,002 characters"),
        ("2001-99-99", "not a valid date"),
        ("2001-01-01 00:00:00 +99:99", "not a valid date"),
        ("!!int some", "not a valid whole number"),
        ("!!float some", "not a valid number"),
        ("!!bool some", "not a valid boolean"),
        ("!!timestamp some", "not a valid date"),
        ("0x_", "not a valid whole number"),
        ("[1, 2, 2001-99-99]", "not a valid date"),
        ("{inner: 0b_}", "not a valid whole number"),
    ],
)
def test_an_invalid_value_is_reported_with_its_line_only(value, problem):
    with pytest.raises(DefinitionError) as raised:
        read_config(f"a: 1\nb: {value}", "c.yaml")

    message = str(raised.value)
    assert message.startswith(f"c.yaml:2: this value is {problem}"), message[:200]
    assert "some" not in message
    assert len(message) < 200


def test_lines_of_other_files_are_not_shown_in_errors():
    with pytest.raises(DefinitionError, match="f:1: the key on this line is not a name") as raised:
        read_config("root:*:20228:0:99999:7:::\ndaemon:*:20228:0:99999:7:::", "f")

    assert "20228" not in str(raised.value)
