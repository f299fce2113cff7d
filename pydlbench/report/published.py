"""Published figures, and ours beside them, as text and Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.compare.published import read_sources
from pydlbench.report.compare import wrapped
from pydlbench.report.text import PLAIN, Style, markdown_table, plain_table
from pydlbench.units import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydlbench.compare.published import Beside, Figure

__all__ = ["published_markdown", "render_published"]

_TITLES: Final = ("model", "stage", "precision", "batch", "hardware", "year", "framework")
_RIGHT: Final = (False, False, False, True, False, True, False)
_PLAIN: Final = "plain step: our step, which need not include all that the published one does"


def render_published(
    found: Sequence[tuple[Figure, Sequence[Beside]]], style: Style = PLAIN, *, own: bool
) -> str:
    """Return the report; no newline at the end.

    Args:
        found: figures, each with ours beside it.
        style: colours.
        own: whether runs were given; their figures get columns, and figures without one are left
            out.
    """
    blocks = [style.bold(published_conclusion(found, own=own))]
    titles, cells, right = _table(found, own)
    if cells:
        blocks.append(plain_table(titles, cells, right))
    blocks.append("\n".join(_notes(found, own)))
    return "\n\n".join(wrapped(block) for block in blocks if block)


def published_markdown(found: Sequence[tuple[Figure, Sequence[Beside]]], *, own: bool) -> str:
    """Return the same as Markdown."""
    titles, cells, _ = _table(found, own)
    blocks = [f"**{published_conclusion(found, own=own)}**"]
    if cells:
        blocks.append(markdown_table(titles, cells))
    blocks.append("\n".join(f"- {line}" for line in _notes(found, own)))
    return "\n\n".join(filter(None, blocks)) + "\n"


def published_conclusion(found: Sequence[tuple[Figure, Sequence[Beside]]], *, own: bool) -> str:
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


def _faster(one: Beside) -> str:
    figure = one.figure
    place = f"{figure.hardware} of {figure.year} ({figure.framework})"
    speed = (
        f"{number(one.speedup, 2)}x as fast as"
        if one.speedup >= 1
        else f"{number(1 / one.speedup, 2)}x as slow as"
    )
    return f"{one.own.who} runs {figure.model} {figure.stage} {speed} {place}"


def _table(
    found: Sequence[tuple[Figure, Sequence[Beside]]], own: bool
) -> tuple[list[str], list[list[str]], list[bool]]:
    titles = [*_TITLES, "published", "unit"]
    right = [*_RIGHT, True, False]
    if own:
        titles += ["ours", "by", "speed", "note"]
        right += [True, False, True, False]
    else:
        titles += ["note"]
        right += [False]
    cells = []
    for figure, ours in found:
        line = [figure.model, figure.stage, figure.precision, str(figure.batch)]
        line += [figure.hardware, str(figure.year), figure.framework, _published(figure)]
        line += [figure.unit]
        if not own:
            cells.append([*line, figure.note])
        for one in ours if own else ():
            end = [number(one.value), one.own.who, f"{number(one.speedup, 2)}x"]
            cells.append([*line, *end, ", ".join(one.marks)])
    return titles, cells, right


def _published(figure: Figure) -> str:
    text = f"{figure.value:g}"
    return text if figure.spread is None else f"{text} +- {figure.spread:g}"


def _notes(found: Sequence[tuple[Figure, Sequence[Beside]]], own: bool) -> list[str]:
    shown = [(figure, ours) for figure, ours in found if ours or not own]
    lines = [
        f"{protocol}, {stage}: {text}"
        for protocol, stage, text in dict.fromkeys(
            (figure.protocol, figure.stage, figure.includes) for figure, _ in shown
        )
    ]
    if lines:
        lines.insert(0, "what the published numbers include:")
    if own and any("plain step" in one.marks for _, ours in shown for one in ours):
        scripts = ", ".join(dict.fromkeys(figure.protocol for figure, _ in shown))
        lines.append(f"{_PLAIN}; pydlbench e2e --protocol runs the scripts' own: {scripts}")
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
