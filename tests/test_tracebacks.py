"""What an exception of the user's says: their own lines, in words that a person can read."""

import json
from pathlib import Path

import pytest

import elasticdl
from elasticdl.tracebacks import is_of_the_user, plain, raised_at, users_traceback

NODE = (
    "{{function_node __wrapped__Reshape_device_/job:localhost/replica:0/task:0/device:CPU:0}} "
    "Input to reshape has 8 values, but the requested shape has 12 [Op:Reshape] name: "
)
COMPILED = """Graph execution error:

Detected at node Loss/GatherV2 defined at (most recent call last):
  File "/home/me/script.py", line 3, in <module>

  File "{package}/cli/main.py", line 9, in main

  File "/home/me/zoo/model.py", line 14, in loss

  File "/lib/site-packages/keras/src/losses.py", line 2359, in crossentropy

indices[1] = 7 is not in [0, 5)
\t [[{{{{node Loss/GatherV2}}}}]] [Op:__inference_drawing_405]"""
PIPELINE = """in user code:

    File "/home/me/zoo/model.py", line 12, in parse  *
        raise ValueError("bad")

    ValueError: bad
"""


def caught(function):
    try:
        function()
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return error
    raise AssertionError


def of(text):
    def fail():
        raise ValueError(text)

    return caught(fail)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NODE, "Input to reshape has 8 values, but the requested shape has 12"),
        (COMPILED.format(package="/elsewhere"), "indices[1] = 7 is not in [0, 5)"),
        (PIPELINE, "bad"),
        (
            (
                "{{node m/Reshape}} failed: shapes for '{{node m/Reshape}} = Reshape[T=DT_FLOAT]"
                "(features, m/stack)' with input shapes: [8,4]."
            ),
            "failed: shapes with input shapes: [8,4].",
        ),
        ("2 root error(s) found.\n  (0) INVALID_ARGUMENT:  bad\n  (1) INVALID_ARGUMENT: b", "bad"),
        (
            (
                "Graph execution error:\n\nDetected at node a defined at:\n<stack traces "
                "unavailable>\nx\n"
                "\t [[{{node a/b}}]]"
            ),
            "x",
        ),
    ],
)
def test_meaningless_tensorflow_messages_are_omitted(text, said):
    assert plain(text) == said
    assert users_traceback(of(text)).endswith(f"ValueError: {said}")


@pytest.mark.parametrize("text", ["no [[1 2] [3 4]]", "see (main.py:12)", "two\n\nparagraphs"])
def test_other_messages_are_kept(text):
    assert plain(text) == text


def test_a_compiled_step_error_has_the_line_that_made_the_operation():
    text = COMPILED.format(package=Path(elasticdl.__file__).parent)

    # The script that called us stands before.
    assert "script.py" not in users_traceback(of(text))
    assert raised_at(of(text), "otherwise") == "/home/me/zoo/model.py:14"


def test_the_users_innermost_line_is_shown_for_library_errors():
    error = caught(lambda: json.loads("{"))

    assert raised_at(error, "otherwise").endswith(f"test_tracebacks.py:{line_of('json.loads(')}")
    assert "decoder.py" not in users_traceback(error)


def test_without_a_user_line_the_function_is_named():
    assert raised_at(ValueError("never raised"), "model.py:4") == "model.py:4"


def line_of(text):
    lines = Path(__file__).read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


class Mute(Exception):  # noqa: N818 - a user's
    def __str__(self):
        raise ValueError


def test_an_exception_without_a_message_has_its_name():
    def fail():
        raise Mute

    error = caught(fail)

    assert "its __str__ raises" in plain(error)
    assert "Mute: " in users_traceback(error)
    assert "test_tracebacks.py:" in raised_at(error, "")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("mae", "KeyError: 'mae'"),
        ("Exception in M.call().\n\n\x1b[1mmae\x1b[0m", "KeyError: Exception in M.call().\nmae"),
        ("Exception in M.call().\nmae", "KeyError: Exception in M.call().\nmae"),
    ],
)
def test_a_key_error_with_lines_of_text_is_not_escaped(key, said):
    assert users_traceback(KeyError(key)) == said


def test_a_very_long_text_is_truncated():
    text = plain("x" * 1_000_000)

    assert text.endswith(" ... (980,000 more characters)")
    assert len(text) < 21_000


def test_packages_installed_into_a_folder_are_not_the_users(tmp_path, monkeypatch):
    (tmp_path / "tensorlib_cpu-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    assert not is_of_the_user(str(tmp_path / "tensorlib" / "core.py"))
    assert not is_of_the_user(str(tmp_path / "tensorlib.py"))
    assert is_of_the_user(str(tmp_path / "tensor" / "model.py"))
    assert is_of_the_user(str(tmp_path / "model.py"))
    # Cython names no folder.
    assert not is_of_the_user("h5py/h5f.pyx")
