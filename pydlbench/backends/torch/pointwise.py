"""Memory-bound layers through ATen's operators, as a model's step runs them one after the other.

What a gradient reads from the forward pass (a result of a ReLU, a mask, statistics) is computed
beforehand, as autograd would have kept it. A new operation is an entry in :data:`POINTWISE`.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself
from torch import nn

from pydlbench.backends.frameworks.layouts import layout_of_images
from pydlbench.backends.torch.operator import (
    LayerCalls,
    Made,
    NodeCall,
    Recipe,
    by_role,
    image_recipes,
    itself,
)
from pydlbench.backends.torch.settings import stored
from pydlbench.backends.verification.inputs import kept_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.backends.torch.operator import NodeSite, Operands
    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec

_ATEN: Final = torch.ops.aten


# -----------------------------------------------------------------------------
# Recipes of operations on images, which have one per memory format, and of all others.


def _on_images(
    case: KernelSpec,
    algorithm: str,
    make: Callable[[Operands], Made],
    *,
    accumulate: str = "float32",
    notes: tuple[str, ...] = (),
) -> list[Recipe]:
    """List the ways to run a pass on images; see ``image_recipes``."""
    layer = case.layer
    assert layer.kind == "pointwise"
    return image_recipes(
        algorithm,
        lambda word: layout_of_images(layer, case.pass_, word),
        make,
        accumulate=accumulate,
        notes=notes,
    )


def _on_weights(
    case: KernelSpec,
    algorithm: str,
    make: Callable[[Operands], Made],
    accumulate: str = "float32",
) -> list[Recipe]:
    """List the one way to run a pass on whole weight tensors, which have one layout."""
    layout = ", ".join(dict.fromkeys(case.layer.reads(case.pass_)))
    return [_flat(algorithm, layout, make, accumulate)]


def _flat(
    algorithm: str, layout: str, make: Callable[[Operands], Made], accumulate: str = "float32"
) -> Recipe:
    return Recipe(
        algorithm=algorithm, layout=layout, variant="plain", make=make, accumulate=accumulate
    )


def _passes(
    **passes: tuple[str, Callable[[Operands], Made]],
) -> Callable[[Layer, KernelSpec], list[Recipe]]:
    """Return what lists the recipes of an operation that has one call for each of its passes.

    Args:
        passes: By pass, PyTorch's name of what is called, and what puts operands in place.
    """

    def recipes(_: Layer, case: KernelSpec) -> list[Recipe]:
        name, make = passes[case.pass_.replace("-", "_")]
        # Each operator of a chain rounds what it writes.
        sums = stored(case.precision) if "+" in name else "float32"
        return _on_images(case, name, make, accumulate=sums)

    return recipes


def _call(
    function: Callable[..., Any],
    *roles: str,
    plain: Callable[[Any], Any] = itself,
) -> Callable[[Operands], Made]:
    """Return what calls a function (one made by ``def``) with the tensors of some roles."""
    return lambda operands: Made(function, tuple(map(operands.tensor, roles)), plain)


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of our own that calls one of PyTorch's: what the compiler takes."""

    def own(*tensors: torch.Tensor) -> Any:
        return function(*tensors)

    return own


# -----------------------------------------------------------------------------
# The loss: softmax and cross entropy, which PyTorch computes as logarithms of probabilities.
#
# Logits in a half precision are converted to float32 first and their gradient back, as automatic
# mixed precision does.

_MEAN = 1  # ATen's number of that reduction
_IGNORED = -100  # a label that counts for nothing; the default


def loss_recipes(_: Layer, case: KernelSpec) -> list[Recipe]:
    """List the one way to run a pass of a softmax with cross entropy."""
    if case.pass_ == "forward":
        return [_flat("aten::_log_softmax + aten::nll_loss", "src nc, dst nc", _loss)]
    name = "aten::nll_loss_backward + aten::_log_softmax_backward_data"
    return [_flat(name, "src nc, dst nc", _loss_gradient)]


