"""What a step needs so that a CUDA graph can hold it; no GPU is needed."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from pydlbench.backends.torch.steps import step as module  # noqa: E402 - below importorskip
from pydlbench.backends.torch.steps.step import TorchStep, capturable  # noqa: E402 - below importorskip


def stepped(kind, **options):
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), 0.5)
    made = kind([weight], lr=0.1, **options)
    made.step()
    return weight, made


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_an_optimizer_that_counts_on_the_host_is_captured_with_counts_of_its_own(kind):
    weight, own = stepped(kind)
    other = capturable(own)
    assert [group["capturable"] for group in other.param_groups] == [True]
    assert [group["capturable"] for group in own.param_groups] == [False]
    assert other.state[weight]["exp_avg"] is own.state[weight]["exp_avg"]
    other.state[weight]["step"] += 5
    assert own.state[weight]["step"].item() == 1


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}])
def test_an_optimizer_without_counts_is_captured_itself(options):
    assert capturable(stepped(torch.optim.SGD, **options)[1]) is None


@pytest.mark.parametrize(("capturing", "expected"), [(False, "own"), (True, "copy")])
def test_only_a_captured_step_updates_by_the_copy(monkeypatch, capturing, expected):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    ran = []
    step = TorchStep.__new__(TorchStep)
    step.owner = SimpleNamespace(spec=SimpleNamespace(on_gpu=True))
    step._crosses, step._averages = False, []
    step._captured = SimpleNamespace(step=lambda: ran.append("copy"))
    step._update(SimpleNamespace(param_groups=[], step=lambda: ran.append("own")), None)
    assert ran == [expected]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_only_the_first_step_looks_for_counts(monkeypatch, kind):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    looked = []
    monkeypatch.setattr(module, "capturable", looked.append)
    step = TorchStep.__new__(TorchStep)
    step.owner = SimpleNamespace(spec=SimpleNamespace(on_gpu=True))
    step._crosses, step._averages, step._captured = False, [], None
    _, own = stepped(kind)
    step._update(own, None)
    step._update(own, None)
    assert looked == [own]
