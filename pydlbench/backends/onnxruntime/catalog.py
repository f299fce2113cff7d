"""A network of the catalogue as an ONNX file, of the operations that our calibration networks have.

Nothing is fused or rewritten here: what onnxruntime makes of it is its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onnx import TensorProto, helper, numpy_helper

from pydlbench.backends.steps.inputs import make_weights, weight_shapes
from pydlbench.errors import UnsupportedError
from pydlbench.models.graph import INPUT

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
    elif node.op == "batchnorm" and node.scale and layer is not None:
        operator, how = "BatchNormalization", {"epsilon": layer.epsilon}
        names += _of(node, "weights", "bias", "running_mean", "running_variance")
    elif layer is not None and layer.op == "conv":
        operator, how = "Conv", {"group": layer.groups, "dilations": layer.dilation}
        names += _of(node, "weights", "bias")
    elif layer is not None and layer.op == "pool":
        operator = {"max": "MaxPool", "avg": "AveragePool"}[layer.mode]
        if layer.mode == "avg":
            how = {"count_include_pad": int(layer.count_include_pad)}
    else:
        raise UnsupportedError(f"{model}: {node.op} is not written as ONNX; nearest: FILE.onnx")
    if layer is not None and layer.op in ("conv", "pool"):
        how["kernel_shape"] = layer.kernel
        how["strides"] = layer.stride
        how["pads"] = (
            layer.pad_before[0],
            layer.pad_before[1],
            layer.pad_after[0],
            layer.pad_after[1],
        )
    return helper.make_node(operator, names, [node.name], name=node.name, **how)


def _of(node: Node, *roles: str) -> list[str]:
    """Return the names of a node's tensors that there are."""
    return [f"{node.name}/{role}" for role in roles if role in weight_shapes(node)]
