"""Options of `train`, `evaluate` and `predict` for running the job on a Kubernetes cluster.

The help of these commands lists them under a separate heading.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from elasticdl import api
from elasticdl.cli.image_options import REPOSITORY, flags, image_options, take_image_options
from elasticdl.cli.options import with_options
from elasticdl.cluster.images.names import image
from elasticdl.cluster.options import (
    ClusterOptions,
    Resources,
    Scheduler,
    parse_pairs,
    parse_quantity,
    parse_volume,
)
from elasticdl.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from elasticdl.cluster.images.build import ImageOptions

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DEFAULTS, _WORKER, _HEAD = ClusterOptions("", ""), Resources(), ClusterOptions.head


@dataclasses.dataclass(frozen=True)
class ClusterRequest:
    """Values of the cluster options that say what to do with a job: print, build, submit, follow.

    Attributes:
        context: Context of the kubeconfig; None means the current one.
        manifest: Whether to print the RayJob instead of submitting it.
        patch: File with a patch to merge into the RayJob; None for no patch.
        detach: Whether to return after the submission, without following the job.
        build: Options of the image to build first; None for no build.
    """

    context: str | None
    manifest: bool
    patch: str | None
    detach: bool
    build: ImageOptions | None = None


class _ClusterOption(click.Option):
    """An option that requires --cluster; a command's help lists these options separately."""


class CommandOfClusters(click.Command):
    """A command whose help lists the cluster options separately."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of the options: the general ones first, then those that need --cluster."""
        others: list[tuple[str, str]] = []
        of_clusters: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                chosen = of_clusters if isinstance(parameter, _ClusterOption) else others
                chosen.append(record)
        for title, records in (("Options", others), ("On a Kubernetes cluster", of_clusters)):
            with formatter.section(title):
                formatter.write_dl(records)


def _option(*names: str, **settings: Any) -> Callable[[_Command], _Command]:
    return click.option(*names, cls=_ClusterOption, **settings)


def cluster_options(command: _Command) -> _Command:
    """Decorator: add the options for running a job on a Kubernetes cluster to a command."""
    return with_options(
        command,
        _option(
            "--cluster",
            type=click.Choice(["kubernetes"]),
            help="Run on the cluster of the kubeconfig, with KubeRay, instead of on this machine. "
            "Needs --num_workers, and --image or --docker_image_repository.",
        ),
        _option(
            "--context",
            metavar="NAME",
            help="Context of the kubeconfig. [default: the current one]",
        ),
        _option("--namespace", metavar="NAME", help="Namespace. [default: that of the context]"),
        _option(
            "--image",
            metavar="IMAGE",
            help="Image of all pods, preferably with its digest: registry/team/app@sha256:...",
        ),
        lambda function: image_options(function, _option),
        _option(
            "--cpus_per_worker", default=_WORKER.cpus, show_default=True, help="Cores: 2, 500m."
        ),
        _option(
            "--memory_per_worker",
            default=_WORKER.memory,
            show_default=True,
            help="Memory: 8Gi. A worker that uses more is killed and replaced.",
        ),
        _option(
            "--head_memory",
            default=_HEAD.memory,
            show_default=True,
            help="Memory of the pod where the driver runs.",
        ),
        _option("--spot", is_flag=True, help="Workers may run on spot (preemptible) nodes."),
        _option("--priority_class", metavar="NAME", help="PriorityClass of all pods."),
        _option(
            "--node_selector",
            metavar="LABEL=VALUE",
            multiple=True,
            help="Run workers on nodes with this label; can be repeated.",
        ),
        _option(
            "--volume",
            metavar="KIND:NAME:PATH[:ro]",
            multiple=True,
            help="Mount a claim (pvc:data:/data), a folder of the nodes (host:/mnt:/mnt) or a "
            "secret (secret:key:/key) into all pods; can be repeated.",
        ),
        _option(
            "--env",
            metavar="NAME=VALUE",
            multiple=True,
            help="Environment variable of all pods; can be repeated.",
        ),
        _option(
            "--env_from_secret",
            metavar="NAME",
            multiple=True,
            help="Secret whose keys become environment variables of all pods, such as the "
            "credentials of an object store.",
        ),
        _option(
            "--image_pull_secret",
            metavar="NAME",
            multiple=True,
            help="Secret with the credentials of the image's registry.",
        ),
        _option("--service_account", metavar="NAME", help="Service account of all pods."),
        _option(
            "--ttl",
            metavar="SECONDS",
            default=_DEFAULTS.ttl_s,
            show_default=True,
            help="Time to keep the pods after the job has ended.",
        ),
        _option("--deadline", metavar="SECONDS", type=int, help="Maximum duration of the job."),
        _option("--queue", metavar="NAME", help="Queue of Kueue or Volcano."),
        _option(
            "--scheduler",
            type=click.Choice(get_args(Scheduler)),
            default=_DEFAULTS.scheduler,
            show_default=True,
            help="Scheduler that owns the queue.",
        ),
        _option(
            "--autoscaling",
            is_flag=True,
            help="Let Ray request between the minimum and the maximum of --num_workers worker "
            "pods, instead of the maximum at once.",
        ),
        _option("--manifest", is_flag=True, help="Print the RayJob as YAML without submitting it."),
        _option(
            "--manifest_patch",
            metavar="FILE",
            help="YAML to merge into the RayJob (RFC 7396), for settings that the cluster "
            "requires.",
        ),
        _option("--detach", is_flag=True, help="Submit the job and return without following it."),
    )


