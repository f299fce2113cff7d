"""A small network and its ONNX file: units with sums, joined maps, depthwise convolutions."""

from onnx import TensorProto, helper, numpy_helper

from pydlbench.backends.steps.inputs import make_weights, weight_shapes
from pydlbench.models.graph import INPUT, Builder

#: Of the operators, and of the file.
_VERSION, _FORMAT = 17, 8


def network(batch=2):
    made = Builder("units", batch, (3, 20, 20))
    made.conv_bn("stem", 8, 3, 2, 1)
    before = made.conv_bn("reduce", 16, 1, 2)
    made.conv_bn("each", 16, 3, 1, 1, groups=16)
    made.conv_bn("mix", 16, 1, activation=None)
    made.add("sum/add", made.last, before)
    first = made.relu()
    made.conv("more", 8, 3, 1, 1)
    made.concat("joined", [first, made.last])
    made.pool("largest", 2, 1)
    made.global_pool("pool")
    made.flatten()
    made.linear("fc", 10)
    return made.model(title="units", source="this test")


def save(model, path):
    """Write the file of a network with random weights; nothing is fused or rewritten."""
    images = helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, (model.batch, *model.image))
    graph = helper.make_graph(
        [_node(node) for node in model],
        model.name,
        [images],
        [helper.make_tensor_value_info(model.output.name, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(one, name) for name, one in make_weights(model, 0).items()],
    )
    opsets = [helper.make_opsetid("", _VERSION)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=_FORMAT)
    path.write_bytes(made.SerializeToString())


def _node(node):
    layer = node.layer
    window = {} if layer is None or layer.op not in ("conv", "pool") else _window(layer)
    operator, how = {
        "relu": ("Relu", {}),
        "add": ("Add", {}),
        "flatten": ("Flatten", {}),
        "concat": ("Concat", {"axis": 1}),
        "linear": ("Gemm", {}),
        "batchnorm": ("BatchNormalization", {"epsilon": getattr(layer, "epsilon", None)}),
        "conv": ("Conv", {"group": getattr(layer, "groups", None)}),
        "pool": ({"max": "MaxPool", "avg": "AveragePool"}.get(getattr(layer, "mode", "")), {}),
    }[node.op]
    roles = ("weights", "bias", "running_mean", "running_variance")
    tensors = [f"{node.name}/{role}" for role in roles if role in weight_shapes(node)]
    names = [*node.inputs, *tensors]
    return helper.make_node(operator, names, [node.name], name=node.name, **how, **window)


def _window(layer):
    return {
        "kernel_shape": layer.kernel,
        "strides": layer.stride,
        "pads": (*layer.pad_before, *layer.pad_after),
    }
