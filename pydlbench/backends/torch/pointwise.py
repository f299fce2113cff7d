"""Memory-bound layers through ATen's operators, as a model's step runs them one after the other."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself

from pydlbench.backends.torch.operator import FORMATS, Made, Place, Recipe
from pydlbench.backends.verification.inputs import kept_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from pydlbench.layers.pointwise import Pointwise

__all__ = ["pointwise_recipes"]


# -----------------------------------------------------------------------------
# What the recipes of memory-bound layers are made of: operands by role, in their types.


class Parts:
    """Operands of one layer, by role.

    Args:
        layer: The layer.
        inputs: Plain float32 arrays by role.
        place: Where tensors live.
        like: Memory format of images.
    """

    def __init__(
        self,
        layer: Pointwise,
        inputs: Mapping[str, NDArray[Any]],
        place: Place,
        like: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.layer = layer
        self.place = place
        self.like = like
        self._inputs = inputs

    def operand(self, role: str) -> torch.Tensor:
        """Return what has a role: images in their format, parameters and statistics in rows."""
        array = self._inputs[role]
        if role == "labels":
            return torch.from_numpy(array.astype(np.int64)).to(self.place.device)
        dtype = torch.float32 if self.layer.in_float32(role) else None
        return self.place.tensor(array, self.like if array.ndim == 4 else None, dtype)

    def mask(self) -> torch.Tensor:
        """Return the reference's mask of a dropout: ones where elements stay, else zeros."""
        shape = self.layer.dims("src")
        whole = tuple(slice(0, size) for size in shape)
        kept = kept_elements(shape, whole, self.layer.keep)
        return self.place.tensor(kept.astype(np.float32), self.like)


def itself(result: Any) -> Any:
    """Return the one result that there is."""
    return result


def made(
    function: Callable[..., Any],
    *arguments: torch.Tensor,
    plain: Callable[[Any], Any] = itself,
    updated: tuple[int, ...] = (),
    turns: tuple[float, ...] = (),
) -> Made:
    """Return a function with its operands; see :class:`Made`."""
    return Made(function=function, arguments=arguments, plain=plain, updated=updated, turns=turns)


def image_recipes(
    layer: Pointwise,
    pass_: str,
    algorithm: str,
    make: Callable[[Parts], Made],
    *,
    accumulate: str = "float32",
    notes: tuple[str, ...] = (),
    training: bool = False,
) -> list[Recipe]:
    """List the ways to run a pass on images: one per memory format.

    Args:
        layer: The layer.
        pass_: One of its passes.
        algorithm: PyTorch's name of what is called.
        make: Puts operands in place.
        accumulate: What sums are kept in.
        notes: What a reader has to know.
        training: Whether a forward pass is that of a training.
    """

    def recipe(word: str) -> Recipe:
        def put(inputs: Mapping[str, NDArray[Any]], place: Place) -> Made:
            return make(Parts(layer, inputs, place, FORMATS[word]))

        return Recipe(
            algorithm=algorithm,
            layout=_layout(layer, pass_, word, training=training),
            variant=word,
            make=put,
            accumulate=accumulate,
            notes=notes,
        )

    return [recipe(word) for word in FORMATS]


def _layout(layer: Pointwise, pass_: str, word: str, *, training: bool = False) -> str:
    """Return the layouts of a pass's images: ``src nhwc, dst nhwc``."""
    kind = "training" if training else "inference"
    roles = dict.fromkeys((*layer.reads(pass_, kind), *layer.writes(pass_, kind)))
    images = [role for role in roles if role.startswith(("src", "dst"))]
    return ", ".join(f"{role} {word}" for role in sorted(images, key=_order))


def _order(role: str) -> tuple[bool, int]:
    return role == "dst", int(role[3:] or 1)


