"""A check of a model of the user's own, which has no graph of ours: its recorded calls do."""

import json
import textwrap

import pytest

from pydlbench.ladder.check import check_step
from pydlbench.ladder.forecast import forecast_step
from pydlbench.ladder.parts import parts_of
from pydlbench.models import build_model
from pydlbench.records.check import CheckRecord
from pydlbench.records.step import StepSpec
from pydlbench.runner.options import Options
from pydlbench.runner.session import Session

pytestmark = [pytest.mark.deep]
pytest.importorskip("torch")

MODEL = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x):
            return torch.relu(self.norm(self.conv(x)) + x)

    def build():
        return nn.Sequential(Block(), Block(), nn.Flatten(), nn.Linear(4 * 64, 5)), torch.rand(
            2, 4, 8, 8
        )
"""


def test_a_model_of_one_s_own_has_a_ladder(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(textwrap.dedent(MODEL))
    case = StepSpec(model=f"{file}:build")
    with Session(Options(budget_s=0.01, threads=1, estimate=True)) as session:
        found = check_step(case, session, laps=6, time_limit_s=1.0)
    visited = {"limit", "native", "native_chain", "operators", "operator_chain", "step"}
    visited |= {"step_kept", "blocks"}
    assert all(visited <= lap.seconds.keys() for lap in found.laps)
    assert found.batch == 2
    assert found.own is not None
    assert found.unreplayed is None
    assert 0.5 < found.known.native_bytes <= 1.0
    # What the limit lacks is said beside it.
    for limit in (one for one in found.ledger if one.kind == "limit"):  # none of a disturbed rung
        assert bool(limit.detail) == (found.known.native_calls < 1)
    names = {name for one in found.operators for name in one.names}
    assert {"0.conv", "1.norm", "3"} <= names
    parts = {one.name: one for one in parts_of(found.operators, found.native_parts)}
    assert parts["0.conv"].native_s > 0
    joined = {one.name for one in parts_of(found.operators, found.native_parts, depth=1)}
    assert {"0", "3"} <= joined
    assert "0.conv" not in joined
    assert CheckRecord.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_an_onnx_file_has_the_same_ladder_and_a_forecast(tmp_path):
    pytest.importorskip("onnxruntime")
    catalog = pytest.importorskip("pydlbench.backends.onnxruntime.catalog")
    file = tmp_path / "net.onnx"
    file.write_bytes(catalog.written(build_model("calibration-thin"), 0))
    case = StepSpec(model=str(file), framework="onnxruntime")
    with Session(Options(budget_s=0.01, threads=1, estimate=True)) as session:
        found = check_step(case, session, laps=6, time_limit_s=1.0)
        said = forecast_step(case, session, None, visits=1)
    assert all({"native", "operators", "step"} <= lap.seconds.keys() for lap in found.laps)
    assert {"native_chain", "operator_chain"} <= found.reasons.keys()
    assert (found.types, found.unreplayed) == ("fp32", None)
    assert {one.operator for one in found.operators} >= {"nchwc.Conv", "onnx.Gemm"}
    assert found.known.native_time > 0.5
    assert (said.status, said.types, said.missing) == ("ok", "fp32", 0)
    assert said.calls == sum(one.count for one in found.operators)
    assert CheckRecord.from_dict(json.loads(json.dumps(found.to_dict()))) == found
