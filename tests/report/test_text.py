"""The printers: what foreign documents hold stays text in each of them."""

import csv
import io
from dataclasses import replace

import pytest

from pydlbench.report.blocks import Facts, Heading, Lines, TableBlock
from pydlbench.report.text import Style, as_markdown, as_text, csv_text, markdown_table
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
        as_text([TableBlock(["x"], [[ESCAPES]], [False])]),
        markdown_table(["x"], [[ESCAPES]]),
    ):
        assert "a[31mbcd" in text


def test_a_markdown_cell_is_one_line_of_text():
    assert markdown_table(["a", "b"], [["x|y\nz", "<b>"]]) == (
        "| a | b |\n| :--- | ---: |\n| x\\|y z | \\<b\\> |"
    )


NARROW = Style(width=40, terminal=True)
TABLE = TableBlock(
    ["layer", "time", "share", "", "detail"],
    [["conv1", "1.0 ms", "10 %", "#", "x" * 60], ["fc6", "9.0 ms", "90 %", "#########", "y"]],
    [False, True, True, False, False],
    alarms={1},
)


def test_names_are_cut_before_columns_are_parted():
    lines = as_text([TABLE], Style(width=60)).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 60
    assert lines[1].endswith("xxx...")
    assert lines[2].split() == ["fc6", "9.0", "ms", "90", "%", "#########", "y"]


def test_columns_that_have_no_room_go_on_below_behind_the_first():
    first, second = as_text([TABLE], NARROW).split("\n\n")
    assert first.splitlines()[0].split() == ["layer", "time", "share"]
    assert second.splitlines()[0].split() == ["layer", "detail"]
    assert [line.split()[0] for line in second.splitlines()] == ["layer", "conv1", "fc6"]
    assert max(map(len, [*first.splitlines(), *second.splitlines()])) <= 40


def test_in_a_pipe_a_row_is_a_line():
    lines = as_text([TABLE], Style(width=40)).splitlines()
    assert len(lines) == 3
    assert "x" * 60 in lines[1]


def test_numbers_are_never_cut():
    table = TableBlock(["a", "b", "c"], [["1" * 30, "2" * 30, "3" * 30]], [True] * 3)
    text = as_text([table], NARROW)
    assert text.count("3" * 30) == text.count("2" * 30) == 1
    assert "..." not in text


def test_what_went_wrong_is_marked_and_what_is_to_be_read_first():
    style = Style(enabled=True, width=150)
    assert as_text([TABLE], style).splitlines()[2].startswith("\033[31mfc6 ")
    assert as_text([Heading(["a", "b"])], style) == "\033[1ma\033[0m\nb"
    assert as_text([Lines(["a"], alarm=True)], style) == "\033[31ma\033[0m"


def test_lines_are_broken_between_words_and_commands_are_not():
    words, command = "word " * 12, "next: pydlbench layers --shape conv3 --batch 128"
    lines = as_text([Lines([words.strip(), command])], NARROW).splitlines()
    assert lines[0] == "word " * 7 + "word"
    assert lines[1] == "  " + "word " * 3 + "word"
    assert lines[2] == command


def test_facts_stand_behind_their_labels():
    facts = Facts([("cause", "w " * 20), ("cause", "b"), ("next", "pydlbench x")], "1. slow")
    lines = as_text([facts], NARROW).splitlines()
    assert lines[0] == "1. slow"
    assert lines[1].startswith("    cause     w w")
    assert lines[2].startswith(" " * 14 + "w")
    assert lines[3:] == [" " * 14 + "b", "    next      pydlbench x"]


def test_each_block_in_markdown():
    blocks = [
        Heading(["what", "where"]),
        TABLE,
        Lines(["first", "second"], bold=1),
        Lines(["a*b"], listed=True, title="tried:"),
        Facts([("cause", "x|y"), ("next", "pydlbench x_y")], "1. slow"),
        Lines([]),
    ]
    table = (
        "| layer | time | share | detail |\n| :--- | ---: | ---: | :--- |\n"
        f"| conv1 | 1.0 ms | 10 % | {'x' * 60} |\n| fc6 | 9.0 ms | 90 % | y |"
    )
    assert as_markdown(blocks).split("\n\n") == [
        "what  \nwhere",
        table,
        "**first**",
        "second",
        "tried:",
        "- a\\*b",
        "**1. slow**",
        "- cause: x\\|y\n- next: `pydlbench x_y`\n",
    ]


def test_lines_above_rows_are_above_tables_in_markdown():
    table = TableBlock(["backend", "time"], [["a", "1"], ["b", "2"], ["c", "3"]], [False, True])
    head = "| backend | time |\n| :--- | ---: |\n"
    assert as_markdown([replace(table, above={0: "conv1", 2: "p*ool"})]).split("\n\n") == [
        "**conv1**",
        f"{head}| a | 1 |\n| b | 2 |",
        "**p\\*ool**",
        f"{head}| c | 3 |\n",
    ]
    assert as_markdown([replace(table, above={1: "x"})]).split("\n\n")[0] == f"{head}| a | 1 |"


def test_a_report_is_as_wide_as_its_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "80")
    assert Style.for_stream(Terminal()).width == 80
    assert Style.for_stream(io.StringIO()).width == 150
    monkeypatch.setenv("COLUMNS", "400")
    assert Style.for_stream(Terminal()).width == 150
