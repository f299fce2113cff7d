"""The printers: what foreign documents hold stays text in each of them."""

from __future__ import annotations

import csv
import io

import pytest

from pydlbench.report.text import csv_text, markdown_table, plain_table
from pydlbench.units import printable

ESCAPES = "a\x1b[31mb\x00c\x9bd\x7f"


@pytest.mark.parametrize("text", ["=cmd|'/c calc'!A1", "+1+1", "-x", "@SUM(A1)", "\t=1"])
def test_a_formula_is_a_text_in_csv(text):
    (cell,) = list(csv.reader(io.StringIO(csv_text(["layer"], [[text]]))))[1]
    assert cell == f"'{text}"


def test_csv_keeps_numbers_and_leaves_out_what_is_none():
    text = csv_text(["a", "b", "c", "d"], [[-1.5, None, float("nan"), True]])
    assert text == "a,b,c,d\n-1.5,,,true\n"


def test_nothing_steers_a_terminal():
    assert printable(ESCAPES) == "a[31mbcd"
    assert printable("two\nlines") == "two\nlines"
    for text in (
        plain_table(["x"], [[ESCAPES]], [False]),
        markdown_table(["x"], [[ESCAPES]]),
    ):
        assert "a[31mbcd" in text


def test_a_markdown_cell_is_one_line_of_text():
    assert markdown_table(["a", "b"], [["x|y\nz", "<b>"]]) == (
        "| a | b |\n| :--- | ---: |\n| x\\|y z | \\<b\\> |"
    )
