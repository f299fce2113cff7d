"""Images in another size: right results of another implementation pass, and wrong ones do not."""

import numpy as np
import pytest

from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.windows import side_sizes
from pydlbench.verification.inputs import make_inputs, round_to
from pydlbench.verification.verify import verify

SIZES = ("ih4oh8", "ih7oh5iw5ow9", "ih6oh6", "ih9oh3", "ih1oh3iw37ow61")


def matrix(mode, size, out):
    """Return the (out, size) matrix of one side, by centres in float32."""
    found = np.zeros((out, size), np.float32)
    for to in range(out):
        at = np.float32(to + 0.5) * np.float32(size) / np.float32(out)
        if mode == "nearest":
            found[to, int(at)] = 1
            continue
        low = int(np.floor(at - np.float32(0.5)))
        part = at - np.float32(0.5) - low
        found[to, max(low, 0)] += 1 - part
        found[to, min(low + 1, size - 1)] += part
    return found


def resized(layer, pass_, inputs):
    rows, columns = (matrix(layer.mode, *side) for side in side_sizes(layer))
    if pass_ == "forward":
        return np.einsum("oh,nchw,pw->ncop", rows, inputs["src"], columns)
    return np.einsum("oh,ncop,pw->nchw", rows, inputs["dst"], columns)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("pass_", ["forward", "backward-data"])
def test_right_results_pass_and_wrong_ones_fail(mode, sizes, pass_):
    layer = parse_problem(f"resize:{mode}:mb2ic3{sizes}")
    for precision in ("fp32", "bf16"):
        inputs = make_inputs(layer, pass_, precision, seed=5)
        right = round_to(precision, resized(layer, pass_, inputs))

        def judged(result, precision=precision, inputs=inputs):
            return verify(layer, pass_, precision, inputs, result, seed=7)

        verdict = judged(right)
        assert (verdict.status, verdict.points) == ("ok", right.size), verdict
        if mode == "nearest" and pass_ == "forward":
            assert verdict.tolerance == 0
        faults = {
            "one element": right.copy(),
            "unwritten": right.copy(),
            "mirrored": right[..., ::-1],
            "another channel": right[:, [1, 0, 2]],
        }
        faults["one element"].flat[right.size // 2] += 0.2
        faults["unwritten"].flat[-1] = np.nan
        if precision == "fp32" and mode == "linear":
            faults["bf16 inside"] = round_to("bf16", right)
        for name, fault in faults.items():
            assert judged(fault).status == "failed", name


@pytest.mark.parametrize("sizes", ["ih4oh8", "ih7oh5iw5ow9"])
def test_other_definitions_are_other_results(sizes):
    """Corners that lie on each other, and whole positions instead of centres."""
    layer = parse_problem(f"resize:linear:mb2ic3{sizes}")
    inputs = make_inputs(layer, "forward", "fp32", seed=5)

    def along(size, out):
        at = np.linspace(0, size - 1, out)
        low = np.minimum(at.astype(int), size - 2)
        found = np.zeros((out, size))
        found[np.arange(out), low], found[np.arange(out), low + 1] = 1 - at + low, at - low
        return found

    rows, columns = (along(*side) for side in side_sizes(layer))
    aligned = np.einsum("oh,nchw,pw->ncop", rows, inputs["src"], columns)
    assert verify(layer, "forward", "fp32", inputs, aligned, seed=7).status == "failed"

    near = parse_problem("resize:nearest:mb2ic3ih6oh3")
    inputs = make_inputs(near, "forward", "fp32", seed=5)
    even, odd = (inputs["src"][..., first::2, first::2] for first in (0, 1))
    assert verify(near, "forward", "fp32", inputs, odd, seed=7).status == "ok"
    assert verify(near, "forward", "fp32", inputs, even, seed=7).status == "failed"
