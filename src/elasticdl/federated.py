"""Train one model with parties that keep their data: what `elasticdl federated` does, from Python.

    from elasticdl import federated

    federated.init("hospitals", data="data/train/*.recordio", model_def="mnist", num_parties=3)
    federated.simulate("hospitals/aggregator.yml")

Configs are IBM FL's YAML files; docs/federated.md has their keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from elasticdl.data.stored_file import check_output
from elasticdl.errors import DefinitionError, ElasticDLError, MissingExtraError, UsageError
from elasticdl.job import Federation, Job, Tracking

if TYPE_CHECKING:
    from elasticdl.engines.engine import Outcome, Reporter
    from elasticdl.engines.federated.init import Federation as FederationFiles
    from elasticdl.engines.federated.status import (
        AggregatorStatus,
        Evaluation,
        PartyStatus,
        Saved,
        Synced,
        Trained,
    )
    from elasticdl.job import ModelReference

# For a start: a party that hangs must not be waited for without end.
_MAX_TIMEOUT_S = 600
_PARTY_FILES = "party*.y*ml"
_NUM_PARTIES, _MINIBATCH_SIZE = 2, 32
# What `init` writes into configs, and the flag that it comes from.
_FLAGS = {
    "fusion.name": "--fusion",
    "hyperparams.global.rounds": "--num_rounds",
    "hyperparams.global.num_parties": "--num_parties",
    "hyperparams.local.training.epochs": "--num_epochs",
    "hyperparams.local.training.batch_size": "--minibatch_size",
    "connection.info.ip": "--host",
    "connection.info.port": "--port",
    "aggregator.ip": "--host",
    "aggregator.port": "--port",
}


def init(
    folder: str,
    *,
    data: str,
    num_parties: int | None = None,
    model_def: str | None = None,
    spec: str | None = None,
    session_config: str | None = None,
    model_zoo: str | None = None,
    params: str | Mapping[str, Any] = "",
    validation_data: str | None = None,
    split: str = "iid",
    alpha: float = 0.5,
    shards_per_party: int = 2,
    label: str | None = None,
    seed: int = 0,
    fusion: str = "fedavg",
    num_rounds: int = 10,
    num_epochs: int = 1,
    minibatch_size: int | None = None,
    host: str = "127.0.0.1",
    port: int = 5000,
) -> FederationFiles:
    """Deal records out to parties and write the configs of a federation.

    Components of a training session read folders by themselves: of these each party has its own
    already, and only configs are written.

    Args:
        folder: Where; it is made.
        data: URI or glob of the records to deal out; glob of the parties' folders, if there is a
            `session_config`.
        num_parties: How many parties there are; None is two, or one for each folder.
        model_def: Dotted name of the model; a saved model has a `spec` instead.
        spec: YAML file of a saved model.
        session_config: `runs/NAME/config.yaml` of a training session, instead of both.
        model_zoo: Folder or git URL of the user's code; None is the prebuilt zoo.
        params: For the model.
        validation_data: Records for the parties to evaluate on, dealt out evenly.
        split: `iid`, `dirichlet`, `shards` or `size`.
        alpha: Of `dirichlet`: the smaller, the less do parties have in common.
        shards_per_party: Of `shards`: about so many labels has each party.
        label: Field of the label; None looks for it.
        seed: Decides who gets what, and how parties train.
        fusion: How their models become one.
        num_rounds: How often they do.
        num_epochs: How often a party uses each of its records in a round.
        minibatch_size: Records in a step; None is 32. Components have their own.
        host: Name or address by which parties reach the aggregator.
        port: Its port.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    from elasticdl.engines.federated.config import read_aggregator, read_party  # noqa: PLC0415
    from elasticdl.engines.federated.init import (  # noqa: PLC0415
        check_split,
        write_component_federation,
        write_federation,
    )
    from elasticdl.engines.federated.init_session import (  # noqa: PLC0415
        check_for_sessions,
        folders_of,
        session_section,
    )

    check_split(split)
    place = Path(folder).expanduser()
    address = {"ip": host, "port": port}

    def sections(number: int, **training: Any) -> dict[str, Any]:
        rounds = {"rounds": num_rounds, "num_parties": number}
        return {
            "fusion": {"name": fusion},
            "hyperparams": {
                "global": {**rounds, "max_timeout": _MAX_TIMEOUT_S, "seed": seed},
                "local": {"training": {"epochs": num_epochs, **training}},
            },
            "output": "trained_model",
        }

    if session_config is not None:
        check_for_sessions(
            {
                "model_def": model_def,
                "spec": spec,
                "model_zoo": model_zoo,
                "params": params or None,
                "validation_data": validation_data,
                "label": label,
                "minibatch_size": minibatch_size,
                "split": None if split == "iid" else split,
            }
        )
        data_dirs = folders_of(data, num_parties)
        made = write_component_federation(
            place,
            data_dirs=data_dirs,
            address=address,
            aggregator=sections(len(data_dirs)),
            model=session_section(session_config, place),
        )
    else:
        number = _NUM_PARTIES if num_parties is None else num_parties
        settings: Mapping[str, Mapping[str, Any]] = {
            "dirichlet": {"alpha": alpha},
            "shards": {"shards_per_party": shards_per_party},
        }
        made = write_federation(
            place,
            data=data,
            validation_data=validation_data,
            num_parties=number,
            split=split,
            settings=settings.get(split, {}),
            label=label,
            seed=seed,
            address=address,
            aggregator=sections(number, batch_size=minibatch_size or _MINIBATCH_SIZE),
            model=_model_section(model_def, spec, model_zoo, params),
        )
    try:
        read_aggregator(made.aggregator)
        for path in made.parties:
            read_party(path)
    except DefinitionError as error:
        made.remove()
        raise _about_flags(error, made) from error
    return made


