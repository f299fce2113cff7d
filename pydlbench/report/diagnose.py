"""The report of ``diagnose``: findings by their savings, and experiments without a saving."""

import shlex
from collections.abc import Iterator, Sequence

from pydlbench.grouping import group_by
from pydlbench.records.diagnosis import Cause, Diagnosis, Finding, Tried
from pydlbench.records.run import RunRecord
from pydlbench.records.step import step_words
from pydlbench.records.user_model import rate_unit
from pydlbench.report.blocks import Block, Facts, Figure, Heading, Headline, Lines
from pydlbench.report.columns import device_name, step_heading
from pydlbench.report.figures.bars import Bar, bars
from pydlbench.units import (
    format_seconds,
    merge_notes,
    per_second,
    percent,
    quantity,
)

#: Note below findings that are about the same parts of the step.
OVERLAPS = (
    "Each saving is that of one change alone; savings of findings that overlap do not add up."
)


def diagnosis_report(run: RunRecord, diagnosis: Diagnosis) -> list[Block]:
    """Return heading, findings, other experiments and notes.

    Args:
        run: the run, which has the device's name.
        diagnosis: the diagnosis.
    """
    findings = [
        Facts(list(_facts(finding)), f"{number}. {title(finding)}")
        for number, finding in enumerate(diagnosis.findings, start=1)
    ]
    overlap = any(finding.overlaps for finding in diagnosis.findings)
    tried = (("tried, no gain", diagnosis.tried), ("not tried", diagnosis.untried))
    step = diagnosis.step
    command = "diagnose" if step.contended or diagnosis.interrupted else "breakdown"
    following = f"pydlbench {shlex.join([command, *step_words(step.spec)])}"
    if diagnosis.findings and not step.contended:
        following = diagnosis.findings[0].next
    return [
        Headline([headline(diagnosis), f"next: {following}"]),
        Heading(what(run, diagnosis)),
        *savings_figure(diagnosis.findings),
        *findings,
        Lines([OVERLAPS] if overlap else []),
        *(Lines(_attempts(some), listed=True, title=f"{name}:") for name, some in tried),
        Lines([f"note: {note}" for note in merge_notes(diagnosis.notes)], listed=True),
    ]


def _attempts(attempts: Sequence[Tried]) -> list[str]:
    """Return a line for each result, after the changes that had it."""
    by_result = group_by(attempts, lambda attempt: attempt.result)
    return [
        f"{'; '.join(f'{each.what} ({each.problem})' for each in alike)}: {result}"
        for result, alike in by_result.items()
    ]


def savings_figure(findings: Sequence[Finding]) -> list[Figure]:
    """Return the figure of what each finding saves, with its interval."""
    parts = []
    for number, finding in enumerate(findings, start=1):
        saving = finding.saving
        known = saving.low is not None and saving.high is not None
        ends = (max(0.0, saving.low or 0.0), saving.high or 0.0) if known else None
        parts.append(Bar(f"{number}. {finding.problem}", saving.seconds, ends=ends))
    return bars("savings", "What each change saves", parts, ordered=False)


def what(run: RunRecord, diagnosis: Diagnosis) -> list[str]:
    """Return the lines of the heading: the step, the machine, the step's time."""
    step = diagnosis.step
    time = step.time
    second = [device_name(run.device)]
    if step.threads:
        second.append(quantity(step.threads, "thread"))
    if time is None:
        second.append(f"step {step.status}: {step.reason}")
    else:
        # The rounds of one process scatter less than processes do.
        whole = time.half_width is not None and time.processes != 1
        half = f" +- {percent(time.half_width)}" if whole else " in one process"
        second.append(f"step {format_seconds(time.median)}{half}, n = {time.n}{_beside(diagnosis)}")
    if step.images_per_s:
        second.append(f"{per_second(step.images_per_s)} {rate_unit(step.spec.own)}")
    first = step_heading(step.spec, step.library or step.spec.framework, step.types)
    return [first, "  ".join(second)]


