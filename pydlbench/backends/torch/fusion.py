"""Batch normalisations folded into the convolutions before them, as PyTorch's own tools do it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_weights

from pydlbench.backends.torch.net import Applied
from pydlbench.errors import UnsupportedError


def fold_normalisations(module: nn.Module) -> fx.GraphModule:
    """Return a module that computes the same without the normalisations behind convolutions.

    Args:
        module: in evaluation mode; its convolutions get other weights.

    Raises:
        UnsupportedError: ``torch.fx`` cannot trace it, or there is nothing to fold.
    """
    traced = module if isinstance(module, fx.GraphModule) else _traced(module)
    modules = dict(traced.named_modules())
    uses = Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_module")
    folded = 0
    for node in list(traced.graph.nodes):
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if source is None or node.op != "call_module" or source.op != "call_module":
            continue
        normalisation, convolution = modules[str(node.target)], modules[str(source.target)]
        alone = len(source.users) == 1 and uses[str(source.target)] == 1
        if alone and _convolves(convolution) and _is_fixed(normalisation):
            _fold(convolution, normalisation)
            node.replace_all_uses_with(source)
            traced.graph.erase_node(node)
            folded += 1
    if not folded:
        raise UnsupportedError("no normalisation with fixed statistics follows a convolution alone")
    traced.recompile()
    return traced


def _traced(module: nn.Module) -> fx.GraphModule:
    try:
        return fx.symbolic_trace(module)
    except Exception as error:  # the user's code runs in it
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnsupportedError(f"torch.fx cannot trace the model: {first}") from error


def _convolves(module: nn.Module) -> bool:
    known = isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
    return known or (isinstance(module, Applied) and module.op == "conv")


def _is_fixed(module: nn.Module) -> bool:
    return (
        isinstance(module, _BatchNorm) and not module.training and module.running_mean is not None
    )


def _fold(convolution: Any, normalisation: Any) -> None:
    with torch.no_grad():
        weight, bias = fuse_conv_bn_weights(
            convolution.weight,
            getattr(convolution, "bias", None),
            normalisation.running_mean,
            normalisation.running_var,
            normalisation.eps,
            normalisation.weight,
            normalisation.bias,
        )
    convolution.weight, convolution.bias = weight, bias