def _about_flags(error: DefinitionError, made: FederationFiles) -> ElasticDLError:
    """Return an error about the flags that a config was written of, which is gone by now."""
    text = str(error)
    for path in (made.aggregator, *made.parties):
        text = re.sub(rf"{re.escape(str(path))}(:\d+)?: ", "", text)
    for key, flag in _FLAGS.items():
        text = text.replace(f"{key}: ", f"{flag} ")
    # Several are a list below a line that counts them.
    problems = [line for line in text.splitlines() if not line.endswith("problems:")]
    if all(problem.removeprefix("- ").startswith("--") for problem in problems):
        return UsageError(f"{text} Nothing was written.")
    return error


def _model_section(
    model_def: str | None, spec: str | None, model_zoo: str | None, params: str | Mapping[str, Any]
) -> Callable[[Path], dict[str, Any]]:
    """Return what gives the section `model` of configs in a folder.

    A saved model is copied there, so that it can be taken along.
    """
    from elasticdl import zoo  # noqa: PLC0415 - not for `--help`
    from elasticdl.api import training_job  # noqa: PLC0415

    job = training_job(
        model_def=model_def, spec=spec, model_zoo=model_zoo, params=params, data="", output="."
    )
    reference = job.model
    assert reference is not None  # noqa: S101 - of a training job
    if spec is None:
        _check_not_components(reference)

    def named(folder: Path) -> dict[str, Any]:
        del folder
        section: dict[str, Any] = {"model_def": reference.model_def}
        if reference.zoo is not None:
            section["model_zoo"] = reference.zoo
        if reference.params:
            section["params"] = dict(reference.params)
        return section

    def saved(folder: Path) -> dict[str, Any]:
        from elasticdl.dialects.saved_spec import read_spec  # noqa: PLC0415
        from elasticdl.engines.federated.init import MODEL_FOLDER  # noqa: PLC0415

        zoo.copy_model(reference, zoo.open_zoo(reference.zoo), folder / MODEL_FOLDER)
        copy = folder / MODEL_FOLDER / reference.model_def
        read = read_spec(copy, reference.model_def)
        files = {key: os.path.relpath(path, folder) for key, path in read.files.items()}
        section: dict[str, Any] = read.values_with(files)["model"]
        for entry in section["spec"].get("custom_objects") or []:
            entry["path"] = os.path.relpath(copy.parent / entry["path"], folder)
        given = {**read.params, **reference.params}
        return {**section, **({"params": given} if given else {})}

    return named if spec is None else saved


