from __future__ import annotations

import pytest

from pydlbench.diagnose import Diagnosis, Finding, Saving, Tried
from pydlbench.endtoend import StepCase, StepRecord
from pydlbench.report.diagnose_markdown import diagnosis_markdown
from pydlbench.report.diagnose_report import OVERLAPS, render_diagnosis
from pydlbench.report.style import Style
from pydlbench.results.parts import TimeSummary

LONG = "the kernel clears each page and maps it while the step waits for it to be done, " * 5


def finding(seconds=0.05, **changes):
    values = {
        "problem": "weights not packed",
        "where": ("fc6 forward", "fc7 forward", "fc6 backward-data"),
        "symptom": "fc6 takes 12 ms | 4 ms natively",
        "evidence": (LONG, "short"),
        "cause": LONG,
        "saving": Saving(
            seconds=seconds,
            low=0.9 * seconds,
            high=1.1 * seconds,
            step_s=0.2,
            of="layer",
            how="in turn",
            rounds=9,
        ),
        "next": "pydlbench layers --shape 32x9216:9216x4096 --pass forward --explain",
        "parts": frozenset({"fc6 forward"}),
    }
    return Finding(**{**values, **changes})


def diagnosis(*findings, **changes):
    time = TimeSummary(median=0.2, ci_low=0.19, ci_high=0.21, q1=0.2, q3=0.2, min=0.19, n=12)
    step = StepRecord(
        case=StepCase(model="alexnet-owt", batch=32, options={"lrn": "off"}),
        status="ok",
        time=time,
        images_per_s=160.0,
        library="torch 2.13",
        threads=2,
    )
    return Diagnosis(step=step, findings=findings, **changes)


def test_a_finding_in_full(run_record):
    text = render_diagnosis(run_record, diagnosis(finding()))
    assert text.startswith("alexnet-owt  batch 32  forward  fp32  lrn=off  torch 2.13 eager,")
    assert "Invented 9000  2 threads  step 200 ms +- 5.0 %, n = 12  160 images/s" in text
    assert "1. weights not packed: fc6, fc7 forward; fc6 backward-data" in text
    assert "saves 50.0 ms, 25 % of the step (22 % to 28 %), measured on the layer alone" in text
    assert "next      pydlbench layers --shape 32x9216:9216x4096" in text
    assert OVERLAPS not in text
    assert "\033" not in text


def test_every_line_fits(run_record):
    tried = (Tried(what=LONG, problem="slow", result=LONG),)
    found = diagnosis(
        finding(alternatives=(LONG,), overlaps=(2,)),
        finding(0.02, overlaps=(1,), where=tuple(f"node{i} forward" for i in range(40))),
        tried=tried,
        untried=tried,
        notes=(LONG,),
    )
    lines = render_diagnosis(run_record, found).splitlines()
    assert max(map(len, lines)) <= 120
    assert "overlaps  2" in "\n".join(lines)
    assert any(OVERLAPS in line for line in lines)
    assert sum(line.startswith("  the kernel clears") for line in lines) == 2


def test_nothing_found_is_said(run_record):
    tried = (Tried(what="the step with nchw", problem="layout", result="takes 3 ms longer"),)
    text = render_diagnosis(run_record, diagnosis(tried=tried))
    assert "Nothing found that would save 1 % of the step (1 experiment)." in text
    assert "tried, no gain:\n  the step with nchw (layout): takes 3 ms longer" in text


def test_marks_for_terminals(run_record):
    text = render_diagnosis(run_record, diagnosis(finding()), Style(enabled=True))
    assert "\033[1m1. weights not packed" in text


@pytest.mark.parametrize("overlaps", [(), (2,)])
def test_markdown(run_record, overlaps):
    tried = (Tried(what="a", problem="b", result="c_d"),)
    found = diagnosis(finding(overlaps=overlaps), tried=tried, notes=("n",))
    text = diagnosis_markdown(run_record, found)
    assert "1. **weights not packed: fc6 forward, fc7 forward, fc6 backward-data**" in text
    assert r"symptom: fc6 takes 12 ms \| 4 ms natively" in text
    assert "next: `pydlbench layers --shape 32x9216:9216x4096" in text
    assert r"- a (b): c\_d" in text
    assert (OVERLAPS in text) is bool(overlaps)
    assert text.endswith("Run 20300102-030405-abcd, 2030-01-02T03:04:05Z.\n")
