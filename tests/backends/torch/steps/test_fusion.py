"""Steps whose normalisations are folded into convolutions compute what the others do."""

import pytest
import torch
from torch import nn

from pydlbench.backends.steps.serving import model_of
from pydlbench.backends.torch.steps.net import fold_normalisations
from pydlbench.errors import UnsupportedError
from pydlbench.records.step import StepSpec


class Shared(nn.Module):
    """A normalisation behind a convolution, one behind a convolution that somebody else reads."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 8, 1)
        self.behind, self.beside = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        for one in (self.behind, self.beside):
            one.running_mean.uniform_(-1, 1)
            one.running_var.uniform_(1, 2)

    def forward(self, x):
        x = self.second(torch.relu(self.behind(self.first(x))))
        return self.beside(x) + x


def test_only_a_convolution_of_its_own_is_folded_into():
    module = Shared().eval()
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        before = module(x)
        after = fold_normalisations(module)
        torch.testing.assert_close(after(x), before, rtol=1e-4, atol=1e-4)
    called = {node.target for node in after.graph.nodes if node.op == "call_module"}
    assert called == {"first", "second", "beside"}


class Asserting(nn.BatchNorm2d):
    """A normalisation that is traced, as timm's are."""

    def forward(self, x):
        torch._assert(x.ndim == 4, "images")
        how = (self.weight, self.bias, self.training, self.momentum, self.eps)
        return torch.relu(nn.functional.batch_norm(x, self.running_mean, self.running_var, *how))


@pytest.mark.parametrize("training", [False, True])
def test_a_normalisation_of_other_libraries_is_folded_where_its_statistics_are_fixed(training):
    module = nn.Sequential(nn.Conv2d(3, 8, 3), Asserting(8)).eval()
    module[1].running_mean.uniform_(-1, 1)
    module[1].train(training)
    if training:
        assert "follows a convolution" in refuses(module)
        return
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        before = module(x)
        after = fold_normalisations(module)
        torch.testing.assert_close(after(x), before, rtol=1e-4, atol=1e-4)
    assert nn.functional.batch_norm not in {node.target for node in after.graph.nodes}


class Scaled(Asserting):
    def forward(self, x):
        how = (self.weight * 2, self.bias, False, self.momentum, self.eps)
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, *how)


def refuses(module):
    with pytest.raises(UnsupportedError) as refused:
        fold_normalisations(module)
    return str(refused.value)


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_what_cannot_be_folded_says_why():
    assert "follows a convolution" in refuses(Shared().train())
    assert "torch.fx" in refuses(Branching())
    assert "follows a convolution" in refuses(nn.Sequential(nn.Conv2d(3, 8, 3), Scaled(8)).eval())


def test_a_catalogue_s_step_has_the_same_output_without_its_normalisations():
    case = StepSpec(model="resnet18", options={"classes": 10}, batch=1)
    outputs, counts = [], []
    for folded in (False, True):
        with model_of(None, case) as model:
            if folded:
                model.change_fusion()
            outputs.append(model.run().output)
            nodes = model.module.graph.nodes
            counts.append(sum("bn" in str(node.target) for node in nodes))
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-3, atol=1e-3)
    assert counts == [20, 0]


def test_minibatch_statistics_are_not_folded():
    with (
        model_of(None, StepSpec(model="resnet18", batch=1, phase="training")) as model,
        pytest.raises(UnsupportedError),
    ):
        model.change_fusion()
