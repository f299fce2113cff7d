"""Values of options: lists, choices, numbers and sizes, and the nearest valid one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.cli.values import byte_count, choices, patterns, whole_number
from pydlbench.errors import UsageError


def test_patterns_are_split_at_commas_but_not_inside_names():
    assert patterns("--x", 'conv3, conv4,mb1ic3ih8oc4kh3n"a,b"') == [
        "conv3",
        "conv4",
        'mb1ic3ih8oc4kh3n"a,b"',
    ]
    assert patterns("--x", "@a,b.txt") == ["@a,b.txt"]


def test_every_stands_for_all_choices():
    assert choices("--x", "b,all", ("a", "b"), "all") == ["b", "a"]
    with pytest.raises(UsageError, match="--x all"):
        choices("--x", "all", ("a", "b"))


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_one_line(text):
    try:
        value = whole_number("--n", text, 1)
    except UsageError:
        return
    assert value == int(text)
    assert value >= 1


@pytest.mark.parametrize("text", ["1_0", "٣", " 7", "", "0x10", "1e3"])
def test_only_plain_digits_are_numbers(text):
    with pytest.raises(UsageError):
        whole_number("--n", text, 1)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64M", 64 << 20),
        ("64 MiB", 64 << 20),
        ("2g", 2 << 30),
        ("1.5G", 3 << 29),
        ("0.1k", 102),
        ("1TB", 1 << 40),
    ],
)
def test_bytes_in_powers_of_1024(text, count):
    assert byte_count("--x", text) == count


@pytest.mark.parametrize("text", ["", "-1", "1P", "M", "1.5.2G", "1e9", ".5G", "٣M"])
def test_what_is_no_number_of_bytes(text):
    with pytest.raises(UsageError, match="nearest: 64M"):
        byte_count("--x", text)


def test_more_bytes_than_can_be_counted():
    with pytest.raises(UsageError, match="nearest: 1T"):
        byte_count("--x", "999999999999T")
