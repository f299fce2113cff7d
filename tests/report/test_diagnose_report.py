import msgspec
import pytest
from said import says

from pydlbench.records.diagnosis import Cause, Diagnosis, Finding, Saving, Tried
from pydlbench.records.measurement import TimeSummary
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.report.blocks import run_lines
from pydlbench.report.diagnose import OVERLAPS, diagnosis_report
from pydlbench.report.text import PLAIN_STYLE, as_markdown, as_text

LONG = "the kernel clears each page and maps it while the step waits for it to be done, " * 5


def render_diagnosis(run_record, found, style=PLAIN_STYLE):
    return as_text(diagnosis_report(run_record, found), style)


def diagnosis_markdown(run_record, found):
    return as_markdown([*diagnosis_report(run_record, found), run_lines(run_record)])


def finding(seconds=0.05, **changes):
    values = {
        "problem": "slow operators",
        "where": ("fc6 forward", "fc7 forward", "fc6 backward-data"),
        "symptom": "fc6 takes 12 ms | 4 ms natively",
        "evidence": (LONG, "short"),
        "causes": (Cause(name="weights not packed", meaning=LONG, seconds=seconds),),
        "saving": Saving(
            seconds=seconds,
            low=0.9 * seconds,
            high=1.1 * seconds,
            step_s=0.2,
            subject="layer",
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
        spec=StepSpec(model="alexnet-owt", batch=32, options={"lrn": "off"}),
        status="ok",
        time=time,
        images_per_s=160.0,
        library="torch 2.13",
        threads=2,
    )
    return Diagnosis(step=step, findings=findings, **changes)


def test_a_finding_in_full(run_record):
    text = render_diagnosis(run_record, diagnosis(finding()))
    first, following, *lines = text.replace("\n\n", "\n").splitlines()
    assert says(first, "slow operators", "25 %")
    assert following.startswith("next: pydlbench")
    assert says(lines[0], "alexnet-owt", "lrn=off", "batch 32", "forward", "fp32", "torch 2.13")
    assert says(
        lines[1], "Invented 9000", "2 threads", "200 ms", "in one process", "12", "160 images/s"
    )
    where = "fc6, fc7 forward; fc6 backward-data"
    assert says(text, "1", "slow operators", where, "weights not packed")
    assert says(text, "50.0 ms", "25 %", "22 %", "28 %")
    assert says(text, "next", "pydlbench layers --shape 32x9216:9216x4096")
    assert OVERLAPS not in text
    assert "\033" not in text


@pytest.mark.parametrize(
    ("subjects", "told"),
    [(("step", "step"), "180 ms .. 220 ms"), (("layer", "step"), "(220 ms"), (("layer",) * 2, "")],
)
def test_the_step_s_times_beside_changed_steps_are_told(run_record, subjects, told):
    findings = [
        finding(
            saving=msgspec.structs.replace(finding().saving, subject=subject, step_s=step_s),
        )
        for subject, step_s in zip(subjects, (0.18, 0.22), strict=True)
    ]
    text = render_diagnosis(run_record, diagnosis(*findings))
    assert ("beside changed steps" in text) == bool(told)
    assert told in text


def test_several_causes_have_shares_and_the_title_says_what_they_share(run_record):
    causes = (
        Cause(name="weights not packed", meaning="read as they lie", seconds=0.032),
        Cause(name="slower kernel", meaning="a slow one", seconds=0.018),
    )
    found = diagnosis(finding(causes=causes, where=("fc6 forward",)))
    text = render_diagnosis(run_record, found)
    shares = "weights not packed (64 % of the saving), slower kernel (36 %)"
    assert f"1. slow operators: fc6 forward: {shares}\n" in text
    assert says(text, f"fc6 forward: {shares}", "25 %")
    assert says(text, "weights not packed (64 % of the saving)", "32.0 ms", "read as they lie")
    assert says(text, "slower kernel (36 %)", "18.0 ms", "a slow one")
    markdown = diagnosis_markdown(run_record, found)
    assert says(markdown, "slower kernel (36 %)", "18.0 ms", "a slow one")


def test_causes_that_one_experiment_cannot_tell_apart_have_no_shares(run_record):
    causes = tuple(Cause(name=name, meaning=f"{name} cost") for name in ("gaps", "copies"))
    found = diagnosis(finding(causes=causes, where=(), problem="one by one"))
    text = render_diagnosis(run_record, found)
    assert "1. one by one: gaps, copies\n" in text
    assert says(text, "gaps: gaps cost", "copies: copies cost")


def test_a_cause_named_like_the_finding_is_not_said_twice(run_record):
    cause = Cause(name="layout reorders", meaning="another layout", seconds=0.05)
    found = diagnosis(finding(causes=(cause,), where=(), problem="layout reorders"))
    assert "1. layout reorders\n" in render_diagnosis(run_record, found)


def test_nothing_found_is_said(run_record):
    tried = (Tried(what="the step with nchw", problem="layout", result="takes 3 ms longer"),)
    text = render_diagnosis(run_record, diagnosis(tried=tried))
    assert says(text, "1 %", "1 experiment")
    assert says(text, "the step with nchw", "layout", "takes 3 ms longer")


def test_changes_with_the_same_result_are_one_line(run_record):
    late = [Tried(what=name, problem="p", result="no time", ran=False) for name in ("one", "two")]
    other = Tried(what="three", problem="p", result="no room", ran=False)
    (lines,) = (
        block.lines
        for block in diagnosis_report(run_record, diagnosis(untried=(late[0], other, late[1])))
        if getattr(block, "title", "") == "not tried:" and block.lines
    )
    assert len(lines) == 2
    assert says(lines[0], "one", "two", "no time")
