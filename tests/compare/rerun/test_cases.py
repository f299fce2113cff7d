"""From a stored row back to the spec that it was measured with."""

import pytest

from pydlbench.compare.interleaved import spec_of
from pydlbench.compare.rows import LAYER_KINDS, SideRow, describe, row_of_step
from pydlbench.errors import UnsupportedError
from pydlbench.models.catalog import find_layers
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import KINDS, build_layer
from pydlbench.records.step import StepSpec
from pydlbench.records.user_model import UserInput, UserModelSpec


def row_of(layer, **changes):
    values = dict.fromkeys(SideRow._fields)
    values.update(
        layer=layer.name or layer.problem,
        kind=layer.kind,
        problem=layer.problem,
        batch=layer.batch,
        pass_="forward",
        precision="fp32",
        device="cpu",
        backend="native",
        cache="hot",
        timing="steady",
        fuse="none",
        layout_request="best",
        propagation="inference",
        status="ok",
    )
    return SideRow(**{**values, **changes})


@pytest.mark.parametrize("name", ["alexnet/conv3", "alexnet/pool1", "alexnet-owt/fc6"])
def test_a_layer_of_the_catalog_comes_back_whole(name):
    (layer,) = find_layers([name], 4)
    case = spec_of(row_of(layer, pass_="backward-data", layout_request="nhwc"))
    assert case.layer == layer
    assert (case.pass_, case.layout, case.timing) == ("backward-data", "nhwc", "auto")


def test_every_kind_of_layer_is_a_layer_to_a_comparison():
    assert set(KINDS) == LAYER_KINDS
    layer = parse_problem("deconv:mb2ic8ih7oc4oh14kh2sh2")
    row = row_of(layer)
    assert spec_of(row).layer == layer
    assert describe(row) == f"{layer.problem} forward fp32"


def test_a_layer_that_is_no_more_what_its_name_says_is_read_from_its_problem():
    layer = build_layer("gemm", m=8, k=4, n=2, name="alexnet-owt/fc6")
    assert spec_of(row_of(layer)).layer == layer


def test_a_name_of_ones_own_is_kept():
    layer = build_layer("gemm", m=8, k=4, n=2, name="mine")
    assert spec_of(row_of(layer)).layer == layer


def test_settings_of_a_framework_on_a_card_come_back():
    (layer,) = find_layers(["alexnet/conv3"], 4)
    case = spec_of(
        row_of(layer, backend="torch", mode="compiled", device="cuda:1", timing="cuda-graph")
    )
    assert (case.backend, case.mode, case.device) == ("torch", "compiled", "cuda:1")
    assert case.timing == "cuda-graph"


def test_a_pooling_without_a_name_is_refused():
    (layer,) = find_layers(["mb2ic3ih8oh4kh2sh2"], pool="max")
    with pytest.raises(UnsupportedError, match="maximum or the mean"):
        spec_of(row_of(layer))


@pytest.mark.parametrize(
    "spec",
    [
        StepSpec(model="vgg11", batch=8, phase="training", layout="nchw", dropout=False),
        StepSpec(
            model="net.py:build",
            batch=8,
            framework="torch",
            mode="compiled",
            options={"hidden": "8"},
            own=UserModelSpec(inputs=(UserInput.parse("8x32:int64"),), loss="mean-square"),
        ),
    ],
    ids=["of the catalogue", "of one's own model"],
)
def test_a_step_comes_back_whole(spec):
    assert spec_of(row_of_step(spec.to_dict())) == spec


def test_estimates_are_not_measured_again():
    row = row_of(build_layer("gemm", m=8, k=4, n=2, name="vgg16"), kind="estimate")
    with pytest.raises(UnsupportedError, match="vgg16 estimate: "):
        spec_of(row)


def test_a_word_that_is_none_any_more_is_refused():
    with pytest.raises(UnsupportedError, match="fp12"):
        spec_of(row_of(build_layer("gemm", m=8, k=4, n=2), precision="fp12"))
