"""Reading the kernel's files: lists of CPUs, sizes, /proc/cpuinfo."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.devices.cpu.facts import (
    parse_cpu_list,
    parse_size,
    read_cpuinfo,
    read_number,
    read_text,
)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("0-1,8,10-11", (0, 1, 8, 10, 11)),
        ("8,0", (0, 8)),
        ("", ()),
        (None, ()),
        ("0-", ()),
        ("all", ()),
    ],
)
def test_parse_cpu_list(text, cpus):
    assert parse_cpu_list(text) == cpus


@given(st.sets(st.integers(0, 4096), min_size=1))
def test_any_set_of_cpus_survives_being_listed(cpus):
    assert parse_cpu_list(",".join(map(str, cpus))) == tuple(sorted(cpus))


@pytest.mark.parametrize(
    ("text", "size"),
    [("32K", 32768), ("32768K", 32 << 20), ("1M", 1 << 20), ("17", 17), ("", None), ("K", None)],
)
def test_parse_size(text, size):
    assert parse_size(text) == size


def test_what_is_absent_or_no_number_is_none(tree):
    root = tree({"a": "text", "b": "", "c": "-7"})
    assert read_text(root / "missing") is None
    assert read_text(root / "b") is None
    assert read_number(root / "a") is None
    assert read_number(root / "c") == -7


def test_cpuinfo_blocks_keep_colons_in_values(tree):
    root = tree({"cpuinfo": "processor : 0\nmodel name\t: A: B\n\nprocessor : 1\nflags :\n"})
    assert read_cpuinfo(root / "cpuinfo") == [
        {"processor": "0", "model name": "A: B"},
        {"processor": "1", "flags": ""},
    ]
