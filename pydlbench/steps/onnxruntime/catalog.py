"""A network of the catalogue as an ONNX file, of the operations that our calibration networks have.

Nothing is fused or rewritten here: what onnxruntime makes of it is its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onnx import TensorProto, helper, numpy_helper

from pydlbench.errors import UnsupportedError
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pool import Pool2d
from pydlbench.models.graph import INPUT
from pydlbench.steps.inputs import make_weights, weight_shapes

if TYPE_CHECKING:
    from pydlbench.models.graph import Model, Node

#: Of the operators, and of the file.
_VERSION, _FORMAT = 17, 8
_PLAIN: Final = {"relu": "Relu", "add": "Add", "flatten": "Flatten"}


def written(model: Model, seed: int) -> bytes:
    """Return the file of a network, its weights random.

    Raises:
        UnsupportedError: the network has an operation that is not written here.
    """
    nodes = [_written(model.name, node) for node in model]
    images = helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, (model.batch, *model.image))
    graph = helper.make_graph(
        nodes,
        model.name,
        [images],
        [helper.make_tensor_value_info(model.output.name, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(one, name) for name, one in make_weights(model, seed).items()],
    )
    opsets = [helper.make_opsetid("", _VERSION)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=_FORMAT)
    found: bytes = made.SerializeToString()
    return found


def _written(model: str, node: Node) -> Any:
    names = list(node.inputs)
    how: dict[str, Any] = {}
    layer = node.layer
    if node.op in _PLAIN:
        operator = _PLAIN[node.op]
    elif node.op == "concat":
        operator, how = "Concat", {"axis": 1}
    elif node.op == "linear":
        operator = "Gemm"
        names += _of(node, "weights", "bias")
    elif node.op == "batchnorm" and node.scale and isinstance(layer, Pointwise):
        operator, how = "BatchNormalization", {"epsilon": layer.epsilon}
        names += _of(node, "weights", "bias", "running_mean", "running_variance")
    elif isinstance(layer, Conv2d):
        operator, how = "Conv", {"group": layer.groups, "dilations": layer.dilations}
        names += _of(node, "weights", "bias")
    elif isinstance(layer, Pool2d):
        operator = {"max": "MaxPool", "avg": "AveragePool"}[layer.mode]
        if layer.mode == "avg":
            how = {"count_include_pad": int(layer.count_include_pad)}
    else:
        raise UnsupportedError(f"{model}: {node.op} is not written as ONNX; nearest: FILE.onnx")
    if isinstance(layer, (Conv2d, Pool2d)):
        how["kernel_shape"] = layer.kernel_height, layer.kernel_width
        how["strides"] = layer.stride_height, layer.stride_width
        how["pads"] = layer.pad_top, layer.pad_left, layer.pad_bottom, layer.pad_right
    return helper.make_node(operator, names, [node.name], name=node.name, **how)


def _of(node: Node, *roles: str) -> list[str]:
    """Return the names of a node's tensors that there are."""
    return [f"{node.name}/{role}" for role in roles if role in weight_shapes(node)]
