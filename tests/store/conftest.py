"""Invented runs, and processes that write them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from pydlbench.store.entry import Entry
from pydlbench.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from pydlbench.records.run import RunRecord


@pytest.fixture
def store(store_path):
    with Store.open(store_path) as opened:
        yield opened


@pytest.fixture
def run_of(run_record):
    """Build a run of the n-th second; ``id`` or any other field may be given."""

    def build(number: int = 0, **changes: object) -> RunRecord:
        values = {
            "id": f"20300102-{number:08x}",
            "created_utc": f"2030-01-02T03:04:{number:02d}+00:00",
            **changes,
        }
        return msgspec.structs.replace(run_record, **values)

    return build


@pytest.fixture
def entry(measurement):
    """Build a layer's entry; ``key`` or any field of the measurement."""

    def build(key: str | None = None, **changes: object) -> Entry:
        return Entry.from_document("layer", measurement(**changes).to_dict(), key)

    return build


#: Begins a run whose id is the second argument, and adds rows 0, 1, 2... as they are asked for.
WRITER = """
import sys
from pydlbench.records.run import RunRecord
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store

path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store.open(path) as store:
    run = RunRecord(id=name, created_utc="2030-01-02T03:04:05+00:00", device={"name": "A"})
    store.begin(run, "layers")
    for number in range(count):
        row = {"layer": f"{name} {number}", "status": "ok", "time_s": {"median": number + 0.5}}
        store.add(name, Entry("layer", row, (number + 0.25, number + 0.75)))
        print(number, flush=True)
    store.finish(run, "done")
"""


@pytest.fixture
def writer(tmp_path):
    """Start a process that writes a run; it prints the number of each row that it has added."""
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    started: list[subprocess.Popen[str]] = []

    def start(path: Path, name: str, count: int = 1_000_000) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(script), str(path), name, str(count)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
