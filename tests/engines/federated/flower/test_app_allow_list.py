"""A party runs no app but ours, whichever way it comes."""

import io
import subprocess
import sys
import zipfile

import pytest

from elasticdl.engines.federated.flower import flower_app

LOCKED = "from elasticdl.engines.federated.flower import app_allow_list; app_allow_list.lock()\n"


def run(code, **variables):
    """Run code in a process of its own; returns what it printed, or fails."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_module_from_a_bundle_is_not_imported(tmp_path):
    (tmp_path / "evil.py").write_text("print('it ran')")

    printed = run(
        LOCKED + f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "try:\n    import evil\nexcept ImportError as error:\n    print(error)\n"
    )

    assert printed == "No module named 'evil'\n"


def test_a_module_of_a_bundle_does_not_shadow_an_installed_one(tmp_path):
    (tmp_path / "numpy.py").write_text("print('it ran')")

    printed = run(
        LOCKED + f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "import numpy\nprint(numpy.__name__, hasattr(numpy, 'ndarray'))"
    )

    assert printed == "numpy True\n"


def test_a_bundle_cannot_extend_a_namespace_package(tmp_path):
    installed, came = tmp_path / "installed", tmp_path / "came"
    for place, module in ((installed, "mine"), (came, "theirs")):
        (place / "space").mkdir(parents=True)
        (place / "space" / f"{module}.py").write_text(f"print('{module}')")

    printed = run(
        f"import sys\nsys.path.append({str(installed)!r})\n"
        + LOCKED
        + f"import space.mine\nsys.path.insert(0, {str(came)!r})\n"
        "try:\n    import space.theirs\nexcept ImportError as error:\n    print(error)\n"
    )

    assert printed == "mine\nNo module named 'space.theirs'\n"


def test_installed_modules_are_still_imported():
    assert run(LOCKED + "import json, numpy, xml.dom.minidom, zoneinfo; print(1)") == "1\n"


@pytest.fixture
def ours(tmp_path):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.write(flower_app.write(tmp_path) / "pyproject.toml", "pyproject.toml")
        archive.writestr(".info/CONTENT", "")
    return content.getvalue()


def opened(content):
    return run(
        LOCKED + "import io, zipfile\n"
        f"try:\n    print(zipfile.ZipFile(io.BytesIO({content!r}), 'r').namelist())\n"
        "except zipfile.BadZipFile as error:\n    print(error)"
    )


def test_our_app_can_be_unpacked(ours):
    assert opened(ours) == "['pyproject.toml', '.info/CONTENT']\n"


def test_another_app_is_refused_with_the_reason():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("evil.py", "")

    assert opened(content.getvalue()) == (
        "This party runs only the app elasticdl-federated 1.0.0, but received another one: "
        "it contains the files evil.py. Both sides need the same version of ElasticDL.\n"
    )
