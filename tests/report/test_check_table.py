import dataclasses

import msgspec
import pytest
from check_records import make_laps, make_record, tensorflow
from said import says

from pydlbench.records.check import CheckRecord, CheckResult, Unreplayed
from pydlbench.report.blocks import run_lines
from pydlbench.report.check import check_report, ledger_columns
from pydlbench.report.text import Style, as_markdown, as_text
from pydlbench.units import Scale, percent


def result(record):
    return CheckResult.from_dict({"status": "ok", **record.to_dict()})


def failed(reason="it died"):
    good = result(tensorflow(make_record()))
    return dataclasses.replace(good, record=None, status="failed", reason=reason)


def rendered(run_record, *results, width=150, **options):
    return as_text(check_report(run_record, results, **options), Style(width=width, terminal=True))


def ledger_rows(record):
    columns = ledger_columns(record)
    return {one.term: [column.cell(one) for column in columns] for one in record.ledger}


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
    assert Scale.fit(seconds).text(seconds) == text


def test_one_scale_for_a_column_and_no_negative_zero():
    scale = Scale.fit(0.1168)
    assert scale.text(-0.00001) == "0.0 ms"
    assert scale.signed(0.0036) == "+3.6 ms"
    assert scale.signed(-0.0036) == "-3.6 ms"
    assert percent(-0.0001, signed=True) == "+0.0 %"
    assert percent(-0.038, signed=True) == "-3.8 %"
    assert percent(1.0, decimal=True) == "100 %"
    assert percent(0.9996, decimal=True) == "100 %"
    assert percent(0.7186, decimal=True) == "71.9 %"
    assert scale.text(None) == "-"


def test_the_first_lines_say_what_was_measured(run_record):
    text = rendered(run_record, result(make_record()))
    what, measured, where = text.splitlines()[:3]
    assert says(what, "alexnet-owt", "batch 32", "forward", "fp32", "torch 2.13.0 eager")
    assert says(measured, "116.8 ms", "95 %", "115.6", "118.0", "9")
    assert says(where, "Invented 9000", "2 threads", "54 s")
    assert "forecast" not in text
    text = rendered(run_record, result(make_record(forecast_s=0.1124)))
    assert says(text.splitlines()[1], "112.4 ms", "116.8 ms", "-3.8 %")


def test_without_an_interval_only_the_laps_are_printed(run_record):
    text = rendered(run_record, result(make_record(laps=make_laps(5))))
    line = text.splitlines()[1]
    assert says(line, "116.8 ms", "5")
    assert "95 %" not in line


def test_each_rung_has_time_interval_difference_and_what_lies_between(run_record):
    lines = rendered(run_record, result(make_record())).splitlines()
    start = next(i for i, one in enumerate(lines) if one.startswith("rung"))
    found = {one[:14].strip(): one[14:].split() for one in lines[start + 1 : start + 8]}
    assert found["limit"][:6] == ["84.0", "ms", "83.2", "..", "84.8", "9"]
    assert found["native"][6:] == [
        *("+6.9", "ms", "layers", "above", "the", "limit", "(conv1", "+5.1", "ms)"),
    ]
    assert found["native chain"][:4] == ["-", "-", "nothing", "here"]
    assert found["operators"][6:] == [
        *("+17.1", "ms", "layout", "reorders", "2.0", "ms;", "+15.1", "ms", "unexplained"),
    ]
    assert found["step"][6:] == [
        *("+8.8", "ms", "fresh", "memory", "6.3", "ms;", "+2.5", "ms", "unexplained"),
    ]
    assert found["unexplained"][:2] == ["+17.6", "ms"]
    assert found["unexplained"][-5:] == ["+15.1", "%", "of", "the", "step"]


def test_the_ledger_has_kinds_intervals_signs_bars_and_the_sum(run_record):
    text = rendered(run_record, result(make_record()))
    start = text.index("\nterm ")
    ledger = text[start:].split("\n\n")[0]
    limit = line(ledger, "limit").split()
    assert limit == ["limit", "limit", "84.0", "ms", "83.2", "..", "84.8", "71.9", "%", "#" * 14]
    assert "difference   +6.9 ms" in " ".join(line(ledger, "layers above").split("  ", 1)) or (
        line(ledger, "layers above").split()[4:7] == ["difference", "+6.9", "ms"]
    )
    assert line(ledger, "fresh memory").split()[2] == "experiment"
    assert line(ledger, "unexplained, context").split().count("unexplained") == 1
    assert line(ledger, "step").split() == ["step", "116.8", "ms", "-", "100", "%"]


