"""Fields say how they are printed: text, Markdown, CSV, JSON, the page and the schema go by it."""

from __future__ import annotations

from typing import Annotated, ClassVar

import pytest
from page_reading import parse

from pydlbench.records.measurement import Measurement, TimeSummary
from pydlbench.records.record import Record, columns_of, declared, flat_names, shown
from pydlbench.records.step import StepRow
from pydlbench.report.blocks import TableBlock
from pydlbench.report.html import page
from pydlbench.report.text import as_markdown, as_text


class Part(Record, frozen=True, kw_only=True):
    """A record in another one."""

    seconds: Annotated[float, shown("time", "{:.1f} s".format, unit="s")]


class Thing(Record, frozen=True, kw_only=True):
    """An invented record, with all that a new column takes."""

    name: Annotated[str, shown("thing", right=False)]
    part: Part | None = None
    weight: Annotated[float | None, shown("weight", "{:.0f} kg".format, unit="kg")] = None
    place: Annotated[str, shown("place", right=False, varies=True)] = "here"
    more: Annotated[dict[str, int], shown(keys="a b")] = {}  # noqa: RUF012 - msgspec copies it

    columns: ClassVar[str] = "name part.seconds weight double place"
    derived = ("double",)

    @property
    def double(self) -> Annotated[float | None, shown("double", "{:.0f} kg".format, unit="kg")]:
        """Twice the weight."""
        return None if self.weight is None else 2 * self.weight


ROWS = [Thing(name="stone", weight=3.0, part=Part(seconds=0.25)), Thing(name="feather")]


def test_a_column_is_declared_once_for_text_markdown_json_csv_and_the_page():
    table = TableBlock.from_rows(columns_of(ROWS, Thing.columns), ROWS)
    assert [line.split() for line in as_text([table]).splitlines()] == [
        ["thing", "time", "weight", "double"],
        ["stone", "0.2", "s", "3", "kg", "6", "kg"],
        ["feather", "-", "-", "-"],
    ]
    assert "| thing | time | weight | double |" in as_markdown([table])
    assert ROWS[0].to_dict()["double"] == 6.0
    assert list(flat_names(Thing)) == [
        *("name", "part_seconds", "weight", "place", "more_a", "more_b", "double")
    ]
    cells = list(parse(page("", "", [("", [table])])).all("td"))
    assert [(one.text(), one.attributes.get("data-v")) for one in cells[:3]] == [
        ("0.2 s", "0.25"),
        ("3 kg", "3.0"),
        ("6 kg", "6.0"),
    ]


def test_a_column_in_which_rows_do_not_differ_or_that_none_needs_is_left_out():
    def titles(*rows):
        return [one.title for one in columns_of(rows, Thing.columns)]

    assert titles(ROWS[1]) == ["thing"]
    assert titles(ROWS[1], Thing(name="ball", place="there")) == ["thing", "place"]
    assert columns_of([], Thing.columns) == []


def test_a_table_can_have_one_unit_of_time():
    (name, time, *_) = columns_of(ROWS, Thing.columns, seconds=lambda value: f"{1e3 * value} ms")
    assert (name.cell(ROWS[0]), time.cell(ROWS[0])) == ("stone", "250.0 ms")


def test_the_unit_stands_in_the_schema():
    from pydlbench.records.schema import load_schema

    measurement = load_schema("layers")["$defs"]["Measurement"]["properties"]
    assert measurement["tflops"]["unit"] == "TFLOP/s"
    assert measurement["bytes"]["unit"] == "B"


@pytest.mark.parametrize("record", [Measurement, StepRow], ids=lambda one: one.__name__)
def test_every_name_of_a_table_is_a_field_that_declares_itself(record):
    for name in record.columns.split():
        assert declared(record, name).header
    columns = list(flat_names(record))
    assert len(set(columns)) == len(columns)


def test_csv_has_what_json_has(measurement):
    document = measurement().to_dict()
    columns = list(flat_names(Measurement))
    assert [name for name in document if not any(one.startswith(name) for one in columns)] == []
    assert {f"time_s_{name}" for name in TimeSummary.__struct_fields__} - set(columns) == {
        "time_s_visit_s",
        "time_s_laps",  # only after a loss
    }
