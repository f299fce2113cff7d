"""The report of ``diagnose``: findings by what they save, and what was tried in vain."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from pydlbench.report.columns import device_name
from pydlbench.report.text import PLAIN, Style, markdown_run, markdown_text
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydlbench.records.diagnosis import Cause, Diagnosis, Finding, Tried
    from pydlbench.records.run import RunRecord

__all__ = ["OVERLAPS", "diagnosis_markdown", "render_diagnosis"]

_WIDTH = 120
_INDENT = 4
_LABEL = 10
#: Stands below the findings where two of them are about the same parts of the step.
OVERLAPS = (
    "Each saving is that of one change alone; savings of findings that overlap do not add up."
)


def render_diagnosis(run: RunRecord, found: Diagnosis, style: Style = PLAIN) -> str:
    """Return heading, findings, what was tried and notes, in 120 columns; no newline at the end.

    Args:
        run: for the device's name.
        found: what to show.
        style: colours.
    """
    heading = [
        style.bold(line) if not index else line for index, line in enumerate(what(run, found))
    ]
    blocks = ["\n".join(heading), headline(found)]
    for number, one in enumerate(found.findings, start=1):
        blocks.append(_finding_text(number, one, style))
    if any(one.overlaps for one in found.findings):
        blocks.append(OVERLAPS)
    if found.tried:
        blocks.append(_tried("tried, no gain", found.tried))
    if found.untried:
        blocks.append(_tried("not tried", found.untried))
    if found.notes:
        blocks.append("\n".join(_wrapped("note: ", one) for one in found.notes))
    return "\n\n".join(blocks)


def what(run: RunRecord, found: Diagnosis) -> list[str]:
    """Return the lines above everything: which step, where, how long it takes."""
    step = found.step
    case, time = step.case, step.time
    items = [case.model, f"batch {case.batch}", case.phase, case.precision]
    items += [f"{name}={value}" for name, value in case.options.items()]
    who = " ".join(filter(None, (step.library or case.framework, str(case.mode))))
    layout = "channels last" if case.layout == "nhwc" else "NCHW"
    first = "  ".join([*items, f"{who}, {layout}" if case.framework == "torch" else who])
    assert time is not None
    second = [device_name(run.device)]
    if step.threads:
        second.append(f"{step.threads} thread{'' if step.threads == 1 else 's'}")
    half = "" if time.half_width is None else f" +- {format_percent(time.half_width)}"
    second.append(f"step {format_seconds(time.median)}{half}, n = {time.n}")
    if step.images_per_s:
        second.append(f"{step.images_per_s:.4g} images/s")
    return [*_lines(first), *_lines("  ".join(second))]


def headline(found: Diagnosis) -> str:
    """Return the sentence to remember."""
    made = len(found.findings) + len(found.tried)
    experiments = f"{made} experiment{'' if made == 1 else 's'}" if made else "no experiment"
    if not found.findings:
        return "\n".join(_lines(f"Nothing found that would save 1 % of the step ({experiments})."))
    first = found.findings[0]
    share = format_percent(first.saving.share)
    text = f"Most is lost to {title(first)}. {share} of the step, measured."
    return "\n".join(_lines(text))


def title(one: Finding) -> str:
    """Return what is seen, where, and the names of its causes with the share of each.

    As in ``slow operators: fc6, fc7 forward: weights not packed (64 %), slower kernel (36 %)``.
    """
    parts = [one.problem, _where(one)]
    names = [_named(one, cause) for cause in one.causes]
    if names != [one.problem]:
        parts.append(", ".join(names))
    return ": ".join(filter(None, parts))


def because(one: Finding) -> list[str]:
    """Return a line for each cause: its name and share where there are several."""
    if len(one.causes) == 1:
        return [one.causes[0].meaning]
    lines = []
    for cause in one.causes:
        saved_s = "" if cause.seconds is None else f", {format_seconds(cause.seconds)}"
        lines.append(f"{_named(one, cause)}{saved_s}: {cause.meaning}")
    return lines


def _named(one: Finding, cause: Cause) -> str:
    if cause.seconds is None or len(one.causes) == 1:
        return cause.name
    return f"{cause.name} ({format_percent(cause.seconds / one.saving.seconds)})"


def saved(one: Finding) -> str:
    """Return what a finding saves, with its interval and how it was measured."""
    saving = one.saving
    text = f"saves {format_seconds(saving.seconds)}, {format_percent(saving.share)} of the step"
    if saving.low is not None and saving.high is not None:
        low, high = (
            format_percent(max(0.0, end / saving.step_s)) for end in (saving.low, saving.high)
        )
        text += f" ({low} to {high})"
    measured = "whole step" if saving.of == "step" else "layer alone"
    return f"{text}, measured on the {measured}"


def _finding_text(number: int, one: Finding, style: Style) -> str:
    lines = [style.bold(line) for line in _lines(f"{number}. {title(one)}")]
    lines += _labelled("saving", saved(one))
    lines += _labelled("symptom", one.symptom)
    for index, text in enumerate(one.evidence):
        lines += _labelled("" if index else "evidence", text)
    for index, text in enumerate(because(one)):
        lines += _labelled("" if index else "cause", text)
    for index, text in enumerate(one.alternatives):
        lines += _labelled("" if index else "or", text)
    if one.overlaps:
        lines += _labelled("overlaps", ", ".join(map(str, one.overlaps)))
    # A command is never broken: it is there to be copied.
    lines.append(f"{'':{_INDENT}}{'next':{_LABEL}}{one.next}")
    return "\n".join(lines)


def _where(one: Finding) -> str:
    """The layers, those of one pass together: ``fc6, fc7 forward``."""
    by_pass: dict[str, list[str]] = {}
    for text in one.where:
        layer, _, pass_ = text.rpartition(" ")
        by_pass.setdefault(pass_, []).append(layer)
    return "; ".join(f"{', '.join(layers)} {pass_}".strip() for pass_, layers in by_pass.items())


def _tried(heading: str, tried: Iterable[Tried]) -> str:
    lines = [f"{heading}:"]
    lines += [_wrapped("  ", f"{one.what} ({one.problem}): {one.result}") for one in tried]
    return "\n".join(lines)


def _labelled(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=f"{'':{_INDENT}}{label:{_LABEL}}",
        subsequent_indent=" " * (_INDENT + _LABEL),
        break_long_words=True,
    )


def _wrapped(label: str, text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=label,
        subsequent_indent=" " * max(len(label), _INDENT),
    )


def _lines(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ")


# -----------------------------------------------------------------------------
# A diagnosis as Markdown: a section that can be pasted into a page.


def diagnosis_markdown(run: RunRecord, found: Diagnosis) -> str:
    """Return heading, findings, what was tried and notes; ends in a newline.

    Args:
        run: for the device's name.
        found: what to show.
    """
    blocks = ["  \n".join(map(markdown_text, what(run, found))), markdown_text(headline(found))]
    blocks += [_finding_markdown(number, one) for number, one in enumerate(found.findings, start=1)]
    if any(one.overlaps for one in found.findings):
        blocks.append(OVERLAPS)
    for heading, tried in (("Tried, no gain", found.tried), ("Not tried", found.untried)):
        if tried:
            lines = [
                f"- {markdown_text(f'{one.what} ({one.problem}): {one.result}')}" for one in tried
            ]
            blocks.append("\n".join([f"{heading}:", "", *lines]))
    if found.notes:
        blocks.append("\n".join(f"- note: {markdown_text(one)}" for one in found.notes))
    blocks += markdown_run(run)
    return "\n\n".join(blocks) + "\n"


def _finding_markdown(number: int, one: Finding) -> str:
    lines = [f"{number}. **{markdown_text(title(one))}**: {markdown_text(saved(one))}"]
    lines.append(f"   - symptom: {markdown_text(one.symptom)}")
    lines += [f"   - evidence: {markdown_text(text)}" for text in one.evidence]
    lines += [f"   - cause: {markdown_text(text)}" for text in because(one)]
    lines += [f"   - or: {markdown_text(text)}" for text in one.alternatives]
    if one.overlaps:
        lines.append(f"   - overlaps {', '.join(map(str, one.overlaps))}")
    lines.append(f"   - next: `{one.next}`")
    return "\n".join(lines)
