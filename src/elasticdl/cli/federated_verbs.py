"""`elasticdl federated train|status|sync|eval|save|stop`: control a running aggregator or party.

Callers: `federated.py`, the group of these commands.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.table import Table

from elasticdl import federated
from elasticdl.cli.console import TableConsole
from elasticdl.cli.options import as_json_text, print_metrics
from elasticdl.cli.printable import echo
from elasticdl.data.wording import counted
from elasticdl.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasticdl.engines.federated.control.status import (
        AggregatorStatus,
        PartyStatus,
        RoundEvaluation,
    )

STOPPED = 143
"""Exit code, as after SIGTERM: progress is saved, and the same command resumes."""

_as_json = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")


@click.command()
@click.argument("config")
@click.option(
    "--num_rounds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Train N more rounds. [default: the number in CONFIG]",
)
def train(config: str, num_rounds: int | None) -> int:
    """Make the aggregator of CONFIG train, and follow it.

    It must have been started with --serve. The first training has the number of rounds in CONFIG;
    run again, this command continues from the current model for the same number of rounds.
    Training that was interrupted (stop, `kill -9`, too few parties) is finished first.

    Ctrl-C stops following it; training continues.

    \b
    Examples:
      elasticdl federated aggregator hospitals/aggregator.yml --serve      (in another terminal)
      elasticdl federated train hospitals/aggregator.yml
      elasticdl federated train hospitals/aggregator.yml --num_rounds=2
    """
    try:
        done = federated.train(config, num_rounds=num_rounds, note=echo)
    except KeyboardInterrupt:
        echo(
            "\n"
            f"Training continues. See:  elasticdl federated status {config}\n"
            f"To end it:  elasticdl federated stop {config}",
            err=True,
        )
        return 130
    if done.stopped:
        echo(f"Stopped after round {done.round:,} of {done.num_rounds:,}.")
        return STOPPED
    echo(f"Trained {counted(done.round, 'round')}: {done.output}")
    print_metrics(done.metrics)
    return 0


@click.command()
@click.argument("config")
@_as_json
def status(config: str, as_json: bool) -> int:
    """Show the status of the aggregator or the party of CONFIG.

    If no process is running, it shows the saved status. Only this machine is contacted. A process
    that does not respond within 10 s is reported, and the exit code is 75.

    \b
    Examples:
      elasticdl federated status hospitals/aggregator.yml
      elasticdl federated status hospitals/party0.yml
      elasticdl federated status hospitals/aggregator.yml --json | jq .round
    """
    found = federated.status(config)
    if as_json:
        echo(as_json_text(_facts(found)))
    else:
        _show_status(config, found)
    if found.problem:
        echo(found.problem, err=True)
        return UnavailableError.exit_code
    return 0


@click.command()
@click.argument("config")
def sync(config: str) -> None:
    """Copy the global model of the aggregator of CONFIG to all parties.

    A party's model is the one that it trained in the last round; after this command it is the
    global one, until the party trains again. The model is saved on the party's disk.

    \b
    Example:
      elasticdl federated sync hospitals/aggregator.yml
    """
    done = federated.sync(config)
    echo(f"The global model of round {done.round:,} is at: {', '.join(done.parties)}")
    for name, why in done.left_out.items():
        echo(f"{name} has not adopted it: {why}")


@click.command("eval")
@click.argument("config")
@_as_json
def evaluate(config: str, as_json: bool) -> None:
    """Evaluate the global model at all parties, or a party's model on its own data.

    With the aggregator's CONFIG, each party evaluates the global model now; for a party that keeps
    its metrics private, only its name is shown. With a party's CONFIG, the party's model is
    evaluated on its own validation data, and nothing leaves its process. A party's model is the one
    that it trained last, or the global model if that was synced since.

    \b
    Examples:
      elasticdl federated eval hospitals/aggregator.yml
      elasticdl federated eval hospitals/party0.yml
    """
    found = federated.evaluate(config)
    if as_json:
        echo(as_json_text(_facts(found)))
    else:
        _show_evaluation(found)


@click.command()
@click.argument("config")
@click.option(
    "--output",
    metavar="FOLDER",
    help="Folder for the model. [default: saved/round-N in the output of the process]",
)
def save(config: str, output: str | None) -> None:
    """Save the current model of the aggregator or the party of CONFIG.

    It is a TrainedModel like any other, for `elasticdl evaluate` and `predict`. An aggregator's is
    the global model; a party's is the one that it trained last, or the global model if that was
    synced since.

    \b
    Examples:
      elasticdl federated save hospitals/aggregator.yml
      elasticdl federated save hospitals/party0.yml --output=mine
      elasticdl evaluate --trained_model=mine --data=hospitals/party0/test.recordio
    """
    done = federated.save(config, output=output)
    echo(f"Saved {_model(done.model, done.round)}: {done.output}")


@click.command()
@click.argument("config")
def stop(config: str) -> None:
    """Stop the aggregator or the party of CONFIG after its current work.

    An aggregator finishes and saves its round; a party finishes its current request. The command
    that started it resumes from there. This command returns when the process has ended.

    \b
    Example:
      elasticdl federated stop hospitals/aggregator.yml
    """
    found = federated.stop(config)
    facts = _facts(found)
    kept = facts.get("round", facts.get("model_round"))
    echo(f"Stopped; the model of round {kept:,} is kept." if kept else "Stopped.")


COMMANDS = (train, status, sync, evaluate, save, stop)


# --- words ----------------------------------------------------------------------------------


def _facts(value: Any) -> dict[str, Any]:
    from elasticdl.engines.federated.control.status import facts_of  # noqa: PLC0415 - not for `--help`

    return facts_of(value)


def _show_status(config: str, found: AggregatorStatus | PartyStatus) -> None:
    from elasticdl.engines.federated.control.status import AggregatorStatus  # noqa: PLC0415 - as above

    if isinstance(found, AggregatorStatus):
        role = "aggregator"
        _show_lines(_of_aggregator(found))
        _show_parties(found)
        print_metrics(found.metrics)
    else:
        role = "party"
        _show_lines(_of_party(found))
    if found.state == "not running":
        echo(f"Start it with:  elasticdl federated {role} {config}")


def _show_lines(lines: Mapping[str, str]) -> None:
    width = max(len(name) for name in lines)
    for name, text in lines.items():
        echo(f"{name:<{width}}  {text}")


def _of_aggregator(found: AggregatorStatus) -> dict[str, str]:
    reached = f"round {found.round:,} of {found.num_rounds:,}"
    state = {
        "training": f"training round {min(found.round + 1, found.num_rounds):,} of "
        f"{found.num_rounds:,}",
        "idle": f"idle, {f'after {reached}' if found.round else 'nothing has been trained yet'}",
        "not running": f"not running; {reached} is kept" if found.round else "not running",
    }.get(found.state, f"{found.state}; {reached}")
    lines = {"aggregator": _as_words(state)}
    if found.address:
        here = sum(seen.connected for seen in found.parties.values())
        lines["parties"] = f"{here} of {found.num_parties} connected, to {found.address}"
    lines["output"] = found.output
    if found.published_round:
        lines["output"] += f" (trained model of round {found.published_round:,})"
    return lines


def _show_parties(found: AggregatorStatus) -> None:
    if not found.parties:
        return
    table = Table("party", "connected", "joined", "examples", "last", box=box.SIMPLE_HEAD)
    for name, seen in found.parties.items():
        table.add_row(
            name,
            "yes" if seen.connected else "no",
            "yes" if seen.joined else "no",
            f"{seen.num_examples:,}" if seen.joined else "",
            seen.last,
        )
    TableConsole(highlight=False, markup=False).print(table)


def _of_party(found: PartyStatus) -> dict[str, str]:
    lines = {f"party {found.name}": _as_words(found.state)}
    if found.num_examples:
        lines["examples"] = f"{found.num_examples:,}"
    if found.aggregator:
        lines["aggregator"] = found.aggregator
    if found.pid:
        lines["answered"] = f"{found.num_answered:,}" + (
            f"; last request {_ago(found.last_asked_unix_s)} ago: {found.last_asked}"
            if found.last_asked
            else ""
        )
    lines["model"] = _model(found.model, found.model_round) if found.model else "none yet"
    return lines


def _as_words(state: str) -> str:
    return state.replace("not listening", "running, but not listening (just started?)")


def _model(kind: str, number: int) -> str:
    return f"{'the global model' if kind == 'global' else 'its own model'} of round {number:,}"


def _ago(then_s: float) -> str:
    seconds = max(0, round(time.time() - then_s))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60:,} min"  # noqa: PLR2004 - shown


def _show_evaluation(found: RoundEvaluation) -> None:
    echo(f"{_model(found.model, found.round).capitalize()}:")
    rows: dict[str, Mapping[str, Any]] = dict(found.parties)
    if found.model == "global" and found.merged:
        rows["all records of them"] = found.merged
    if found.own_data:
        rows["the aggregator's own data"] = found.own_data
    names = list(dict.fromkeys(name for metrics in rows.values() for name in metrics))
    if rows:
        table = Table("", *names, box=box.SIMPLE_HEAD)
        for who, metrics in rows.items():
            table.add_row(who, *(_number(metrics.get(name)) for name in names))
        TableConsole(highlight=False, markup=False).print(table)
    for who, why in found.silent.items():
        echo(f"{who}: {why}")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
