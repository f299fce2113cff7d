"""What stands for recorded calls: native kernels, their seconds, and the share that is known."""

from __future__ import annotations

import dataclasses
from collections import Counter

import msgspec
import pytest
from invented_evidence import row

from pydlbench.errors import UnsupportedError
from pydlbench.ladder.estimate import nameless, plan
from pydlbench.ladder.mapped import (
    kernels_of,
    known,
    map_calls,
    module_parts,
    recorded_kernels,
)
from pydlbench.models import build_model
from pydlbench.records.check import OperatorRow
from pydlbench.records.operator import RecordedCall
from pydlbench.records.step import StepSpec

IMAGES = "float32[2, 8, 6, 6](288, 36, 6, 1)"
CALLS = (
    RecordedCall(
        signature=f"aten.convolution.default({IMAGES}, float32[4, 8, 3, 3](72, 9, 3, 1), None, "
        "[1, 1], [1, 1], [1, 1], False, [0, 0], 1)",
        operator="aten.convolution",
        count=3,
        names=("a", "b"),
        parts=(2, 1),
        bytes=4 * (2 * 8 * 36 + 4 * 8 * 9 + 2 * 4 * 36),
    ),
    RecordedCall(
        signature=f"aten.view.default({IMAGES}, [2, 288])",
        operator="aten.view",
        names=("a",),
        bytes=1,
    ),
    RecordedCall(
        signature=f"my.op.default({IMAGES})", operator="my.op", names=("b",), bytes=4 * 2 * 8 * 36
    ),
)


@pytest.fixture
def mapped():
    return map_calls(CALLS, "forward", "fp32", "cpu", None)


def rows(mapped):
    """Each call takes a second, its native kernels 0.25 with hot and 0.75 with cold caches."""
    native = {
        nameless(case): row(case, 0.25 if case.cache == "hot" else 0.75)
        for case in kernels_of(mapped).cases
    }
    found = [
        OperatorRow(
            **msgspec.structs.asdict(one),
            kind="layer",
            seconds=1.0,
            native_s=mapped[one.signature, one.direction].native_s(native),
        )
        for one in CALLS
    ]
    return tuple(found), native


def test_native_kernels_are_measured_once_and_summed_as_often_as_they_are_called(mapped):
    kernels = kernels_of(mapped)
    assert len(kernels.terms) == 3
    assert {one.work.layer.kind for one in kernels.terms} == {"conv2d"}
    assert len(kernels.cases) == 2
    found, native = rows(mapped)
    assert [one.native_s for one in found] == [0.5, 0.0, None]
    failed = {case: msgspec.structs.replace(one, status="failed") for case, one in native.items()}
    assert next(iter(mapped.values())).native_s(failed) is None


def test_steps_whose_calls_nobody_records_are_refused():
    case = StepSpec(model="mnist", batch=2, framework="tensorflow")
    with pytest.raises(UnsupportedError, match="--framework torch"):
        recorded_kernels(case, None)


def test_a_module_is_known_where_all_of_its_calls_are(mapped):
    found, _ = rows(mapped)
    assert module_parts(found) == {"a": 1.0}


def test_what_is_known_is_told_in_calls_bytes_and_time_without_views(mapped):
    found, _ = rows(mapped)
    share = known(found, mapped)
    conv, _, custom = CALLS
    assert share.native_calls == share.formula_calls == 3 / 4
    assert share.native_time == 3.0 / 4.0
    assert share.native_bytes == pytest.approx(3 * conv.bytes / (3 * conv.bytes + custom.bytes))
    assert share.unmapped == {"my.op": 1.0}
    assert known((), mapped) is None


def test_the_native_kernels_of_a_recorded_step_are_those_of_its_graph():
    pytest.importorskip("torch")
    from pydlbench.backends.torch.backend import create
    from pydlbench.steps.torch.calls import list_calls

    model = build_model("mnist", 2)
    case = StepSpec(model="mnist", batch=2, phase="training")
    calls = list_calls(create("cpu"), model, case).facts.calls

    def products(kernels):
        terms = [one for one in kernels.terms if one.work.layer.multiply_adds]
        return Counter(
            (dataclasses.replace(one.work.layer, name=None), one.work.pass_, one.work.propagation)
            for one in terms
        )

    recorded = kernels_of(map_calls(calls, "training", "fp32", "cpu", None))
    assert products(recorded) == products(plan(model, "training"))