def test_a_term_below_zero_has_a_sign_and_a_bar_of_its_own():
    rows = ledger_rows(make_record(reorders_s=0.05))
    left = rows["unexplained, operators above native"]
    assert left[2] == "-32.9 ms"
    assert left[4:6] == ["-28.2 %", "-" * 6]


def test_contradictions_are_printed_and_nothing_is_concluded(run_record):
    record = make_record(reorders_s=0.05)
    assert len(record.contradictions) == 1
    text = rendered(run_record, result(record))
    assert sum(one.startswith("contradiction: ") for one in text.splitlines()) == 1
    assert "dominates" not in text
    assert "check alexnet-owt" in text.splitlines()[-1]


def test_a_refused_rung_says_why_and_what_would_be_needed(run_record):
    laps = tuple(
        msgspec.structs.replace(one, clock_hz={**one.clock_hz, "operators": 3.0e9})
        for one in make_laps()
    )
    text = rendered(run_record, result(make_record(laps=laps)), width=400)
    assert line(text, "operators: refused").count("--stop-after") == 1
    assert line(text, "operators ").split()[1:3] == ["-", "-"]


def test_additivity_and_the_faults_are_printed(run_record):
    text = rendered(run_record, result(make_record()))
    assert "additivity error -3.8 %" in text
    assert "unexplained +15.1 % (95 % +14.9 % .. +15.2 %)" in text
    assert says(text, "page faults", "12,900", "12")
    assert "note: no fusion: nodes are not joined" in text


def test_faults_that_nobody_counted_are_unknown(run_record):
    record = make_record(faults={"counted": 7.0, "kept": None})
    text = rendered(run_record, result(record))
    assert says(text, "page faults", "7", "unknown")


@pytest.mark.parametrize("width", [80, 150])
def test_no_line_but_a_command_is_wider_than_the_terminal(run_record, width):
    detail = ", ".join(f"inception_{i}a/branch3x3_reduce {i}.1 ms" for i in range(12))
    ledger = tuple(msgspec.structs.replace(one, detail=detail) for one in make_record().ledger)
    operator = msgspec.structs.replace(
        make_record().operators[0],
        names=("inception_3a/branch_3x3/conv..inception_3a/branch_3x3/relu1",),
    )
    record = make_record(
        model="alexnet-tfcnn-cifar10",
        phase="forward-backward",
        options={"classes": "1001", "lrn": "off"},
        ledger=ledger,
        operators=(operator, *make_record().operators),
        notes=("no native row: " + "x/y backward-data: " * 20,),
        calibration={"once_s": 1e-5, "dispatch_s": 2e-6, "how": "an operator " * 30},
    )
    results = [result(record), result(tensorflow(record)), failed("why " * 90)]
    lines = rendered(run_record, *results, width=width, explain=True).splitlines()
    assert max(len(one) for one in lines if not one.startswith("next: ")) <= width
    assert sum(one.endswith("...") for one in lines) >= len(ledger)


def test_several_checks_end_in_one_table(run_record):
    text = rendered(run_record, result(make_record()), result(tensorflow(make_record())))
    last = text.split("\n\n")[-1].splitlines()
    assert last[0].split()[-3:] == ["step", "additivity", "unexplained"]
    assert last[1].split()[:2] == ["torch", "eager"]
    assert last[1].split()[-4:] == ["-3.8", "%", "+15.1", "%"]
    assert last[2].split()[:2] == ["tensorflow", "graph"]
    assert last[2].split()[-4:] == ["-50.0", "%", "+15.1", "%"]


def test_a_check_that_failed_is_a_line_and_the_other_stands(run_record):
    text = rendered(run_record, failed("it\ndied"), result(make_record()))
    assert text.splitlines()[0] == (
        "alexnet-owt  batch 32  forward  fp32  tensorflow graph  failed: it died"
    )
    assert "additivity error -3.8 %" in text


