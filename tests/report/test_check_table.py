from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import msgspec
import pytest

from pydlbench.ladder.estimate import plan
from pydlbench.models import build_model
from pydlbench.records.measurement import Peaks, Roofline
from pydlbench.report.check import (
    CheckResult,
    Limits,
    Scale,
    checks_markdown,
    explain_check,
    ledger_rows,
    limits,
    percent,
    render_checks,
    rungs,
    signed_percent,
)

sys.path.insert(0, str(Path(__file__).parent))
from check_records import MEASURED_S, make_ledger, make_record, tensorflow

sys.path.pop(0)

LIMITS = Limits(theoretical_s=0.0801, roof_s=0.0840)


def result(record):
    values = {
        name: getattr(record, name)
        for name in ("model", "batch", "phase", "precision", "framework", "mode")
    }
    return CheckResult(**values, record=record)


def failed(reason="it died"):
    good = result(tensorflow(make_record()))
    return dataclasses.replace(good, record=None, status="failed", reason=reason)


def rendered(run_record, *results, **options):
    return render_checks(run_record, results, LIMITS, **options)


def line(text, start):
    return next(one for one in text.splitlines() if one.startswith(start))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.1168, "116.8 ms"),
        (1.2345, "1.234 s"),
        (12.345, "12.35 s"),
        (0.012345, "12.35 ms"),
        (0.000123, "123.0 us"),
        (2e-8, "0.02000 us"),
        (1234.5, "1234 s"),
        (-0.0123, "-12.30 ms"),
    ],
)
def test_a_scale_gives_four_digits(seconds, text):
    assert Scale.of(seconds).text(seconds) == text


def test_one_scale_for_a_column_and_no_negative_zero():
    scale = Scale.of(0.1168)
    assert scale.text(-0.00001) == "0.0 ms"
    assert scale.signed(0.0036) == "+3.6 ms"
    assert scale.signed(-0.0036) == "-3.6 ms"
    assert signed_percent(-0.0001) == "+0.0 %"
    assert signed_percent(-0.038) == "-3.8 %"
    assert percent(1.0) == "100 %"
    assert percent(0.9996) == "100 %"
    assert scale.text(None) == "-"


def test_the_first_line_has_prediction_measurement_and_error(run_record):
    text = rendered(run_record, result(make_record()))
    assert text.splitlines()[0] == (
        "alexnet-owt  batch 32  forward  fp32  torch 2.13.0 eager, channels_last"
    )
    assert text.splitlines()[1] == (
        "predicted 112.4 ms   measured 116.8 ms (95 % 116.0 .. 117.5, n 9)   error -3.8 %"
    )
    assert text.splitlines()[2] == "Invented 9000  2 threads  checked in 54 s"


def test_a_short_heading_is_one_line(run_record):
    record = make_record(model="vgg11", library="torch 2", framework="tensorflow", mode="xla")
    first = rendered(run_record, result(record)).splitlines()[0]
    assert first.startswith("vgg11  batch 32  forward  fp32  torch 2 xla    predicted 112.4 ms")
    assert first.endswith("error -3.8 %")


def test_without_an_interval_only_n_is_printed(run_record):
    time = msgspec.structs.replace(make_record().measured, ci_low=None, ci_high=None, n=5)
    text = rendered(run_record, result(make_record(measured=time)))
    assert "measured 116.8 ms (n 5)" in text


def test_the_rungs_stand_side_by_side(run_record):
    lines = rendered(run_record, result(make_record())).splitlines()
    index = next(i for i, one in enumerate(lines) if one.startswith("theoretical"))
    assert lines[index].split("  ")[0] == "theoretical"
    assert lines[index + 1].split() == [
        *("80.1", "ms", "84.0", "ms", "88.0", "..", "93.8", "ms", "108.0", "ms"),
        *("112.4", "ms", "116.8", "ms"),
    ]


