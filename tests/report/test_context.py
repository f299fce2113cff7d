"""What is printed of a traced step."""

from __future__ import annotations

import msgspec
import pytest
from said import says

from pydlbench.records.measurement import TimeSummary
from pydlbench.records.run import command_text
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.records.trace import CallInContext, Dominant, ModuleInContext, Tracing
from pydlbench.report.blocks import Lines, TableBlock
from pydlbench.report.module_tree import context_blocks, next_line
from pydlbench.report.step import conclude, step_rows, steps_report
from pydlbench.report.text import as_text

TIME = TimeSummary(median=0.1, ci_low=0.1, ci_high=0.1, q1=0.1, q3=0.1, min=0.1, n=9)


def record_of(**more):
    fields = {
        "calls": tuple(
            CallInContext(
                operator=f"aten.{operator}",
                module=module,
                direction=direction,
                count=1,
                in_context_s=seconds,
                share=seconds / 0.1,
                limit_s=limit_s,
            )
            for operator, module, direction, seconds, limit_s in (
                ("convolution_backward", "conv2", "backward", 0.05, 0.01),
                ("convolution", "conv2", "forward", 0.02, 0.004),
                ("relu", "act", "forward", 0.01, None),
            )
        ),
        "modules": (
            ModuleInContext(module="conv2", seconds=0.07, share=0.7, limit_s=0.014),
            ModuleInContext(module="act", seconds=0.01, share=0.1),
        ),
        "between_calls_s": 0.02,
        "dominant": Dominant(name="conv2", share=0.7, ci_low=0.68, ci_high=0.73),
        "trace": Tracing(
            source="a profiler", rounds=6, calls=3, traced_s=0.1, untraced_s=0.1, cost=1.0
        ),
    }
    case = StepSpec(model="vgg11", batch=8, phase="training")
    return StepRecord(spec=case, status="ok", **{**fields, **more})


def test_modules_are_shown_with_their_limit_and_slowest_call():
    sentence, table, figure, sums, tree, rest = context_blocks(record_of(), "torch eager")
    assert isinstance(table, TableBlock)
    assert [one["name"] for one in figure.spec["data"]["values"]] == ["conv2", "act"]
    assert [one.summary for one in tree.blocks[:-1]] == [
        "conv2: 70.0 ms, 70 %",
        "act: 10.0 ms, 10 %",
    ]
    assert list(map(list, table.cells)) == [
        ["conv2", "70.0 ms", "70 %", "20 %", "convolution_backward 50.0 ms"],
        ["act", "10.0 ms", "10 %", "-", "relu 10.0 ms"],
    ]
    assert [cells[:3] for cells in sums.cells] == [
        ["backward", "50.0 ms", "50 %"],
        ["forward", "30.0 ms", "30 %"],
    ]
    assert "convolution 20.0 ms, element-wise 10.0 ms" in sums.cells[1][3]
    assert [one.span for one in tree.blocks[:-1]] == [
        pytest.approx((0.0, 0.7)),
        pytest.approx((0.7, 0.1)),
    ]
    assert "conv2: 70 % (95 % 68 .. 73) of the step" in sentence.lines[0]
    assert "not to be told" not in sentence.lines[0]
    assert "between calls 20.0 ms, 20 %" in rest.lines[0]
    following = next_line(record_of())
    assert following.endswith("breakdown vgg11 --batch 8 --phase training --framework torch")


@pytest.mark.parametrize(
    ("cost", "limit_s", "shown", "said"),
    [
        (1.2, 0.01, True, ""),
        (1.6, 0.01, False, "shares of the limit are not shown"),
        (1.2, 0.2, True, "contradiction: less time than the limit: conv2"),
    ],
)
def test_shares_of_the_limit_are_shown_only_where_tracing_is_cheap(cost, limit_s, shown, said):
    record = record_of()
    calls = tuple(msgspec.structs.replace(call, limit_s=limit_s) for call in record.calls)
    trace = msgspec.structs.replace(record.trace, cost=cost)
    _, table, *_, rest = context_blocks(record_of(calls=calls, trace=trace), "torch eager")
    assert ("of limit" in table.titles) == shown
    assert says("\n".join(rest.lines), said) if said else "limit" not in rest.lines[0]


def test_times_of_modules_in_a_disturbed_step_have_its_star():
    sentence, table, *_ = context_blocks(record_of(contended=True), "torch eager")
    assert "conv2" not in sentence.lines[0]
    assert [cells[1] for cells in table.cells] == ["70.0 ms*", "10.0 ms*"]


