"""The first screen of a recorded step: shares of the busy time, what to do next, and reasons."""

import pytest
from invented_profile import ADD, MM, MM_BYTES, MM_FLOPS, event, launched, step, write
from msgspec.structs import replace

from pydlbench.analysis.ledger import ledger_of
from pydlbench.devices.gpu.cards import card_named
from pydlbench.report.figures.roofline import recorded_roofline
from pydlbench.report.text import as_markdown
from pydlbench.report.trace import conclusion, trace_report
from pydlbench.traces.files import read

CARD = card_named("NVIDIA H100 80GB HBM3")


@pytest.fixture
def report(tmp_path):
    def make(events):
        ledger = ledger_of(read(write(tmp_path / "trace.json", events)), "trace", card=CARD)
        return as_markdown(trace_report(ledger))

    return make


def two_products(pause):
    events = launched("aten::mm", "g", 0, 100, 100, 1, **MM)
    return events + launched("aten::mm", "g", pause, pause + 200, 100, 2, **MM)


@pytest.mark.parametrize(
    ("events", "shown", "hidden"),
    [
        (two_products(300), "of busy", "mark the steps"),
        (launched("aten::mm", "g", 0, 100, 0.01, 1, **MM), "100 % of the kernels below", "Next"),
        (two_products(100), "2 kernels", "of busy"),
        (two_products(9000), "mark the steps", "graph"),
        ([step(1, 0, 9500), *two_products(9000)], "graph", "mark the steps"),
        (
            [event("kernel", "gemm", 0, 9, tid=7)],
            "Next: record with record\\_shapes=True",
            "of busy",
        ),
        (
            [
                *launched("mylib::one", "k", 0, 100, 100, 1, **ADD),
                *launched("mylib::two", "k", 30, 200, 100, 2, **ADD),
                event("kernel", "lost", 300, 1, tid=7, pid=0, correlation=99),
            ],
            "(mylib.one, mylib.two)",
            "more reason",
        ),
    ],
)
def test_the_first_screen_says_what_dominates_and_what_to_do(report, events, shown, hidden):
    text = report(events)
    assert shown in text
    assert hidden not in text


def added(kernel, count):
    """Element-wise kernels that are far above their limit."""
    return [
        each
        for number in range(1, count + 1)
        for each in launched("aten::add", kernel, 300 * number, 300 * number, 250, number, **ADD)
    ]


@pytest.mark.parametrize(
    ("kernel", "count", "fuses"),
    [
        ("vectorized_elementwise_kernel", 2, True),
        ("vectorized_elementwise_kernel", 1, False),
        ("triton_poi_fused_add_mul_0", 2, False),
    ],
)
def test_fusing_is_advised_only_where_there_are_kernels_to_fuse(tmp_path, kernel, count, fuses):
    ledger = ledger_of(read(write(tmp_path / "trace.json", added(kernel, count))), "t", card=CARD)
    assert ledger.dominant.name == "element-wise"
    assert ("torch.compile" in conclusion(ledger)) == fuses


def test_calls_are_marks_below_the_roofs_of_the_card(tmp_path):
    events = launched("aten::mm", "g", 0, 100, 100, 1, **MM)
    events += [event("kernel", "lost", 300, 1, tid=7, pid=0, correlation=99)]
    ledger = ledger_of(read(write(tmp_path / "trace.json", events)), "trace", card=CARD)
    (figure,) = recorded_roofline(ledger)
    (points,) = (
        layer["data"]["values"]
        for layer in figure.spec["layer"]
        if layer["mark"]["type"] == "point"
    )
    assert [point["name"] for point in points] == ["mm"]
    assert points[0]["y"] == pytest.approx(MM_FLOPS / 100e-6 / 1e12)
    assert points[0]["x"] == pytest.approx(MM_FLOPS / MM_BYTES)
    assert "theoretical memory 3350 GB/s" in figure.text
    assert recorded_roofline(replace(ledger, calls=())) == []
