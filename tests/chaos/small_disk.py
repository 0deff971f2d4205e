"""A disk of a few megabytes that a storm can fill.

Callers: `storm.py`.
"""

import contextlib
import os
import shutil
import subprocess

_SIZE_MB = 24


class CannotMountError(Exception):
    """This machine, or this user, cannot make a disk."""


class SmallDisk:
    """A file system in memory.

    Args:
        folder: Where it is mounted; it is made.

    Raises:
        CannotMountError: It cannot be mounted.
    """

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        if os.geteuid() != 0 or shutil.which("mount") is None:
            raise CannotMountError("only root can mount a disk")
        command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MB}m", "none", str(folder)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise CannotMountError(done.stderr.strip())

    def fill(self):
        """Leave no byte of room."""
        with (self.folder / "ballast").open("wb", buffering=0) as ballast:
            for size in (2**20, 2**12, 1):
                with contextlib.suppress(OSError):
                    while ballast.write(bytes(size)):
                        pass

    def make_room(self):
        """Remove what fills it."""
        (self.folder / "ballast").unlink()

    def close(self):
        """Unmount it."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False)
