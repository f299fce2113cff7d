"""Recurrent layers: right results of another implementation pass, and wrong ones do not."""

import numpy as np
import pytest

from pydlbench.ops.descriptor import parse_problem
from pydlbench.verification.elements import expected_pieces
from pydlbench.verification.inputs import make_inputs, round_to
from pydlbench.verification.verify import verify

PROBLEMS = (
    "lstm:t4mb3slc5dhc6",
    "gru:t4mb3slc5dhc6",
    "lstm:l2d2t3mb2slc8dhc4",
    "gru:l2d2t3mb2slc8dhc4",
    "lstm:d2t3mb2slc5dhc6dic4",
    "lstm:t4mb3slc5dhc6peephole1",
    "vanilla-gru:l2d2t3mb2slc8dhc4",
)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def states(layer, inputs, dtype=np.float32, rounded=lambda x: x):
    """Compute the result step by step; ``rounded`` is applied to each state."""
    given = {role: array.astype(dtype) for role, array in inputs.items()}
    x = given["src"]
    for number in range(layer.layers):
        ways = []
        for direction in range(layer.directions):
            at = number, direction
            w, u, b = (given[role][at] for role in ("weights", "weights_iter", "bias"))
            h = given["src_iter"][at]
            c = given["src_iter_c"][at] if layer.cell == "lstm" else None
            found = [None] * layer.steps
            order = range(layer.steps)
            for step in reversed(order) if direction else order:
                own = np.einsum("ni,igo->gno", x[step], w)
                iter_ = np.einsum("ni,igo->gno", h, u)
                if layer.cell == "lstm":
                    peep = given["weights_peephole"][at] if layer.peephole else np.zeros((3, 1))
                    i, f, g, o = (own + iter_ + b[:, None]).astype(dtype)
                    old = c
                    c = sigmoid(f + peep[1] * old) * old + sigmoid(i + peep[0] * old) * np.tanh(g)
                    h = sigmoid(o + peep[2] * c) * np.tanh(c)
                    if layer.projection != layer.hidden:
                        h = h @ given["weights_projection"][at]
                elif layer.cell == "vanilla-gru":
                    z, r = (sigmoid(own[k] + iter_[k] + b[k]) for k in (0, 1))
                    h = z * h + (1 - z) * np.tanh(own[2] + (r * h) @ u[:, 2] + b[2])
                else:
                    z, r = (sigmoid(own[k] + iter_[k] + b[k]) for k in (0, 1))
                    h = z * h + (1 - z) * np.tanh(own[2] + r * (iter_[2] + b[3]) + b[2])
                h = found[step] = rounded(h.astype(dtype))
            ways.append(np.stack(found))
        x = np.concatenate(ways, axis=-1)
    return x


@pytest.mark.parametrize("text", PROBLEMS)
def test_right_states_pass_and_wrong_ones_fail(text):
    layer = parse_problem(text)
    for precision in ("fp32", "bf16"):
        inputs = make_inputs(layer, "forward", precision, seed=5)
        right = states(layer, inputs, rounded=lambda x, precision=precision: round_to(precision, x))

        def judged(result, precision=precision, inputs=inputs):
            return verify(layer, "forward", precision, inputs, result, seed=7)

        verdict = judged(right)
        assert (verdict.status, verdict.points) == ("ok", right.size), verdict
        faults = {
            "one element": right.copy(),
            "a step late": np.roll(right, 1, axis=0),
            "the other end": right[::-1],
            "unwritten": right.copy(),
        }
        faults["one element"].flat[right.size // 2] += 0.05
        faults["unwritten"].flat[-1] = np.nan
        swapped = {**inputs, "weights": inputs["weights"][..., ::-1, :]}
        faults["gates in another order"] = states(layer, swapped)
        faults["no initial state"] = states(
            layer, {**inputs, "src_iter": np.zeros_like(inputs["src_iter"])}
        )
        if precision == "fp32":
            faults["bf16 inside"] = states(layer, inputs, rounded=lambda x: round_to("bf16", x))
        for name, fault in faults.items():
            assert judged(fault).status == "failed", name


@pytest.mark.parametrize("text", PROBLEMS)
def test_wrong_gradients_fail(text):
    layer = parse_problem(text)
    inputs = make_inputs(layer, "backward-data", "fp32", seed=5)
    right = {
        piece.role: piece.value.astype(np.float32)
        for piece in expected_pieces(layer, "backward-data", "inference", inputs)
    }

    def judged(**wrong):
        written = right | wrong
        return verify(layer, "backward-data", "fp32", inputs, written["src"], seed=7, extra=written)

    verdict = judged()
    assert (verdict.status, verdict.points) == ("ok", sum(one.size for one in right.values()))
    for role, one in right.items():
        fault = one.copy()
        fault.flat[one.size // 2] *= 1.001
        assert judged(**{role: fault}).status == "failed", role
        assert judged(**{role: round_to("bf16", one)}).status == "failed", role
    # As a library does that forgets by one step which state was read.
    assert judged(weights_iter=right["weights_iter"] * 0.9).status == "failed"


def test_errors_are_forgotten_with_what_they_were_made_in():
    """The size that errors are measured against does not grow with the length of a sequence."""
    short, long = (parse_problem(f"lstm:t{steps}mb2slc8dhc8") for steps in (20, 200))
    sizes = []
    for layer in (short, long):
        inputs = make_inputs(layer, "forward", "fp32", seed=5)
        (piece,) = expected_pieces(layer, "forward", "inference", inputs)
        sizes.append(np.sqrt(np.square(piece.size[-10:]).mean()))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.5)


def test_weights_are_as_large_as_networks_have_them():
    layer = parse_problem("gru:t1mb1slc3dhc100")
    inputs = make_inputs(layer, "forward", "bf16", seed=5)
    assert np.abs(inputs["weights"]).max() <= 1 / 16
    assert np.abs(inputs["weights_iter"]).max() > 0.9 / 16
    assert np.abs(inputs["src_iter"]).max() > 0.9
    for one in inputs.values():
        assert np.array_equal(one, round_to("bf16", one))
