import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench import units


def test_texts_that_differ_in_numbers_are_one_with_their_range():
    texts = [
        "waited 998 us of 2 s, 1 of 4 rows, conv3",
        "other",
        "waited 52.1 ms of 2 s, 1 of 4 rows, conv3",
    ]
    assert units.merge_notes(texts) == [
        "waited 998 us to 52.1 ms of 2 s, 1 of 4 rows, conv3",
        "other",
    ]
    assert units.merge_notes(["conv3 12 %", "conv4 12 %"]) == ["conv3 12 %", "conv4 12 %"]
    assert units.merge_notes(["3 of 4 rounds", "1 of 4 rounds"]) == ["1 to 3 of 4 rounds"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1, "1.00 B"),
        (12.34, "12.3 B"),
        (999.4, "999 B"),
        (999.5, "1.00 kB"),
        (9.994, "9.99 B"),
        (9.996, "10.0 B"),
        (99.96, "100 B"),
        (1e3, "1.00 kB"),
        (52_600_000, "52.6 MB"),
        (-2.5e9, "-2.50 GB"),
        (1e12, "1.00 TB"),
        (0.0512, "51.2 mB"),
        (3.1e-6, "3.10 uB"),
        (4.567e-9, "4.57 nB"),
        (2e21, "2000 EB"),
    ],
)
def test_three_digits_and_a_prefix(value, text):
    assert units.si(value, "B") == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_printed_as_such(value):
    assert units.si(value, "s") == f"{value} s"


@given(st.floats(1e-9, 1e20))
def test_the_text_is_the_number_to_three_digits(value):
    number, unit = units.si(value, "s").split(" ")
    factors = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    factors |= {"P": 1e15, "E": 1e18}
    assert float(number) * factors[unit.removesuffix("s")] == pytest.approx(value, rel=0.00501)
    assert len(number.replace(".", "").lstrip("0")) >= 3


def test_each_quantity_has_its_unit():
    assert units.format_seconds(0.0512) == "51.2 ms"
    assert units.format_flops(28_708_700_160) == "28.7 GFLOP"
    assert units.format_bytes(52_600_000) == "52.6 MB"
    assert units.format_hz(4.31e9) == "4.31 GHz"


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.91, "91 %"),
        (0.003, "0.3 %"),
        (0.0994, "9.9 %"),
        (0.0996, "10 %"),
        (-0.05, "-5.0 %"),
        (1e-5, "<0.1 %"),
    ],
)
def test_percentages_below_ten_get_a_decimal(fraction, text):
    assert units.percent(fraction) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (units.quantity(1, "kernel"), "1 kernel"),
        (units.quantity(1465, "kernel"), "1,465 kernels"),
        (units.quantity(508.167, "kernel"), "508 kernels"),
        (units.quantity(1 / 6, "kernel"), "0.167 kernels"),
        (units.format_seconds(4.8e-11), "<0.1 ns"),
        (units.format_flops(3e30), "3.00e+30 FLOP"),
    ],
)
def test_counts_are_whole_where_they_are_large_and_times_never_below_what_a_clock_tells(
    text, words
):
    assert text == words


def test_texts_that_differ_in_one_word_are_one():
    texts = [
        "the bf16 probe reached 82 % of 4 GB/s",
        "nothing was probed",
        "the int8 probe reached 89 % of 4 GB/s",
        "the int8 probe wrote 89 % of 4 GB/s",
    ]
    merged = ["the bf16, int8 probe reached 82 to 89 % of 4 GB/s", texts[1], texts[3]]
    assert units.merge_subjects(texts) == merged
