"""The report of published figures, and measured results beside them."""

from collections.abc import Sequence
from typing import Final

from pydlbench.records.published import MatchedFigure, OwnFigure, PublishedFigure
from pydlbench.records.record import columns_of
from pydlbench.report.blocks import Block, Headline, Lines, TableBlock
from pydlbench.report.columns import group_names
from pydlbench.units import join_names, number, quantity

_PLAIN_STEP_NOTE: Final = (
    "plain step: your step, which may not include all that the published one does"
)
_FIGURE: Final = "model stage precision batch hardware year framework published unit"
_PAIR_FIGURE: Final = " ".join(f"figure.{name}" for name in _FIGURE.split())
_OWN: Final = "own.value own.who own.speedup own.marks"


def published_report(figures: Sequence[PublishedFigure], *, own: bool) -> list[Block]:
    """Return the report.

    Args:
        figures: figures, each with the measured results that match it.
        own: whether runs were given; in that case their results have columns, and figures without a
            result are left out.
    """
    shown = [figure for figure in figures if figure.own or not own]
    pairs = _pairs(shown)
    if own:
        table = TableBlock.from_rows(columns_of(pairs, f"{_PAIR_FIGURE} {_OWN}"), pairs)
    else:
        table = TableBlock.from_rows(columns_of(shown, f"{_FIGURE} note"), shown)
    return [
        Headline([published_conclusion(figures, own=own)]),
        table,
        Lines(_includes(shown), listed=True, title="what the published numbers include:"),
        Lines(_notes(shown, own), listed=True),
    ]


def _pairs(figures: Sequence[PublishedFigure]) -> list[MatchedFigure]:
    return [MatchedFigure(figure=figure, own=own) for figure in figures for own in figure.own]


def published_conclusion(figures: Sequence[PublishedFigure], *, own: bool) -> str:
    """Return the conclusion in a sentence."""
    models = list(dict.fromkeys(figure.model for figure in figures))
    if not own:
        years = sorted({figure.year for figure in figures})
        span = f"{years[0]}" if years[0] == years[-1] else f"{years[0]} to {years[-1]}"
        return f"{quantity(len(figures), 'published figure')} of {join_names(models)}, {span}."
    with_own = [figure for figure in figures if figure.own]
    if not with_own:
        return (
            "none of the published figures is of a model, phase and precision that was measured; "
            "pydlbench compare --published lists them."
        )
    pairs = sorted(_pairs(with_own), key=lambda pair: -pair.own.speedup)
    have = "is compared with a result of yours"
    if len(with_own) > 1:
        have = "are compared with results of yours"
    ends = [pairs[0], pairs[-1]][: len(pairs)]
    speeds = "; ".join(_faster(pair.figure, pair.own) for pair in ends)
    return f"{quantity(len(with_own), 'published figure')} {have}: {speeds}."


def _faster(figure: PublishedFigure, own: OwnFigure) -> str:
    place = f"{figure.hardware} of {figure.year} ({figure.framework})"
    speed = (
        f"{number(own.speedup, 2)}x as fast as"
        if own.speedup >= 1
        else f"{number(1 / own.speedup, 2)}x as slow as"
    )
    return f"{own.who} runs {figure.model} {figure.stage} {speed} {place}"


def _includes(figures: Sequence[PublishedFigure]) -> list[str]:
    every = dict.fromkeys((figure.protocol, figure.stage, figure.includes) for figure in figures)
    return [f"{protocol}, {stage}: {text}" for protocol, stage, text in every]


def _notes(figures: Sequence[PublishedFigure], own: bool) -> list[str]:
    ours = [result for figure in figures for result in figure.own]
    lines = []
    if own and any("plain step" in result.marks for result in ours):
        scripts = ", ".join(dict.fromkeys(figure.protocol for figure in figures))
        lines.append(
            f"{_PLAIN_STEP_NOTE}; pydlbench step --protocol runs the scripts' own: {scripts}"
        )
    if own and ours:
        lines.append("speed: the published time per image over yours")
        lines += _remarks(figures)
        devices = dict.fromkeys(result.device for result in ours)
        lines.append(f"yours ran on: {', '.join(filter(None, devices)) or 'not recorded'}")
    sources = dict.fromkeys((figure.source, figure.citation) for figure in figures)
    return [*lines, *(f"source: {title}: {citation}" for title, citation in sources)]


def _remarks(figures: Sequence[PublishedFigure]) -> list[str]:
    """Return the sources' notes on figures; the table's notes are those on measured results."""
    notes = group_names(
        (figure.note, f"{figure.model} {figure.precision} on {figure.hardware}")
        for figure in figures
        if figure.note
    )
    return [f"published {', '.join(dict.fromkeys(names))}: {note}" for note, names in notes.items()]
