"""A model's graph as a PyTorch module: straight-line code as users write it.

``torch.fx`` turns the graph into a ``forward`` with a line for each node, which frees each
activation after its last use, like handwritten code that reuses a name. ReLU, ReLU6, hardswish and
addition work in place if no other node reads their input, as in torchvision's models. Layers have
the same forward functions as layers that are timed alone, see
:mod:`pydlbench.backends.torch.layers.forward`.
"""

import contextlib
import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself
from numpy.typing import NDArray
from torch import fx, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_weights

from pydlbench.backends.frameworks.backend import op_of
from pydlbench.backends.steps.inputs import weight_shapes
from pydlbench.backends.torch.layers.forward import FORWARD, TorchForwardOptions, window_of
from pydlbench.backends.torch.steps.recording import DispatchRecorder, Naming
from pydlbench.errors import UnsupportedError
from pydlbench.models.graph import INPUT, GraphNode, Model, cropped
from pydlbench.ops.op import Layer

# PyTorch's names of tensors by role.
_TORCH_NAMES = {
    "weights": "weight",
    "bias": "bias",
    "running_mean": "running_mean",
    "running_variance": "running_var",
}


class TorchNet:
    """A model as a module whose nodes are known by name.

    Args:
        model: the graph.
        overwriting: whether nodes may work in place; otherwise each output stays until the next
            step.
    """

    def __init__(self, model: Model, *, overwriting: bool = True) -> None:
        self.model = model
        self._overwriting = overwriting
        self._modules: dict[str, nn.Module] = {}
        self._paths: dict[str, str] = {}
        self._graph = fx.Graph()
        self._readers = model.readers()
        #: The graph's node by the name of the node of fx that has its output.
        self.outputs: dict[str, str] = {}
        values: dict[str, fx.Node] = {INPUT: self._graph.placeholder("images")}
        for node in model:
            values[node.name] = self._add(node, tuple(values[name] for name in node.inputs))
            self.outputs[values[node.name].name] = node.name
        self._graph.output(values[model.output.name])
        self.module = fx.GraphModule(self._modules, self._graph, class_name="Net")

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return parameters and running statistics by ``<node>/<role>``."""
        tensors = {}
        for node in self.model:
            for role in weight_shapes(node):
                module = self.module.get_submodule(self._paths[node.name])
                tensors[f"{node.name}/{role}"] = getattr(module, _TORCH_NAMES[role])
        return tensors

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Copy weights by name; weights of products are stored transposed."""
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                array = weights[name]
                tensor.copy_(torch.from_numpy(array.T if array.ndim == 2 else array))

    def torch_names(self) -> dict[str, torch.Tensor]:
        """Return the same tensors by ``<node>.<attribute>``, running statistics last."""
        tensors = self.tensors()
        named: dict[str, torch.Tensor] = {}
        for name in sorted(tensors, key=lambda name: "/running_" in name):
            node, _, role = name.rpartition("/")
            named[f"{node}.{_TORCH_NAMES[role]}"] = tensors[name]
        return named

    def plain(self, name: str, tensor: torch.Tensor) -> NDArray[Any]:
        """Return a tensor, or its gradient, in the layout of the graph and float32."""
        array: NDArray[Any] = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
        return array.T if array.ndim == 2 and name.endswith("/weights") else array

    def _add(self, node: GraphNode, inputs: tuple[fx.Node, ...]) -> fx.Node:
        """Add the call of a node, and return the node of its output."""
        if node.layer is None:
            return self._add_move(node, inputs[0])
        target = _target(node, node.layer, overwrites=self._may_overwrite(node))
        if not isinstance(target, nn.Module):
            arguments = (list(inputs), 1) if target is torch.cat else inputs
            return self._graph.call_function(target, arguments)
        # Names of modules contain neither slashes nor dots, and do not begin with a digit.
        path = f"n{len(self._paths)}_" + "".join(c if c.isalnum() else "_" for c in node.name)
        self._paths[node.name] = path
        self._modules[path] = target
        return self._graph.call_module(path, inputs)

    def _add_move(self, node: GraphNode, image: fx.Node) -> fx.Node:
        """Add a node without a layer, which only moves images."""
        if node.op == "flatten":
            return self._graph.call_function(torch.flatten, (image, 1))
        assert node.op in ("shift", "crop"), node.op
        crops = (1, -1, 1, -1) if node.op == "shift" else cropped(self.model, node)
        sides = tuple(-side for side in crops)
        return self._graph.call_function(F.pad, (image, sides, "constant", 0.0))

    def _may_overwrite(self, node: GraphNode) -> bool:
        """Whether a node may overwrite its first input: no other node or gradient reads it."""
        first = node.inputs[0]
        if not self._overwriting or first == INPUT or len(self._readers[first]) > 1:
            return False
        layer = self.model[first].layer
        return layer is not None and op_of(layer) in _OVERWRITABLE


# -----------------------------------------------------------------------------
# The functions of layers in a network.

