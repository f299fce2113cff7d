"""One request for a file or for what is missing of it, appended to what is there."""

from __future__ import annotations

import http.client
import os
import re
import ssl
import urllib.error
import urllib.request
from typing import IO, TYPE_CHECKING, Final

from pydlbench.errors import PydlbenchError, UsageError

if TYPE_CHECKING:
    from pydlbench.endtoend.data.published_files import PublishedFile

__all__ = ["DownloadError", "receive", "size_of"]

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