def test_the_explanation_has_terms_operators_by_size_and_laps(run_record):
    terms, parts, kinds, operators, laps = rendered(
        run_record, result(make_record()), explain=True
    ).split("\n\n")[-5:]
    assert line(kinds, "invented.fc6").split()[1:3] == ["1", "2"]
    assert "  layout reorders: a log" in terms.splitlines()
    assert says(terms, "20.0 us", "4.00 us", "an operator of one element")
    names = [one.split()[0] for one in parts.splitlines()[1:]]
    assert names == ["conv2", "fc6", "conv1", "relu1"]
    calls = [one.split()[0] for one in operators.splitlines()[1:]]
    assert calls == [f"invented.{name}" for name in names]
    assert line(operators, "invented.fc6").split()[-2:] == ["fc6,", "fc7"]
    fc6 = line(parts, "fc6")
    assert fc6.split() == [
        *("fc6", "layer", "2", "13.0", "ms", "7.00", "ms", "26.0", "ms", "22.3", "%"),
        *("+12.0", "ms"),
    ]
    assert line(parts, "relu1").split()[-1] == "-"
    assert len(laps.splitlines()) == 10
    assert {"limit", "step", "canary"} <= set(laps.splitlines()[0].split())
    assert "116.8 ms" in laps.splitlines()[5]
    plain = rendered(run_record, result(make_record())).split("\n\n")
    assert rendered(run_record, result(make_record()), depth=9).split("\n\n") == [*plain, parts]


def test_markdown_has_ladder_ledger_and_failures(run_record):
    report = check_report(run_record, [result(make_record()), failed("a|b")])
    text = as_markdown([*report, run_lines(run_record)])
    assert "| limit | 84.0 ms | 83.2 .. 84.8 | 9 |" in text
    assert "| layers above the limit | difference | +6.9 ms | 6.8 .. 7.0 | +5.9 % |" in text
    assert "| fresh memory | experiment | +6.3 ms |" in text
    assert "tensorflow graph failed: a\\|b\n" in text
    assert text.endswith("Run 20300102-030405-abcd, 2030-01-02T03:04:05Z.\n")


def test_what_other_work_disturbed_leads_to_no_verdict(run_record, measurement):
    quiet, disturbed = measurement(median=1.0), measurement(median=1.0, contended=True)
    text = rendered(run_record, result(make_record()), native=[quiet, disturbed])
    said = text.split("\n\n")[-1].splitlines()
    assert said[0].startswith("other work disturbed the run: 1 of 2 times")
    assert [one.split(":")[0] for one in said[1:]] == ["next"]
    small = measurement(median=0.01, contended=True)
    said = rendered(run_record, result(make_record()), native=[quiet, small]).split("\n\n")[-1]
    assert [one.split()[0] for one in said.splitlines()] == ["other", "conv2", "The", "next:"]


def test_layout_and_feed_are_said(run_record):
    text = rendered(run_record, result(make_record()))
    assert line(text, "alexnet-owt").endswith("torch 2.13.0 eager, channels_last")
    text = rendered(run_record, result(make_record(layout="nchw", feed="host")))
    assert "torch 2.13.0 eager, nchw, fed from the host" in line(text, "alexnet-owt")
    text = rendered(run_record, result(tensorflow(make_record(feed="host"))))
    assert "TensorFlow 2.21.0 graph, fed from the host" in line(text, "alexnet-owt")


def test_a_forecast_s_error_is_taken_apart_and_what_was_not_replayed_is_told(run_record):
    parts = {"operators": 0.105, "faults": 0.005}
    lost = Unreplayed(calls=0.02, bytes=0.005, reasons={"my.op": ("no text", "no memory")})
    record = make_record(forecast_s=0.11, forecast_parts=parts, unreplayed=lost)
    text = rendered(run_record, result(record))
    # 105 against 108 ms, of a step of 116.8 ms: the rest of -5.8 % is in calls and pages.
    assert says(line(text, "forecast error"), "-5.8 %", "-2.6 %", "5.0 ms", "-3.3 %")
    assert says(
        line(text, "not replayed"),
        "2.0 %",
        "0.5 %",
        "my.op: no text and no memory",
    )
    assert CheckRecord.from_dict(record.to_dict()) == record