def _beside(diagnosis: Diagnosis) -> str:
    """Return the range of the unchanged step's time beside the experiments, if there was one."""
    measured = [finding.saving for finding in diagnosis.findings]
    times = [saving.step_s for saving in measured if saving.subject == "step"]
    if not times:
        return ""
    low, high = format_seconds(min(times)), format_seconds(max(times))
    return f" ({low if low == high else f'{low} .. {high}'} beside changed steps)"


def headline(diagnosis: Diagnosis) -> str:
    """Return the conclusion in a sentence; a disturbed step has its time only."""
    time = diagnosis.step.time
    step = f"The step takes {format_seconds(time.median)}" if time else "The step has no time"
    if diagnosis.step.contended:
        at_most = step.replace("takes", "takes at most")
        return f"{at_most}: other work disturbed it; repeat on an idle machine."
    made = len(diagnosis.findings) + len(diagnosis.tried)
    experiments = quantity(made, "experiment") if made else "no experiment"
    if not diagnosis.findings and diagnosis.interrupted:
        return f"{step}; the diagnosis ended before it had tried every remedy ({experiments})."
    if not diagnosis.findings:
        return f"{step}; nothing found that would save 1 % of it ({experiments})."
    first = diagnosis.findings[0]
    causes = ", ".join(cause.name for cause in first.causes if cause.name != first.problem)
    problem = " in ".join(filter(None, (first.problem, _where(first))))
    problem += f" ({causes})" if causes else ""
    change = first.experiments[0] if len(first.experiments) == 1 else "a change"
    return f"Most is lost to {problem}: {change} {_amount(first)}."


def title(finding: Finding) -> str:
    """Return the problem, its place, and its causes with their shares.

    For example ``slow operators: fc6, fc7 forward: weights not packed (64 % of the saving), slower
    kernel (36 %)``.
    """
    names = ", ".join(_cause_name(finding, cause) for cause in finding.causes)
    parts = (finding.problem, _where(finding), names if names != finding.problem else "")
    return ": ".join(filter(None, parts))


def because(finding: Finding) -> list[str]:
    """Return a line for each cause, with its name and share if there are several."""
    if len(finding.causes) == 1:
        return [finding.causes[0].meaning]
    lines = []
    for cause in finding.causes:
        saved_s = "" if cause.seconds is None else f", {format_seconds(cause.seconds)}"
        lines.append(f"{_cause_name(finding, cause)}{saved_s}: {cause.meaning}")
    return lines


def _cause_name(finding: Finding, cause: Cause) -> str:
    if cause.seconds is None or len(finding.causes) == 1:
        return cause.name
    share = percent(cause.seconds / finding.saving.seconds)
    base = " of the saving" if cause is finding.causes[0] else ""
    return f"{cause.name} ({share}{base})"


def saving_text(finding: Finding) -> str:
    """Return a finding's saving with its interval, and how it was measured."""
    measured = "whole step" if finding.saving.subject == "step" else "layer alone"
    return f"{_amount(finding)}, measured on the {measured}"


def _amount(finding: Finding) -> str:
    saving = finding.saving
    text = f"saves {format_seconds(saving.seconds)}, {percent(saving.share)} of the step"
    if saving.low is not None and saving.high is not None:
        low, high = (percent(max(0.0, end / saving.step_s)) for end in (saving.low, saving.high))
        text += f" ({low} to {high})"
    return text


def _facts(finding: Finding) -> Iterator[tuple[str, str]]:
    yield "saving", saving_text(finding)
    yield "symptom", finding.symptom
    yield from (("evidence", text) for text in finding.evidence)
    yield from (("cause", text) for text in because(finding))
    yield from (("or", text) for text in finding.alternatives)
    if finding.overlaps:
        yield "overlaps", ", ".join(map(str, finding.overlaps))
    yield "next", finding.next


def _where(finding: Finding) -> str:
    """Return the layers grouped by pass: ``fc6, fc7 forward``."""
    by_pass = group_by((text.rpartition(" ") for text in finding.where), lambda parts: parts[2])
    return "; ".join(
        f"{', '.join(layer for layer, _, _ in parts)} {pass_}".strip()
        for pass_, parts in by_pass.items()
    )
