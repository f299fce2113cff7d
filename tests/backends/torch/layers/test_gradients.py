"""Calls of a function, recorded as a graph."""

import pytest

pytest.importorskip("torch")

import torch

from pydlbench.backends.torch.layers.gradients import forward_names


def test_an_update_of_a_list_of_tensors_in_place_is_named():
    weights, gradient = torch.ones(3), torch.ones(3)
    names = forward_names(lambda w, g: torch._foreach_add_([w], [g]), (weights, gradient))
    assert names == ("aten::_foreach_add_",)
