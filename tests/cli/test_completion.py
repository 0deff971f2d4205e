"""Completion in the shells for which `docs/start/first-steps.md` has a line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from elasticdl.cli.main import cli


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell) -> None:
    result = CliRunner().invoke(
        cli, prog_name="elasticdl", env={"_ELASTICDL_COMPLETE": f"{shell}_source"}
    )

    assert result.exit_code == 0
    assert f"{shell}_complete" in result.output


def test_commands_and_options_are_completed_in_bash() -> None:
    def completed(words: str, number: int) -> list[str]:
        environment = {
            "_ELASTICDL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)
        }  # fmt: skip
        return CliRunner().invoke(cli, prog_name="elasticdl", env=environment).output.split()

    assert completed("elasticdl tra", 1) == ["plain,train"]
    assert completed("elasticdl train --num_ep", 2) == ["plain,--num_epochs"]
    assert completed("elasticdl train --best_mode m", 3) == ["plain,min", "plain,max"]
