"""Batch normalisations folded into the convolutions before them, with PyTorch's own function."""

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import fx, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_weights

from pydlbench.backends.torch.steps.net import Applied
from pydlbench.errors import UnsupportedError

#: Operands of a normalisation, in the order of PyTorch's function that folds them.
_STATISTICS: Final = ("running_mean", "running_var", "eps", "weight", "bias")


def fold_normalisations(module: nn.Module) -> fx.GraphModule:
    """Return an equivalent module without the normalisations that follow convolutions.

    Args:
        module: module in evaluation mode; its convolutions get other weights.

    Raises:
        UnsupportedError: ``torch.fx`` cannot trace it, or there is nothing to fold.
    """
    traced = module if isinstance(module, fx.GraphModule) else _traced(module)
    uses = Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_module")
    folded = 0
    for node in list(traced.graph.nodes):
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if source is None or source.op != "call_module" or uses[str(source.target)] > 1:
            continue
        convolution = traced.get_submodule(str(source.target))
        convolves = isinstance(convolution, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) or (
            isinstance(convolution, Applied) and convolution.op == "conv"
        )
        statistics = _statistics(node, traced) if convolves else None
        # Other readers may ask for the shape.
        if statistics and all(
            user is node or (user.target is getattr and user.args[1] in ("ndim", "shape"))
            for user in source.users
        ):
            _fold(convolution, statistics)
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


def _statistics(node: fx.Node, traced: fx.GraphModule) -> Mapping[str, Any] | None:
    """Return the operands of a normalisation with fixed statistics, by PyTorch's names.

    It is a module of PyTorch, or a call of the function, as in timm's modules.
    """
    if node.op == "call_module":
        module = traced.get_submodule(str(node.target))
        if not isinstance(module, _BatchNorm) or module.training or module.running_mean is None:
            return None
        return {name: getattr(module, name) for name in _STATISTICS}
    if node.target is not batch_norm:
        return None
    given = node.normalized_arguments(traced, normalize_to_only_use_kwargs=True)
    if given is None or given.kwargs["training"]:
        return None
    operands = {name: given.kwargs[name] for name in _STATISTICS}
    if any(isinstance(value, fx.Node) and value.op != "get_attr" for value in operands.values()):
        return None  # computed in each step
    return {name: _value(value, traced) for name, value in operands.items()}


def _value(given: Any, traced: fx.GraphModule) -> Any:
    if not isinstance(given, fx.Node):
        return given
    return functools.reduce(getattr, str(given.target).split("."), traced)


def _fold(convolution: Any, statistics: Mapping[str, Any]) -> None:
    with torch.no_grad():
        weight, bias = fuse_conv_bn_weights(
            convolution.weight,
            getattr(convolution, "bias", None),
            *(statistics[name] for name in _STATISTICS),
        )
    convolution.weight, convolution.bias = weight, bias