def take_cluster_options(options: dict[str, Any]) -> tuple[ClusterRequest, ClusterOptions | None]:
    """Remove the cluster options from a command's options, and parse them.

    Args:
        options: Values of all options of the command by name; the cluster options are removed.

    Returns:
        What to do with the job (submit it, print its manifest, ...), and the image and resources to
        run it with. The second value is None without --cluster: the job then runs on this machine.

    Raises:
        UsageError: A cluster option is set without --cluster, or has an invalid value.
    """
    declared = {str(each.name): each for each in _declared()}
    given = {name: options.pop(name) for name in declared}
    asked = ClusterRequest(
        given.pop("context"),
        given.pop("manifest"),
        given.pop("manifest_patch"),
        given.pop("detach"),
    )
    if given.pop("cluster") is None:
        _check_unused(
            {**given, **dataclasses.asdict(asked), "manifest_patch": asked.patch}, declared
        )
        return asked, None
    built_with = {name: given.pop(name) for name in flags()}
    name = _image(given["image"], built_with, options.get("trained_model"))
    if not name and asked.manifest:
        raise UsageError(
            "--manifest only prints the RayJob, and builds no image. Build it with  elasticdl "
            "cluster image  and specify it with --image."
        )
    asked = dataclasses.replace(asked, build=take_image_options(built_with))
    cpus, memory = given.pop("cpus_per_worker"), given.pop("memory_per_worker")
    return asked, ClusterOptions(
        image=name,
        ray_version=ray_version(),
        namespace=given["namespace"],
        worker=Resources(
            parse_quantity("cpus_per_worker", cpus),
            parse_quantity("memory_per_worker", memory),
        ),
        head=Resources(memory=parse_quantity("head_memory", given["head_memory"])),
        priority_class=given["priority_class"],
        spot=given["spot"],
        node_selector=parse_pairs("node_selector", given["node_selector"]),
        volumes=tuple(map(parse_volume, given["volume"])),
        env=parse_pairs("env", given["env"]),
        env_from_secrets=given["env_from_secret"],
        image_pull_secrets=given["image_pull_secret"],
        service_account=given["service_account"],
        ttl_s=given["ttl"],
        deadline_s=given["deadline"],
        queue=given["queue"],
        scheduler=given["scheduler"],
        autoscaling=given["autoscaling"],
    )


def _image(given: str | None, built_with: dict[str, Any], trained_model: str | None) -> str:
    """Return the name of the image for the pods; empty if the image has to be built first.

    Args:
        given: Value of --image.
        built_with: Values of the options for building an image.
        trained_model: Model to evaluate or predict with, which records the image that it was
            trained in; None for training.

    Raises:
        UsageError: The options contradict each other, or no image is known.
    """
    building = [flag for flag in flags() if built_with[flag]]
    if building and not built_with[REPOSITORY]:
        raise UsageError(
            f"--{building[0]} is an option for building an image. Add the repository to push it "
            f"to: --{REPOSITORY}=..."
        )
    if given and building:
        raise UsageError(
            f"--image names an existing image, --{REPOSITORY} builds one. Use only one of them."
        )
    if given:
        return image(given)
    if building:
        return ""
    if trained_model is None:
        raise UsageError(
            "--cluster=kubernetes needs --image, the image of the pods with ElasticDL and your "
            f"model zoo at /model_zoo/custom; or --{REPOSITORY}, to build one and push it there."
        )
    return api.recorded_image(trained_model)


def _declared() -> list[click.Parameter]:
    # Click stores them on the function until it becomes a command.
    function: Any = cluster_options(lambda: None)
    return list(reversed(function.__click_params__))


def _check_unused(given: dict[str, Any], declared: dict[str, click.Parameter]) -> None:
    for name, value in given.items():
        if name in declared and value not in {declared[name].default, None, (), False}:
            raise UsageError(f"--{name} is for jobs on a cluster. Add --cluster=kubernetes.")


def ray_version() -> str:
    """Return the installed version of Ray, which the image must have too.

    Raises:
        MissingExtraError: Ray is not installed on this machine.
    """
    try:
        return version("ray")
    except PackageNotFoundError:
        raise MissingExtraError("ray", "elastic", "A job on a cluster") from None