def _loss(operands: Operands) -> Made:
    # What torch.nn.functional.cross_entropy does; autograd keeps the logarithms.
    def loss(x: torch.Tensor, labels: torch.Tensor) -> Any:
        logarithms = torch.log_softmax(x.float(), 1)
        return F.nll_loss(logarithms, labels), logarithms

    shape = operands.layer.shapes()["dst"]

    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        mean, logarithms = results
        return {"dst": logarithms.exp().reshape(shape), "loss": mean.reshape(1)}

    return Made(loss, (operands.tensor("src").flatten(1), operands.tensor("labels")), plain)


def _loss_gradient(operands: Operands) -> Made:
    loss_backward = _ATEN.nll_loss_backward.default
    softmax_backward = _ATEN._log_softmax_backward_data.default  # noqa: SLF001 - its name
    dtype = operands.place.dtype

    def gradient(
        outer: torch.Tensor, logarithms: torch.Tensor, labels: torch.Tensor, count: torch.Tensor
    ) -> Any:
        found = loss_backward(outer, logarithms, labels, None, _MEAN, _IGNORED, count)
        return softmax_backward(found, logarithms, 1, torch.float32).to(dtype)

    shape = operands.layer.shapes()["src"]

    def plain(result: Any) -> torch.Tensor:
        found: torch.Tensor = result.reshape(shape)
        return found

    logarithms = operands.tensor("dst").flatten(1).float().log()
    one = torch.ones((), device=operands.place.device)
    count = one * operands.layer.batch
    return Made(gradient, (one, logarithms, operands.tensor("labels"), count), plain)


# -----------------------------------------------------------------------------
# A softmax along the last axis, and its logarithm.

_ROWS: Final = "src nchw, dst nchw"


def _softmax(name: str, function: Callable[..., torch.Tensor]) -> LayerCalls:
    """Return what is called for a softmax.

    Args:
        name: ATen's of the forward pass.
        function: PyTorch's, of a tensor and an axis.
    """
    backward = getattr(_ATEN, f"{name}_backward_data").default

    def along_rows(x: torch.Tensor) -> Any:
        return function(x, -1)

    def gradient(g: torch.Tensor, y: torch.Tensor) -> Any:
        return backward(g, y, -1, y.dtype)

    def recipes(_: Layer, case: KernelSpec) -> list[Recipe]:
        if case.pass_ == "forward":
            return [_flat(f"aten::{name}", _ROWS, _call(along_rows, "src"))]
        return [_flat(f"aten::{name}_backward_data", _ROWS, _call(gradient, "dst", "result"))]

    return LayerCalls(recipes=recipes)


# -----------------------------------------------------------------------------
# Weight decay and the steps of optimizers, by the operators that ``torch.optim.SGD`` calls.
#
# Its default on a CPU is one operator after the other for each tensor, on a GPU the ``foreach``
# ones. Calls step forth and back in turn, see :class:`~pydlbench.backends.torch.operator.Made`.


def l2_recipes(_: Layer, case: KernelSpec) -> list[Recipe]:
    """List the one way to run a pass of an L2 term."""
    if case.pass_ == "forward":
        return _on_weights(case, "aten::pow + aten::sum + aten::div", _norm)
    return _on_weights(case, "aten::add", _decay)


def sgd_recipes(_: Layer, case: KernelSpec) -> list[Recipe]:
    """List the one way to run a step of gradient descent."""
    if case.on_gpu:
        return _on_weights(case, "aten::_foreach_add_", _foreach_descent)
    return _on_weights(case, "aten::add_", _descent)


def momentum_recipes(_: Layer, case: KernelSpec) -> list[Recipe]:
    """List the one way to run a step with momentum, each of whose operators rounds."""
    sums = stored(case.precision)
    if case.on_gpu:
        name = "aten::_foreach_mul_ + aten::_foreach_add_ + aten::_foreach_add_"
        return _on_weights(case, name, _foreach_momentum, sums)
    return _on_weights(case, "aten::mul_ + aten::add_ + aten::add_", _momentum, sums)