def flat_recipe(
    layer: Pointwise,
    algorithm: str,
    make: Callable[[Parts], Made],
    *,
    layout: str,
    accumulate: str = "float32",
    notes: tuple[str, ...] = (),
) -> list[Recipe]:
    """List the one way to run a pass on rows of logits or on weights; as ``image_recipes``."""

    def put(inputs: Mapping[str, NDArray[Any]], place: Place) -> Made:
        return make(Parts(layer, inputs, place))

    return [
        Recipe(
            algorithm=algorithm,
            layout=layout,
            variant="plain",
            make=put,
            accumulate=accumulate,
            notes=notes,
        )
    ]


# -----------------------------------------------------------------------------
# The loss: softmax and cross entropy, which PyTorch computes as logarithms of probabilities.
#
# Logits in a half precision are converted to float32 first and their gradient back, as automatic
# mixed precision does.

_MEAN = 1  # ATen's number of that reduction
_IGNORED = -100  # a label that counts for nothing; the default


def loss_recipes(layer: Pointwise, pass_: str) -> list[Recipe]:
    """List the one way to run a pass of a softmax with cross entropy."""
    if pass_ == "forward":
        name = "aten::_log_softmax + aten::nll_loss"
        return flat_recipe(layer, name, _forward, layout="src nc, dst nc")
    name = "aten::nll_loss_backward + aten::_log_softmax_backward_data"
    return flat_recipe(layer, name, _backward, layout="src nc, dst nc")


def _forward(parts: Parts) -> Made:
    # What torch.nn.functional.cross_entropy does; autograd keeps the logarithms.
    def loss(x: torch.Tensor, labels: torch.Tensor) -> Any:
        logarithms = torch.log_softmax(x.float(), 1)
        return torch.nn.functional.nll_loss(logarithms, labels), logarithms

    shape = parts.layer.dims("dst")

    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        mean, logarithms = results
        return {"dst": logarithms.exp().reshape(shape), "loss": mean.reshape(1)}

    return made(loss, parts.operand("src").flatten(1), parts.operand("labels"), plain=plain)


def _backward(parts: Parts) -> Made:
    loss_backward = torch.ops.aten.nll_loss_backward.default
    softmax_backward = torch.ops.aten._log_softmax_backward_data.default  # noqa: SLF001 - its name
    stored = parts.place.dtype

    def gradient(
        outer: torch.Tensor, logarithms: torch.Tensor, labels: torch.Tensor, count: torch.Tensor
    ) -> Any:
        found = loss_backward(outer, logarithms, labels, None, _MEAN, _IGNORED, count)
        return softmax_backward(found, logarithms, 1, torch.float32).to(stored)

    shape = parts.layer.dims("src")

    def plain(result: Any) -> torch.Tensor:
        found: torch.Tensor = result.reshape(shape)
        return found

    logarithms = parts.operand("dst").flatten(1).float().log()
    one = torch.ones((), device=parts.place.device)
    count = one * parts.layer.batch
    return made(gradient, one, logarithms, parts.operand("labels"), count, plain=plain)


# -----------------------------------------------------------------------------
# Weight decay and the steps of optimizers, by the operators that ``torch.optim.SGD`` calls.
#
# Its default on a CPU is one operator after the other for each tensor, on a GPU the ``foreach``
# ones. Calls step forth and back in turn, see :class:`~pydlbench.backends.torch.operator.Made`.


def update_recipes(layer: Pointwise, pass_: str, *, on_gpu: bool, stored: str) -> list[Recipe]:
    """List the one way to run an L2 term or an optimizer.

    Args:
        layer: ``l2``, ``sgd`` or ``momentum``.
        pass_: One of its passes.
        on_gpu: Whether a GPU runs it.
        stored: Data type of the weights, in which each operator of a chain rounds.
    """
    layout = ", ".join(dict.fromkeys(layer.reads(pass_)))
    if (layer.op, pass_) == ("l2", "forward"):
        name = "aten::pow + aten::sum + aten::div"
        return flat_recipe(layer, name, _norm, layout=layout)
    if layer.op == "l2":
        return flat_recipe(layer, "aten::add", _decay, layout=layout)
    if layer.op == "sgd":
        name = "aten::_foreach_add_" if on_gpu else "aten::add_"
        make = _foreach_descent if on_gpu else _descent
        return flat_recipe(layer, name, make, layout=layout)
    name = "aten::mul_ + aten::add_ + aten::add_"
    make = _momentum
    if on_gpu:
        name = "aten::_foreach_mul_ + aten::_foreach_add_ + aten::_foreach_add_"
        make = _foreach_momentum
    return flat_recipe(layer, name, make, layout=layout, accumulate=stored)


