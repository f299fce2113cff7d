"""``pydlbench collectives``: what it prints, keeps and refuses; the ranks are invented."""

from __future__ import annotations

import csv
import io
import json
import shlex

import msgspec
import pytest

from pydlbench.cli import main
from pydlbench.cli.collectives import rank_threads
from pydlbench.errors import WorkerError
from pydlbench.records.collectives import (
    CollectivePlace,
    CollectiveRow,
    CollectivesResult,
    OverlapRow,
    PairRow,
    bus_factor,
)
from pydlbench.records.measurement import TimeSummary

pytest.importorskip("torch")

REFUSED = [
    ("--ranks 1", "--ranks 1", "2"),
    ("--ranks 100000", "--ranks 100000", ...),
    ("--ranks two", "--ranks two", "2"),
    ("--operation all-reduc", "--operation all-reduc", ...),
    ("--sizes 1K..", "--sizes", ...),
    ("--sizes 64M..1K", "--sizes 64M..1K", ...),
    ("--sizes 1000T", "--sizes 1099511627776000", ...),
    ("--device cuda:0", "--device cuda:0", ...),
    ("--device cuda --threads 2", "--threads 2", "leave it out"),
    ("--limit 0", "--limit 0", "0.1"),
    ("--visits 0", "--visits 0", "1"),
    ("--json none/a.json", "--json none/a.json", ...),
]


@pytest.mark.parametrize(("line", "named", "nearest"), REFUSED)
def test_bad_input_is_one_line_with_the_nearest_choice(line, named, nearest, capsys):
    assert main(["collectives", *shlex.split(line)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"pydlbench: {named}")
    assert "nearest: " in said
    if nearest is not ...:
        assert said.endswith(f"nearest: {nearest}")


@pytest.mark.parametrize(
    "line", ["collectives --device cuda", "e2e mnist --device cuda:0 --phase training"]
)
def test_ranks_have_a_gpu_each(line, capsys, monkeypatch):
    for there, near in ((1, "--device cpu"), (3, "--ranks 3")):
        monkeypatch.setattr("pydlbench.backends.capabilities.gpu_count", lambda n=there: n)
        assert main([*line.split(), "--ranks", "4"]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith("pydlbench: --ranks 4")
        assert said.endswith(f"nearest: {near}")


def test_torchrun_and_ranks_that_differ_are_refused(capsys, monkeypatch):
    started = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert main(["collectives", "--ranks", "2"]) == 2
    assert "torchrun has started 4" in capsys.readouterr().err


def result(specs, visits=6):
    """Return what three ranks would say whose second link is slow."""
    place = CollectivePlace(ranks=3, threads=1, processor="some CPU")
    rows = []
    for spec in specs:
        seconds = 1e-4 + spec.bytes / 2e9
        time = TimeSummary(
            median=seconds,
            ci_low=0.9 * seconds,
            ci_high=1.1 * seconds,
            q1=seconds,
            q3=seconds,
            min=seconds,
            n=60,
            visits=visits,
            visit_s=tuple(seconds * (1 + 0.01 * n) for n in range(visits)),
        )
        rate = spec.bytes / seconds / 1e9
        rows.append(
            CollectiveRow(
                case=spec,
                place=place,
                time=time,
                rank_s=(seconds,) * 3,
                algorithm_gbps=rate,
                bus_gbps=rate * bus_factor(spec.operation, 3),
                verified=True,
            )
        )
    pairs = [
        PairRow(
            first=first,
            second=second,
            hosts=("here", "there"),
            bytes=4 << 20,
            visits_s=(ratio,),
            ratio=ratio,
            slow=ratio > 1.5,
        )
        for first, second, ratio in ((1, 2, 2.0), (0, 1, 1.0), (0, 2, 1.0))
    ]
    overlap = OverlapRow(
        bytes=25 << 20, place=place, compute=(0.5,), transfer=(0.6,), copy_s_per_byte=(1e-10,)
    )
    return CollectivesResult(rows=tuple(rows), pairs=tuple(pairs), overlap=overlap, others=0.25)


@pytest.fixture
def invented(monkeypatch):
    """Let ranks be measured whose times are invented; returns what was asked for."""
    asked = []

    def measure(specs, _, count, device, **how):
        asked.append((specs, count, device, how["limit_s"]))
        early = msgspec.structs.replace(result(specs, 2), stop_rule="interrupted")
        yield early
        if how["limit_s"] == 1:
            raise WorkerError("rank 1 of 3: was killed by SIGKILL")
        yield result(specs)

    monkeypatch.setattr("pydlbench.steps.collectives.measure_collectives", measure)
    return asked


LINE = ["collectives", "--ranks", "2", "--threads", "1", "--sizes", "4K..1M", "25M"]


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch):
    """Two ranks have a core each, whatever the machine is that runs the test."""
    monkeypatch.setattr(
        "pydlbench.cli.collectives.rank_threads",
        lambda ranks, threads: rank_threads(ranks, threads) if ranks > 2 else 1,
    )


@pytest.mark.usefixtures("invented")
def test_a_table_a_line_for_each_operation_and_the_slow_pair(invented, capsys):
    assert main([*LINE, "--operation", "all-reduce,broadcast"]) == 0
    ((specs, count, device, _),) = invented
    assert (count, device) == (2, "cpu")
    sizes = [4096, 16384, 65536, 262144, 1048576, 25 << 20]
    assert [(one.operation, one.bytes) for one in specs] == [
        (operation, size) for operation in ("all-reduce", "broadcast") for size in sizes
    ]
    out = capsys.readouterr().out
    assert out.count("all-reduce  ") == 6
    assert "all-reduce: t = 100 us" in out.replace("102 us", "100 us")
    assert "ranks 1 and 2 (here and there): 2.00 times as long" in out
    assert " 25 % " in out
    assert main(["runs", "show", "last"]) == 0
    assert "ranks 1 and 2" in capsys.readouterr().out


def test_every_format_holds_the_rows(invented, tmp_path, capsys):
    paths = {one: tmp_path / f"a.{one}" for one in ("json", "csv", "md")}
    options = [word for one, path in paths.items() for word in (f"--{one}", str(path))]
    assert main([*LINE, *options]) == 0
    count = len(invented[0][0])
    document = json.loads(paths["json"].read_text())
    assert document["kind"] == "collectives"
    assert len(document["rows"]) == count == 30
    assert len(document["fits"]) == 5
    lines = list(csv.DictReader(io.StringIO(paths["csv"].read_text())))
    assert len(lines) == count
    first = document["rows"][0]
    assert float(lines[0]["bus_gbps"]) == pytest.approx(first["bus_gbps"])
    assert float(lines[0]["time_s_median"]) == pytest.approx(first["time_s"]["median"])
    assert paths["md"].read_text().count("| all-reduce |") == 6
    capsys.readouterr()
    assert main(["runs", "show", str(paths["json"])]) == 0
    assert "point-to-point" in capsys.readouterr().out


@pytest.mark.usefixtures("invented")
def test_a_rank_that_dies_is_named_below_what_was_finished(capsys):
    assert main([*LINE, "--limit", "1"]) == 1
    said = capsys.readouterr()
    assert said.out.count("all-reduce  ") == 6
    assert "rank 1 of 3: was killed by SIGKILL" in said.err