def test_the_ledger_has_every_term_its_sign_its_bar_and_the_sum(run_record):
    text = rendered(run_record, result(make_record()))
    assert line(text, "layers at").split()[-4:] == ["ms", "71.9", "%", "#" * 14]
    assert line(text, "above the").endswith("6.9 ms   5.9 %  #               conv1 +5.1 ms")
    assert "-2.1 ms  -1.8 %" in line(text, "pointwise")
    assert "+3.6 ms  +3.1 %" in line(text, "unexplained  ")
    total = line(text, "end-to-end step").split()
    assert total == ["end-to-end", "step", "116.8", "ms", "100", "%"]
    assert "+" not in line(text, "dispatch")


def test_a_negative_term_has_a_bar_of_its_own():
    rows = {row[0]: row for row in ledger_rows(make_record(ledger=make_ledger(pointwise=-0.02)))}
    assert rows["pointwise"][1:4] == ["-20.0 ms", "-17.1 %", "---"]
    assert rows["unexplained"][1] == "+21.5 ms"
    assert rows["end-to-end step"][1:3] == ["116.8 ms", "100 %"]


def test_an_unexplained_below_zero_keeps_its_sign():
    rows = {row[0]: row for row in ledger_rows(make_record(ledger=make_ledger(operator=0.03)))}
    assert rows["unexplained"][1:3] == ["-8.6 ms", "-7.4 %"]


def test_both_errors_and_the_faults_are_printed(run_record):
    text = rendered(run_record, result(make_record()))
    assert "error of the prediction -3.8 %, of the native sum -22.2 %; unexplained +3.1 %" in text
    assert (
        "page faults per step: in the steps before 12,345, counted 12,900, with kept pages 12"
        in text
    )
    assert "note: no fusion: nodes are not joined" in text


def test_faults_that_nobody_counted_are_unknown(run_record):
    record = make_record(faults={"predicted": None, "counted": 7.0, "kept": None})
    text = rendered(run_record, result(record))
    assert "in the steps before unknown, counted 7, with kept pages unknown" in text


def test_no_line_is_wider_than_150_columns(run_record):
    detail = ", ".join(f"inception_{i}a/branch3x3_reduce {i}.1 ms" for i in range(12))
    ledger = tuple(msgspec.structs.replace(one, detail=detail) for one in make_record().ledger)
    piece = msgspec.structs.replace(
        make_record().pieces[0], name="inception_3a/branch_3x3/conv..inception_3a/branch_3x3/relu1"
    )
    record = make_record(
        model="alexnet-tfcnn-cifar10",
        phase="forward-backward",
        options={"classes": "1001", "lrn": "off"},
        ledger=ledger,
        pieces=(piece, *make_record().pieces),
        notes=("no native row: " + "x/y backward-data: " * 20,),
        calibration={"once_s": 1e-5, "dispatch_s": 2e-6, "how": "an operator " * 30},
    )
    text = rendered(
        run_record, result(record), result(tensorflow(record)), failed("why " * 90), explain=True
    )
    assert max(map(len, text.splitlines())) <= 150
    assert "..." in text


def test_several_checks_end_in_one_table(run_record):
    text = rendered(run_record, result(make_record()), result(tensorflow(make_record())))
    last = text.split("\n\n")[-1].splitlines()
    assert last[0].split()[-3:] == ["error", "native", "unexplained"]
    assert last[1].split()[:2] == ["torch", "eager"]
    assert last[1].split()[-6:] == ["-3.8", "%", "-22.2", "%", "+3.1", "%"]
    assert last[2].split()[:2] == ["tensorflow", "graph"]
    assert last[2].split()[-6:] == ["-50.0", "%", "-22.2", "%", "+3.1", "%"]


def test_a_check_that_failed_is_a_line_and_the_other_stands(run_record):
    text = rendered(run_record, failed("it\ndied"), result(make_record()))
    assert text.splitlines()[0] == (
        "alexnet-owt  batch 32  forward  fp32  tensorflow graph  failed: it died"
    )
    assert "error -3.8 %" in text


