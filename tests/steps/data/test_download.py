"""Downloads from a server on this machine that does what it is told, well or badly."""

from __future__ import annotations

import fcntl
import hashlib
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from pydlbench.errors import UsageError
from pydlbench.steps.data.download import FILES, DownloadError, PublishedFile, fetch, fetch_files

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = bytes(range(256)) * 1000
NAME = "numbers.gz"
FILE = PublishedFile(name=NAME, size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())


class Server(ThreadingHTTPServer):
    """Serves ``content`` as ``/data/numbers.gz``; attributes change how."""

    daemon_threads = True
    content = CONTENT
    ranges = True
    stop_after: int | None = None
    range_shift = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        if self.path != f"/data/{NAME}":
            self.send_error(404)
            return
        first = int(asked[6:-1]) if asked and self.server.ranges else 0
        content = self.server.content
        if first and first >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        if first:
            first += self.server.range_shift
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        rest = content[first:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest[: self.server.stop_after])

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def get(server: Server, folder: Path, file: PublishedFile = FILE) -> list[str]:
    lines: list[str] = []
    fetch_files([file], server.base, folder, lines.append)
    return lines


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_and_is_announced_as_the_scripts_do(server, tmp_path):
    folder = tmp_path / "made" / "for it"
    # "Successfully downloaded train-labels-idx1-ubyte.gz 28881 bytes." is the published form.
    assert get(server, folder) == ["Successfully downloaded numbers.gz 256000 bytes."]
    assert (folder / NAME).read_bytes() == CONTENT
    assert names(folder) == [NAME]


def test_what_is_there_is_not_asked_for_again(server, tmp_path):
    get(server, tmp_path)
    assert get(server, tmp_path) == []
    assert len(server.asked) == 1


def test_a_wrong_file_in_its_place_is_replaced(server, tmp_path):
    (tmp_path / NAME).write_bytes(b"x" * len(CONTENT))
    get(server, tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_everything_as_it_was(server, tmp_path):
    (tmp_path / NAME).write_bytes(b"before")
    server.content = CONTENT[:-1] + b"x"
    with pytest.raises(DownloadError, match=r"its SHA-256 is not .*that of the published numbers"):
        get(server, tmp_path)
    assert (tmp_path / NAME).read_bytes() == b"before"
    assert names(tmp_path) == [NAME]


def test_a_missing_file_is_a_usage_error(server, tmp_path):
    other = PublishedFile(name="other.gz", size=1, sha256="0")
    with pytest.raises(UsageError, match=re.escape("other.gz: 404 Not Found; nearest: the URL")):
        get(server, tmp_path, other)
    assert names(tmp_path) == []


def test_a_short_read_is_kept_and_continued(server, tmp_path):
    server.stop_after = 100_000
    with pytest.raises(DownloadError, match="ended after 100000 of 256000 bytes, which are kept"):
        get(server, tmp_path)
    assert names(tmp_path) == [f".{NAME}.part"]
    with pytest.raises(DownloadError, match="ended after 200000 of 256000"):
        get(server, tmp_path)
    server.stop_after = None
    get(server, tmp_path)
    assert server.asked == [None, "bytes=100000-", "bytes=200000-"]
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert names(tmp_path) == [NAME]


def test_a_server_that_cannot_resume_sends_all_of_it(server, tmp_path):
    (tmp_path / f".{NAME}.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    get(server, tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize("length", [1000, 256_000, 300_000])
def test_a_part_of_something_else_is_given_up(server, tmp_path, length):
    (tmp_path / f".{NAME}.part").write_bytes(b"z" * length)
    get(server, tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert server.asked[-1] is None


def test_another_range_than_was_asked_for(server, tmp_path):
    (tmp_path / f".{NAME}.part").write_bytes(CONTENT[:1000])
    server.range_shift = 24
    get(server, tmp_path)
    assert server.asked == ["bytes=1000-", None]
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_a_part_longer_than_the_servers_file(server, tmp_path):
    server.content = CONTENT[:500]
    (tmp_path / f".{NAME}.part").write_bytes(CONTENT[:1000])
    with pytest.raises(DownloadError, match="ended after 500 of 256000"):
        get(server, tmp_path)
    assert server.asked == ["bytes=1000-", None]


def test_a_longer_file_is_refused_without_reading_it_all(server, tmp_path):
    server.content = CONTENT * 2
    with pytest.raises(DownloadError, match="256000"):
        get(server, tmp_path)
    assert names(tmp_path) == []


def test_two_processes_do_not_write_to_one_part(server, tmp_path):
    with (tmp_path / f".{NAME}.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="is being downloaded by another process"):
            get(server, tmp_path)
    assert server.asked == []


def test_nobody_answers(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # held, but nobody listens
        base = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DownloadError, match=r"Connection refused.*0 of 256000 bytes are kept"):
            fetch_files([FILE], base, tmp_path, print)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "base",
    ["ftp://host/x", "file:///etc", "host/path", "http://", "http://[::1", "http://h/\u00fc"],
)
def test_other_addresses_are_refused(tmp_path, base):
    with pytest.raises(UsageError, match="nearest: https://HOST/FOLDER"):
        fetch("mnist", base, str(tmp_path), print)


def test_folders_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be created"):
        fetch("mnist", "http://127.0.0.1:9", str(tmp_path / "file" / "in"), print)


def test_names_of_data_sets():
    with pytest.raises(UsageError, match=r"mnits.*nearest: mnist"):
        fetch("mnits", "http://127.0.0.1:9", ".", print)


def test_sizes_are_those_that_the_tutorials_printed():
    printed = {
        "train-images-idx3-ubyte.gz": 9912422,
        "train-labels-idx1-ubyte.gz": 28881,
        "t10k-images-idx3-ubyte.gz": 1648877,
        "t10k-labels-idx1-ubyte.gz": 4542,
        "cifar-10-binary.tar.gz": 170052171,
    }
    found = [file for files in FILES.values() for file in files]
    assert {file.name: file.size for file in found} == printed
    assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) for file in found)