def _norm(operands: Operands) -> Made:
    # Summed in float32 whatever is stored; nothing is converted where that is float32.
    def half_of_squares(w: torch.Tensor) -> Any:
        return w.float().pow(2).sum() / 2

    return Made(half_of_squares, (operands.tensor("weights"),), lambda result: result.reshape(1))


def _decay(operands: Operands) -> Made:
    decay = operands.layer.decay

    def added(g: torch.Tensor, w: torch.Tensor) -> Any:
        return g.add(w, alpha=decay)

    return Made(added, (operands.tensor("gradient"), operands.tensor("weights")))


def _descent(operands: Operands) -> Made:
    def step(w: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        return w.add_(g, alpha=-rate)

    return _updating(operands, step, "weights")


def _foreach_descent(operands: Operands) -> Made:
    def step(w: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        torch._foreach_add_([w], [g], alpha=-rate)
        return w

    return _updating(operands, step, "weights")


def _updating(operands: Operands, step: Callable[..., Any], *roles: str) -> Made:
    """Return an optimizer's step, which overwrites what has these roles."""
    rate = operands.layer.rate
    arguments = tuple(map(operands.tensor, (*roles, "gradient")))
    plain = by_role(*roles) if len(roles) > 1 else itself
    return Made(step, arguments, plain, updated=tuple(range(len(roles))), turns=(rate, -rate))


def _momentum(operands: Operands) -> Made:
    mu = operands.layer.mu

    def step(w: torch.Tensor, v: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        v.mul_(mu).add_(g, alpha=1)
        w.add_(v, alpha=-rate)
        return w, v

    return _updating(operands, step, "weights", "velocity")


def _foreach_momentum(operands: Operands) -> Made:
    mu = operands.layer.mu

    def step(w: torch.Tensor, v: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        torch._foreach_mul_([v], mu)
        torch._foreach_add_([v], [g], alpha=1)
        torch._foreach_add_([w], [v], alpha=-rate)
        return w, v

    return _updating(operands, step, "weights", "velocity")


# -----------------------------------------------------------------------------
# Normalisations: local response (a chain of operators) and batch (one operator).
#
# There is no operator of its own for the gradient of ``torch.nn.functional.local_response_norm``:
# what runs is the chain that autograd makes of its forward pass. It is written out here as it is
# recorded from autograd, so that it can be compiled, and timed without autograd's bookkeeping as
# convolutions are.

_LRN = {
    "forward": "aten::mul + aten::constant_pad_nd + aten::avg_pool3d + aten::pow + aten::div",
    "backward-data": "aten::div + aten::pow + aten::avg_pool3d_backward + aten::mul + aten::add",
}


def lrn_recipes(_: Layer, case: KernelSpec) -> list[Recipe]:
    """List the ways to run a pass of a local response normalisation.

    Each operator of the chain rounds to what is stored; CPUs have the chain in float32 only.
    """
    kind = stored(case.precision)
    converts = kind != "float32" and not case.on_gpu
    name = _LRN[case.pass_]
    notes = ["a chain of operators, each reading and writing memory; torch has no kernel for it"]
    if converts:
        name = f"aten::_to_copy + {name} + aten::_to_copy"
        notes.append(f"torch has no avg_pool3d in {kind} on CPUs: converted to float32 and back")
    return _on_images(
        case,
        name,
        functools.partial(_lrn if case.pass_ == "forward" else _lrn_gradient, converts=converts),
        accumulate="float32" if converts else kind,
        notes=tuple(notes),
    )


def lrn_in_network(layer: Layer, site: NodeSite) -> NodeCall:
    """Return the module of a local response normalisation."""
    module = nn.LocalResponseNorm(layer.local_size, layer.alpha, layer.beta, layer.k)
    return NodeCall(module, site.inputs)


def batchnorm_recipes(_: Layer, case: KernelSpec) -> list[Recipe]:
    """List the ways to run a pass of a batch normalisation."""
    if case.pass_ != "forward":
        return _on_images(case, "aten::native_batch_norm_backward", _batch_gradient)
    make = _statistics if case.propagation == "training" else _inference
    return _on_images(case, "aten::native_batch_norm", make)


def batchnorm_in_network(layer: Layer, site: NodeSite) -> NodeCall:
    """Return the module of a batch normalisation; an untrained factor stays at one."""
    module = nn.BatchNorm2d(layer.channels, layer.epsilon, layer.momentum)
    module.weight.requires_grad_(site.node.scale)
    return NodeCall(module, site.inputs)


def layernorm_recipes(_: Layer, case: KernelSpec) -> list[Recipe]:
    """List the one way to run a pass of a layer normalisation."""
    if case.pass_ != "forward":
        # On CPUs the gradients of weights and bias are added up as images are stored.
        sums = stored(case.precision)
        return [_flat("aten::native_layer_norm_backward", _ROWS, _layer_gradient, sums)]
    make = functools.partial(_layer_norm, keeps=case.propagation == "training")
    return [_flat("aten::native_layer_norm", _ROWS, make)]


def _layer_norm(operands: Operands, *, keeps: bool) -> Made:
    normalize = _ATEN.native_layer_norm.default
    shape, epsilon = [operands.layer.width], operands.layer.epsilon

    def normalized(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        return normalize(x, shape, w, b, epsilon)

    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        rows, mean, inverse = results
        found = {"dst": rows}
        # The compiler hands out those of half-precision rows in their type: rounded, not wrong.
        if keeps and inverse.dtype == torch.float32:
            variance = inverse.double().pow(-2) - epsilon
            found |= {"mean": mean.reshape(-1), "variance": variance.reshape(-1)}
        return found

    return Made(normalized, tuple(map(operands.tensor, ("src", "weights", "bias"))), plain)


def _layer_gradient(operands: Operands) -> Made:
    backward = _ATEN.native_layer_norm_backward.default
    layer = operands.layer
    shape = [layer.width]

    def gradient(
        g: torch.Tensor, x: torch.Tensor, m: torch.Tensor, inverse: torch.Tensor, w: torch.Tensor
    ) -> Any:
        # Of the bias only its type is read.
        return backward(g, x, shape, m, inverse, w, w, [True, True, True])

    of_rows = (*layer.shapes()["src"][:-1], 1)
    inverse = operands.tensor("variance").double().add(layer.epsilon).rsqrt().float()
    arguments = (
        *map(operands.tensor, ("dst", "src")),
        operands.tensor("mean").reshape(of_rows),
        inverse.reshape(of_rows),
        operands.tensor("weights"),
    )
    return Made(gradient, arguments, by_role("src", "weights", "bias"))


def _lrn(operands: Operands, *, converts: bool) -> Made:
    layer, dtype = operands.layer, operands.place.dtype
    words = layer.local_size, layer.alpha, layer.beta, layer.k

    def normalized(x: torch.Tensor) -> Any:
        return F.local_response_norm(x, *words)

    def converted(x: torch.Tensor) -> Any:
        return F.local_response_norm(x.float(), *words).to(dtype)

    return Made(converted if converts else normalized, (operands.tensor("src"),))


def _lrn_gradient(operands: Operands, *, converts: bool) -> Made:
    layer, dtype = operands.layer, operands.place.dtype
    size, alpha, beta, k = layer.local_size, layer.alpha, layer.beta, layer.k
    sides = [0, 0, 0, 0, size // 2, (size - 1) // 2]
    cut = [-side for side in sides]
    window = ([size, 1, 1], [1, 1, 1], [0, 0, 0], False, True, None)
    pool_backward = _ATEN.avg_pool3d_backward.default

    # What autograd keeps, computed as the forward pass does.
    source = operands.tensor("src")
    source = source.float() if converts else source
    count, channels, height, width = source.shape
    padded = F.pad((source * source).view(count, 1, channels, height, width), sides)
    means = F.avg_pool3d(padded, (size, 1, 1), stride=1).squeeze(1).view(source.shape)
    base = means.mul(alpha).add(k)
    power = base.pow(beta)

    def gradient(
        g: torch.Tensor,
        x: torch.Tensor,
        divisor: torch.Tensor,
        root: torch.Tensor,
        squares: torch.Tensor,
    ) -> Any:
        direct = g / divisor
        inner = -g * ((x / divisor) / divisor)
        inner = inner * (beta * root.pow(beta - 1)) * alpha
        inner = pool_backward(inner.unsqueeze(1), squares, *window)
        inner = F.pad(inner, cut).view(x.shape)
        return direct.add_((inner * x).add_(inner * x))

    def converted(g: torch.Tensor, *kept: torch.Tensor) -> Any:
        return gradient(g.float(), *kept).to(dtype)

    arguments = operands.tensor("dst"), source, power, base, padded
    return Made(converted if converts else gradient, arguments)


def _inference(operands: Operands) -> Made:
    normalize = _ATEN.native_batch_norm.default
    momentum, epsilon = operands.layer.momentum, operands.layer.epsilon

    def normalized(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor, v: torch.Tensor
    ) -> Any:
        return normalize(x, w, b, m, v, False, momentum, epsilon)[0]

    roles = ("src", "weights", "bias", "mean", "variance")
    return Made(normalized, tuple(map(operands.tensor, roles)))


def _statistics(operands: Operands) -> Made:
    normalize = _ATEN.native_batch_norm.default
    momentum, epsilon = operands.layer.momentum, operands.layer.epsilon

    def normalized(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor, v: torch.Tensor
    ) -> Any:
        return normalize(x, w, b, m, v, True, momentum, epsilon)

    roles = ("src", "weights", "bias", "running_mean", "running_variance")
    arguments = tuple(map(operands.tensor, roles))

    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        image, mean, inverse = results
        found = {"dst": image, "running_mean": arguments[3], "running_variance": arguments[4]}
        # The compiler hands out those of half-precision images in their type: rounded, not wrong.
        if mean.dtype == torch.float32:
            found |= {"mean": mean, "variance": inverse.double().pow(-2) - epsilon}
        return found

    # However often they are moved, the running statistics come closer to the batch's.
    return Made(normalized, arguments, plain, updated=(3, 4))


def _batch_gradient(operands: Operands) -> Made:
    backward = _ATEN.native_batch_norm_backward.default
    epsilon = operands.layer.epsilon

    def gradient(
        g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, inverse: torch.Tensor
    ) -> Any:
        # The running statistics, which autograd hands on, are not read in training.
        return backward(g, x, w, m, inverse, m, inverse, True, epsilon, [True, True, True])

    inverse = operands.tensor("variance").double().add(epsilon).rsqrt().float()
    arguments = *map(operands.tensor, ("dst", "src", "weights", "mean")), inverse
    return Made(gradient, arguments, by_role("src", "weights", "bias"))


# -----------------------------------------------------------------------------
# Activations, and what else is one or two operators on images.


def _activation(
    name: str,
    function: Callable[[torch.Tensor], Any],
    gradient: Callable[[Operands], Made],
    module: Callable[[bool], nn.Module],
    gradient_name: str | None = None,
) -> LayerCalls:
    """Return what is called for an activation.

    Args:
        name: ATen's name of the operator.
        function: Of the source.
        gradient: Puts the operands of its gradient's operator in place.
        module: Makes the module of a network, which overwrites its input where it is told to.
        gradient_name: ATen's name of the gradient's operator, where it is not the operator's own.
    """
    backward = gradient_name or f"{name}_backward"
    return LayerCalls(
        recipes=_passes(
            forward=(f"aten::{name}", _call(_own(function), "src")),
            backward_data=(f"aten::{backward}", gradient),
        ),
        in_network=lambda _, site: NodeCall(module(site.overwrites), site.inputs),
    )


def _of_source(backward: Callable[..., Any]) -> Callable[[Operands], Made]:
    """Return what puts the gradient and the source of the forward pass in place."""
    return _call(_own(backward), "dst", "src")


def _relu_gradient(operands: Operands) -> Made:
    backward = _ATEN.threshold_backward.default

    def gradient(g: torch.Tensor, y: torch.Tensor) -> Any:
        return backward(g, y, 0)

    return Made(gradient, (operands.tensor("dst"), torch.relu(operands.tensor("src"))))


def _of_result(
    backward: Callable[[torch.Tensor, torch.Tensor], Any],
    function: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[Operands], Made]:
    """Return what puts the gradient and the result of the forward pass in place."""

    def make(operands: Operands) -> Made:
        return Made(_own(backward), (operands.tensor("dst"), function(operands.tensor("src"))))

    return make


def _elu_gradient(g: torch.Tensor, y: torch.Tensor) -> Any:
    return _ATEN.elu_backward.default(g, 1, 1, 1, True, y)


def _softplus_gradient(g: torch.Tensor, x: torch.Tensor) -> Any:
    return _ATEN.softplus_backward.default(g, x, 1, 20)


def _gelu_tanh_gradient(g: torch.Tensor, x: torch.Tensor) -> Any:
    return _ATEN.gelu_backward.default(g, x, approximate="tanh")


def _relu6_gradient(g: torch.Tensor, x: torch.Tensor) -> Any:
    return _ATEN.hardtanh_backward.default(g, x, 0, 6)


def _bias(operands: Operands) -> Made:
    def add(x: torch.Tensor, b: torch.Tensor) -> Any:
        return x + b

    return Made(add, (operands.tensor("src"), operands.tensor("bias").view(1, -1, 1, 1)))


def _bias_gradient(g: torch.Tensor) -> Any:
    return g.sum((0, 2, 3))


def _scale_gradient(g: torch.Tensor, x: torch.Tensor, s: torch.Tensor) -> Any:
    return g * s, (g * x).sum((2, 3), keepdim=True)


def _add_in_network(_: Layer, site: NodeSite) -> NodeCall:
    return NodeCall(operator.iadd if site.overwrites else operator.add, site.inputs)


def dropout_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """List the ways to run a pass of a dropout."""
    rate = 1 - layer.keep

    def dropped(x: torch.Tensor) -> Any:
        return torch.dropout(x, rate, True)

    if case.pass_ == "forward":
        return _on_images(case, "aten::dropout", _call(dropped, "src"))
    return _on_images(case, "aten::mul", _dropout_gradient)


def _dropout_gradient(operands: Operands) -> Made:
    def masked(g: torch.Tensor, noise: torch.Tensor) -> Any:
        return g * noise

    # The reference's mask: ones where elements stay, else zeros. The forward pass keeps its mask
    # divided by the probability, in the type of the images.
    layer = operands.layer
    shape = layer.shapes()["src"]
    kept = kept_elements(shape, tuple(slice(0, size) for size in shape), layer.keep)
    mask = operands.place.tensor(kept.astype(np.float32), operands.like)
    return Made(masked, (operands.tensor("dst"), mask.div_(layer.keep)))


def concat_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """List the ways to join images, or to take the gradient apart.

    Apart they are views, as autograd hands them out, or copies, as a convolution behind makes.
    """
    sources = layer.reads("forward")

    def joined(*images: torch.Tensor) -> Any:
        return torch.cat(images, 1)

    if case.pass_ == "forward":
        return _on_images(case, "aten::cat", _call(joined, *sources))
    sizes = [layer.shapes()[role][1] for role in sources]
    spans = [(sum(sizes[:place]), size) for place, size in enumerate(sizes)]
    plain = by_role(*layer.writes("backward-data"))

    def narrowed(g: torch.Tensor) -> Any:
        return [g.narrow(1, *span) for span in spans]

    def copies(operands: Operands) -> Made:
        like = operands.like

        def copied(g: torch.Tensor) -> Any:
            return [g.narrow(1, *span).contiguous(memory_format=like) for span in spans]

        return Made(copied, (operands.tensor("dst"),), plain)

    note = (
        "autograd hands out views of the incoming gradient, and moves nothing; what reads them in "
        "place (a ReLU) pays nothing, a convolution copies its part first"
    )
    return [
        *_on_images(case, "aten::narrow", _call(narrowed, "dst", plain=plain), notes=(note,)),
        *_on_images(case, "aten::narrow + aten::contiguous", copies),
    ]


#: What PyTorch calls for each memory-bound operation; see ``layers.LAYERS``.
POINTWISE: Final[Mapping[str, LayerCalls]] = {
    "bias": LayerCalls(
        recipes=_passes(
            forward=("aten::add", _bias),
            backward_weights=("aten::sum", _call(_bias_gradient, "dst")),
        )
    ),
    "relu": _activation("relu", torch.relu, _relu_gradient, nn.ReLU, "threshold_backward"),
    "relu6": _activation("hardtanh", F.relu6, _of_source(_relu6_gradient), nn.ReLU6),
    "hardswish": _activation(
        "hardswish", F.hardswish, _of_source(_ATEN.hardswish_backward.default), nn.Hardswish
    ),
    "hardsigmoid": _activation(
        "hardsigmoid",
        F.hardsigmoid,
        _of_source(_ATEN.hardsigmoid_backward.default),
        lambda _: nn.Hardsigmoid(),
    ),
    "sigmoid": _activation(
        "sigmoid",
        torch.sigmoid,
        _of_result(_ATEN.sigmoid_backward.default, torch.sigmoid),
        lambda _: nn.Sigmoid(),
    ),
    "tanh": _activation(
        "tanh",
        torch.tanh,
        _of_result(_ATEN.tanh_backward.default, torch.tanh),
        lambda _: nn.Tanh(),
    ),
    "softplus": _activation(
        "softplus", F.softplus, _of_source(_softplus_gradient), lambda _: nn.Softplus()
    ),
    "elu": _activation(
        "elu", F.elu, _of_result(_elu_gradient, F.elu), lambda overwrites: nn.ELU(1.0, overwrites)
    ),
    "silu": _activation("silu", F.silu, _of_source(_ATEN.silu_backward.default), nn.SiLU),
    "mish": _activation("mish", F.mish, _of_source(_ATEN.mish_backward.default), nn.Mish),
    "gelu": _activation(
        "gelu", F.gelu, _of_source(_ATEN.gelu_backward.default), lambda _: nn.GELU()
    ),
    "gelu-tanh": _activation(
        "gelu",
        functools.partial(F.gelu, approximate="tanh"),
        _of_source(_gelu_tanh_gradient),
        lambda _: nn.GELU("tanh"),
    ),
    "scale": LayerCalls(
        recipes=_passes(
            forward=("aten::mul", _call(_own(operator.mul), "src", "src2")),
            backward_data=(
                "aten::mul + aten::mul + aten::sum",
                _call(_scale_gradient, "dst", "src", "src2", plain=by_role("src", "src2")),
            ),
        ),
        in_network=lambda _, site: NodeCall(operator.mul, site.inputs),
    ),
    "add": LayerCalls(
        recipes=_passes(forward=("aten::add", _call(_own(operator.add), "src", "src2"))),
        in_network=_add_in_network,
        overwritable=True,
    ),
    "concat": LayerCalls(
        recipes=concat_recipes,
        in_network=lambda _, site: NodeCall(torch.cat, (list(site.inputs), 1)),
    ),
    "dropout": LayerCalls(
        recipes=dropout_recipes,
        in_network=lambda layer, site: NodeCall(nn.Dropout(1 - layer.keep), site.inputs),
    ),
    "lrn": LayerCalls(recipes=lrn_recipes, in_network=lrn_in_network),
    "batchnorm": LayerCalls(
        recipes=batchnorm_recipes, in_network=batchnorm_in_network, overwritable=True
    ),
    "softmax": _softmax("_softmax", torch.softmax),
    "log-softmax": _softmax("_log_softmax", torch.log_softmax),
    "layernorm": LayerCalls(recipes=layernorm_recipes),
    "softmax-xent": LayerCalls(recipes=loss_recipes),
    "l2": LayerCalls(recipes=l2_recipes),
    "sgd": LayerCalls(recipes=sgd_recipes),
    "momentum": LayerCalls(recipes=momentum_recipes),
}