def test_the_explanation_has_terms_parts_by_size_and_rounds():
    terms, parts, rounds = explain_check(make_record())
    assert "  operator choice: operators alone minus native rows" in terms.splitlines()
    assert "once 20.0 us, dispatch 4.00 us, fault 1.30 us; an operator of one element" in terms
    names = [one.split()[0] for one in parts.splitlines()[1:]]
    assert names == ["conv2", "fc6", "conv1", "relu1"]
    fc6 = line(parts, "fc6")
    assert fc6.split() == [
        *("fc6", "layer", "2", "13.0", "ms", "7.00", "ms", "26.0", "ms", "22.3", "%"),
        *("+12.0", "ms"),
    ]
    assert line(parts, "relu1").split()[-1] == "-"
    assert len(rounds.splitlines()) == 6
    assert "-3.8 %" in rounds.splitlines()[3]


def test_markdown_has_ladder_ledger_and_failures(run_record):
    text = checks_markdown(run_record, [result(make_record()), failed("a|b")], LIMITS)
    assert "| torch eager | 80.1 ms | 84.0 ms | 88.0 .. 93.8 ms | 108.0 ms | 112.4 ms |" in text
    assert "| operator choice | 17.8 ms | 15.2 % | fc6 +12.0 ms, fc7 +4.9 ms |" in text
    assert "| unexplained | +3.6 ms | +3.1 % |  |" in text
    assert "- failed: tensorflow graph: a\\|b" in text
    assert text.endswith("Run 20300102-030405-abcd, 2030-01-02T03:04:05Z.\n")


def test_limits_sum_rows_of_every_occurrence(measurement, without_time):
    wanted = plan(build_model("mnist", 4), "forward")
    peak = Peaks(theoretical=0.5, measured=0.4)
    roofline = Roofline(bound="compute", time_s=0.01, efficiency=0.2)
    good = measurement(flops_executed=10**9, peak=peak, roofline=roofline)
    rows = dict.fromkeys(wanted.cases, good)
    found = limits(wanted, rows)
    count = len(wanted.terms)
    assert found.theoretical_s == pytest.approx(count * 0.002)
    assert found.roof_s == pytest.approx(count * 0.01)
    rows[wanted.terms[0].hot] = without_time("failed", "why")
    least = sum(one.hot != wanted.terms[0].hot for one in wanted.terms)
    assert limits(wanted, rows).roof_s == pytest.approx(least * 0.01)
    nothing = dict.fromkeys(wanted.cases, without_time("failed", "why"))
    assert limits(wanted, nothing) == Limits(theoretical_s=None, roof_s=None)


def test_rungs_are_in_seconds():
    assert rungs(make_record(), LIMITS) == {
        "theoretical_s": 0.0801,
        "roof_s": 0.0840,
        "native_low_s": 0.0880,
        "native_high_s": 0.0938,
        "operators_s": 0.1080,
        "estimate_s": 0.1124,
        "measured_s": MEASURED_S,
    }


def test_layout_and_feed_are_said(run_record):
    text = rendered(run_record, result(make_record()))
    assert line(text, "alexnet-owt").endswith("torch 2.13.0 eager, channels_last")
    text = rendered(run_record, result(make_record(layout="nchw", feed="host")))
    assert "torch 2.13.0 eager, nchw, fed from the host" in line(text, "alexnet-owt")
    text = rendered(run_record, result(tensorflow(make_record(feed="host"))))
    assert "TensorFlow 2.21.0 graph, fed from the host" in line(text, "alexnet-owt")


def test_where_the_predicted_faults_were_counted(run_record):
    record = make_record(calibration={"fault_s": 1.3e-6})
    assert "in the steps before 12,345, counted 12,900" in rendered(run_record, result(record))
    kept = make_record(calibration={"fault_s": None})
    assert "in the parts 12,345, counted 12,900" in rendered(run_record, result(kept))
