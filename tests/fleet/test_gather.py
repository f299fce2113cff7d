"""What is taken from a store that a node has brought back: names of metrics, times, commands."""

from __future__ import annotations

import itertools
import shlex

import msgspec
import pytest
from breakdown_records import document_of, make_record
from invented_fleet import write_store
from invented_rows import measurement, time_of
from invented_runs import RUN, step_record

from pydlbench.cli.parser import read
from pydlbench.errors import StoreError, UsageError
from pydlbench.fleet.run import collected, gathered
from pydlbench.records.user_model import UserInput, UserModelSpec
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store


def stored(path, *entries):
    """Return what is taken of a sweep with these entries, in this order."""
    with Store.open(path) as store:
        store.begin(RUN, "sweep", request={"file": "some.toml", "text": ""})
        store.add_all(RUN.id, entries)
        store.finish(RUN, "done")
    return gathered(path)["values"]


def layer(seconds, **changes):
    if seconds is None:
        changes |= {"status": "failed", "reason": "its worker has died", "time": None}
    else:
        changes["time"] = time_of(seconds)
    return measurement(**changes).to_dict()


def times(values):
    return {name: value["time_s"] for name, value in values.items()}


def test_rows_of_one_name_are_told_apart_by_what_they_differ_in(tmp_path):
    found = stored(
        tmp_path / "a.sqlite",
        *(Entry.from_document("layer", layer(1 / n, threads=n), f"layers/1/{n}") for n in (1, 2)),
        Entry.from_document("layer", layer(5.0, layer="alexnet/conv2"), "layers/1/3"),
    )
    assert times(found) == {
        "alexnet/conv3 forward fp32 batch 128 threads 1": 1.0,
        "alexnet/conv3 forward fp32 batch 128 threads 2": 0.5,
        "alexnet/conv2 forward fp32 batch 128": 5.0,
    }


@pytest.mark.parametrize("field", ["threads", "timing"])
def test_a_row_that_failed_leaves_its_name_to_nobody_else(tmp_path, field):
    kinds = (1, 2) if field == "threads" else ("events", "cuda-graph")

    def rows(first):
        made = zip((first, 1e-3), kinds, strict=True)
        return [
            Entry.from_document("layer", layer(s, **{field: kind}), f"l/1/{kind}")
            for s, kind in made
        ]

    whole = times(stored(tmp_path / "whole.sqlite", *rows(2e-3)))
    part = times(stored(tmp_path / "part.sqlite", *rows(None)))
    assert sorted(whole.values()) == [1e-3, 2e-3]
    assert part == {name: seconds for name, seconds in whole.items() if seconds == 1e-3}


def test_how_a_framework_was_timed_is_in_no_name(tmp_path):
    """A row that failed only has what was meant."""

    def rows(first, timing):
        own = {"backend": "jax", "mode": "xla", "threads": None}
        made = ((first, "cuda:0", timing), (1e-3, "cuda:1", "host-sync"))
        return [
            Entry.from_document(
                "layer", layer(s, device=device, timing=how, **own), f"l/1/{device}"
            )
            for s, device, how in made
        ]

    whole = times(stored(tmp_path / "whole.sqlite", *rows(2e-3, "host-sync")))
    part = times(stored(tmp_path / "part.sqlite", *rows(None, "cuda-graph")))
    assert part == {name: seconds for name, seconds in whole.items() if seconds == 1e-3}


def test_the_same_row_twice_is_named_by_its_place_in_the_file(tmp_path):
    """Rows end in another order on each node."""
    rows = [Entry.from_document("layer", layer(n), f"layers/{n}/0") for n in (1, 2, 3)]
    rows[1] = Entry.from_document("layer", layer(None), "layers/2/0")
    found = [
        times(stored(tmp_path / f"{name}.sqlite", *order))
        for name, order in (("a", rows), ("b", rows[::-1]))
    ]
    name = "alexnet/conv3 forward fp32 batch 128"
    assert found == [{name: 1.0, f"{name} #3": 3.0}] * 2


def step(**changes):
    record = step_record()
    case = msgspec.structs.replace(record.spec, **changes)
    return Entry.from_document(
        "step", msgspec.structs.replace(record, spec=case, threads=2).to_dict()
    )


OWN = {"model": "net.py:build", "layout": "nchw", "phase": "training"}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (Entry.from_document("layer", layer(1.0, threads=1)), "layers --threads 1 --device cpu"),
        (
            Entry.from_document(
                "layer", layer(1.0, device="cuda:1", timing="events", threads=None)
            ),
            "layers --device cuda:1 --timing events",
        ),
        (step(layout="nchw", feed="host"), "step --layout nchw --feed host --threads 2"),
        (
            step(
                **OWN, own=UserModelSpec(inputs=(UserInput.parse("8x3x32x32"),), optimizer="adam")
            ),
            "step --input 8x3x32x32 --optimizer adam",
        ),
        (
            Entry.from_document("breakdown", document_of(make_record(phase="training"))),
            "breakdown --phase training --device cpu",
        ),
    ],
)
def test_the_command_asks_for_all_that_the_row_was_measured_with(tmp_path, entry, words):
    value, *_ = stored(tmp_path / "some.sqlite", entry).values()
    program, command, *said = shlex.split(value["command"])
    assert program == "pydlbench"
    kind, *options = words.split()
    assert command == kind
    assert set(zip(options[::2], options[1::2], strict=True)) <= set(itertools.pairwise(said))
    read([command, *said])[0]


def test_the_command_of_an_estimate_names_no_framework(tmp_path):
    document = {
        "model": "resnet50",
        "batch": 4,
        "phase": "training",
        "precision": "fp32",
        "estimate": {"time_s": 1.0, "half_width_s": 0.1},
        "device": "cpu",
        "threads": 2,
    }
    (value,) = stored(tmp_path / "some.sqlite", Entry.from_document("estimate", document)).values()
    assert value["command"] == (
        "pydlbench estimate resnet50 --batch 4 --phase training --device cpu --threads 2"
    )


@pytest.mark.parametrize(
    ("table", "document"),
    [
        ("estimate", {"model": "m", "batch": "many", "estimate": {"time_s": 1.0}}),
        ("layer", {**layer(1.0), "kind": "of a later version"}),
    ],
)
def test_a_row_that_no_command_writes_is_a_damaged_store(tmp_path, table, document):
    with pytest.raises(StoreError, match="a row of "):
        stored(tmp_path / "some.sqlite", Entry.from_document(table, document))


def test_stores_of_a_folder_are_visits(tmp_path):
    for number in range(2):
        write_store(tmp_path / f"host.example.{number}.sqlite")
    (tmp_path / "bad.0.sqlite").write_bytes(b"no store" * 100)
    (tmp_path / "other.sqlite").write_bytes(b"")
    found = {(one.node, one.round): one for one in collected(tmp_path)}
    assert found.keys() == {("host.example", 0), ("host.example", 1), ("bad", 0)}
    assert found["bad", 0].status == "failed"
    one = found["host.example", 1]
    assert one.status == "ok"
    assert one.values["alexnet/conv3 forward fp32 batch 128"]["time_s"] == 1e-3
    with pytest.raises(UsageError, match=r"NODE.ROUND.sqlite.*nearest"):
        collected(tmp_path / "nowhere")
