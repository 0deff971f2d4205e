"""Image folders: finds the images in a folder and the class of each.

    pictures/cat/1.jpg              class cat
    pictures/dog/puppies/2.png      class dog: the first folder below the one that the user named
    flat/3.jpg                      no class

A folder with images directly in it is flat; otherwise its folders are classes. Hidden files and
folders, folders of thumbnails, and files that are not images are skipped, as Keras and torchvision
skip them. An image in an unsupported format is an error: skipping it would silently lose data.

The caller passes a `Place`, which lists local or remote folders. Files are not opened.

Callers: `find_files.py`, `images.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from elasticdl.data.formats import IMAGES, format_by_name
from elasticdl.data.stored_file import open_each
from elasticdl.data.wording import counted
from elasticdl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

# Image formats that are not read.
_NOT_READ = (".heic", ".heif", ".avif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".psd", ".svg")
# Made by operating systems and storage devices; contain thumbnails or parts of files.
_NO_CLASSES = ("__MACOSX", "__pycache__", "@eaDir", "$RECYCLE.BIN")
# The search ends after this many folders without an image: it may be a whole disk.
_MAX_FOLDERS_WITHOUT = 1000
_MAX_NAMED = 5


class Place(Protocol):
    """A file system, local or remote, in which folders are listed; see `find_files.py`."""

    def uri(self, path: str) -> str:
        """Return the URI of a path."""
        ...

    def listing(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the paths of the files and those of the folders that are directly in a folder."""
        ...

    def identity(self, folder: str) -> Hashable:
        """Return a value that identifies a folder, to detect links that lead back to it.

        It is equal for all paths to the same folder; None on file systems without links.
        """
        ...


class Tree(NamedTuple):
    """Content of the class folders in a folder: images, and other files for error messages.

    Attributes:
        images: Paths of the images, at any depth.
        classes: Path of each class folder -> number of images in it, at any depth.
        unread: Paths of images in formats that ElasticDL does not read.
        other: Path of one file that is not an image in any format; None if there is none. It shows
            that the folder is perhaps not meant to be one of images.
    """

    images: list[str]
    classes: dict[str, int]
    unread: list[str]
    other: str | None


def is_image(path: str) -> bool:
    """Return whether the name of a file is that of an image in a format that ElasticDL reads."""
    # Cameras name files _DSC0001.JPG, so that an underscore does not hide an image.
    return format_by_name(path) == IMAGES and not _name(path).startswith(".")


def images_of_folder(
    place: Place, folder: str, files: Sequence[str], folders: Sequence[str]
) -> tuple[list[str], Tree]:
    """Return the images of a folder: those directly in it, or else those in its class folders.

    Args:
        place: The file system.
        folder: Path of the folder.
        files: Files directly in it.
        folders: Folders directly in it.

    Returns:
        The images, an empty list if there are none; and the content of the class folders, from
        which the caller makes error messages.

    Raises:
        DataError: Images are beside class folders, a class folder has no image, a folder is a
            link to one that contains it, or images are in a format that is not read.
    """
    name = place.uri(folder).rstrip("/")
    flat = [path for path in files if is_image(path)]
    tree = _walk(place, folder, [path for path in folders if _may_be_class(path)])
    if flat and tree.images:
        raise DataError(
            f"The folder {name} contains images ({_some(flat)}) and folders of images "
            f"({_some(_with_images(tree))}), so the class of {_name(flat[0])} is unknown. Move "
            "these images into a class folder. To predict without classes, name them: "
            f"'{name}/*{_extension(flat[0])}'."
        )
    unread = [*filter(_is_unread, files), *tree.unread]
    if unread and (flat or tree.images or not tree.other):
        raise DataError(
            f"The folder {name} contains {counted(len(unread), 'image')} in a format that is not "
            f"read ({_some(unread)}); PNG, JPEG, WebP, GIF and BMP are. Convert them, or move them "
            "out of the folder."
        )
    if flat:
        return flat, tree
    empty = [path for path, count in tree.classes.items() if not count]
    if tree.images and empty:
        raise DataError(
            f"The folder {name} contains folders of images ({_some(_with_images(tree))}), each of "
            f"which is a class, but no image is in {_some(empty)}. Add images to "
            f"{'it' if len(empty) == 1 else 'them'}, or move "
            f"{'it' if len(empty) == 1 else 'them'} out of {name}."
        )
    return tree.images, tree


