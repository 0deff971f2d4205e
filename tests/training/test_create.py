"""The definition says which trainer it gets, and a framework that is missing says how to get it."""

import dataclasses
import sys

import pytest
from tests.training.torch.conftest import batch_of, definition_of

from elasticdl.errors import DefinitionError, MissingExtraError
from elasticdl.training.create import create_trainer


def test_a_torch_definition_gets_the_torch_trainer():
    from elasticdl.training.torch import TorchTrainer

    trainer = create_trainer(definition_of(), batch_of(8), minibatch_size=8, seed=1, rank=2)

    assert isinstance(trainer, TorchTrainer)
    assert trainer.rank == 2


def test_a_framework_without_a_trainer_is_refused():
    definition = dataclasses.replace(definition_of(), framework="abacus")

    with pytest.raises(DefinitionError, match="no trainer for 'abacus'; expected keras or torch"):
        create_trainer(definition, batch_of(8), minibatch_size=8, seed=1)


def test_a_missing_torch_is_reported_with_its_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("elasticdl.training.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(MissingExtraError, match=r"needs the package 'torch'.*elasticdl\[torch\]"):
        create_trainer(definition_of(), batch_of(8), minibatch_size=8, seed=1)


def test_keras_on_another_framework_is_refused_by_name(run_python):
    printed = run_python(
        "import os\n"
        "os.environ['KERAS_BACKEND'] = 'torch'\n"
        "import keras\n"
        "from tests.training.torch.conftest import batch_of, definition_of\n"
        "from elasticdl.errors import DefinitionError\n"
        "from elasticdl.training.create import create_trainer\n"
        "import dataclasses\n"
        "definition = dataclasses.replace(definition_of(keras.Sequential), framework='keras')\n"
        "try:\n"
        "    create_trainer(definition, batch_of(8), minibatch_size=8, seed=1)\n"
        "except DefinitionError as error:\n"
        "    print(error)\n"
    )

    assert "model.py:1: Keras runs on torch here (KERAS_BACKEND" in printed.stdout
    assert "Set KERAS_BACKEND=tensorflow" in printed.stdout


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "None 10000"),
        ("os.environ['GOMP_SPINCOUNT'] = '5'", "5 5"),
        ("os.environ['OMP_WAIT_POLICY'] = 'ACTIVE'", "None None"),
    ],
)
def test_threads_on_shared_cores_spin_briefly_by_default(run_python, given, expected):
    printed = run_python(
        "import os, sys\n"
        "for name in ('GOMP_SPINCOUNT', 'OMP_WAIT_POLICY'): os.environ.pop(name, None)\n"
        f"{given}\n"
        "from elasticdl.training.create import limit_threads, quiet_frameworks\n"
        "quiet_frameworks()\n"
        "alone = os.environ.get('GOMP_SPINCOUNT')\n"
        "limit_threads(1)\n"
        "print(alone, os.environ.get('GOMP_SPINCOUNT'))"
    )

    assert printed.stdout.strip() == expected


def test_a_pytorch_model_does_not_wait_for_tensorflow(run_python):
    printed = run_python(
        "import sys\n"
        "from elasticdl.training.create import quiet_frameworks\n"
        "quiet_frameworks()\n"
        "import torch\n"
        "print({'keras', 'tensorflow'} & set(sys.modules))"
    )

    assert printed.stdout.strip() == "set()"


def test_output_of_tensorflow_while_importing_is_hidden(run_python, tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        "import os\nos.write(2, b'E0000 Unable to register a factory')\nname = 'ours'\n"
    )

    printed = run_python(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from elasticdl.training.create import quiet_frameworks\n"
        "quiet_frameworks(); quiet_frameworks()\n"
        "import tensorflow\n"
        "print(tensorflow.name, tensorflow.__file__)\n"
        "print('heard', file=sys.stderr)"
    )

    assert printed.stdout.split() == ["ours", str(tmp_path / "tensorflow.py")]
    assert printed.stderr.strip() == "heard"


def test_python_output_is_kept_while_importing_tensorflow(run_python) -> None:
    done = run_python(
        "import os, sys\n"
        "from elasticdl.training.create import _no_stderr\n"
        "with _no_stderr():\n"
        "    os.write(2, b'native\\n')\n"
        "    print('Job page: URL', file=sys.stderr)\n"
        "print('later', file=sys.stderr)\n"
    )

    assert done.stderr.splitlines() == ["Job page: URL", "later"]
