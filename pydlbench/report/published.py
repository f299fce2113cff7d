"""Published figures, and ours beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from pydlbench.compare.published import read_sources
from pydlbench.records.fields import Column
from pydlbench.report.blocks import Lines, Table
from pydlbench.units import number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pydlbench.compare.published import Figure, MatchedFigure
    from pydlbench.report.blocks import Block

Row = TypeVar("Row")

_PLAIN: Final = "plain step: our step, which need not include all that the published one does"


def published_report(
    found: Sequence[tuple[Figure, Sequence[MatchedFigure]]], *, own: bool
) -> list[Block]:
    """Return the report.

    Args:
        found: figures, each with ours beside it.
        own: whether runs were given; their figures get columns, and figures without one are left
            out.
    """
    beside = [one for _, ours in found for one in ours]
    table = (
        Table.of([*_figure_columns(lambda one: one.figure), *_OURS], beside)
        if own
        else Table.of([*_figure_columns(lambda one: one[0]), _NOTE], found)
    )
    includes, notes = _includes(found, own), _notes(found, own)
    return [
        Lines([published_conclusion(found, own=own)], bold=1),
        table,
        Lines(includes, listed=True, title="what the published numbers include:"),
        Lines(notes, listed=True),
    ]


def published_conclusion(
    found: Sequence[tuple[Figure, Sequence[MatchedFigure]]], *, own: bool
) -> str:
    """Say in a sentence what is there."""
    models = list(dict.fromkeys(figure.model for figure, _ in found))
    if not own:
        years = sorted({figure.year for figure, _ in found})
        span = f"{years[0]}" if years[0] == years[-1] else f"{years[0]} to {years[-1]}"
        return f"{_figures(len(found))} of {_few(models)}, {span}."
    with_own = [(figure, ours) for figure, ours in found if ours]
    if not with_own:
        return (
            "none of the published figures is of a model, phase and precision that was measured; "
            "pydlbench compare --published lists them."
        )
    pairs = [one for _, ours in with_own for one in ours]
    best = max(pairs, key=lambda one: one.speedup)
    least = min(pairs, key=lambda one: one.speedup)
    it = "has a result of ours beside it"
    them = "have a result of ours beside them"
    text = f"{_figures(len(with_own))} {it if len(with_own) == 1 else them}: "
    text += _faster(best)
    return f"{text}; {_faster(least)}." if len(pairs) > 1 else f"{text}."


def _faster(one: MatchedFigure) -> str:
    figure = one.figure
    place = f"{figure.hardware} of {figure.year} ({figure.framework})"
    speed = (
        f"{number(one.speedup, 2)}x as fast as"
        if one.speedup >= 1
        else f"{number(1 / one.speedup, 2)}x as slow as"
    )
    return f"{one.own.who} runs {figure.model} {figure.stage} {speed} {place}"


def _figure_columns(figure_of: Callable[[Row], Figure]) -> list[Column[Row]]:
    """Return the columns of a published figure, for rows that have one."""
    return [
        Column("model", lambda row: figure_of(row).model, right=False),
        Column("stage", lambda row: figure_of(row).stage, right=False),
        Column("precision", lambda row: figure_of(row).precision, right=False),
        Column("batch", lambda row: str(figure_of(row).batch)),
        Column("hardware", lambda row: figure_of(row).hardware, right=False),
        Column("year", lambda row: str(figure_of(row).year)),
        Column("framework", lambda row: figure_of(row).framework, right=False),
        Column("published", lambda row: _published(figure_of(row))),
        Column("unit", lambda row: figure_of(row).unit, right=False),
    ]


_OURS: Final[tuple[Column[MatchedFigure], ...]] = (
    Column("ours", lambda one: number(one.value)),
    Column("by", lambda one: one.own.who, right=False),
    Column("speed", lambda one: f"{number(one.speedup, 2)}x"),
    Column("note", lambda one: ", ".join(one.marks), right=False),
)
_NOTE: Final[Column[tuple[Figure, Sequence[MatchedFigure]]]] = Column(
    "note", lambda pair: pair[0].note, right=False
)


def _published(figure: Figure) -> str:
    text = f"{figure.value:g}"
    return text if figure.spread is None else f"{text} +- {figure.spread:g}"


def _includes(found: Sequence[tuple[Figure, Sequence[MatchedFigure]]], own: bool) -> list[str]:
    shown = [figure for figure, ours in found if ours or not own]
    every = dict.fromkeys((one.protocol, one.stage, one.includes) for one in shown)
    return [f"{protocol}, {stage}: {text}" for protocol, stage, text in every]


def _notes(found: Sequence[tuple[Figure, Sequence[MatchedFigure]]], own: bool) -> list[str]:
    shown = [(figure, ours) for figure, ours in found if ours or not own]
    lines = []
    if own and any("plain step" in one.marks for _, ours in shown for one in ours):
        scripts = ", ".join(dict.fromkeys(figure.protocol for figure, _ in shown))
        lines.append(f"{_PLAIN}; pydlbench step --protocol runs the scripts' own: {scripts}")
    if own and any(ours for _, ours in shown):
        lines.append("speed: the published time of an image over ours")
        lines += _remarks(figure for figure, _ in shown)
        devices = dict.fromkeys(one.own.device for _, ours in shown for one in ours)
        lines.append(f"ours ran on: {', '.join(filter(None, devices)) or 'not recorded'}")
    sources = read_sources()
    lines += [
        f"source: {sources[name].title}: {sources[name].citation}"
        for name in dict.fromkeys(figure.source for figure, _ in shown)
    ]
    return lines


def _remarks(figures: Iterable[Figure]) -> list[str]:
    """What the sources say of some figures; the column of that name is taken by ours."""
    found: dict[str, dict[str, None]] = {}
    for one in figures:
        if one.note:
            what = f"{one.model} {one.precision} on {one.hardware}"
            found.setdefault(one.note, {})[what] = None
    return [f"published {', '.join(which)}: {note}" for note, which in found.items()]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]


def _figures(count: int) -> str:
    return "1 published figure" if count == 1 else f"{count} published figures"
