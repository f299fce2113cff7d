"""Steps that two ranks take together, by DistributedDataParallel."""

from __future__ import annotations

import os
import textwrap

import pytest

pytest.importorskip("torch")

from pydlbench.errors import UsageError
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.runner.session import Options, Session
from pydlbench.steps import ranks
from pydlbench.steps.run import run

two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two ranks have a core each"
)


def test_ranks_are_for_gradients_in_pytorchs_eager_mode():
    with pytest.raises(UsageError, match="nearest: --phase forward-backward"):
        StepSpec(model="mnist", ranks=2)
    for other in ({"framework": "tensorflow"}, {"mode": "compiled"}):
        with pytest.raises(UsageError, match="nearest: --framework torch --mode eager"):
            StepSpec(model="mnist", phase="training", ranks=2, **other)
    with pytest.raises(UsageError, match=r"--device cuda:3: .* nearest: --device cuda:0"):
        StepSpec(model="mnist", phase="training", ranks=2, device="cuda:3")
    one = StepSpec(model="mnist", phase="training")
    assert "ranks" not in one.to_dict()
    assert "2 ranks" in StepSpec(model="mnist", phase="training", ranks=2).label


@pytest.mark.parametrize(
    ("sums", "status"),
    [
        ([[1.0, 2.0], [1.0, 2.0]], "ok"),
        ([[1.0, 2.0], [1.0, 2.1]], "failed"),
        ([[1.0], [1.0, 2.0]], "failed"),
        ([[float("nan")], [float("nan")]], "failed"),
    ],
)
def test_gradients_that_are_not_shared_fail(sums, status):
    assert ranks._same_gradients(sums).status == status


def measured(case):
    with Session(Options(threads=1, visits=1, budget_s=0.01)) as session:
        return run(case, session, preparation=StepPreparation())


@pytest.mark.deep
@two_cores
def test_a_model_of_the_catalogue_takes_a_step_on_two_ranks():
    record = measured(StepSpec(model="mnist", batch=2, phase="training", ranks=2))
    assert record.status == "ok", record.reason
    assert [one.name for one in record.checks] == ["gradients"]
    assert record.images_per_s == pytest.approx(2 * 2 / record.time.median)


@two_cores
def test_a_model_of_ones_own_takes_a_step_on_two_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = """
        import torch
        def build():
            return torch.nn.Linear(4, 3), torch.rand(5, 4)
    """
    (tmp_path / "own.py").write_text(textwrap.dedent(text), encoding="utf-8")
    record = measured(StepSpec(model="own.py:build", phase="forward-backward", ranks=2))
    assert record.status == "ok", record.reason
    assert record.case.batch == 5
    assert [(one.name, one.status) for one in record.checks] == [("gradients", "ok")]


@pytest.mark.deep
@two_cores
def test_a_rank_on_which_the_users_code_raises_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = """
        import torch
        import torch.distributed as dist
        def build():
            assert dist.get_rank() == 0, "not here"
            return torch.nn.Linear(4, 3), torch.rand(5, 4)
    """
    (tmp_path / "own.py").write_text(textwrap.dedent(text), encoding="utf-8")
    record = measured(StepSpec(model="own.py:build", phase="forward-backward", ranks=2))
    assert record.status == "failed"
    assert "rank 1 of 2" in record.reason
    assert "not here" in record.reason
