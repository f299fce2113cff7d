"""Download of the data sets' files: checked, resumed where it stopped, put in place in one step."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from pydlbench.errors import PydlbenchError, UsageError, nearest
from pydlbench.store.place import user_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


_CHUNK: Final = 1 << 16
_TIMEOUT_S: Final = 30.0


class DownloadError(PydlbenchError, OSError):
    """A file did not arrive whole and unchanged; what had arrived is kept where it can be used."""


def size_of(stream: IO[bytes]) -> int:
    """Return the bytes of an open file, those in the buffer included."""
    stream.flush()
    return os.fstat(stream.fileno()).st_size


def receive(file: PublishedFile, url: str, stream: IO[bytes]) -> None:
    """Append to ``stream`` what is missing; start over where the server does not resume.

    Args:
        file: what should arrive.
        url: where from.
        stream: opened to append; may hold the file's beginning.

    Raises:
        UsageError: the server does not have it.
        DownloadError: the connection failed, or the file is shorter or longer than published.
    """
    if size_of(stream) > file.size:
        stream.truncate(0)
    held = size_of(stream)
    if held == file.size:
        return
    headers = {"Range": f"bytes={held}-"} if held else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the caller checks the scheme
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 - same
            if held and not _continues(response, held):
                stream.truncate(0)
                if response.status == http.client.PARTIAL_CONTENT:
                    # Some other part: without a range there can be no such misunderstanding.
                    receive(file, url, stream)
                    return
            _append(response, file, url, stream)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and held:
            # What is there is longer than the server's file: it is not its beginning.
            stream.truncate(0)
            receive(file, url, stream)
            return
        raise UsageError(
            f"--download: {url}: {error.code} {error.reason}; nearest: the URL of a folder that "
            f"holds {file.name}"
        ) from error
    except (
        urllib.error.URLError,
        http.client.HTTPException,
        ssl.SSLError,
        TimeoutError,
        ConnectionError,
    ) as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(
            f"{url}: {reason}; {size_of(stream)} of {file.size} bytes are kept; nearest: the same "
            "command again"
        ) from error
    if (held := size_of(stream)) < file.size:
        raise DownloadError(
            f"{url}: ended after {held} of {file.size} bytes, which are kept; nearest: the same "
            "command again"
        )


def _append(
    response: http.client.HTTPResponse, file: PublishedFile, url: str, stream: IO[bytes]
) -> None:
    """Append what comes, and stop where it is more than there should be."""
    held = size_of(stream)
    while piece := response.read(min(_CHUNK, file.size + 1 - held)):
        held += len(piece)
        if held > file.size:
            stream.truncate(0)
            raise DownloadError(
                f"{url}: longer than the {file.size} bytes of the published {file.name}; "
                "nearest: another --download URL-BASE"
            )
        stream.write(piece)


def _continues(response: http.client.HTTPResponse, held: int) -> bool:
    """Whether the server sends what follows the first ``held`` bytes, not the whole file."""
    if response.status != http.client.PARTIAL_CONTENT:
        return False
    first = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return first is not None and int(first[1]) == held


# -----------------------------------------------------------------------------
# The files of MNIST and CIFAR-10 as their authors published them: names, sizes, checksums.


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file that can be downloaded.

    Attributes:
        name: below the base URL and in the data folder.
        size: bytes.
        sha256: in hexadecimal.
    """

    name: str
    size: int
    sha256: str


#: By data set. The sizes are those that the tutorials print after a download.
FILES: Final[dict[str, tuple[PublishedFile, ...]]] = {
    "mnist": (
        PublishedFile(
            name="train-images-idx3-ubyte.gz",
            size=9_912_422,
            sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        PublishedFile(
            name="train-labels-idx1-ubyte.gz",
            size=28_881,
            sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        PublishedFile(
            name="t10k-images-idx3-ubyte.gz",
            size=1_648_877,
            sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        PublishedFile(
            name="t10k-labels-idx1-ubyte.gz",
            size=4_542,
            sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "cifar10": (
        PublishedFile(
            name="cifar-10-binary.tar.gz",
            size=170_052_171,
            sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
}


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
