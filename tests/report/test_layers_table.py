import io
import shlex

import msgspec
import pytest
from said import says

from pydlbench.cli.layer_request import read_request
from pydlbench.cli.parser import read
from pydlbench.records.measurement import Candidate
from pydlbench.report.layers import algorithms_report, layers_report, ncu_command, regret
from pydlbench.report.text import Style, as_text
from pydlbench.words import PROFILED_RANGE


def render_layers(run_record, rows):
    return as_text(layers_report(run_record, rows))


def render_algorithms(row, name):
    return as_text(algorithms_report(row, name))


def test_failed_and_skipped_rows_stand_below_with_their_reasons(
    run_record, measurement, without_time
):
    rows = [
        measurement(),
        without_time("skipped", "no AMX", precision="bf16"),
        without_time("skipped", "no AMX", precision="bf16", layer="alexnet/conv4"),
        without_time("failed", "wrong result:\nchannel 3", layer="alexnet/conv5"),
    ]
    text = render_layers(run_record, rows)
    assert "skipped  alexnet/conv3 bf16, alexnet/conv4 bf16: no AMX" in text.splitlines()
    assert "failed  alexnet/conv5 fp32: wrong result: channel 3" in text.splitlines()
    assert text.index("failed") < text.index("skipped")


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        (
            [{"contended": True, "contention_reason": "run-queue wait 30 %"}],
            ("contended: alexnet/conv3: run-queue wait 30 %",),
        ),
        (
            [{}, {"layer": "alexnet/conv4", "stop_reason": "time budget"}],
            ("stopped", "time budget", "alexnet/conv4"),
        ),
        (
            [{}, {"median": 0.0777, "status": "failed", "reason": "channel 3 is wrong"}],
            ("channel 3 is wrong",),
        ),
    ],
    ids=["contended", "stop reasons", "a wrong kernel"],
)
def test_notes_below_the_table(run_record, measurement, rows, values):
    text = render_layers(run_record, [measurement(**row) for row in rows])
    assert says(text, *values)
    assert "77.7" not in text  # the time of a wrong kernel


def test_figures_in_stop_reasons_do_not_make_them_different(run_record, measurement):
    rows = [
        measurement(stop_reason="median known to 0.43% at 0.95 confidence"),
        measurement(stop_reason="median known to 0.5% at 0.95 confidence", layer="alexnet/conv4"),
    ]
    text = render_layers(run_record, rows)
    assert "stopped: median known to 0.43 to 0.5% at 0.95 confidence" in text.splitlines()
    assert "stopped: median known to 0.43% at 0.95" in render_layers(run_record, rows[:1])


def test_candidates_fastest_first_and_failures_last(measurement):
    def candidate(name, median, **more):
        time = measurement(median=median).time.to_dict() if median else None
        return {"algorithm": name, "layout": "nhwc", "status": "ok", "time_s": time, **more}

    row = measurement(
        candidates=(
            candidate("ref", None, status="failed", reason="channel 3 is wrong"),
            candidate("jit", 0.08, reorder_s={"src": 0.001, "weights": 0.001}),
            candidate(
                "brgconv", 0.05, chosen=True, workspace_bytes=2_000_000, correct={"status": "ok"}
            ),
        )
    )
    title, _, _, *lines = render_algorithms(row, "conv3").splitlines()
    assert title.startswith("conv3: 3 candidates")
    assert [line.split()[:2] for line in lines] == [
        ["*", "brgconv"],
        ["jit", "nhwc"],
        ["ref", "nhwc"],
    ]
    assert "2.00 MB" in lines[0]
    assert "1.60x" in lines[1]
    assert "2.00 ms" in lines[1]
    assert lines[0].endswith(" ok")
    assert lines[1].endswith(" ok, unchecked")
    assert lines[2].endswith("failed: channel 3 is wrong")


@pytest.mark.parametrize(
    ("chosen", "others", "expected"),
    [
        (0.05, [(0.08, 24), (0.06, 24)], 0.0),
        (0.06, [(0.05, 24), (0.08, 24)], 0.2),
        (0.06, [(0.05, 2), (0.08, 24)], 0.0),  # the faster one was hardly measured
        (0.06, [(0.05, 2)], None),
        (0.06, [], None),
        (None, [(0.05, 24), (0.06, 24)], None),
    ],
)
def test_the_regret_is_that_of_the_choice_among_what_was_measured_long_enough(
    measurement, chosen, others, expected
):
    def candidate(median, n=24, **more):
        time = msgspec.structs.replace(measurement(median=median).time, n=n)
        return Candidate(algorithm="jit", time=time.to_dict(), **more)

    known = [candidate(*each) for each in others]
    known += [candidate(chosen, chosen=True)] if chosen else []
    assert regret(known) == (None if expected is None else pytest.approx(expected))


def test_candidate_that_knows_only_its_median(measurement):
    row = measurement(candidates=({"algorithm": "jit", "time_s": 0.05},))
    assert "no spread" in render_algorithms(row, "conv3")
    assert "no candidates" in render_algorithms(measurement(), "conv3")


def test_colour_only_on_terminals_that_want_it(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Style.for_stream(Terminal()).bold("x") == "\033[1mx\033[0m"
    assert Style.for_stream(io.StringIO()).bold("x") == "x"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Style.for_stream(io.StringIO()).bold("x") == "\033[1mx\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert (
        Style.for_stream(Terminal()).alarm("x") == Style.for_stream(io.StringIO()).alarm("x") == "x"
    )


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("mb128ic192ih13oc384oh13kh3ph1", {"precision": "bf16-tc", "pass_": "backward-data"}),
        ("128x9216:9216x4096", {"fuse": "bias-relu", "cache": "all-cold"}),
        ("relu:mb128ic96ih55", {"layout_request": "nhwc"}),
    ],
)
def test_the_command_for_a_profiler_asks_for_the_same_row(measurement, problem, words):
    row = measurement(problem=problem, layer="a/b", device="cuda:0", backend="native", **words)
    gate, plan, *profiler = shlex.split("\n".join(ncu_command(row)).replace("\\\n", ""))
    assert gate == "PYDLBENCH_GATE=0"
    assert plan == f"PYDLBENCH_PLAN={row.algorithm} {row.layout}"
    assert profiler[profiler.index("--clock-control") + 1] == "none"
    assert profiler[profiler.index("--nvtx-include") + 1] == f"pydlbench@{PROFILED_RANGE}/"
    where = profiler.index("pydlbench")
    args = read(["layers", *profiler[where + 2 :]])[0]
    (case,) = read_request(args).cases
    assert case.layer.problem == row.problem
    assert (case.pass_, case.precision, case.cache) == (row.pass_, row.precision, row.cache)
    assert (case.fuse, case.layout) == (row.fuse, row.layout_request)


def test_commands_for_a_profiler_are_those_of_native_rows_of_a_gpu(run_record, measurement):
    rows = [
        measurement(device=device, backend=backend)
        for device, backend in (("cpu", "native"), ("cuda:0", "native"), ("cuda:0", "torch"))
    ]
    lines = [
        line
        for one in (True, False)
        for line in as_text(layers_report(run_record, rows, ncu=one)).splitlines()
        if line.endswith("\\") or line.strip() == "--store none"
    ]
    assert lines == ncu_command(rows[1])
