"""A diagnosis as Markdown: a section that can be pasted into a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.diagnose_report import OVERLAPS, because, headline, saved, title, what

if TYPE_CHECKING:
    from pydlbench.diagnose import Diagnosis, Finding
    from pydlbench.results import RunRecord

__all__ = ["diagnosis_markdown"]


def diagnosis_markdown(run: RunRecord, found: Diagnosis) -> str:
    """Return heading, findings, what was tried and notes; ends in a newline.

    Args:
        run: for the device's name.
        found: what to show.
    """
    blocks = ["  \n".join(map(_escape, what(run, found))), _escape(headline(found))]
    blocks += [_finding(number, one) for number, one in enumerate(found.findings, start=1)]
    if any(one.overlaps for one in found.findings):
        blocks.append(OVERLAPS)
    for heading, tried in (("Tried, no gain", found.tried), ("Not tried", found.untried)):
        if tried:
            lines = [f"- {_escape(f'{one.what} ({one.problem}): {one.result}')}" for one in tried]
            blocks.append("\n".join([f"{heading}:", "", *lines]))
    if found.notes:
        blocks.append("\n".join(f"- note: {_escape(one)}" for one in found.notes))
    if run.id:
        blocks.append(f"Run {_escape(run.id)}, {_escape(run.created_utc)}.")
    return "\n\n".join(blocks) + "\n"


def _finding(number: int, one: Finding) -> str:
    lines = [f"{number}. **{_escape(title(one))}**: {_escape(saved(one))}"]
    lines.append(f"   - symptom: {_escape(one.symptom)}")
    lines += [f"   - evidence: {_escape(text)}" for text in one.evidence]
    lines += [f"   - cause: {_escape(text)}" for text in because(one)]
    lines += [f"   - or: {_escape(text)}" for text in one.alternatives]
    if one.overlaps:
        lines.append(f"   - overlaps {', '.join(map(str, one.overlaps))}")
    lines.append(f"   - next: `{one.next}`")
    return "\n".join(lines)


def _escape(text: str) -> str:
    for character in "\\|*_<>`":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
