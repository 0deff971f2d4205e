"""`elasticdl`: the top-level command group, its help and its exit codes.

Commands are imported when they are called, so that `--help` is fast. An `ElasticDLError` is printed
as one message and becomes its exit code; a traceback is printed only with `--debug`.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import signal
import sys
import traceback
import warnings
from typing import Any, NoReturn

import click

from elasticdl import __version__
from elasticdl.cli.printable import printable
from elasticdl.did_you_mean import nearest
from elasticdl.errors import (
    DEBUG,
    ElasticDLError,
    TrainingError,
    ended_by_user,
    missing_framework,
)
from elasticdl.gc_tuning import collect_seldom
from elasticdl.termination import EXIT_CODE as TERMINATED
from elasticdl.termination import TerminatedError, signal_again, terminate

# command -> (module, attribute, one line for the overview)
_COMMANDS = {
    "train": ("elasticdl.cli.train", "train", "Train a model, or resume training."),
    "evaluate": ("elasticdl.cli.evaluate", "evaluate", "Evaluate a trained model on records."),
    "predict": ("elasticdl.cli.predict", "predict", "Write a trained model's predictions."),
    "data": ("elasticdl.cli.data", "data", "Create, prepare and show record files."),
    "sql": ("elasticdl.cli.sql", "sql", "Train and predict with SQL statements."),
    "sql-server": ("elasticdl.cli.sql_server", "sql_server", "Serve SQL statements over gRPC."),
    "session": ("elasticdl.cli.session", "session", "Train what a project's config describes."),
    "federated": ("elasticdl.cli.federated", "group", "Train with parties that keep their data."),
    "cluster": ("elasticdl.cli.cluster", "cluster", "Prepare a Kubernetes cluster for jobs."),
    "job": ("elasticdl.cli.job", "job", "Inspect, follow and stop jobs."),
    "zoo": ("elasticdl.cli.zoo", "zoo", "Prebuilt models, and a template for your own."),
    "doctor": ("elasticdl.cli.doctor", "doctor", "Show versions, devices and limits, with hints."),
}
_INTERRUPTED = 130


class _Commands(click.Group):
    """A command group that imports each command only when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            near = nearest(args[0], _COMMANDS)
            hint = f" Did you mean {near!r}?" if near else f" There are: {', '.join(_COMMANDS)}."
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in _COMMANDS.items()])


@click.group(cls=_Commands, invoke_without_command=True)
@click.version_option(__version__, prog_name="elasticdl")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:  # noqa: ARG001 - `main` reads it
    """Train a model, unchanged, on any machines and data.

    \b
    A first training, in an empty folder:
      elasticdl data sample digits --output data
      elasticdl train --model_def=mnist --data="data/train/*.recordio" \\
          --validation_data="data/test/*.recordio" --num_epochs=3 --output=my_model
      elasticdl predict --trained_model=my_model --data="data/test/*.recordio" --output=predicted/

    \b
    Your own model:
      elasticdl zoo init my_zoo        writes a model file to start from
      elasticdl train --model_zoo=my_zoo --model_def=my_model ...

    Every command has its own --help.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line, print its error if it fails, and exit with its exit code.

    Args:
        arguments: The arguments after `elasticdl`. None: those of this process.
    """
    args = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in args
    args = [argument for argument in args if argument != "--debug"]
    signal.signal(signal.SIGTERM, terminate)
    collect_seldom()
    given = os.environ.get(DEBUG)
    if debug:
        os.environ[DEBUG] = "1"
    shown, warnings.showwarning = warnings.showwarning, _Warnings().show
    unraisable, sys.unraisablehook = sys.unraisablehook, _signal_again
    try:
        code = _run(args, debug=debug)
    except KeyboardInterrupt:
        # A second Ctrl-C while the first one was being handled.
        code = _INTERRUPTED
    finally:
        warnings.showwarning = shown
        sys.unraisablehook = unraisable
        if debug and given is None:
            del os.environ[DEBUG]
    sys.exit(code)


def _run(args: list[str], *, debug: bool) -> int:
    try:
        result: Any = cli.main(args=args, prog_name="elasticdl", standalone_mode=False)
    except BaseException as error:
        code = _answer(error, debug=debug)
        if code is None:
            raise
        return code
    return result if isinstance(result, int) else 0


