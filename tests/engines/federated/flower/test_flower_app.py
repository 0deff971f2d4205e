"""What is our app and what is not."""

import io
import zipfile

import pytest

from elasticdl.engines.federated.flower import flower_app


@pytest.fixture
def description(tmp_path):
    return (flower_app.write(tmp_path) / "pyproject.toml").read_text()


def bundle(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files:
            archive.writestr(name, text)
    return zipfile.ZipFile(content)


def test_our_app_is_recognized_in_any_packaging(description):
    reencoded = description.replace('name = "elasticdl', '\n# a comment\nname =   "elasticdl')

    for text in (description, reencoded):
        assert (
            flower_app.what_is_foreign(bundle([("pyproject.toml", text), (".info/CONTENT", "")]))
            is None
        )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda text: text.replace("client_app:app", "other:app"), "its pyproject.toml differs"),
        (lambda text: text.replace("1.0.0", "9.9.9"), "its version is '9.9.9'"),
        (lambda text: text.replace('name = "elasticdl-federated"', 'name = "x"'), "differs"),
        (
            lambda text: text + '\n[tool.flwr.app.config]\nx = "y"\n',
            "its pyproject.toml differs",
        ),
        (lambda text: text + "]", "cannot be read"),
        (lambda text: text + " " * 2**17, "too large"),
    ],
)
def test_a_changed_description_is_foreign(description, change, what):
    changed = bundle([("pyproject.toml", change(description)), (".info/CONTENT", "")])

    assert what.removeprefix("its pyproject.toml differs") in flower_app.what_is_foreign(changed)


@pytest.mark.parametrize(
    "more", [("evil.py", ""), ("pyproject.toml", ""), ("../pyproject.toml", ""), ("numpy/x.py", "")]
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_additional_file_is_foreign(description, more):
    files = bundle([("pyproject.toml", description), (".info/CONTENT", ""), more])

    assert "it contains the files" in flower_app.what_is_foreign(files)