def classes_of(uris: Sequence[str], roots: Iterable[str]) -> list[str | None]:
    """Return the class of each image: the first folder below the one that the user named.

    Args:
        uris: Images.
        roots: Folders that the user named, as URIs.

    Returns:
        Names of folders; None for images that are directly in such a folder, or in none.

    Example:
        >>> classes_of(["p/cat/1.jpg", "p/dog/b/2.jpg", "p/3.jpg"], ["p"])
        ['cat', 'dog', None]
    """
    named = {root.rstrip("/") for root in roots}
    known: dict[str, str | None] = {}
    classes = []
    for uri in uris:
        folder = uri.rpartition("/")[0]
        if folder not in known:
            known[folder] = _first_below(folder, named)
        classes.append(known[folder])
    return classes


def _first_below(folder: str, named: set[str]) -> str | None:
    """Return the class of an image: the folder directly below the one that the user named.

    If the user named several folders that contain the image, the outermost one counts.

    Args:
        folder: URI of the folder of an image.
        named: URIs of the folders that the user named.

    Returns:
        The folder's name; None if `folder` is not inside of a named folder.
    """
    found = None
    above, slash, inner = folder.rpartition("/")
    while slash:
        if above in named:
            found = inner
        above, slash, inner = above.rpartition("/")
    return found


def _walk(place: Place, folder: str, folders: Sequence[str]) -> Tree:
    """Find the images in class folders at any depth; folders of one level are listed in parallel.

    If `_MAX_FOLDERS_WITHOUT` folders have no image, the search ends: it may have been started on a
    whole disk.

    Args:
        place: The file system.
        folder: The folder that contains the class folders, to detect links back to it.
        folders: The class folders.

    Raises:
        DataError: A folder cannot be read, or is a link to a folder that contains it.
    """
    images: list[str] = []
    classes = dict.fromkeys(folders, 0)
    unread: list[str] = []
    other = None
    links: tuple[Hashable, ...] = (place.identity(folder),)
    level = [(path, path, links) for path in folders]
    num_listed = 0
    while level and (images or num_listed < _MAX_FOLDERS_WITHOUT):
        paths = {place.uri(path): path for path, _, _ in level}
        listed = open_each(list(paths), lambda uri: place.listing(paths[uri]))  # noqa: B023 - now
        num_listed += len(level)
        below = []
        for (path, top, above), (files, inside) in zip(level, listed, strict=True):
            found = [file for file in files if is_image(file)]
            unread += filter(_is_unread, files)
            if len(found) < len(files):
                other = other or next(filter(_is_other, files), None)
            images += found
            classes[top] += len(found)
            links = (*above, place.identity(path))
            if links[-1] is not None and links[-1] in above:
                raise DataError(
                    f"{path} is a link to a folder that contains it. Remove the link, or name "
                    "another folder."
                )
            below += [(inner, top, links) for inner in inside if _may_be_class(inner)]
        level = below
    return Tree(images, classes, unread, other)


def _may_be_class(path: str) -> bool:
    name = _name(path)
    return not name.startswith(".") and name not in _NO_CLASSES


def _is_unread(path: str) -> bool:
    return path.lower().endswith(_NOT_READ) and not _name(path).startswith(".")


def _is_other(path: str) -> bool:
    return not (is_image(path) or _is_unread(path) or _name(path).startswith("."))


def _with_images(tree: Tree) -> list[str]:
    return [path for path, count in tree.classes.items() if count]


def _some(paths: Sequence[str]) -> str:
    names = sorted(map(_name, paths))
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _extension(path: str) -> str:
    return path[path.rfind(".") :]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
