"""Build context: one tar file for the container engine. Equal files give an equal tar file.

    Dockerfile
    elasticdl/     wheel, constraints.txt, dependencies.txt
    requirements/  requirements.txt of the zoo and what it includes
    zoo/           the zoo

Owner, group and times are fixed, and modes are 644 or 755. A layer is therefore rebuilt only when
a file has changed, on any machine.

Callers: `build.py`.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from elasticdl.cluster.images.zoo_files import ZooFiles


def write_context(out: IO[bytes], files: Mapping[str, bytes], zoo: ZooFiles) -> None:
    """Write the build context of an image as a tar file.

    Args:
        out: An empty file, open for reading and writing. Afterwards, its position is the start.
        files: Path -> bytes of everything except the zoo.
        zoo: Files of the zoo that belong in the image.

    Raises:
        OSError: A file cannot be read or written.
    """
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("zoo", "requirements"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
        for entry in zoo.entries:
            member = tarfile.TarInfo(f"zoo/{entry.path}")
            if entry.link is not None:
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.link, 0o777
                tar.addfile(member)
                continue
            with entry.source.open("rb") as file:
                found = entry.source.stat()
                member.size = found.st_size
                member.mode = 0o755 if found.st_mode & 0o100 else 0o644
                tar.addfile(member, file)
    out.seek(0)
