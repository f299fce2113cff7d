"""Attention: PyTorch in float64 says what is right, and what is not is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from right_results import judged

from pydlbench.ops.descriptor import parse_problem
from pydlbench.verification import elements
from pydlbench.verification.inputs import make_inputs, round_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer

    Results = dict[str, NDArray[np.float32]]

torch = pytest.importorskip("torch")

PROBLEMS = (
    "attention:mb2h4q7d8",
    "attention:mb2h4q9d8causal1",
    "attention:mb2h4kvh2q5k7d6dv3",
    "attention:mb1h6kvh2q40k33d16dv32causal1",
)
STEPS = [(text, pass_) for text in PROBLEMS for pass_ in ("forward", "backward-data")]


def in_torch(
    layer: Layer, pass_: str, inputs: Results, dtype: Any, stored: Callable[[Any], Any]
) -> Results:
    """Compute a pass by the definition, its gradients by PyTorch's differentiation.

    Args:
        layer: Of the attention.
        pass_: Of the layer.
        inputs: By role.
        dtype: Of the arithmetic.
        stored: What happens to scores and weights.
    """
    roles = ("query", "key", "value")
    t = {role: torch.tensor(inputs[role], dtype=dtype).requires_grad_() for role in roles}
    heads = layer.heads // layer.kv_heads
    key, value = (t[role].repeat_interleave(heads, dim=1) for role in ("key", "value"))
    scores = stored(t["query"] @ key.transpose(2, 3) / layer.size**0.5)
    if layer.causal:
        unseen = torch.ones(layer.queries, layer.keys).triu(1).bool()
        scores = scores.masked_fill(unseen, -torch.inf)
    result = stored(torch.softmax(scores, dim=-1)) @ value
    if pass_ == "forward":
        return {"dst": result.detach().numpy()}
    result.backward(torch.tensor(inputs["dst"], dtype=dtype))
    return {role: t[role].grad.numpy() for role in roles}


def results_in_torch(layer: Layer, pass_: str) -> tuple[Results, Results]:
    inputs = make_inputs(layer, pass_, "fp32", 1)
    return inputs, in_torch(layer, pass_, inputs, torch.float32, lambda one: one)


@pytest.mark.parametrize(("text", "pass_"), STEPS)
def test_right_results_pass(text, pass_):
    layer = parse_problem(text)
    inputs = make_inputs(layer, pass_, "fp32", 1)
    assert set(inputs) == set(layer.reads(pass_))
    exact = in_torch(layer, pass_, inputs, torch.float64, lambda one: one)
    verdict = judged(layer, pass_, "fp32", inputs, exact)
    assert verdict.status == "ok"
    assert verdict.rel_error is not None
    assert verdict.rel_error < 1e-13
    assert verdict.points == sum(array.size for array in exact.values())
    assert judged(layer, pass_, "fp32", *results_in_torch(layer, pass_)).status == "ok"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize(("text", "pass_"), STEPS)
def test_scores_may_be_stored_in_half_precision(text, pass_, precision):
    layer = parse_problem(text)
    inputs = make_inputs(layer, pass_, precision, 1)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16

    def stored(values: Any) -> Any:
        return values.to(dtype).to(torch.float32)

    results = in_torch(layer, pass_, inputs, torch.float32, stored)
    rounded = {role: round_to(precision, array) for role, array in results.items()}
    verdict = judged(layer, pass_, precision, inputs, rounded)
    assert verdict.status == "ok", verdict
    assert judged(layer, pass_, "fp32", inputs, results).status == "failed"


@pytest.mark.parametrize("pass_", ["forward", "backward-data"])
@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("attention:mb2h4q9d8", "attention:mb2h4q9d8causal1"),
        ("attention:mb2h4q9d8causal1", "attention:mb2h4q9d8"),
    ],
)
def test_another_mask_is_found(text, other, pass_):
    layer = parse_problem(text)
    inputs = make_inputs(layer, pass_, "bf16", 1)
    wrong = in_torch(parse_problem(other), pass_, inputs, torch.float32, lambda one: one)
    assert judged(layer, pass_, "bf16", inputs, wrong).status == "failed"


@pytest.mark.parametrize(("text", "pass_"), STEPS)
def test_another_scale_of_the_scores_is_found(text, pass_):
    layer = parse_problem(text)
    inputs = make_inputs(layer, pass_, "fp32", 1)
    wrong = in_torch(layer, pass_, inputs, torch.float32, lambda one: 1.01 * one)
    assert judged(layer, pass_, "fp32", inputs, wrong).status == "failed"


def test_heads_that_share_other_keys_are_found():
    layer = parse_problem("attention:mb2h4kvh2q5d6")
    inputs, _ = results_in_torch(layer, "forward")
    turned = {role: inputs[role][:, ::-1].copy() for role in ("key", "value")}
    wrong = in_torch(layer, "forward", inputs | turned, torch.float32, lambda one: one)
    assert judged(layer, "forward", "bf16", inputs, wrong).status == "failed"


@pytest.mark.parametrize(("text", "pass_"), STEPS)
def test_rows_are_compared_in_blocks(monkeypatch, text, pass_):
    monkeypatch.setattr("pydlbench.verification.inputs._SCORES", 20)
    layer = parse_problem(text)
    verdict = judged(layer, pass_, "fp32", *results_in_torch(layer, pass_))
    assert verdict.status == "ok", verdict


@pytest.mark.parametrize("pass_", ["forward", "backward-data"])
def test_of_many_heads_some_are_compared_and_all_have_to_be_numbers(monkeypatch, pass_):
    monkeypatch.setattr(elements, "_COMPARED_MACS", 1)
    layer = parse_problem("attention:mb5h4kvh2q6d8")
    inputs, right = results_in_torch(layer, pass_)
    size = sum(array.size for array in right.values())
    verdict = judged(layer, pass_, "fp32", inputs, right)
    assert verdict.status == "ok", verdict
    assert verdict.points == size // 5
    for image in (0, -1):
        role = layer.result(pass_)
        wrong = right[role].copy()
        wrong[image, image] = wrong[image, image, ::-1]
        assert judged(layer, pass_, "fp32", inputs, right | {role: wrong}).status == "failed"
    for role, array in right.items():
        wrong = array.copy()
        wrong[2, 1, 1, 1] = np.nan
        verdict = judged(layer, pass_, "fp32", inputs, right | {role: wrong})
        assert (verdict.status, verdict.unwritten) == ("failed", 1)
