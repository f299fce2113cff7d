"""Models with a planted fault: what their recorded calls let a diagnosis try, and what not."""

import textwrap
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.deep
pytest.importorskip("torch")

from pydlbench.analysis.mapped import map_calls  # noqa: E402 - below importorskip
from pydlbench.backends import capabilities  # noqa: E402 - below importorskip
from pydlbench.backends.steps import requests  # noqa: E402 - below importorskip
from pydlbench.backends.torch.backend import create  # noqa: E402 - not installed everywhere
from pydlbench.diagnose import rules  # noqa: E402 - below importorskip
from pydlbench.records.breakdown import BrokenDownCall  # noqa: E402 - below importorskip
from pydlbench.records.step import StepSpec  # noqa: E402 - below importorskip
from pydlbench.records.user_model import UserModelSpec  # noqa: E402 - below importorskip

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
"""
TABLE = "torch.randint(1, 60_000, (2, 16))"
VALUES = "torch.randn(4, 16, 64)"


@pytest.fixture
def seen(tmp_path):
    """Return what a diagnosis sees of a model: its calls, each slow enough to matter."""

    def look(layers, forward, inputs, optimizer="adam", phase="training"):
        lines = [f"self.{line}" for line in layers.splitlines()]
        body = textwrap.indent("\n".join(lines), 8 * " ")
        back = textwrap.indent(textwrap.dedent(forward).strip(), 8 * " ")
        # A file is run once in a process.
        file = tmp_path / f"planted{len(list(tmp_path.iterdir()))}.py"
        file.write_text(
            f"{HEAD}{body}\n\n    def forward(self, x):\n{back}\n\n"
            f"def build():\n    return Net(), {inputs}\n"
        )
        own = UserModelSpec(optimizer=optimizer)
        step = StepSpec(model=f"{file}:build", phase=phase, mode="eager", own=own)
        calls = requests.request_call_list(create("cpu"), step.to_dict()).facts.calls
        timed = [
            BrokenDownCall(
                operator=call.operator,
                module=(call.names or ("",))[0],
                direction=call.direction,
                count=call.count,
                in_context_s=1e-3,
                share=0.1,
                alone_s=1e-3,
                signatures=(call.signature,),
            )
            for call in calls
        ]
        return SimpleNamespace(
            spec=step,
            framework=capabilities.declaration("torch").steps,
            calls=lambda _: timed,
            mapped=map_calls(calls, phase, "fp32", "cpu", None),
            step_s=0.1,
            matters=lambda _: True,
            share=str,
            called=lambda _: (),
            changed=lambda own: step.from_dict({**step.to_dict(), "own": own.to_dict()}),
        )

    return look


# Layers of a model, its forward function, and whether its tables are to have sparse gradients.
TABLES = {
    "adam": ("table = nn.Embedding(60_000, 64)", "return self.table(x).mean(1)", True),
    "sgd": (
        "a = nn.EmbeddingBag(60_000, 64, mode='sum')\nb = nn.EmbeddingBag(90_000, 64)",
        "return self.a(x) * self.b(x)",
        True,
    ),
    "adamw": (
        "table = nn.Embedding(60_000, 64, padding_idx=0)\nout = nn.Linear(64, 2)",
        "return self.out(self.table(x))",
        True,
    ),
    "adam ": ("bag = nn.EmbeddingBag(60_000, 64, mode='max')", "return self.bag(x)", False),
    "momentum": ("table = nn.Embedding(60_000, 64)", "return self.table(x).mean(1)", False),
}


@pytest.mark.parametrize("optimizer", TABLES)
def test_sparse_gradients_are_tried_where_pytorch_has_them(seen, optimizer):
    layers, forward, sparse = TABLES[optimizer]
    found = list(rules.find_unused_rows(seen(layers, forward, TABLE, optimizer.strip())))
    tried = [dict(each.experiment.changes)["own"].optimizer for each in found]
    assert tried == ([f"{optimizer}-sparse"] if sparse else [])


HEADS = "(y.view(4, 16, 4, 16).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))"
STRIDED = [
    (  # heads are a view of the packed projections
        "qkv = nn.Linear(64, 192)",
        f"return F.scaled_dot_product_attention(*{HEADS})",
        "attention",
    ),
    (
        "w = nn.Parameter(torch.randn(16, 64, 32))",
        "return torch.bmm(x.transpose(0, 1), self.w)",
        "aten.bmm",
    ),
    ("out = nn.Linear(32, 8)", "return self.out(x[..., ::2])", "aten.mm"),
    # BLAS takes columns of a larger matrix, and transposed ones.
    ("out = nn.Linear(32, 8)", "return self.out(x.flatten(0, 1)[:, :32])", None),
    ("w = nn.Parameter(torch.randn(32, 64))", "return self.w @ x.flatten(0, 1).t()", None),
    (
        "qkv = nn.Linear(64, 192)",
        (
            f"q, k, v = (y.contiguous() for y in {HEADS})\n"
            "return F.scaled_dot_product_attention(q, k, v)"
        ),
        None,
    ),
]


@pytest.mark.parametrize(("layers", "forward", "operator"), STRIDED)
def test_contiguous_operands_are_tried_where_a_kernel_copies_them(seen, layers, forward, operator):
    found = list(rules.find_strides(seen(layers, forward, VALUES, phase="forward")))
    tried = [each.experiment.signature.partition("(")[0] for each in found]
    assert len(tried) == (operator is not None)
    assert all(operator in name for name in tried)