def _answer(error: BaseException, *, debug: bool) -> int | None:  # noqa: C901, PLR0911 - one a kind
    """Print the error that ended a command; return the exit code.

    Returns None for an exception such as `SystemExit` that does not come from the user's code; the
    caller raises it again.
    """
    match error:
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.ctx.get_help())
            return 2
        case click.ClickException():
            shown = io.StringIO()
            _with_hint(_all_missing(error)).show(file=shown)
            click.echo(printable(shown.getvalue()), nl=False, err=True)
            return error.exit_code
        case click.Abort() | KeyboardInterrupt():
            click.echo(f"\nInterrupted.{_what_is_kept(error)}", err=True)
            return _INTERRUPTED
        case TerminatedError():
            click.echo(f"Terminated.{_what_is_kept(error)}", err=True)
            return TERMINATED
        case BrokenPipeError():
            # `elasticdl data show ... | head`: the reader has closed the pipe.
            sys.stdout = None
            return 0
    if debug:
        traceback.print_exception(error)
    error = missing_framework(error, "This command") or error
    match error:
        case ElasticDLError():
            _complain("error", str(error))
            return error.exit_code
        case MemoryError():
            found = f": {error}" if str(error) else ""
            _complain(
                "error",
                f"There is not enough memory{found}. Use a machine with more memory, or smaller "
                "records or minibatches.",
            )
            return TrainingError.exit_code
        case Exception():
            _complain(
                "internal error",
                f"{type(error).__name__}: {error}\n"
                "  This is a bug in ElasticDL. Run with --debug for the traceback.",
            )
            return 1
    # sys.exit() and the like in a user function, which `except Exception` does not catch.
    of_user = ended_by_user(error)
    if of_user is None:
        return None
    _complain("error", str(of_user))
    return of_user.exit_code


def _what_is_kept(error: BaseException) -> str:
    """Return the notes of the exception that ended a run; they say what the run has saved.

    Args:
        error: The exception, to which the run may have added notes with `add_note`. The result is
            empty if it has none.
    """
    # click converts a KeyboardInterrupt into its own exception.
    notes = [
        note
        for each in (error, error.__cause__)
        if each is not None
        for note in getattr(each, "__notes__", ())
    ]
    return "".join(f" {printable(note)}" for note in notes)


def _complain(what: str, text: str) -> None:
    click.secho(f"{what}: ", fg="red", bold=True, nl=False, err=True)
    click.echo(printable(text), err=True)


def _all_missing(error: click.ClickException) -> click.ClickException:
    """Replace click's error about one missing option by an error that names all missing ones.

    Other errors are returned unchanged.
    """
    if not isinstance(error, click.MissingParameter) or error.ctx is None:
        return error
    # Options that were set are parsed first.
    missing = [
        each
        for each in error.ctx.command.params
        if each.required and error.ctx.params.get(each.name or "") is None
    ]
    if len(missing) < 2:  # noqa: PLR2004 - several
        return error
    names = ", ".join(each.get_error_hint(error.ctx) for each in missing)
    return click.UsageError(f"Missing: {names}.", error.ctx)


def _with_hint(error: click.ClickException) -> click.ClickException:
    """Extend an error about an unknown option with the ElasticDL option for the same purpose.

    Without such an option, similar names are suggested. Other errors are returned unchanged.
    """
    if not isinstance(error, click.NoSuchOption):
        return error
    from elasticdl.option_hints import hint  # noqa: PLC0415 - only for an error

    underscored = error.option_name.replace("-", "_").replace("__", "--", 1)
    if underscored in (error.possibilities or ()):
        found: str | None = f"Use {underscored}."
    else:
        found = hint(error.option_name.lstrip("-"))
    known = error.ctx.command.params if error.ctx is not None else ()
    has = {name for parameter in known for name in parameter.opts}
    # `evaluate` has fewer options than `train`.
    if found is None or not has.issuperset(re.findall(r"--\w+", found)):
        near = [each for each in error.possibilities or () if each != "--help"]
        if not near:
            return click.UsageError(f"There is no option {error.option_name}.", error.ctx)
        best = nearest(error.option_name, near)
        found = f"Did you mean {best or ' or '.join(near)}?"
    return click.UsageError(f"There is no option {error.option_name}. {found}", error.ctx)


class _Warnings:
    """Prints each warning once, because a command creates and compiles models several times."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def show(  # noqa: PLR0917 - as `warnings.showwarning`
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        """Print a warning and its origin; replaces `warnings.showwarning`."""
        del category, line
        text = " ".join(str(message).split())
        if text in self._shown:
            return
        self._shown.add(text)
        click.secho("warning: ", fg="yellow", bold=True, nl=False, err=True, file=file)
        click.echo(f"{printable(text)}\n  {filename}:{lineno}", err=True, file=file)


def _signal_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Hook for `sys.unraisablehook`: resend a signal if Python swallowed its exception.

    Ctrl-C or SIGTERM raises an exception, which Python only prints if a finalizer is running.
    """
    if not signal_again(unraisable):
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    main()
