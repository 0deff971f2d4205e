"""Federated training from Python: train one model with parties that keep their data.

These functions do the same as the command `elasticdl federated`::

    from elasticdl import federated

    federated.init("hospitals", data="data/train/*.recordio", model_def="mnist", num_parties=3)
    federated.simulate("hospitals/aggregator.yml")

Configs are IBM FL's YAML files; docs/guides/federated.md has their keys.
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
    from elasticdl.engines.federated.config.init import FederationFiles
    from elasticdl.engines.federated.control.status import (
        AggregatorStatus,
        PartyStatus,
        RoundEvaluation,
        Saved,
        Synced,
        TrainedRounds,
    )
    from elasticdl.job import ModelReference

# Default in new configs, so that a round does not wait forever for a party that hangs.
_MAX_TIMEOUT_S = 600
_PARTY_FILES = "party*.y*ml"
_NUM_PARTIES, _MINIBATCH_SIZE = 2, 32
# Key that `init` writes into configs -> the command-line flag that sets it.
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
    folder: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str],
    num_parties: int | None = None,
    model_def: str | None = None,
    spec: str | os.PathLike[str] | None = None,
    session_config: str | os.PathLike[str] | None = None,
    model_zoo: str | os.PathLike[str] | None = None,
    params: str | Mapping[str, Any] = "",
    validation_data: str | os.PathLike[str] | None = None,
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
    """Create a federation: distribute records to parties, and write the configs.

    With a `session_config`, no records are distributed: the session's own code reads a folder of
    data, and each party must already have such a folder. Only the configs are written then.

    Args:
        folder: Folder of the federation; created if it does not exist.
        data: URI or glob of the records to distribute; with a `session_config`, glob of the
            parties' folders.
        num_parties: Number of parties; None means two, or with a `session_config` one per folder.
        model_def: Dotted name of the model; for a saved model, give `spec` instead.
        spec: YAML file of a saved model.
        session_config: `runs/NAME/config.yaml` of a training session, instead of `model_def` or
            `spec`.
        model_zoo: Folder or git URL of the user's code; None means the prebuilt zoo.
        params: Parameters of the model, as for `train`.
        validation_data: Records for the parties to evaluate on, distributed evenly.
        split: How to distribute the records: `iid` (at random, equal numbers), `dirichlet` (labels
            in proportions that differ), `shards` (a few labels for each party) or `size` (at
            random, different numbers).
        alpha: For `dirichlet`: the smaller, the more the parties' data differ.
        shards_per_party: For `shards`: number of shards of each party. A shard has records of one
            label, or of two.
        label: Name of the label's field. None: detect it.
        seed: Random seed for the split and for training.
        fusion: Name of the fusion that combines the parties' models.
        num_rounds: Number of rounds.
        num_epochs: Number of local epochs of each party in a round.
        minibatch_size: Records in a step; None means 32. With a `session_config`, the batch size is
            the session's own.
        host: Name or address by which parties reach the aggregator.
        port: Port on which the aggregator listens.

    Raises:
        ElasticDLError: The records cannot be read or split, or the files cannot be written.
    """
    from elasticdl.engines.federated.config.init import (  # noqa: PLC0415
        check_split,
        write_component_federation,
        write_federation,
    )
    from elasticdl.engines.federated.config.init_session import (  # noqa: PLC0415
        check_for_sessions,
        folders_of,
        session_section,
    )
    from elasticdl.engines.federated.config.reading import read_aggregator, read_party  # noqa: PLC0415

    check_split(split)
    data, spec, session_config = os.fspath(data), _text(spec), _text(session_config)
    model_zoo, validation_data = _text(model_zoo), _text(validation_data)
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


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def _about_flags(error: DefinitionError, made: FederationFiles) -> ElasticDLError:
    """Convert an error about a config that `init` wrote into an error about the options of `init`.

    Args:
        error: The error of reading a config that was just written.
        made: The files that were written.

    Returns:
        The error about options; `error` itself if a problem has no corresponding option.
    """
    text = str(error)
    for path in (made.aggregator, *made.parties):
        text = re.sub(rf"{re.escape(str(path))}(:\d+)?: ", "", text)
    for key, flag in _FLAGS.items():
        text = text.replace(f"{key}: ", f"{flag} ")
    # If there are several problems, they are a list below a line with their number.
    problems = [line for line in text.splitlines() if not line.endswith("problems:")]
    if all(problem.removeprefix("- ").startswith("--") for problem in problems):
        return UsageError(f"{text} Nothing was written.")
    return error


def _model_section(
    model_def: str | None, spec: str | None, model_zoo: str | None, params: str | Mapping[str, Any]
) -> Callable[[Path], dict[str, Any]]:
    """Return a function (folder of the configs) -> their `model` section.

    The function copies a saved model into that folder, so that the folder can be moved.
    """
    from elasticdl import zoo  # noqa: PLC0415 - not for `--help`
    from elasticdl.job_options import training_job  # noqa: PLC0415

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
        from elasticdl.engines.federated.config.init import MODEL_FOLDER  # noqa: PLC0415

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
    """Check that a model is not the model builder of a training session.

    The data loader of a session reads a folder itself, so its records cannot be distributed.

    Raises:
        UsageError: The model is a session's model builder, or does not exist.
        UserCodeError: Its file raised while it was imported.
    """
    from elasticdl import zoo  # noqa: PLC0415 - not for `--help`
    from elasticdl.dialects import abstractions  # noqa: PLC0415

    if abstractions.matches(zoo.load(reference)):
        raise UsageError(
            f"--model_def={reference.model_def} is the model builder of a training session, whose "
            "data loader reads a folder itself, so its records cannot be split among parties. Name "
            "the session's config and the parties' folders: --session_config=runs/NAME/config.yaml "
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
    """Train with all parties on this machine, and publish a TrainedModel.

    A repeated call resumes where the earlier one ended.

    Args:
        config: The aggregator's config; the parties' configs, `party*.yml`, are beside it.
        num_parties: Number of parties to use, in the order of their names. None: the number in the
            config.
        num_rounds: Overrides the config.
        output: Folder for the TrainedModel; overrides the config.
        num_processes: Number of processes that run the parties. 1 means this process, with a thread
            per core. More than 1 are forked from this process and have one thread each; this needs
            a PyTorch model on CPUs, and this process should have no other busy threads. None: as
            many processes as cores if forking is possible and there are at least as many parties;
            otherwise 1.
        tracking: The experiment tracking of the job.
        reporter: Shows progress and notes to the user. None: one that suits the terminal.

    Raises:
        ElasticDLError: The job failed; see `elasticdl.errors`.
    """
    # Imported late, because these imports are slow and `--help` does not need them.
    from elasticdl.engines import progress_bar  # noqa: PLC0415
    from elasticdl.engines.federated.config import jobs  # noqa: PLC0415
    from elasticdl.engines.federated.config.reading import read_aggregator, read_party  # noqa: PLC0415
    from elasticdl.engines.federated.simulation import simulate as simulation  # noqa: PLC0415
    from elasticdl.training import framework_settings  # noqa: PLC0415

    reporter = progress_bar.for_stream() if reporter is None else reporter
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
        # All parties are present from the start, so there is nothing to wait for.
        job = replace(job, federation=replace(job.federation, join_timeout_s=0.0))
    if num_processes is not None and num_processes < 1:
        raise UsageError(f"num_processes={num_processes}: expected at least 1, or None.")
    members = jobs.simulated(parties, aggregator)
    with framework_settings.restored():
        return simulation.train(job, reporter, members, num_processes=num_processes)


def output_of(config: str, output: str | None = None, *, is_simulated: bool) -> str | None:
    """Return the output folder of a federation's aggregator; None if the config has none.

    The command line calls this before training, to serve the page of that output.

    Args:
        config: The aggregator's config.
        output: Overrides the config.
        is_simulated: Whether all parties are on this machine; the checks of the config depend on
            it.

    Raises:
        ElasticDLError: The config cannot be read.
    """
    from elasticdl.engines.federated.config.reading import read_aggregator  # noqa: PLC0415 - not for `--help`

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
    """Train with parties on separate machines, and publish a TrainedModel.

    Training begins when all parties of the config are connected. Once a quorum is connected, the
    aggregator waits for the others only as long as a round waits for answers. A repeated call
    resumes after the last round of the earlier one. While this call runs, another process can call
    `status`, `evaluate`, `sync`, `save` and `stop`.

    Args:
        config: The aggregator's config; it has the address that parties connect to.
        num_rounds: Overrides the config.
        output: Folder for the TrainedModel; overrides the config.
        tracking: The experiment tracking of the job.
        reporter: Shows progress and notes to the user. None: one that suits the terminal.
        serves: Wait for calls of `train` and train at each of them; return after `stop`.

    Raises:
        ElasticDLError: The job failed; see `elasticdl.errors`.
    """
    from elasticdl.engines import progress_bar  # noqa: PLC0415 - not for `--help`
    from elasticdl.engines.federated.config import jobs  # noqa: PLC0415
    from elasticdl.engines.federated.config.reading import read_aggregator  # noqa: PLC0415

    reporter = progress_bar.for_stream() if reporter is None else reporter
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
            f"{read.file}: hyperparams.local: the learning rate cannot be sent to remote parties; "
            "set it in each party's config: model.params.learning_rate."
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
    """Run a party of a federation until this process is stopped.

    Args:
        config: The party's config; it has the aggregator's address.
        reporter: Shows progress and notes to the user. None: one that suits the terminal.

    Raises:
        ElasticDLError: The job failed; see `elasticdl.errors`.
    """
    from elasticdl.engines import progress_bar  # noqa: PLC0415 - not for `--help`
    from elasticdl.engines.federated.config import jobs  # noqa: PLC0415
    from elasticdl.engines.federated.config.reading import read_party  # noqa: PLC0415

    reporter = progress_bar.for_stream() if reporter is None else reporter
    read = read_party(config)
    for warning in read.warnings:
        reporter.note(f"warning: {warning}")
    jobs.check_party(read, None)
    if read.aggregator is None:
        raise DefinitionError(
            f"{read.file}: the section `aggregator` with its address is missing. Add it, such as "
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
        # The aggregator determines the number of rounds.
        federation=Federation(num_rounds=0),
    )
    own = {} if member.open_source is None else {"open_source": member.open_source}
    _deployment().serve(read, job, reporter, state=state, **own)


def status(config: str) -> AggregatorStatus | PartyStatus:
    """Return the status of an aggregator or a party; the saved status if it is not running.

    Args:
        config: The config with which an aggregator or a party was started. Here and in the
            functions below, the process started with it must run on this machine and belong to this
            user: it accepts no commands over a network. (For an aggregator that was started with
            `output`, give that folder instead.)

    Raises:
        ElasticDLError: The status cannot be read; see `elasticdl.errors`.
    """
    control_client = _control_client()
    found: AggregatorStatus | PartyStatus = control_client.status_of(
        control_client.address_of(config)
    )
    return found


def train(
    config: str, *, num_rounds: int | None = None, note: Callable[[str], None] | None = None
) -> TrainedRounds:
    """Start training at a serving aggregator and wait until it has published a TrainedModel.

    The first training run has the number of rounds in the config. Each further one continues from
    the current model for the same number of rounds. An unfinished run is completed first.

    Args:
        config: The aggregator's config.
        num_rounds: Train this number of further rounds instead.
        note: Called with each line of progress.

    Raises:
        OutputBusyError: The aggregator is already training.
        UsageError: No aggregator is running, or it does not serve.
        ElasticDLError: Training failed; the aggregator keeps running.
    """
    from elasticdl.engines.federated.control.status import TrainedRounds  # noqa: PLC0415 - not for `--help`

    if num_rounds is not None and num_rounds < 1:
        raise UsageError(f"--num_rounds={num_rounds}: expected at least 1.")
    options = {} if num_rounds is None else {"num_rounds": num_rounds}
    control_client = _control_client()
    return TrainedRounds(
        **control_client.send(control_client.address_of(config), "train", options, note)
    )


def sync(config: str) -> Synced:
    """Send the global model to all parties; it becomes each party's current model.

    Args:
        config: The aggregator's config.

    Raises:
        UsageError: No aggregator is running, or there is no global model yet.
        TrainingError: No party has adopted it.
    """
    from elasticdl.engines.federated.control.status import Synced  # noqa: PLC0415 - not for `--help`

    control_client = _control_client()
    return Synced(**control_client.send(control_client.address_of(config), "sync"))


def evaluate(config: str) -> RoundEvaluation:
    """Evaluate a model: the global one at all parties, or a party's own on its data.

    Args:
        config: The aggregator's config, or a party's. A party's result is not sent to the
            aggregator.

    Raises:
        UsageError: No process is running, or there is no model yet.
        DataError: The party has no validation data.
    """
    from elasticdl.engines.federated.control.status import RoundEvaluation  # noqa: PLC0415 - not for `--help`

    control_client = _control_client()
    return RoundEvaluation(**control_client.send(control_client.address_of(config), "eval"))


def save(config: str, *, output: str | None = None) -> Saved:
    """Save the global model, or a party's model, as a TrainedModel.

    Args:
        config: The aggregator's or a party's config.
        output: A new or empty folder, or one with an earlier saved model; None means
            `saved/round-N` beside the aggregator's output or the party's state folder.

    Raises:
        UsageError: No process is running, or there is no model yet.
        OutputError: The model cannot be written there.
    """
    from elasticdl.engines.federated.control.status import Saved  # noqa: PLC0415 - not for `--help`

    options = {}
    if output is not None:
        # Relative to this process's working directory, not to that of the running process.
        is_path = "://" not in check_output(output)
        options["output"] = str(Path(output).expanduser().resolve()) if is_path else output
    control_client = _control_client()
    return Saved(**control_client.send(control_client.address_of(config), "save", options))


def stop(config: str) -> AggregatorStatus | PartyStatus:
    """Stop an aggregator after its current round, or a party after its current reply.

    The progress is saved; run the same command to resume. This function returns after the process
    has ended.

    Args:
        config: The aggregator's or a party's config.

    Returns:
        The saved status.

    Raises:
        UsageError: No process is running.
        OutputBusyError: The process has not ended after a minute.
    """
    control_client = _control_client()
    address = control_client.address_of(config)
    control_client.send(address, "stop")
    control_client.wait_until_ended(address)
    found: AggregatorStatus | PartyStatus = address.kept()
    return found


def _control_client() -> ModuleType:
    # Imported late, because its imports are slow and `--help` does not need them.
    from elasticdl.engines.federated.control import control_client  # noqa: PLC0415

    return control_client


def make_keys(folder: str, *, parties: Sequence[str], hosts: Sequence[str]) -> None:
    """Create the certificates and keys of a federation.

    Args:
        folder: Folder to create for them. Copy `aggregator/` in it to the aggregator's machine, and
            `parties/NAME/` to the machine of each party.
        parties: Names of the parties.
        hosts: Names and addresses by which parties reach the aggregator.

    Raises:
        ElasticDLError: The keys cannot be created or written; see `elasticdl.errors`.
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
                error.name, "federated", "A federation on separate machines"
            ) from error
        raise
    return deployment


def _party_files(config: Path, num_parties: int) -> list[Path]:
    found = sorted(config.expanduser().parent.glob(_PARTY_FILES), key=_by_number)
    if len(found) < num_parties:
        raise UsageError(
            f"Found {len(found)} configs of parties next to {config} ({_PARTY_FILES}); expected "
            f"{num_parties}. Create them with `elasticdl federated init`, or use fewer: --parties=N"
        )
    return found[:num_parties]


def _by_number(path: Path) -> tuple[str, int]:
    digits = "".join(character for character in path.stem if character.isdigit())
    return path.stem.rstrip("0123456789"), int(digits or 0)
