"""The Dockerfile of a job's image: stable layers first, so that a zoo edit rebuilds in seconds.

    layer                         time to build it

    base image                    none: named by the user
    locked dependencies           minutes; once per version of ElasticDL
    ElasticDL                     seconds
    requirements of the zoo       depends on the packages; again when the requirements change
    the zoo                       under a second

Pure. The Dockerfile does not need BuildKit, so every engine with the Docker API can build it. It
contains no value of a build argument: pip reads index and proxy from its own environment variables.

Callers: `build.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl.cluster.command import ZOO

# Prefix of the output of a failing step, for `build_errors.py`.
MARK = "elasticdl-cannot-build:"
OWN = "/opt/elasticdl"
USER = 1000
# As variables, because an old pip ignores unknown variables but not unknown options. The last one
# is for base images with Debian's Python: nothing else in the image uses its packages.
_PIP = (
    "PIP_NO_CACHE_DIR=1",
    "PIP_DISABLE_PIP_VERSION_CHECK=1",
    "PIP_NO_INPUT=1",
    "PIP_ROOT_USER_ACTION=ignore",
    "PIP_BREAK_SYSTEM_PACKAGES=1",
)
# Commands that Ray, KubeRay and ElasticDL start by name.
_COMMANDS = "python python3 ray elasticdl"


def dockerfile(
    base_image: str, wheel: str, requirement_files: Sequence[str], labels: dict[str, str]
) -> str:
    """Return the text of the Dockerfile.

    Args:
        base_image: The base image; it must have Python and pip.
        wheel: File name of ElasticDL's wheel.
        requirement_files: `requirements.txt` of the zoo and the files it includes, as paths
            relative to the zoo; empty if it has none.
        labels: Labels of the image; their values contain no quotes or line breaks.
    """
    lines = [
        f"FROM {base_image}",
        "USER 0",
        # The image contains only the names of these, not their values.
        "ARG PIP_INDEX_URL",
        "ARG PIP_EXTRA_INDEX_URL",
        *(f"ARG {each}" for each in _PIP),
        f"RUN {_prepared()}",
        f"COPY elasticdl/constraints.txt elasticdl/dependencies.txt {OWN}/",
        f"RUN {_install(f'--requirement {OWN}/dependencies.txt')}",
        f"COPY elasticdl/{wheel} {OWN}/",
        f"RUN {_install(f'--no-deps {OWN}/{wheel}')} && {_on_default_path()}",
    ]
    if requirement_files:
        lines += [
            f"COPY requirements/ {ZOO}/",
            f"RUN {_install(f'--requirement {ZOO}/requirements.txt')}",
        ]
    lines += [
        # Only /tmp is writable.
        "ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1",
        f"USER {USER}:{USER}",
        "WORKDIR /tmp",
        "ENTRYPOINT []",
        'CMD ["elasticdl", "--help"]',
        *(f'LABEL {name}="{value}"' for name, value in sorted(labels.items())),
        # Last: without BuildKit, an edit would cost a container for each instruction below it.
        f"COPY zoo/ {ZOO}/",
    ]
    return "\n".join(lines) + "\n"


def _install(what: str) -> str:
    return f"python3 -m pip install --constraint {OWN}/constraints.txt {what}"


def _prepared() -> str:
    """Return a shell command that prepares the base image.

    The command fails if the image has no Python 3.11 or later with pip. It gives the user id of the
    pods a user name, which Ray requires.
    """
    return (
        "python3 -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))'"
        f" || {{ echo '{MARK} python'; exit 1; }};"
        # Ray requires the user to have a name.
        f' while IFS=: read -r _ _ id _; do [ "$id" != {USER} ] || found=1; done < /etc/passwd;'
        f' [ -n "$found" ] || echo "elasticdl:x:{USER}:{USER}::/tmp:/bin/sh" >> /etc/passwd'
    )


def _on_default_path() -> str:
    """Return a shell command that puts ElasticDL's commands on the PATH of a login shell.

    KubeRay starts Ray in a login shell, which sets PATH itself. ElasticDL's commands get scripts in
    a folder of that PATH; with links instead, Python would not find its virtual environment.
    """
    return (
        f"mkdir -p /usr/local/bin && for each in {_COMMANDS}; do"
        ' found=$(command -v "$each") && case "$found" in'
        " /usr/local/bin/*|/usr/bin/*|/bin/*) ;;"
        ' *) printf \'#!/bin/sh\\nexec "%s" "$@"\\n\' "$found" > "/usr/local/bin/$each"'
        ' && chmod 755 "/usr/local/bin/$each" ;; esac; done;'
        f' for each in {_COMMANDS}; do [ "$each" = python ] ||'
        ' env -i /bin/bash -lc "command -v $each" > /dev/null ||'
        f' {{ echo "{MARK} command $each"; exit 1; }}; done'
    )