#: In-place versions of activations, used where the input may be overwritten: no other node reads
#: it, and its producer's gradient does not need it.
_IN_PLACE: Final[Mapping[str, Callable[..., Any]]] = {
    "relu": torch.relu_,
    **{
        op: functools.partial(getattr(F, op), inplace=True)
        for op in ("relu6", "hardswish", "elu", "silu", "mish")
    },
}
#: Ops that users write as functions instead of modules.
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {"scale": operator.mul, "concat": torch.cat}
# Ops whose gradient does not read the result, so that the next node may overwrite it.
_OVERWRITABLE: Final = ("conv", "deconv", "gemm", "add", "batchnorm")


class Applied(nn.Module):  # type: ignore[misc]  # an unknown class to mypy
    """A layer of a network: its forward function, with parameters of its own.

    Args:
        function: function that takes the inputs, then weight and bias.
        shapes: shapes of weight and bias, if the layer has them.
        op: op of the layer.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        op: str = "",
    ) -> None:
        super().__init__()
        self._function, self.op = function, op
        for name, shape in (shapes or {}).items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the layer's result."""
        return self._function(*inputs, *self._parameters.values())


class ScaledAverage(nn.Module):  # type: ignore[misc]  # an unknown class to mypy
    """An average over images that are padded first, scaled so that padding does not count.

    Args:
        layer: the pooling.
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self._window = window_of(layer)
        scale = np.prod(self._window.kernel) / np.multiply.outer(*layer.elements_inside)
        self.register_buffer("scale", torch.from_numpy(scale.astype(np.float32)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the averages over the elements inside the image."""
        scale: Any = self.scale
        x = F.pad(x, self._window.pads)
        average: torch.Tensor = F.avg_pool2d(x, self._window.kernel, self._window.stride)
        return average.mul(scale.to(x.dtype))


def _target(node: GraphNode, layer: Any, *, overwrites: bool) -> nn.Module | Callable[..., Any]:
    """Return the module of a layer, with its parameters, or a function.

    Args:
        node: node of the model's graph.
        layer: layer of the node.
        overwrites: whether the layer may overwrite its first input.

    Raises:
        UnsupportedError: PyTorch does not support this layer.
    """
    op = op_of(layer)
    if op == "add":
        return operator.iadd if overwrites else operator.add
    if op in _FUNCTIONS:
        return _FUNCTIONS[op]
    if op == "dropout":
        return nn.Dropout(1 - layer.keep)
    if op == "batchnorm":  # the module also counts its minibatches
        normalisation = nn.BatchNorm2d(layer.channels, layer.epsilon, layer.momentum)
        normalisation.weight.requires_grad_(node.scale)  # an untrained factor stays at one
        return normalisation
    leaves_out = layer.op == "pool" and layer.mode != "max" and not layer.count_include_pad
    if leaves_out and window_of(layer).pads:
        return ScaledAverage(layer)
    if op in _IN_PLACE and overwrites:
        return Applied(_IN_PLACE[op])
    return Applied(
        FORWARD[op](layer, TorchForwardOptions()), _parameters(layer, bias=node.bias), op
    )


def _parameters(layer: Any, *, bias: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's parameters by PyTorch's names."""
    if layer.op == "gemm":
        shapes, outputs = {"weight": (layer.n, layer.k)}, layer.n
    elif layer.kind != "pointwise" and layer.weight_elements:
        shapes, outputs = {"weight": layer.shapes()["weights"]}, layer.out_channels
    else:
        return {}
    return shapes | ({"bias": (outputs,)} if bias else {})


# -----------------------------------------------------------------------------
# Names of a network's calls.


def by_node(net: TorchNet, shapes: dict[str, tuple[int, ...]]) -> Naming:
    """Name calls after the graph's nodes: the network runs node by node while it is recorded.

    Args:
        net: the network.
        shapes: gets the shape of each node's output, NCHW or (batch, features).
    """

    @contextlib.contextmanager
    def naming(recorder: DispatchRecorder) -> Iterator[None]:
        following = _Following(net, recorder, shapes)
        net.module.forward = following.run
        try:
            yield
        finally:
            # Back to the class's own method; setting the attribute would trigger a recompilation.
            del net.module.forward

    return naming


class _Following(fx.Interpreter):  # type: ignore[misc]  # an unknown class to mypy
    """Runs a network as its module does, and reports the running node to a recorder.

    Args:
        net: the network.
        recorder: recorder of the calls.
        shapes: gets the shape of each node's output.
    """

    def __init__(
        self, net: TorchNet, recorder: DispatchRecorder, shapes: dict[str, tuple[int, ...]]
    ) -> None:
        super().__init__(net.module)
        self._recorder, self._outputs, self._shapes = recorder, net.outputs, shapes
        # A padding belongs to the node after it.
        self._names: dict[fx.Node, str] = {}
        waiting: list[fx.Node] = []
        for node in net.module.graph.nodes:
            waiting.append(node)
            if node.name in net.outputs:
                self._names |= dict.fromkeys(waiting, net.outputs[node.name])
                waiting.clear()

    def run_node(self, n: fx.Node) -> Any:
        """Run a node under its name; the loss follows the last one."""
        last = n.op == "output"
        if last:
            self._recorder.at("loss", "loss")
        else:
            self._recorder.at(self._names.get(n, ""), "forward")
        result = super().run_node(n)
        if n.name in self._outputs:
            self._shapes[self._outputs[n.name]] = tuple(result.shape)
        return result


# -----------------------------------------------------------------------------
# Batch normalisations folded into the convolutions before them, with PyTorch's own function.


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