def _check_not_components(reference: ModelReference) -> None:
    """Refuse a class of a session's components: nobody could deal their data out.

    Raises:
        UsageError: It is one, or there is no such model.
        UserCodeError: Its file raised while it was imported.
    """
    from elasticdl import zoo  # noqa: PLC0415 - not for `--help`
    from elasticdl.dialects import abstractions  # noqa: PLC0415

    if abstractions.matches(zoo.load(reference)):
        raise UsageError(
            f"--model_def={reference.model_def} is the model builder of a training session, whose "
            "data loader reads a folder by itself: records cannot be dealt out to it. Name the "
            "session's config and the parties' folders: --session_config=runs/NAME/config.yaml "
            '--data="FOLDERS/*"'
        )


def simulate(
    config: str,
    *,
    num_parties: int | None = None,
    num_rounds: int | None = None,
    output: str | None = None,
    num_processes: int | None = 1,
    tracking: Tracking | None = None,
    reporter: Reporter | None = None,
) -> Outcome:
    """Train with all parties on this machine, and leave a TrainedModel.

    The same call goes on where an earlier one ended.

    Args:
        config: The aggregator's config; those of the parties, `party*.yml`, lie beside it.
        num_parties: Take so many of them, in the order of their names; None takes as many as the
            config says there are.
        num_rounds: Instead of what the config says.
        output: Folder for the TrainedModel, instead of what the config says.
        num_processes: How many processes answer for the parties, with one thread each. 1 is this
            one, with all of its threads. More are forked from it, so nothing else should be going
            on in its other threads; for PyTorch on CPUs only. None takes all cores where that is
            so and there are as many parties.
        tracking: Where people follow it.
        reporter: Who tells people; None decides by the terminal.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    # Only now are they needed; what is imported here takes its time.
    from elasticdl.engines import progress  # noqa: PLC0415
    from elasticdl.engines.federated import jobs  # noqa: PLC0415
    from elasticdl.engines.federated import simulate as simulation  # noqa: PLC0415
    from elasticdl.engines.federated.config import read_aggregator, read_party  # noqa: PLC0415

    reporter = progress.for_stream() if reporter is None else reporter
    aggregator = read_aggregator(config, is_simulated=True)
    wanted = aggregator.rounds.num_parties if num_parties is None else num_parties
    parties = [read_party(path) for path in _party_files(Path(config), wanted)]
    jobs.check_names(parties)
    for each in parties:
        jobs.check_party(each, aggregator)
    for warning in [*aggregator.warnings, *(each for party in parties for each in party.warnings)]:
        reporter.note(f"warning: {warning}")
    job = jobs.job_of(aggregator, parties, num_rounds=num_rounds, output=output, tracking=tracking)
    if job.federation is not None:
        # All that will ever be here are here.
        job = replace(job, federation=replace(job.federation, join_timeout_s=0.0))
    if num_processes is not None and num_processes < 1:
        raise UsageError(f"num_processes={num_processes}: expected 1 at least, or None.")
    members = jobs.simulated(parties, aggregator)
    return simulation.train(job, reporter, members, num_processes=num_processes)


def output_of(config: str, output: str | None = None, *, is_simulated: bool) -> str | None:
    """Return the folder that a federation's aggregator writes to; None if nobody names it.

    Args:
        config: The aggregator's config.
        output: Instead of what the config says.
        is_simulated: Whether all parties are on this machine.

    Raises:
        ElasticDLError: The config cannot be read.
    """
    from elasticdl.engines.federated.config import read_aggregator  # noqa: PLC0415 - not for `--help`

    where = output or read_aggregator(config, is_simulated=is_simulated).output
    return None if where is None else str(Path(where).expanduser().resolve())


def aggregator(
    config: str,
    *,
    num_rounds: int | None = None,
    output: str | None = None,
    tracking: Tracking | None = None,
    reporter: Reporter | None = None,
    serves: bool = False,
) -> Outcome:
    """Train with parties on machines of their own, and leave a TrainedModel.

    Waits until all parties of the config are connected; as soon as there is a quorum, for the
    others as long as in a round. The same call goes on after the last round of an earlier one.
    Meanwhile it can be told something from another process: `status`, `evaluate`, `sync`, `save`,
    `stop`.

    Args:
        config: The aggregator's config; it says where parties connect to.
        num_rounds: Instead of what the config says.
        output: Folder for the TrainedModel, instead of what the config says.
        tracking: Where people follow it.
        reporter: Who tells people; None decides by the terminal.
        serves: Train whenever it is told by `train`, and return when it is told to `stop`.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    from elasticdl.engines import progress  # noqa: PLC0415 - not for `--help`
    from elasticdl.engines.federated import jobs  # noqa: PLC0415
    from elasticdl.engines.federated.config import read_aggregator  # noqa: PLC0415

    reporter = progress.for_stream() if reporter is None else reporter
    read = read_aggregator(config)
    for warning in read.warnings:
        reporter.note(f"warning: {warning}")
    if read.listen is None:
        raise DefinitionError(
            f"{read.file}: connection.info has no ip and port for parties to connect to. Add them, "
            "such as `connection: {info: {ip: 127.0.0.1, port: 5000}}`."
        )
    if read.local.learning_rate is not None:
        raise DefinitionError(
            f"{read.file}: hyperparams.local: a learning rate cannot be told to parties elsewhere; "
            "give it to the model in each party's config: model.params.learning_rate."
        )
    job = jobs.job_of(read, [], num_rounds=num_rounds, output=output, tracking=tracking)
    outcome: Outcome = _deployment().aggregate(
        job,
        reporter,
        host=read.listen.host,
        port=read.listen.port,
        tls=read.tls,
        serves=serves,
    )
    return outcome


