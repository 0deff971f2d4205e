"""`elasticdl federated`: one model from parties that keep their data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from elasticdl import api, federated
from elasticdl.cli.federated_verbs import COMMANDS, STOPPED
from elasticdl.cli.options import print_metrics, reporter_for
from elasticdl.cli.page_option import is_page_wanted, page_of, page_option
from elasticdl.cli.printable import echo
from elasticdl.cli.tracking_options import tracking_options
from elasticdl.data.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasticdl.engines.engine import Outcome
    from elasticdl.engines.federated.init import Federation

# As in configs.
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
    On machines of their own, told from a terminal of each:
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
    help="Records to deal out to the parties; with --session_config, the parties' folders.",
)
@click.option("--validation_data", metavar="GLOB", help="Records for the parties to evaluate on.")
@click.option(
    "--num_parties",
    type=click.IntRange(min=1),
    help="Default 2; with --session_config, as many as folders.",
)
@click.option("--model_def", metavar="NAME", help="Dotted name of the model, as for train.")
@click.option("--spec", metavar="FILE", help="YAML file of a saved model, instead of --model_def.")
@click.option(
    "--session_config",
    metavar="FILE",
    help="config.yaml of a training session, whose components are the model, instead of both.",
)
@click.option("--model_zoo", metavar="DIR|URL", help="Where the model's code is, as for train.")
@click.option("--params", default="", metavar="TEXT", help="Values for the model, as for train.")
@click.option(
    "--split",
    type=click.Choice(["iid", "dirichlet", "shards", "size"]),
    default="iid",
    show_default=True,
    help="Who gets which records: at random; labels in drawn proportions; few labels each; at "
    "random, but few have many.",
)
@click.option(
    "--alpha",
    default=0.5,
    show_default=True,
    help="Of dirichlet: the smaller, the less do parties have in common.",
)
@click.option(
    "--shards_per_party",
    default=2,
    show_default=True,
    help="Of shards: about so many labels has each party.",
)
@click.option("--label", metavar="FIELD", help="Field of the label, if it is not called so.")
@click.option("--seed", default=0, show_default=True, help="Decides who gets what.")
@click.option(
    "--fusion",
    default="fedavg",
    show_default=True,
    help="How models become one: fedavg, fedprox, multi_krum, ... (docs/federated.md).",
)
@click.option(
    "--num_rounds", default=10, show_default=True, help="How often the models become one."
)
@click.option("--num_epochs", default=1, show_default=True, help="Of each party in a round.")
@click.option("--minibatch_size", type=click.IntRange(min=1), help="Records in a step; default 32.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Name or address by which parties reach the aggregator.",
)
@click.option("--port", default=5000, show_default=True, help="Port of the aggregator.")
def init(folder: str, **options: Any) -> None:
    """Deal records out to parties, and write the configs of a federation into FOLDER.

    No record goes to two parties. A party's config and its folder can be taken to its machine.
    With --session_config parties keep the folders they have, and configs name them.
    """
    made = federated.init(folder, **options)
    if made.summary is None:
        for path, data_dir in zip(made.parties, made.data_dirs, strict=True):
            echo(f"{path.stem}: {data_dir}")
    else:
        _print_summary(made)
    echo(f"Configs: {made.aggregator} and {len(made.parties)} of parties beside it.")
    echo(f"Next:    elasticdl federated simulate {made.aggregator}")


def _print_summary(made: Federation) -> None:
    assert made.summary is not None  # noqa: S101 - the caller has looked
    table = Table("party", "records", *map(str, made.summary.labels), title="Records by label")
    for path, counts in zip(made.parties, made.summary.counts, strict=True):
        table.add_row(path.stem, f"{counts.sum():,}", *map(str, counts))
    Console().print(table)


@group.command()
@click.argument("folder")
@click.option(
    "--party",
    "parties",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Name of a party, as its config's id; given once for each.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    metavar="HOST",
    help="Name or address by which parties reach the aggregator; may be given several times.",
)
def keys(folder: str, parties: tuple[str, ...], hosts: tuple[str, ...]) -> None:
    """Make the certificates and keys of a federation in FOLDER.

    \b
    Example:
      elasticdl federated keys keys --host=fl.example.org --party=north --party=south

    FOLDER/aggregator is carried to the aggregator's machine, FOLDER/parties/NAME to that of each
    party; FOLDER/ca.key stays with you. A party is who its key says, so no party can speak in
    another's name.
    """
    federated.make_keys(folder, parties=parties, hosts=hosts)
    echo(f"For the aggregator:  {folder}/aggregator")
    for name in parties:
        echo(f"For {name}:  {folder}/parties/{name}")


@group.command()
@click.argument("config")
@click.option("--num_rounds", type=_COUNT, help="Instead of what the config says.")
@click.option("--output", metavar="DIR", help="Folder for the trained model; resumes there.")
@click.option(
    "--serve",
    "serves",
    is_flag=True,
    help="Train when it is told (elasticdl federated train), and stay until it is told to stop.",
)
@tracking_options
@page_option
@click.option("--quiet", is_flag=True, help="Print the result only.")
def aggregator(config: str, **options: Any) -> int:
    """Train with parties on machines of their own; leave a TrainedModel.

    Waits for the parties of CONFIG to connect, trains, and ends. The same command goes on after
    the last round, also after a kill -9.

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
    """Be a party: wait for the aggregator's questions, train, and answer, until Ctrl-C.

    The records that CONFIG names stay here. A party that was killed is started by the same
    command, and takes part again from the next round on.
    """
    federated.party(config)


@group.command()
@click.argument("config")
@click.option(
    "--parties",
    "num_parties",
    type=_COUNT,
    metavar="N",
    help="Take so many; without it, as many as CONFIG says.",
)
@click.option(
    "--num_processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many answer for the parties, with one thread each; 1: one, with all threads. "
    "Without it, as many as cores, if there are as many parties and the model is PyTorch's.",
)
@click.option("--num_rounds", type=_COUNT, help="Instead of what the config says.")
@click.option("--output", metavar="DIR", help="Folder for the trained model; resumes there.")
@tracking_options
@page_option
@click.option("--quiet", is_flag=True, help="Print the result only.")
def simulate(config: str, **options: Any) -> int:
    """Run the federation of CONFIG with all parties on this machine.

    CONFIG is the aggregator's; the parties' configs, party*.yml, lie beside it. The same command
    goes on after the last round, also after a kill -9, with the same weights as if nothing had
    happened.
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
    tracking = api.tracking_of(tracking_uri, experiment, run_name, tensorboard=tensorboard)
    shown = None
    if is_page_wanted(with_page, quiet=quiet):
        is_simulated = run is federated.simulate
        shown = federated.output_of(config, options["output"], is_simulated=is_simulated)
    with page_of(shown):
        outcome = run(config, tracking=tracking, reporter=reporter_for(quiet), **options)
    if outcome.stopped:
        echo(f"Stopped after {outcome.step:,} rounds; the same command goes on: {outcome.output}")
        return STOPPED
    if not outcome.already_done and outcome.step:
        echo(f"Trained {counted(outcome.step, 'round')}: {outcome.output}")
    print_metrics(outcome.metrics)
    return 0


for _command in COMMANDS:
    group.add_command(_command)
