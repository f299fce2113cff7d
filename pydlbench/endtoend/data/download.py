"""Download of the data sets' files: checked, resumed where it stopped, put in place in one step."""

from __future__ import annotations

import fcntl
import hashlib
import os
import urllib.parse
from typing import TYPE_CHECKING

from pydlbench.endtoend.data.published_files import FILES
from pydlbench.endtoend.data.receive import DownloadError, receive, size_of
from pydlbench.errors import PydlbenchError, UsageError, nearest
from pydlbench.results.paths import user_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pydlbench.endtoend.data.published_files import PublishedFile

__all__ = ["DownloadError", "fetch", "fetch_files"]


def fetch(name: str, base: str, folder: str, write: Callable[[str], None]) -> None:
    """Download a data set's files into a folder, except those that are there already.

    Args:
        name: ``mnist`` or ``cifar10``.
        base: URL of the folder that holds the files, http or https.
        folder: where to put them; created if need be.
        write: takes the line that the scripts print for each file.

    Raises:
        UsageError: no such data set, the URL is none or has no such file, or the folder cannot be
            written.
        DownloadError: the connection failed, the file has another length, or its checksum is
            wrong.
    """
    if name not in FILES:
        near = nearest(name, FILES) or list(FILES)
        raise UsageError(f"--download: no files of {name} are known; nearest: {', '.join(near)}")
    fetch_files(FILES[name], base, user_path(folder), write)


def fetch_files(
    files: Sequence[PublishedFile], base: str, folder: Path, write: Callable[[str], None]
) -> None:
    """Download files; see :func:`fetch`."""
    _check_url(base)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--data {folder}: cannot be created ({error.strerror}); nearest: another folder"
        ) from error
    for file in files:
        target = folder / file.name
        if target.is_file() and target.stat().st_size == file.size and _matches(target, file):
            continue
        _fetch(file, f"{base.rstrip('/')}/{file.name}", target)
        write(f"Successfully downloaded {file.name} {file.size} bytes.")


def _check_url(base: str) -> None:
    try:
        parts = urllib.parse.urlsplit(base)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and base.isascii()
    except ValueError:
        good = False
    if not good:
        raise UsageError(
            f"--download {base}: not an http or https URL; nearest: https://HOST/FOLDER"
        )


def _fetch(file: PublishedFile, url: str, target: Path) -> None:
    """Bring one file; a part that is left from before is continued, and doubted if it fails."""
    part = target.with_name(f".{file.name}.part")
    try:
        with part.open("ab") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DownloadError(
                    f"{target}: is being downloaded by another process; nearest: wait for it"
                ) from error
            try:
                resumed = size_of(stream) > 0
                receive(file, url, stream)
                stream.flush()
                if resumed and not _matches(part, file):
                    # The part may have been another file's: once more, from the start.
                    stream.truncate(0)
                    receive(file, url, stream)
                stream.flush()
                if not _matches(part, file):
                    stream.truncate(0)
                    raise DownloadError(
                        f"{url}: its SHA-256 is not {file.sha256[:16]}..., that of the published "
                        f"{file.name}; nearest: another --download URL-BASE"
                    )
                os.fsync(stream.fileno())
                part.replace(target)
            finally:
                if part.is_file() and size_of(stream) == 0:
                    part.unlink()
    except OSError as error:
        if isinstance(error, PydlbenchError):
            raise
        raise UsageError(
            f"{target}: cannot be written ({error.strerror or error}); nearest: another --data"
        ) from error


def _matches(path: Path, file: PublishedFile) -> bool:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256