def party(config: str, *, reporter: Reporter | None = None) -> None:
    """Be a party of a federation until this process is told to end.

    Args:
        config: The party's config; it says where the aggregator is.
        reporter: Who tells people; None decides by the terminal.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    from elasticdl.engines import progress  # noqa: PLC0415 - not for `--help`
    from elasticdl.engines.federated import jobs  # noqa: PLC0415
    from elasticdl.engines.federated.config import read_party  # noqa: PLC0415

    reporter = progress.for_stream() if reporter is None else reporter
    read = read_party(config)
    for warning in read.warnings:
        reporter.note(f"warning: {warning}")
    jobs.check_party(read, None)
    if read.aggregator is None:
        raise DefinitionError(
            f"{read.file}: there is no section `aggregator` that says where it is. Add it, such as "
            "`aggregator: {ip: 127.0.0.1, port: 5000}`."
        )
    member = jobs.member_of(read)
    state = read.state
    job = Job(
        command="train",
        data=member.data,
        output=str(state),
        model=read.model.reference,
        validation_data=member.validation_data,
        # How often parties are asked is the aggregator's.
        federation=Federation(num_rounds=0),
    )
    own = {} if member.open_source is None else {"open_source": member.open_source}
    _deployment().serve(read, job, reporter, state=state, **own)


def status(config: str) -> AggregatorStatus | PartyStatus:
    """Return how the aggregator or the party of a config stands; what is kept if it does not run.

    Args:
        config: An aggregator's or a party's. Here and in the functions below, the process runs on
            this machine and is this user's: nothing of it can be told over a network. (Of an
            aggregator that was started with `output`, name that folder.)

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    telling = _telling()
    found: AggregatorStatus | PartyStatus = telling.status_of(telling.place_of(config))
    return found


def train(
    config: str, *, num_rounds: int | None = None, note: Callable[[str], None] | None = None
) -> Trained:
    """Have an aggregator that serves train, and wait for the end; leaves a TrainedModel.

    The first training has the rounds of the config; each further one goes on from the model that is
    there for as many again. One that did not come to its end is finished first.

    Args:
        config: The aggregator's.
        num_rounds: So many more rounds instead.
        note: Called with what is told meanwhile, a line each.

    Raises:
        OutputBusyError: It is training already.
        UsageError: No aggregator is running, or it does not serve.
        ElasticDLError: The training cannot go on; the aggregator stays.
    """
    from elasticdl.engines.federated.status import Trained  # noqa: PLC0415 - not for `--help`

    if num_rounds is not None and num_rounds < 1:
        raise UsageError(f"--num_rounds={num_rounds}: expected 1 at least.")
    options = {} if num_rounds is None else {"num_rounds": num_rounds}
    telling = _telling()
    return Trained(**telling.told(telling.place_of(config), "train", options, note))