def test_tables_of_several_steps_name_what_differs(run_record):
    specs = [
        StepSpec(model="mnist", batch=batch, phase=phase)
        for batch, phase in ((8, "training"), (16, "training"), (8, "forward"))
    ]
    records = [msgspec.structs.replace(record_of(time=TIME), spec=spec) for spec in specs]
    text = as_text(steps_report(run_record, records))
    for spec in specs:
        assert says(
            text, f"torch eager  phase {spec.phase}  batch {spec.batch}: dominated by conv2"
        )


@pytest.mark.parametrize(
    ("disturbed", "said"),
    [
        ((), "torch eager is fastest: 100 ms per step, 80 images/s; tensorflow graph"),
        ((1,), "torch eager takes 100 ms per step, 80 images/s"),
        ((0, 1), "torch eager takes at most 100 ms per step, at least 80 images/s"),
    ],
)
def test_a_step_that_other_work_disturbed_takes_at_most_its_time(run_record, disturbed, said):
    records = [
        msgspec.structs.replace(
            record_of(
                time=msgspec.structs.replace(TIME, median=0.1 * (place + 1)), images_per_s=80.0
            ),
            spec=StepSpec(model="mnist", batch=8, framework=framework),
            rounds_s=dict.fromkeys(range(9), 0.1 * (place + 1)),
            contended=place in disturbed,
        )
        for place, framework in enumerate(("torch", "tensorflow"))
    ]
    headline, *_ = steps_report(run_record, records)
    again = f"next: pydlbench {command_text(run_record.command)}"
    assert (headline.lines[-1] == again) == (len(disturbed) == 2)
    first, *rest = conclude(step_rows(records))
    assert says(first, said)
    warned = f"{len(disturbed)} of 2 times"
    assert any(says(line, warned) for line in rest) == bool(disturbed)


def test_a_module_without_time_has_no_share_of_the_limit():
    # A profiler may find nothing of a layer that only gives a tensor another shape.
    assert ModuleInContext(module="flat", seconds=0.0, share=0.0, limit_s=0.0).of_limit is None
    assert ModuleInContext(module="a", seconds=0.2, share=0.1, limit_s=0.1).of_limit == 0.5


def test_rivals_of_the_dominant_module_are_named():
    rivals = tuple("abcde")
    record = record_of(dominant=Dominant(name="conv2", share=0.7, rivals=rivals))
    assert context_blocks(record, "torch eager")[0].lines[0].endswith("from a, b, c and 2 more")


@pytest.mark.parametrize("reason", [None, "torch compiled: nothing tells"])
def test_a_step_that_was_not_traced_says_why_and_nobody_asks_in_vain(reason):
    case = StepSpec(model="vgg11", batch=8)
    found = context_blocks(StepRecord(spec=case, status="ok", untraced=reason), "torch compiled")
    texts = [line for one in found if isinstance(one, Lines) for line in one.lines]
    assert len(texts) == (reason is not None)
    assert all(str(reason) in one for one in texts)


def encoder(seconds=0.02, limit_s=0.005):
    """Calls of an embedding and three equal layers of a linear and a norm each."""
    layers = [
        (f"encoder.layers.{layer}.{name}", share * seconds, share * limit_s)
        for layer in range(3)
        for name, share in (("linear", 0.75), ("norm", 0.25))
    ]
    return tuple(
        CallInContext(
            operator="aten.mm",
            module=module,
            direction="forward",
            count=1,
            in_context_s=taken_s,
            share=taken_s / 0.1,
            limit_s=least_s,
        )
        for module, taken_s, least_s in [("embedding", 0.01, 0.009), *layers]
    )


@pytest.mark.parametrize(
    ("operator", "category"),
    [
        ("quantized.linear_dynamic", "product"),
        ("aten.mkldnn._linear_pointwise", "product"),
        ("com.microsoft.QLinearConv", "convolution"),
        ("onnx.QuantizeLinear", "data movement"),
        ("aten.upsample_bilinear2d", "other"),
    ],
)
def test_calls_are_summed_by_category(operator, category):
    call = msgspec.structs.replace(record_of().calls[0], operator=operator)
    sums = context_blocks(record_of(calls=(call,)), "torch eager")[3]
    assert sums.cells[0][3] == f"{category} 50.0 ms"


def test_modules_that_repeat_are_one_row_at_every_level():
    sentence, table, *_ = context_blocks(record_of(calls=encoder()), "torch eager")
    assert sentence.lines[0].startswith("torch eager: dominated by 3 x encoder.layers.0-2.linear")
    rows = {cells[0].strip("\N{NO-BREAK SPACE}"): cells[1:] for cells in table.cells}
    assert table.titles[:3] == ["module", "x", "time"]
    assert rows["encoder.layers.0-2"][:3] == ["3", "60.0 ms", "67 %"]
    assert rows["linear"][:4] == ["3", "45.0 ms", "50 %", "25 %"]
    assert rows["norm"][:2] == ["3", "15.0 ms"]