def _norm(parts: Parts) -> Made:
    # Summed in float32 whatever is stored; nothing is converted where that is float32.
    def half_of_squares(w: torch.Tensor) -> Any:
        return w.float().pow(2).sum() / 2

    return made(half_of_squares, parts.operand("weights"), plain=lambda result: result.reshape(1))


def _decay(parts: Parts) -> Made:
    decay = parts.layer.decay

    def added(g: torch.Tensor, w: torch.Tensor) -> Any:
        return g.add(w, alpha=decay)

    return made(added, parts.operand("gradient"), parts.operand("weights"))


def _descent(parts: Parts) -> Made:
    def step(w: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        return w.add_(g, alpha=-rate)

    return _updating(parts, step)


def _foreach_descent(parts: Parts) -> Made:
    def step(w: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        torch._foreach_add_([w], [g], alpha=-rate)
        return w

    return _updating(parts, step)


def _updating(parts: Parts, step: Any) -> Made:
    rate = parts.layer.rate
    arguments = parts.operand("weights"), parts.operand("gradient")
    return made(step, *arguments, updated=(0,), turns=(rate, -rate))


def _momentum(parts: Parts) -> Made:
    mu = parts.layer.mu

    def step(w: torch.Tensor, v: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        v.mul_(mu).add_(g, alpha=1)
        w.add_(v, alpha=-rate)
        return w, v

    return _with_velocity(parts, step)


def _foreach_momentum(parts: Parts) -> Made:
    mu = parts.layer.mu

    def step(w: torch.Tensor, v: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        torch._foreach_mul_([v], mu)
        torch._foreach_add_([v], [g], alpha=1)
        torch._foreach_add_([w], [v], alpha=-rate)
        return w, v

    return _with_velocity(parts, step)


def _with_velocity(parts: Parts, step: Any) -> Made:
    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        return {"weights": results[0], "velocity": results[1]}

    rate = parts.layer.rate
    arguments = (parts.operand(role) for role in ("weights", "velocity", "gradient"))
    return made(step, *arguments, plain=plain, updated=(0, 1), turns=(rate, -rate))


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
_BATCH = {
    "forward": "aten::native_batch_norm",
    "backward-data": "aten::native_batch_norm_backward",
}


def local_response(layer: Pointwise, pass_: str, *, on_gpu: bool, stored: str) -> list[Recipe]:
    """List the ways to run a pass of a local response normalisation.

    Args:
        layer: The layer.
        pass_: One of its passes.
        on_gpu: Whether a GPU runs it; CPUs have the chain in float32 only.
        stored: Data type of what is stored: each operator of the chain rounds to it.
    """
    converts = stored != "float32" and not on_gpu
    name = f"aten::_to_copy + {_LRN[pass_]} + aten::_to_copy" if converts else _LRN[pass_]
    make = _lrn if pass_ == "forward" else _lrn_gradient
    notes = ["a chain of operators, each reading and writing memory; torch has no kernel for it"]
    if converts:
        notes.append(f"torch has no avg_pool3d in {stored} on CPUs: converted to float32 and back")
    return image_recipes(
        layer,
        pass_,
        name,
        functools.partial(make, converts=converts),
        accumulate="float32" if converts else stored,
        notes=tuple(notes),
    )


def batch(layer: Pointwise, pass_: str, *, training: bool) -> list[Recipe]:
    """List the ways to run a pass of a batch normalisation.

    Args:
        layer: The layer.
        pass_: One of its passes.
        training: Whether a forward pass takes the statistics of its batch.
    """
    make = _statistics if training else _inference
    if pass_ != "forward":
        make = _batch_gradient
    return image_recipes(layer, pass_, _BATCH[pass_], make, training=training)


def _lrn(parts: Parts, converts: bool) -> Made:
    layer, stored = parts.layer, parts.place.dtype
    words = layer.local_size, layer.alpha, layer.beta, layer.k

    def normalized(x: torch.Tensor) -> Any:
        return F.local_response_norm(x, *words)

    def converted(x: torch.Tensor) -> Any:
        return F.local_response_norm(x.float(), *words).to(stored)

    return made(converted if converts else normalized, parts.operand("src"))


def _lrn_gradient(parts: Parts, converts: bool) -> Made:
    layer, stored = parts.layer, parts.place.dtype
    size, alpha, beta, k = layer.local_size, layer.alpha, layer.beta, layer.k
    sides = [0, 0, 0, 0, size // 2, (size - 1) // 2]
    cut = [-side for side in sides]
    window = ([size, 1, 1], [1, 1, 1], [0, 0, 0], False, True, None)
    pool_backward = torch.ops.aten.avg_pool3d_backward.default

    # What autograd keeps, computed as the forward pass does.
    source = parts.operand("src")
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

    def converted(
        g: torch.Tensor,
        x: torch.Tensor,
        divisor: torch.Tensor,
        root: torch.Tensor,
        squares: torch.Tensor,
    ) -> Any:
        return gradient(g.float(), x, divisor, root, squares).to(stored)

    operands = parts.operand("dst"), source, power, base, padded
    return made(converted if converts else gradient, *operands)


def _inference(parts: Parts) -> Made:
    normalize = torch.ops.aten.native_batch_norm.default
    momentum, epsilon = parts.layer.momentum, parts.layer.epsilon

    def normalized(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor, v: torch.Tensor
    ) -> Any:
        return normalize(x, w, b, m, v, False, momentum, epsilon)[0]

    return made(normalized, *map(parts.operand, ("src", "weights", "bias", "mean", "variance")))


def _statistics(parts: Parts) -> Made:
    normalize = torch.ops.aten.native_batch_norm.default
    momentum, epsilon = parts.layer.momentum, parts.layer.epsilon

    def normalized(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor, v: torch.Tensor
    ) -> Any:
        return normalize(x, w, b, m, v, True, momentum, epsilon)

    roles = ("src", "weights", "bias", "running_mean", "running_variance")
    operands = [parts.operand(role) for role in roles]

    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        image, mean, inverse = results
        found = {"dst": image, "running_mean": operands[3], "running_variance": operands[4]}
        # The compiler hands out those of half-precision images in their type: rounded, not wrong.
        if mean.dtype == torch.float32:
            found |= {"mean": mean, "variance": inverse.double().pow(-2) - epsilon}
        return found

    # However often they are moved, the running statistics come closer to the batch's.
    return made(normalized, *operands, plain=plain, updated=(3, 4))


def _batch_gradient(parts: Parts) -> Made:
    backward = torch.ops.aten.native_batch_norm_backward.default
    epsilon = parts.layer.epsilon

    def gradient(
        g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, inverse: torch.Tensor
    ) -> Any:
        # The running statistics, which autograd hands on, are not read in training.
        return backward(g, x, w, m, inverse, m, inverse, True, epsilon, [True, True, True])

    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        return dict(zip(("src", "weights", "bias"), results, strict=True))

    inverse = parts.operand("variance").double().add(epsilon).rsqrt().float()
    operands = [parts.operand(role) for role in ("dst", "src", "weights", "mean")]
    return made(gradient, *operands, inverse, plain=plain)


# -----------------------------------------------------------------------------
# Every memory-bound layer: the recipes that a pass has.
#
# What a pass reads from the forward pass (a result of a ReLU, a mask, statistics) is computed
# beforehand, as autograd would have kept it.


def pointwise_recipes(
    layer: Pointwise, pass_: str, *, training: bool, on_gpu: bool, stored: str
) -> list[Recipe]:
    """List the ways to run a pass: one per memory format for images, else one.

    Args:
        layer: The layer.
        pass_: One of its passes.
        training: Whether a forward pass is that of a training.
        on_gpu: Whether a GPU runs it: optimizers take their ``foreach`` operators there.
        stored: Data type of what is stored, in which chains of operators round each step.
    """
    if layer.op in ("l2", "sgd", "momentum"):
        return update_recipes(layer, pass_, on_gpu=on_gpu, stored=stored)
    if layer.op == "softmax-xent":
        return loss_recipes(layer, pass_)
    if layer.op == "lrn":
        return local_response(layer, pass_, on_gpu=on_gpu, stored=stored)
    if layer.op == "batchnorm":
        return batch(layer, pass_, training=training)
    if (layer.op, pass_) == ("concat", "backward-data"):
        return _apart(layer)
    name, make = _MAPS[layer.op, pass_]
    # Each operator of a chain rounds what it writes.
    accumulate = stored if "+" in name else "float32"
    return image_recipes(layer, pass_, name, make, accumulate=accumulate)


def _bias(parts: Parts) -> Made:
    def add(x: torch.Tensor, b: torch.Tensor) -> Any:
        return x + b

    offset = parts.operand("bias").view(1, -1, 1, 1)
    return made(add, parts.operand("src"), offset)


def _bias_gradient(parts: Parts) -> Made:
    def summed(g: torch.Tensor) -> Any:
        return g.sum((0, 2, 3))

    return made(summed, parts.operand("dst"))


def _relu(parts: Parts) -> Made:
    def forward(x: torch.Tensor) -> Any:
        return torch.relu(x)

    return made(forward, parts.operand("src"))


def _relu_gradient(parts: Parts) -> Made:
    backward = torch.ops.aten.threshold_backward.default

    def gradient(g: torch.Tensor, y: torch.Tensor) -> Any:
        return backward(g, y, 0)

    return made(gradient, parts.operand("dst"), torch.relu(parts.operand("src")))


def _of_source(function: Callable[[torch.Tensor], Any]) -> Callable[[Parts], Made]:
    """Return what applies a function to the source."""

    # A function of its own, as the compiler wants one that was made by ``def`` here.
    def of_source(x: torch.Tensor) -> Any:
        return function(x)

    return lambda parts: made(of_source, parts.operand("src"))


def _of_gradient_and_source(
    function: Callable[[torch.Tensor, torch.Tensor], Any],
) -> Callable[[Parts], Made]:
    """Return what applies a function to the incoming gradient and the source."""

    def of_both(g: torch.Tensor, x: torch.Tensor) -> Any:
        return function(g, x)

    return lambda parts: made(of_both, parts.operand("dst"), parts.operand("src"))


def _relu6_gradient(g: torch.Tensor, x: torch.Tensor) -> Any:
    return torch.ops.aten.hardtanh_backward.default(g, x, 0, 6)


def _scale(parts: Parts) -> Made:
    def scaled(x: torch.Tensor, s: torch.Tensor) -> Any:
        return x * s

    return made(scaled, parts.operand("src"), parts.operand("src2"))


def _scale_gradient(parts: Parts) -> Made:
    def gradients(g: torch.Tensor, x: torch.Tensor, s: torch.Tensor) -> Any:
        return g * s, (g * x).sum((2, 3), keepdim=True)

    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        return dict(zip(("src", "src2"), results, strict=True))

    return made(gradients, *map(parts.operand, ("dst", "src", "src2")), plain=plain)


def _add(parts: Parts) -> Made:
    def add(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + y

    return made(add, parts.operand("src"), parts.operand("src2"))


def _concat(parts: Parts) -> Made:
    def joined(*sources: torch.Tensor) -> Any:
        return torch.cat(sources, 1)

    return made(joined, *(parts.operand(role) for role in parts.layer.reads("forward")))


def _dropout(parts: Parts) -> Made:
    rate = 1 - parts.layer.keep

    def dropped(x: torch.Tensor) -> Any:
        return torch.dropout(x, rate, True)

    return made(dropped, parts.operand("src"))


def _dropout_gradient(parts: Parts) -> Made:
    def masked(g: torch.Tensor, noise: torch.Tensor) -> Any:
        return g * noise

    # The forward pass keeps its mask divided by the probability, in the type of the images.
    noise = parts.mask().div_(parts.layer.keep)
    return made(masked, parts.operand("dst"), noise)


def _apart(layer: Pointwise) -> list[Recipe]:
    """Views, as autograd hands them out; and copies, as a convolution behind makes of them."""
    sizes = [layer.dims(role)[1] for role in layer.reads("forward")]
    spans = [(sum(sizes[:place]), size) for place, size in enumerate(sizes)]

    def views(parts: Parts) -> Made:
        def narrowed(g: torch.Tensor) -> Any:
            return [g.narrow(1, *span) for span in spans]

        return made(narrowed, parts.operand("dst"), plain=by_role)

    def copies(parts: Parts) -> Made:
        like = parts.like

        def copied(g: torch.Tensor) -> Any:
            return [g.narrow(1, *span).contiguous(memory_format=like) for span in spans]

        return made(copied, parts.operand("dst"), plain=by_role)

    def by_role(results: Any) -> Mapping[str, torch.Tensor]:
        return dict(zip(layer.writes("backward-data"), results, strict=True))

    note = (
        "autograd hands out views of the incoming gradient, and moves nothing; what reads them in "
        "place (a ReLU) pays nothing, a convolution copies its part first"
    )
    return [
        *image_recipes(layer, "backward-data", "aten::narrow", views, notes=(note,)),
        *image_recipes(layer, "backward-data", "aten::narrow + aten::contiguous", copies),
    ]


_MAPS: Final[Mapping[tuple[str, str], tuple[str, Callable[[Parts], Made]]]] = {
    ("bias", "forward"): ("aten::add", _bias),
    ("bias", "backward-weights"): ("aten::sum", _bias_gradient),
    ("relu", "forward"): ("aten::relu", _relu),
    ("relu", "backward-data"): ("aten::threshold_backward", _relu_gradient),
    ("relu6", "forward"): ("aten::hardtanh", _of_source(F.relu6)),
    ("relu6", "backward-data"): (
        "aten::hardtanh_backward",
        _of_gradient_and_source(_relu6_gradient),
    ),
    ("hardswish", "forward"): ("aten::hardswish", _of_source(F.hardswish)),
    ("hardswish", "backward-data"): (
        "aten::hardswish_backward",
        _of_gradient_and_source(torch.ops.aten.hardswish_backward.default),
    ),
    ("hardsigmoid", "forward"): ("aten::hardsigmoid", _of_source(F.hardsigmoid)),
    ("hardsigmoid", "backward-data"): (
        "aten::hardsigmoid_backward",
        _of_gradient_and_source(torch.ops.aten.hardsigmoid_backward.default),
    ),
    ("scale", "forward"): ("aten::mul", _scale),
    ("scale", "backward-data"): ("aten::mul + aten::mul + aten::sum", _scale_gradient),
    ("add", "forward"): ("aten::add", _add),
    ("concat", "forward"): ("aten::cat", _concat),
    ("dropout", "forward"): ("aten::dropout", _dropout),
    ("dropout", "backward-data"): ("aten::mul", _dropout_gradient),
}
