from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.cli.values import choices, split_patterns, whole_number
from pydlbench.errors import UsageError


def test_patterns_are_split_at_commas_but_not_inside_names():
    assert split_patterns(["conv3,conv4", 'mb1ic3ih8oc4kh3n"a,b"', "@a,b.txt", "conv3"]) == [
        "conv3",
        "conv4",
        'mb1ic3ih8oc4kh3n"a,b"',
        "@a,b.txt",
    ]


def test_every_stands_for_all_choices():
    assert choices("--x", ["b", "all"], ("a", "b"), "all") == ["b", "a"]
    with pytest.raises(UsageError, match="--x all"):
        choices("--x", ["all"], ("a", "b"))


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
