"""Products of 8-bit numbers: what the two backends write is of one type."""

import pytest

torch = pytest.importorskip("torch")

from pydlbench.backends.torch.layers import fp8  # noqa: E402 - below importorskip
from pydlbench.backends.torch.layers.operator import TensorPlace, TorchOperands  # noqa: E402 - below importorskip
from pydlbench.ops.table import build_layer  # noqa: E402 - below importorskip
from pydlbench.verification.inputs import make_inputs  # noqa: E402 - below importorskip
from pydlbench.verification.verify import verify  # noqa: E402 - below importorskip
from pydlbench.words import PASSES  # noqa: E402 - below importorskip


@pytest.mark.parametrize("pass_", PASSES)
def test_a_product_is_right_and_stored_in_e4m3_as_a_native_one_is(pass_):
    layer = build_layer("gemm", m=16, k=48, n=32)
    inputs = make_inputs(layer, pass_, "fp8-tc", 1)
    place = TensorPlace(torch.device("cpu"), torch.float8_e4m3fn)
    made = fp8.scaled_product(TorchOperands(layer, inputs, place, "transposed"), pass_=pass_)
    result = made.function(*made.arguments)
    assert result.dtype == torch.float8_e4m3fn
    found = made.results(result)[layer.result(pass_)]
    assert verify(layer, pass_, "fp8-tc", inputs, found, seed=2).status == "ok"
