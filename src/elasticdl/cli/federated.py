"""`elasticdl federated`: trains one model with parties that keep their data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from elasticdl import federated, job_options
from elasticdl.cli.console import TableConsole
from elasticdl.cli.federated_verbs import COMMANDS, STOPPED
from elasticdl.cli.options import minibatch_size_option, print_metrics, reporter_for
from elasticdl.cli.page_option import is_page_wanted, page_of, page_option
from elasticdl.cli.printable import echo
from elasticdl.cli.tracking_options import tracking_options
from elasticdl.data.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasticdl.engines.engine import Outcome
    from elasticdl.engines.federated.config.init import FederationFiles

# The same limits as in configs.
_COUNT = click.IntRange(1, 2**31 - 1)


@click.group("federated")
def group() -> None:
    """Train one model with parties that keep their data.

    \b
    A first federation, all of it on this machine:
      elasticdl data sample digits --output data
      elasticdl federated init hospitals --num_parties=3 --model_def=mnist \\
          --data="data/train/*.recordio" --validation_data="data/test/*.recordio"
      elasticdl federated simulate hospitals/aggregator.yml
      elasticdl evaluate --trained_model=hospitals/trained_model --data="data/test/*.recordio"

    \b
    On separate machines, each controlled from its own terminal:
      elasticdl federated aggregator hospitals/aggregator.yml --serve
      elasticdl federated party hospitals/party0.yml
      elasticdl federated status hospitals/aggregator.yml
      elasticdl federated train hospitals/aggregator.yml
    """


@group.command()
@click.argument("folder")
@click.option(
    "--data",
    required=True,
    metavar="GLOB",
    help="Records to divide among the parties; with --session_config, the parties' folders.",
)
@click.option(
    "--validation_data", metavar="GLOB", help="Validation records, on which the parties evaluate."
)
@click.option(
    "--num_parties",
    type=click.IntRange(min=1),
    help="Number of parties. [default: 2; with --session_config, the number of folders]",
)
@click.option("--model_def", metavar="NAME", help="Dotted name of the model, as for train.")
@click.option("--spec", metavar="FILE", help="YAML file of a saved model, instead of --model_def.")
@click.option(
    "--session_config",
    metavar="FILE",
    help="config.yaml of a training session, whose components define the model, instead of "
    "--model_def or --spec.",
)
@click.option(
    "--model_zoo",
    metavar="DIR|URL",
    help="Folder or git repository of the model's code, as for train.",
)
@click.option("--params", default="", metavar="TEXT", help="Values for the model, as for train.")
@click.option(
    "--split",
    type=click.Choice(["iid", "dirichlet", "shards", "size"]),
    default="iid",
    show_default=True,
    help="How to divide the records: iid: at random; dirichlet: labels in random proportions; "
    "shards: few labels per party; size: at random, with very different numbers of records.",
)
@click.option(
    "--alpha",
    default=0.5,
    show_default=True,
    help="Concentration of dirichlet: the smaller it is, the more the parties differ.",
)
@click.option(
    "--shards_per_party",
    default=2,
    show_default=True,
    help="For shards: approximate number of labels per party.",
)
@click.option("--label", metavar="FIELD", help="Name of the label field, if it is not `label`.")
@click.option("--seed", default=0, show_default=True, help="Random seed of the split.")
@click.option(
    "--fusion",
    default="fedavg",
    show_default=True,
    help="Fusion of the models, or strategy: fedavg, fedprox, multi_krum, ... "
    "(docs/guides/federated.md).",
)
@click.option("--num_rounds", default=10, show_default=True, help="Number of rounds.")
@click.option(
    "--num_epochs", default=1, show_default=True, help="Local epochs of each party in a round."
)
@minibatch_size_option(
    type=click.IntRange(min=1),
    help="Batch size: records per step. [default: 32]",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Host name or address at which parties reach the aggregator.",
)
@click.option("--port", default=5000, show_default=True, help="Port of the aggregator.")
def init(folder: str, **options: Any) -> None:
    """Divide records among parties, and write the configs of a federation into FOLDER.

    Each record goes to one party. Copy the config and the folder of each party to its machine. With
    --session_config, no records are divided: the parties already have folders of data, and the
    configs name these.
    """
    made = federated.init(folder, **options)
    if made.summary is None:
        for path, data_dir in zip(made.parties, made.data_dirs, strict=True):
            echo(f"{path.stem}: {data_dir}")
    else:
        _print_summary(made)
    echo(f"Configs: {made.aggregator}, and {len(made.parties)} for parties in the same folder.")
    echo(f"Next:    elasticdl federated simulate {made.aggregator}")


def _print_summary(made: FederationFiles) -> None:
    assert made.summary is not None  # noqa: S101 - checked by the caller
    table = Table("party", "records", *map(str, made.summary.labels), title="Records by label")
    for path, counts in zip(made.parties, made.summary.counts, strict=True):
        table.add_row(path.stem, f"{counts.sum():,}", *map(str, counts))
    TableConsole().print(table)


@group.command()
@click.argument("folder")
@click.option(
    "--party",
    "parties",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Name of a party, the id in its config; repeat for each party.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    metavar="HOST",
    help="Host name or address at which parties reach the aggregator; can be repeated.",
)
def keys(folder: str, parties: tuple[str, ...], hosts: tuple[str, ...]) -> None:
    """Create the certificates and keys of a federation in FOLDER.

    \b
    Example:
      elasticdl federated keys keys --host=fl.example.org --party=north --party=south

    Copy FOLDER/aggregator to the aggregator's machine and FOLDER/parties/NAME to that of each
    party; keep FOLDER/ca.key. A party is identified by its key, so no party can impersonate
    another.
    """
    federated.make_keys(folder, parties=parties, hosts=hosts)
    echo(f"For the aggregator:  {folder}/aggregator")
    for name in parties:
        echo(f"For {name}:  {folder}/parties/{name}")


@group.command()
@click.argument("config")
@click.option("--num_rounds", type=_COUNT, help="Number of rounds. [default: that of CONFIG]")
@click.option(
    "--output",
    metavar="DIR",
    help="Folder for the trained model; existing training in it is resumed.",
)
@click.option(
    "--serve",
    "serves",
    is_flag=True,
    help="Train on request (elasticdl federated train), and keep running until it is stopped.",
)
@tracking_options
@page_option
@click.option("--quiet", is_flag=True, help="Print only the result: no progress, no notes.")
def aggregator(config: str, **options: Any) -> int:
    """Train with parties on separate machines, and write a TrainedModel.

    Waits for the parties of CONFIG to connect, trains, and exits. Run the same command to resume
    after the last completed round, even after `kill -9`.

    \b
    While it runs, from another terminal of this machine:
      elasticdl federated status hospitals/aggregator.yml
      elasticdl federated eval hospitals/aggregator.yml
      elasticdl federated stop hospitals/aggregator.yml
    """
    return _train(federated.aggregator, config, **options)


@group.command()
@click.argument("config")
def party(config: str) -> None:
    """Run a party: wait for the aggregator's requests, train, and reply, until Ctrl-C.

    The records that CONFIG names stay here. Restart a killed party with the same command: it
    rejoins at the next round.
    """
    federated.party(config)


@group.command()
@click.argument("config")
@click.option(
    "--parties",
    "num_parties",
    type=_COUNT,
    metavar="N",
    help="Number of parties. [default: that of CONFIG]",
)
@click.option(
    "--num_processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of processes that run the parties, with one thread each; 1: one process with all "
    "threads. [default: the number of cores, if there are as many parties and the model is a "
    "PyTorch model]",
)
@click.option("--num_rounds", type=_COUNT, help="Number of rounds. [default: that of CONFIG]")
@click.option(
    "--output",
    metavar="DIR",
    help="Folder for the trained model; existing training in it is resumed.",
)
@tracking_options
@page_option
@click.option("--quiet", is_flag=True, help="Print only the result: no progress, no notes.")
def simulate(config: str, **options: Any) -> int:
    """Run the federation of CONFIG with all parties on this machine.

    CONFIG is the aggregator's; the parties' configs, party*.yml, are in the same folder. Run the
    same command to resume after the last completed round, even after `kill -9`; the weights are the
    same as those of an uninterrupted run.
    """
    return _train(federated.simulate, config, **options)


def _train(
    run: Callable[..., Outcome],
    config: str,
    *,
    quiet: bool,
    with_page: bool | None,
    tracking_uri: str | None,
    experiment: str | None,
    run_name: str | None,
    tensorboard: bool,
    **options: Any,
) -> int:
    tracking = job_options.tracking_of(tracking_uri, experiment, run_name, tensorboard=tensorboard)
    shown = None
    if is_page_wanted(with_page, quiet=quiet):
        is_simulated = run is federated.simulate
        shown = federated.output_of(config, options["output"], is_simulated=is_simulated)
    with page_of(shown):
        outcome = run(config, tracking=tracking, reporter=reporter_for(quiet), **options)
    if outcome.stopped:
        echo(
            f"Stopped after {outcome.step:,} rounds; run the same command to resume: "
            f"{outcome.output}"
        )
        return STOPPED
    if not outcome.already_done and outcome.step:
        echo(f"Trained {counted(outcome.step, 'round')}: {outcome.output}")
    print_metrics(outcome.metrics)
    return 0


for _command in COMMANDS:
    group.add_command(_command)