def sync(config: str) -> Synced:
    """Have all parties take the global model over.

    Args:
        config: The aggregator's.

    Raises:
        UsageError: No aggregator is running, or there is no global model yet.
        TrainingError: No party has taken it over.
    """
    from elasticdl.engines.federated.status import Synced  # noqa: PLC0415 - not for `--help`

    telling = _telling()
    return Synced(**telling.told(telling.place_of(config), "sync"))


def evaluate(config: str) -> Evaluation:
    """Return what a model scores: the global one at all parties, or a party's own on its data.

    Args:
        config: The aggregator's, or a party's: of that nothing leaves its process.

    Raises:
        UsageError: No process is running, or there is no model yet.
        DataError: The party has no validation data.
    """
    from elasticdl.engines.federated.status import Evaluation  # noqa: PLC0415 - not for `--help`

    telling = _telling()
    return Evaluation(**telling.told(telling.place_of(config), "eval"))


def save(config: str, *, output: str | None = None) -> Saved:
    """Write a TrainedModel of the global model, or of a party's.

    Args:
        config: The aggregator's or a party's.
        output: A new or empty folder, or one that was saved into before; None is `saved/round-N`
            beside the process' own folder.

    Raises:
        UsageError: No process is running, or there is no model yet.
        OutputError: It cannot be written there.
    """
    from elasticdl.engines.federated.status import Saved  # noqa: PLC0415 - not for `--help`

    options = {}
    if output is not None:
        # From here, not from where the process was started.
        is_path = "://" not in check_output(output)
        options["output"] = str(Path(output).expanduser().resolve()) if is_path else output
    telling = _telling()
    return Saved(**telling.told(telling.place_of(config), "save", options))


def stop(config: str) -> AggregatorStatus | PartyStatus:
    """End an aggregator after the round it is in, or a party after what it is answering.

    What was reached is kept, and the same command goes on. Returns when the process has ended, with
    what is kept.

    Args:
        config: The aggregator's or a party's.

    Raises:
        UsageError: No process is running.
        OutputBusyError: It is still at something after a minute.
    """
    telling = _telling()
    place = telling.place_of(config)
    telling.told(place, "stop")
    telling.wait_until_ended(place)
    found: AggregatorStatus | PartyStatus = place.kept()
    return found


def _telling() -> ModuleType:
    # Only now is it needed; what it imports takes its time.
    from elasticdl.engines.federated import telling  # noqa: PLC0415

    return telling


def make_keys(folder: str, *, parties: Sequence[str], hosts: Sequence[str]) -> None:
    """Make the certificates and keys of a federation.

    Args:
        folder: Is made: `aggregator/` is carried to the aggregator's machine, `parties/NAME/` to
            that of each party.
        parties: Their names.
        hosts: Names and addresses by which parties reach the aggregator.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    _deployment()
    from elasticdl.engines.federated.flower import keys  # noqa: PLC0415 - imports cryptography

    keys.make_keys(Path(folder).expanduser(), parties, hosts)


def _deployment() -> ModuleType:
    try:
        from elasticdl.engines.federated.flower import deployment  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name in {"flwr", "cryptography", "starlette", "uvicorn", "httpx"}:
            raise MissingExtraError(
                error.name, "federated", "Federations on machines of their own"
            ) from error
        raise
    return deployment


def _party_files(config: Path, num_parties: int) -> list[Path]:
    found = sorted(config.expanduser().parent.glob(_PARTY_FILES), key=_by_number)
    if len(found) < num_parties:
        raise UsageError(
            f"{len(found)} configs of parties lie beside {config} ({_PARTY_FILES}); there are to "
            f"be {num_parties}. Make them with `elasticdl federated init`, or take fewer: "
            "--parties=N"
        )
    return found[:num_parties]


def _by_number(path: Path) -> tuple[str, int]:
    digits = "".join(character for character in path.stem if character.isdigit())
    return path.stem.rstrip("0123456789"), int(digits or 0)
