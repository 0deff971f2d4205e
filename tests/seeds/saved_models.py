"""The scripts of the document on saved models: what they need corrected, and how they are run.

Its code is for Keras 2.2.4 and TensorFlow 2.1, which no Python of today runs: tf_keras stands for
them.

Callers: the tests of saved models beside this file.
"""

import ast
import re

import pytest

from elasticdl.config_file import read_config

DOCUMENT = "ibmfl-neural-network-models.md"
# (what stands there, what replaces it): Keras 2 is called tf_keras today.
_CORRECTIONS = [
    (r"^import keras$", "import tf_keras as keras"),
    (r"^from keras(\.\w+)? import", r"from tf_keras\1 import"),
    (r"^from tensorflow import keras$", "import tf_keras as keras"),
    (r"^from tensorflow\.keras(\.\w+)? import", r"from tf_keras\1 import"),
    (r"\btf\.keras\.", "tf_keras."),
]


def scripts(documents):
    """Return the code blocks that write a file: Keras 2.2.4, TensorFlow twice, PyTorch."""
    return [code for code in documents.blocks(DOCUMENT) if "def ge" in code]


def spec_of(code, folder, *, corrected=True):
    """Run a script and return the spec it returns."""
    if corrected:
        for wrong, right in _CORRECTIONS:
            code = re.sub(wrong, right, code, flags=re.MULTILINE)
    names = {"tf_keras": pytest.importorskip("tf_keras")}
    exec(code, names)
    function = next(value for name, value in names.items() if name.startswith(("gen", "get_")))
    return function(str(folder / "model"))


def shown_specs(documents):
    """Return the specs that are shown by themselves: one in two files, one with code."""
    code = documents.block(DOCUMENT, "'custom_objects'")
    return [ast.literal_eval(assigned.value) for assigned in ast.parse(code).body]


def section(documents, name):
    """Return the model section of a config that the document shows, without its spec."""
    code = documents.block(DOCUMENT, f"name: {name}")
    return read_config(code, DOCUMENT).model.to_dict()
