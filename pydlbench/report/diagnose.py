"""The report of ``diagnose``: findings by what they save, and what was tried in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.backends import capabilities
from pydlbench.records.user_model import rate_unit
from pydlbench.report.blocks import Facts, Heading, Lines
from pydlbench.report.columns import device_name
from pydlbench.units import counted, format_seconds, per_second, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.records.diagnosis import Cause, Diagnosis, Finding
    from pydlbench.records.run import RunRecord
    from pydlbench.report.blocks import Block

#: Stands below the findings where two of them are about the same parts of the step.
OVERLAPS = (
    "Each saving is that of one change alone; savings of findings that overlap do not add up."
)


def diagnosis_report(run: RunRecord, diagnosis: Diagnosis) -> list[Block]:
    """Return heading, findings, what was tried and notes.

    Args:
        run: for the device's name.
        diagnosis: what to show.
    """
    findings = [
        Facts(list(_facts(each)), f"{number}. {title(each)}")
        for number, each in enumerate(diagnosis.findings, start=1)
    ]
    overlap = any(finding.overlaps for finding in diagnosis.findings)
    tried = (("tried, no gain", diagnosis.tried), ("not tried", diagnosis.untried))
    return [
        Heading(what(run, diagnosis)),
        Lines([headline(diagnosis)]),
        *findings,
        Lines([OVERLAPS] if overlap else []),
        *(
            Lines(
                [f"{attempt.what} ({attempt.problem}): {attempt.result}" for attempt in some],
                listed=True,
                title=f"{name}:",
            )
            for name, some in tried
        ),
        Lines([f"note: {note}" for note in diagnosis.notes], listed=True),
    ]


def what(run: RunRecord, diagnosis: Diagnosis) -> list[str]:
    """Return the lines above everything: which step, where, how long it takes."""
    step = diagnosis.step
    spec, time = step.spec, step.time
    items = [spec.model, f"batch {spec.batch}", spec.phase, spec.precision]
    items += [f"{name}={value}" for name, value in spec.options.items()]
    who = " ".join(filter(None, (step.library or spec.framework, str(spec.mode))))
    layout = {"nhwc": "channels last", "nchw": "NCHW"}.get(spec.layout, "layouts as built")
    chosen = capabilities.declaration(spec.framework).steps.layout_words
    first = "  ".join([*items, f"{who}, {layout}" if chosen else who])
    second = [device_name(run.device)]
    if step.threads:
        second.append(counted(step.threads, "thread"))
    if time is None:
        second.append(f"step {step.status}: {step.reason}")
    else:
        half = "" if time.half_width is None else f" +- {percent(time.half_width)}"
        second.append(f"step {format_seconds(time.median)}{half}, n = {time.n}")
    if step.images_per_s:
        second.append(f"{per_second(step.images_per_s)} {rate_unit(spec.own)}")
    return [first, "  ".join(second)]


def headline(diagnosis: Diagnosis) -> str:
    """Return the sentence to remember; nothing is said to be lost in a step that was disturbed."""
    if diagnosis.step.contended:
        return "other work disturbed the step: its time is an upper bound."
    made = len(diagnosis.findings) + len(diagnosis.tried)
    experiments = counted(made, "experiment") if made else "no experiment"
    if not diagnosis.findings:
        return f"Nothing found that would save 1 % of the step ({experiments})."
    first = diagnosis.findings[0]
    share = percent(first.saving.share)
    return f"Most is lost to {title(first)}. {share} of the step, measured."


def title(finding: Finding) -> str:
    """Return what is seen, where, and the names of its causes with the share of each.

    As in ``slow operators: fc6, fc7 forward: weights not packed (64 % of the saving), slower
    kernel (36 %)``.
    """
    parts = [finding.problem, _where(finding)]
    names = [_named(finding, cause) for cause in finding.causes]
    if names != [finding.problem]:
        parts.append(", ".join(names))
    return ": ".join(filter(None, parts))


def because(finding: Finding) -> list[str]:
    """Return a line for each cause: its name and share where there are several."""
    if len(finding.causes) == 1:
        return [finding.causes[0].meaning]
    lines = []
    for cause in finding.causes:
        saved_s = "" if cause.seconds is None else f", {format_seconds(cause.seconds)}"
        lines.append(f"{_named(finding, cause)}{saved_s}: {cause.meaning}")
    return lines


def _named(finding: Finding, cause: Cause) -> str:
    if cause.seconds is None or len(finding.causes) == 1:
        return cause.name
    share = percent(cause.seconds / finding.saving.seconds)
    base = " of the saving" if cause is finding.causes[0] else ""
    return f"{cause.name} ({share}{base})"


def saved(finding: Finding) -> str:
    """Return what a finding saves, with its interval and how it was measured."""
    saving = finding.saving
    text = f"saves {format_seconds(saving.seconds)}, {percent(saving.share)} of the step"
    if saving.low is not None and saving.high is not None:
        low, high = (percent(max(0.0, end / saving.step_s)) for end in (saving.low, saving.high))
        text += f" ({low} to {high})"
    measured = "whole step" if saving.subject == "step" else "layer alone"
    return f"{text}, measured on the {measured}"


def _facts(finding: Finding) -> Iterator[tuple[str, str]]:
    yield "saving", saved(finding)
    yield "symptom", finding.symptom
    yield from (("evidence", text) for text in finding.evidence)
    yield from (("cause", text) for text in because(finding))
    yield from (("or", text) for text in finding.alternatives)
    if finding.overlaps:
        yield "overlaps", ", ".join(map(str, finding.overlaps))
    yield "next", finding.next


def _where(finding: Finding) -> str:
    """The layers, those of one pass together: ``fc6, fc7 forward``."""
    by_pass: dict[str, list[str]] = {}
    for text in finding.where:
        layer, _, pass_ = text.rpartition(" ")
        by_pass.setdefault(pass_, []).append(layer)
    return "; ".join(f"{', '.join(layers)} {pass_}".strip() for pass_, layers in by_pass.items())
