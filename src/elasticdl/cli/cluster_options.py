"""The options that say how a job runs on a Kubernetes cluster, under a heading of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from elasticdl import api
from elasticdl.cli.image_options import REPOSITORY, flags, image_options, taken_image
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
class Asked:
    """What is to be done with a job on a cluster.

    Attributes:
        context: Of the kubeconfig; None is the current one.
        manifest: Print the RayJob only.
        patch: File of what is merged into it; None for nothing.
        detach: Submit the job only.
        build: The image that is to be built first; None for none.
    """

    context: str | None
    manifest: bool
    patch: str | None
    detach: bool
    build: ImageOptions | None = None


class _ClusterOption(click.Option):
    """An option that means something with --cluster only."""


class CommandOfClusters(click.Command):
    """A command whose help lists the options of clusters by themselves."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then those of clusters."""
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
    """Give a command the options of clusters; see `api.cluster_options`."""
    return with_options(
        command,
        _option(
            "--cluster",
            type=click.Choice(["kubernetes"]),
            help="Run on the cluster of the kubeconfig, by KubeRay, instead of on this machine. "
            "Needs --num_workers, and --image or --docker_image_repository.",
        ),
        _option("--context", metavar="NAME", help="Context of the kubeconfig; the current one."),
        _option("--namespace", metavar="NAME", help="Namespace; that of the context."),
        _option(
            "--image",
            metavar="IMAGE",
            help="Image of all pods, best with its digest: registry/team/app@sha256:...",
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
        _option("--spot", is_flag=True, help="Workers may run on machines that can be taken away."),
        _option("--priority_class", metavar="NAME", help="PriorityClass of all pods."),
        _option(
            "--node_selector",
            metavar="LABEL=VALUE",
            multiple=True,
            help="Run workers on nodes with this label; may be given again.",
        ),
        _option(
            "--volume",
            metavar="KIND:NAME:PATH[:ro]",
            multiple=True,
            help="Mount a claim (pvc:data:/data), a folder of the nodes (host:/mnt:/mnt) or a "
            "secret (secret:key:/key) into all pods; may be given again.",
        ),
        _option(
            "--env",
            metavar="NAME=VALUE",
            multiple=True,
            help="Environment variable of all pods; may be given again.",
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
        _option("--service_account", metavar="NAME", help="Account of all pods."),
        _option(
            "--ttl",
            metavar="SECONDS",
            default=_DEFAULTS.ttl_s,
            show_default=True,
            help="Keep the pods for so long after the job's end.",
        ),
        _option("--deadline", metavar="SECONDS", type=int, help="End the job after so long."),
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
            help="Let Ray ask for worker pods between the least and the most of --num_workers, "
            "instead of for the most at once.",
        ),
        _option("--manifest", is_flag=True, help="Print the RayJob as YAML and do nothing."),
        _option(
            "--manifest_patch",
            metavar="FILE",
            help="YAML that is merged into the RayJob (RFC 7396), as the cluster's owner wants it.",
        ),
        _option("--detach", is_flag=True, help="Submit the job and do not follow it."),
    )


def taken(options: dict[str, Any]) -> tuple[Asked, ClusterOptions | None]:
    """Take the options of clusters out of a command's options.

    Returns:
        What is to be done, and how the job runs there; None without --cluster.

    Raises:
        UsageError: One is given without --cluster, or has an impossible value.
    """
    declared = {str(each.name): each for each in _declared()}
    given = {name: options.pop(name) for name in declared}
    asked = Asked(
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
            "--manifest does nothing, so it builds no image. Build it with  elasticdl cluster "
            "image  and name it with --image."
        )
    asked = dataclasses.replace(asked, build=taken_image(built_with))
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
    """Return the image of the pods; empty if it is to be built."""
    building = [flag for flag in flags() if built_with[flag]]
    if building and not built_with[REPOSITORY]:
        raise UsageError(
            f"--{building[0]} says how an image is built. Say where it goes: --{REPOSITORY}=..."
        )
    if given and building:
        raise UsageError(
            f"--image names an image that is there, --{REPOSITORY} builds one. Give one of them."
        )
    if given:
        return image(given)
    if building:
        return ""
    if trained_model is None:
        raise UsageError(
            f"--cluster=kubernetes needs --image, the image of the pods with ElasticDL and your "
            f"model zoo at /model_zoo/custom; or --{REPOSITORY}, where one is built and pushed to."
        )
    return api.recorded_image(trained_model)


def _declared() -> list[click.Parameter]:
    # Click keeps them with the function until it becomes a command.
    function: Any = cluster_options(lambda: None)
    return list(reversed(function.__click_params__))


def _check_unused(given: dict[str, Any], declared: dict[str, click.Parameter]) -> None:
    for name, value in given.items():
        if name in declared and value not in {declared[name].default, None, (), False}:
            raise UsageError(f"--{name} is for jobs on a cluster. Add --cluster=kubernetes.")


def ray_version() -> str:
    """Return the version of Ray that belongs to this ElasticDL, which the image has too.

    Raises:
        MissingExtraError: Ray is not installed here.
    """
    try:
        return version("ray")
    except PackageNotFoundError:
        raise MissingExtraError("ray", "elastic", "A job on a cluster") from None
