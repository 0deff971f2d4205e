"""Converts the configs of a federation to a training job and to the parties of a simulation.

Callers: `elasticdl.federated`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.data.stored_file import check_output
from elasticdl.engines.federated.client.data_handlers import source_of
from elasticdl.engines.federated.config.component_sections import check_local, minibatch_size_of
from elasticdl.engines.federated.simulation.simulate import SimulatedMember
from elasticdl.errors import DefinitionError, UsageError
from elasticdl.job import Federation, Job, Tracking, TrainingOptions

if TYPE_CHECKING:
    from elasticdl.engines.federated.config.settings import AggregatorConfig, PartyConfig
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
    """Return the federated training job that an aggregator's config describes.

    Args:
        aggregator: The config.
        parties: The parties' configs; empty if they are not known here. The first one provides the
            model if the aggregator's config has none.
        num_rounds: Number of rounds; None means the number in the config.
        output: Folder for the TrainedModel; None means the folder in the config.
        tracking: Where the job is tracked, such as an MLflow server; None for nowhere.

    Raises:
        DefinitionError: No config names the model, or the aggregator's config cannot be used.
        UsageError: No output is named, or it is not on this machine.
    """
    model = aggregator.model or (parties[0].model if parties else None)
    if model is None:
        raise DefinitionError(
            f"{aggregator.file}: the section `model` is missing. Specify the model that all "
            "parties train, as in their configs."
        )
    if output is not None and "://" in check_output(output):
        raise UsageError(
            f"--output={output}: a federation writes to a folder on this machine; expected a local "
            "path."
        )
    where = output or (str(aggregator.output) if aggregator.output is not None else None)
    if where is None:
        raise UsageError(
            f"{aggregator.file}: no output folder. Set the folder for the trained model with "
            "--output, or with `output:` in the config."
        )
    rounds = aggregator.rounds
    data = aggregator.data
    if data is not None and data.handler is not None:
        raise DefinitionError(
            f"{aggregator.file}: data: only parties support a data handler; set the uri of the "
            "aggregator's records."
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
    """Check that no two parties have the same name.

    Raises:
        DefinitionError: Two parties have the same name.
    """
    files: dict[str, PartyConfig] = {}
    for each in parties:
        other = files.setdefault(each.name, each)
        if other is not each:
            raise DefinitionError(
                f"{each.file}: connection.info.id: the name {each.name!r} is also the name of the "
                f"party in {other.file}. Give each party a unique name; without an id, it is the "
                "name of the config file."
            )


def check_party(party: PartyConfig, aggregator: AggregatorConfig | None) -> None:
    """Check that a party's `local_training` names the kind of training that the fusion needs.

    For example, FedProx needs `proximal`. The kind `local` is accepted with every fusion.

    Args:
        party: The party's config.
        aggregator: The config that names the fusion. None if it is not known: nothing is checked.

    Raises:
        DefinitionError: `local_training` names another kind.
    """
    if aggregator is None or party.local_training in {None, "local"}:
        return
    fusion = aggregator.fusion.fusion
    asks = "gradients" if fusion.sends_gradients else "proximal" if fusion.proximal else "local"
    asks = "own_weights" if fusion.keeps_own_weights else asks
    if party.local_training != asks:
        raise DefinitionError(
            f"{party.file}: local_training names a handler of kind {party.local_training!r}, but "
            f"the fusion {fusion.name} of {aggregator.file} needs {asks!r}. Remove the section: "
            "the aggregator decides how parties train."
        )


def _with_rate(reference: ModelReference, aggregator: AggregatorConfig) -> ModelReference:
    rate = aggregator.local.learning_rate
    if rate is None:
        return reference
    # Passed as a param of the model; a model without such a param raises its own error.
    return replace(reference, params={**reference.params, "learning_rate": rate})


def simulated(parties: list[PartyConfig], aggregator: AggregatorConfig) -> list[SimulatedMember]:
    """Convert parties' configs to the parties of a simulation.

    `SimulatedMember.model` is set only for a party whose model differs from the aggregator's.

    Args:
        parties: The parties' configs.
        aggregator: The aggregator's config; if it names no model, the first party's is used.

    Raises:
        DefinitionError: `hyperparams.local` has settings that the parties' components would ignore.
    """
    members = []
    model = aggregator.model or parties[0].model
    for party in parties:
        check_local(aggregator, party.model)
        own = None if party.model.is_same(model) else _with_rate(party.model.reference, aggregator)
        members.append(replace(member_of(party), model=own))
    return members


def member_of(party: PartyConfig) -> SimulatedMember:
    """Convert a party's config to a party of a simulation, without the model."""
    folder = party.data.data_dir
    member = SimulatedMember(
        name=party.name,
        data=folder or party.data.uri or "",
        # The same folder, because components find their validation data in it.
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
