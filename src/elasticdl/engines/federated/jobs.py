"""What configs of a federation ask for, as jobs.

Callers: `elasticdl.federated`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.data.stored_file import check_output
from elasticdl.engines.federated.component_parts import check_local, minibatch_size_of
from elasticdl.engines.federated.data_handlers import source_of
from elasticdl.engines.federated.simulate import Member
from elasticdl.errors import DefinitionError, UsageError
from elasticdl.job import Federation, Job, Tracking, TrainingOptions

if TYPE_CHECKING:
    from elasticdl.engines.federated.settings import AggregatorConfig, PartyConfig
    from elasticdl.job import ModelReference

_MINIBATCH_SIZE = TrainingOptions.minibatch_size


def job_of(
    aggregator: AggregatorConfig,
    parties: list[PartyConfig],
    *,
    num_rounds: int | None = None,
    output: str | None = None,
    tracking: Tracking | None = None,
) -> Job:
    """Return the job that an aggregator's config asks for.

    Args:
        aggregator: The config.
        parties: Those of the parties, where they are known: the first has the model, if the
            aggregator's has none.
        num_rounds: Instead of what the config says.
        output: Instead of what the config says.
        tracking: Where people follow it.

    Raises:
        DefinitionError: Nobody names the model.
        UsageError: Nobody names the output, or it is no folder of this machine.
    """
    model = aggregator.model or (parties[0].model if parties else None)
    if model is None:
        raise DefinitionError(
            f"{aggregator.file}: there is no section `model`. Name the model that all parties "
            "train, as their configs do."
        )
    if output is not None and "://" in check_output(output):
        raise UsageError(
            f"--output={output}: a federation writes to a folder of this machine; expected a path."
        )
    where = output or (str(aggregator.output) if aggregator.output is not None else None)
    if where is None:
        raise UsageError(
            f"{aggregator.file} names no output: name the folder for the trained model with "
            "--output, or as `output:` in the config."
        )
    rounds = aggregator.rounds
    data = aggregator.data
    if data is not None and data.handler is not None:
        raise DefinitionError(
            f"{aggregator.file}: data: a handler is of use at a party only; name the aggregator's "
            "records by their uri."
        )
    check_local(aggregator, model)
    minibatch_size = aggregator.local.minibatch_size or minibatch_size_of(model)
    validation_data = None if data is None else data.data_dir or data.uri
    return Job(
        command="train",
        data="",
        output=str(Path(where).expanduser().resolve()),
        model=_with_rate(model.reference, aggregator),
        validation_data=validation_data,
        training=TrainingOptions(
            minibatch_size=minibatch_size or _MINIBATCH_SIZE,
            seed=rounds.seed,
        ),
        tracking=tracking,
        federation=Federation(
            num_rounds=num_rounds or rounds.num_rounds,
            fusion=aggregator.fusion.name,
            fusion_params=dict(aggregator.fusion.params),
            num_parties=len(parties) or rounds.num_parties,
            quorum=rounds.perc_quorum,
            max_timeout_s=rounds.max_timeout_s,
            num_local_epochs=aggregator.local.num_epochs,
            termination_accuracy=rounds.termination_accuracy,
            central_privacy=aggregator.central_privacy,
        ),
    )


def check_names(parties: list[PartyConfig]) -> None:
    """Refuse two parties with one name.

    Raises:
        DefinitionError: There are such.
    """
    files: dict[str, PartyConfig] = {}
    for each in parties:
        other = files.setdefault(each.name, each)
        if other is not each:
            raise DefinitionError(
                f"{each.file}: connection.info.id: the party is called {each.name!r}, as that of "
                f"{other.file} is. Give each a name of its own; without an id, a party is called "
                "as its file."
            )


def check_party(party: PartyConfig, aggregator: AggregatorConfig | None) -> None:
    """Refuse what a party's config asks for and nobody here would do.

    Raises:
        DefinitionError: It asks for such.
    """
    if aggregator is None or party.local_training in {None, "local"}:
        return
    fusion = aggregator.fusion.fusion
    asks = "gradients" if fusion.sends_gradients else "proximal" if fusion.proximal else "local"
    asks = "own_weights" if fusion.keeps_own_weights else asks
    if party.local_training != asks:
        raise DefinitionError(
            f"{party.file}: local_training names a handler of the kind {party.local_training!r}; "
            f"the fusion {fusion.name} of {aggregator.file} asks parties for {asks!r}. Remove the "
            "section: parties do what the aggregator asks."
        )


def _with_rate(reference: ModelReference, aggregator: AggregatorConfig) -> ModelReference:
    rate = aggregator.local.learning_rate
    if rate is None:
        return reference
    # Told where it is a param of the model's; else the model says that it has none.
    return replace(reference, params={**reference.params, "learning_rate": rate})


def simulated(parties: list[PartyConfig], aggregator: AggregatorConfig) -> list[Member]:
    """Return parties as they are simulated: each with its own data, and its own model section.

    Args:
        parties: Their configs.
        aggregator: Its config; without a model, the first party's is the aggregator's too.

    Raises:
        DefinitionError: The aggregator tells parties what their components would not follow.
    """
    members = []
    model = aggregator.model or parties[0].model
    for party in parties:
        check_local(aggregator, party.model)
        own = None if party.model.is_same(model) else _with_rate(party.model.reference, aggregator)
        members.append(replace(member_of(party), model=own))
    return members


def member_of(party: PartyConfig) -> Member:
    """Return a party with the data that its config names."""
    folder = party.data.data_dir
    member = Member(
        name=party.name,
        data=folder or party.data.uri or "",
        # The same folder: components find their validation data in it.
        validation_data=folder or party.data.validation_uri,
        shares_metrics=party.metrics_may_leave,
        recorder=party.recorder,
    )
    if party.data.handler is None:
        return member
    named = f"{party.data.handler.name}"
    return replace(
        member,
        data=f"{named}: training",
        validation_data=f"{named}: test",
        open_source=source_of(party.data.handler),
    )
