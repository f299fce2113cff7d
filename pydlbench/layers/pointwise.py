"""Layers bound by memory: activations, normalisations, losses, and the steps of optimizers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, Self

from pydlbench.errors import UsageError, nearest
from pydlbench.layers.base import (
    Kind,
    check_pass,
    check_total,
    malformed,
    read_name,
    read_number,
    read_real,
    set_integers,
    set_reals,
    spell,
)
from pydlbench.layers.pointwise_ops import OPERATIONS, SPELLINGS, Operation, Step
from pydlbench.layers.window import Axis

# -----------------------------------------------------------------------------
# Checks of a memory-bound layer's sizes and parameters against its operation.


def check_operation(layer: Pointwise) -> None:
    """Refuse an operation that does not exist.

    Raises:
        UsageError: No such operation.
    """
    if layer.op not in OPERATIONS:
        choices = nearest(str(layer.op), OPERATIONS) or list(OPERATIONS)
        raise UsageError(f"op={layer.op!r}: no such operation; nearest: {', '.join(choices)}")


def check_sides(layer: Pointwise) -> None:
    """Refuse sizes that an operation has no use for, and channels that are not those joined.

    Raises:
        UsageError: A height or width of what is flat, a batch of weights, or other sources.
    """
    operation = OPERATIONS[layer.op]
    without = {"height": layer.height, "width": layer.width} if operation.flat else {}
    if operation.of_weights:
        without |= {"batch": layer.batch}
    for field, size in without.items():
        if size != 1:
            raise UsageError(f"{field}={size}: {layer.op} has none; nearest: 1")
    if layer.op != "concat":
        return
    if len(layer.sources) < 2 or min(layer.sources) < 1:
        raise UsageError(f"sources={layer.sources}: at least two, each of at least 1 channel")
    total = sum(layer.sources)
    if total != layer.channels:
        raise UsageError(f"channels={layer.channels}: not the sum of the sources; nearest: {total}")


def check_parameters(layer: Pointwise) -> None:
    """Refuse what is out of range, and what another operation has: it would be ignored.

    Raises:
        UsageError: A share above one, an even neighbourhood, or another operation's parameter.
    """
    for field in ("momentum", "keep", "mu"):
        if getattr(layer, field) > 1:
            raise UsageError(f"{field}={getattr(layer, field)!r}: too large; at most 1")
    if layer.local_size % 2 == 0:
        raise UsageError(
            f"local_size={layer.local_size}: has no middle; nearest: {layer.local_size + 1}"
        )
    own = OPERATIONS[layer.op].parameters
    choices = f"it has {', '.join(own)}" if own else "it has none"
    for field, value in changed(layer).items():
        if field not in own:
            raise UsageError(f"{field}={value!r}: {layer.op} has no such parameter; {choices}")


def changed(layer: Pointwise) -> dict[str, Any]:
    """Return the parameters that are not at their defaults, by field."""
    return {
        field.name: getattr(layer, field.name)
        for field in fields(layer)
        if field.name in (*SPELLINGS, "sources") and getattr(layer, field.name) != field.default
    }


_FLOAT32_BYTES = 4
_LABEL_BYTES = 4  # int32


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise(Kind):
    """An operation on each element of NCHW images ``(batch, channels, height, width)``.

    ``M`` is ``batch * height * width``; ``src``, ``dst`` and so on are the roles of the tensors, a
    gradient has the role of its tensor, and ``dst`` is the incoming one in backward passes.

    - ``bias``: ``dst = src + bias[c]``; backward-weights sums the gradient over all but channels.
    - ``relu``: ``max(src, 0)``; backward-data passes the gradient on where ``src > 0``.
    - ``relu6``: ``min(max(src, 0), 6)``; backward-data passes the gradient on in between.
    - ``hardsigmoid``: ``relu6(src + 3) / 6``, and ``hardswish``: ``src`` times that (A. Howard et
      al., Searching for MobileNetV3, 2019, section 5.2).
    - ``sigmoid``: ``1 / (1 + exp(-src))``; ``tanh``; ``softplus``: ``log(1 + exp(src))``; ``elu``:
      ``exp(src) - 1`` below zero, else ``src``.
    - ``silu``: ``src * sigmoid(src)``; ``mish``: ``src * tanh(softplus(src))``.
    - ``gelu``: ``src * (1 + erf(src / sqrt(2))) / 2``, and ``gelu-tanh``, its approximation
      ``src * (1 + tanh(sqrt(2 / pi) * (src + 0.044715 src**3))) / 2`` (D. Hendrycks and K. Gimpel,
      2016).
    - ``scale``: ``src * src2``, where ``src2`` has one factor for each channel of each image, as a
      squeeze-and-excitation has them. backward-data gives both gradients.
    - ``lrn``: ``dst = src / d**beta`` with ``d = k + alpha / local_size * sum(src**2)`` over the
      ``local_size`` channels around each one (A. Krizhevsky et al., 2012), alpha being that of
      cuDNN. TensorFlow's ``alpha`` is this ``alpha / local_size``, its ``depth_radius`` is
      ``(local_size - 1) / 2``, and its ``bias`` is ``k``.
    - ``batchnorm``: ``(src - mean) / sqrt(variance + epsilon) * weights + bias`` per channel, with
      given statistics in inference. Training takes those of the batch (biased), and moves the
      running ones by ``momentum`` towards them (the variance unbiased, times ``M / (M - 1)``).
      backward-data is that of training, and gives the gradients of all three.
    - ``add``: ``src + src2``. Both gradients are the incoming one, so nothing is left to compute.
    - ``concat``: images of ``sources`` channels each, behind one another; backward-data takes them
      apart.
    - ``softmax-xent``: probabilities ``dst`` and the mean cross entropy ``loss`` of ``batch`` rows
      of ``channels`` logits with integer ``labels``; backward-data is
      ``(probability - (channel == label)) / batch``, with the probabilities as its ``dst``.
    - ``softmax``: ``exp(src)`` over its sum, along the last axis (the width), and ``log-softmax``:
      the logarithm of it. Both gradients read the ``result`` of the forward pass.
    - ``layernorm``: ``(src - mean) / sqrt(variance + epsilon) * weights + bias`` with the (biased)
      statistics of each row along the last axis, whose elements ``weights`` and ``bias`` belong to
      (J. Ba et al., 2016). Training keeps the statistics, backward-data reads them and gives the
      gradients of all three.
    - ``dropout``: ``src / keep`` where a hash of the element's index is below ``keep``, else zero.
      Both passes compute the hash, so there is no mask to move.
    - ``l2``: ``sum(weights**2) / 2``; backward-weights adds ``decay * weights`` to the gradient.
    - ``sgd``: ``weights -= rate * gradient``.
    - ``momentum``: ``velocity = mu * velocity + gradient; weights -= rate * velocity``.

    The last three work on a weight tensor of ``channels`` elements, which has no batch.

    Attributes:
        op: One of the operations.
        channels: Of the images; the classes of a softmax; the elements of a weight tensor.
        batch: Images.
        height: Rows.
        width: Columns.
        local_size: Channels of a neighbourhood, odd.
        alpha: Factor of the mean square in a neighbourhood.
        beta: Exponent.
        k: What the mean square is added to.
        epsilon: What the variance is added to.
        momentum: How far running statistics move.
        sources: Channels of what is joined.
        keep: Probability of an element to stay.
        decay: Factor of the weights in their gradient.
        rate: Learning rate.
        mu: How much of the velocity stays.
        name: How to call the layer in tables.

    Raises:
        UsageError: No such operation, a size below one, a parameter out of its range or not of this
            operation, or tensors of 2**63 bytes and more.
    """

    kind: ClassVar[str] = "pointwise"

    op: str
    channels: int
    batch: int = 1
    height: int = 1
    width: int = 1
    local_size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    epsilon: float = 1e-5
    momentum: float = 0.1
    sources: tuple[int, ...] = ()
    keep: float = 0.5
    decay: float = 5e-4
    rate: float = 0.01
    mu: float = 0.9
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        check_operation(self)
        set_integers(self, 1, "batch", "channels", "height", "width", "local_size")
        set_reals(self, "k", "epsilon", "keep", above_zero=True)
        set_reals(self, "alpha", "beta", "momentum", "decay", "rate", "mu")
        # A list, when it was read from JSON.
        object.__setattr__(self, "sources", tuple(self.sources))
        check_sides(self)
        check_parameters(self)
        for pass_ in self.passes:
            check_total(**self.operands(pass_))

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes that this operation has."""
        return tuple(self._operation.steps)

    @property
    def parameters(self) -> dict[str, float | int | tuple[int, ...]]:
        """The operation's own parameters by name."""
        return {field: getattr(self, field) for field in self._operation.parameters}

    @property
    def weight_elements(self) -> int:
        """Elements of what is trained: biases, scales, or a weight tensor."""
        return sum(math.prod(self.dims(role)) for role in self._operation.weights)

    @property
    def problem(self) -> str:
        """The canonical descriptor: ``lrn:mb128ic64ih56ls11k2``, ``momentum:ic37748736``.

        Sides of one and parameters at their defaults are left out.
        """
        text = "" if self._operation.of_weights else f"mb{self.batch}"
        text += f"ic{'+'.join(map(str, self.sources)) or self.channels}"
        if (self.height, self.width) != (1, 1):
            text += f"ih{self.height}"
            text += f"iw{self.width}" if self.width != self.height else ""
        for field, value in changed(self).items():
            if field in SPELLINGS:
                text += f"{SPELLINGS[field]}{spell(value)}"
        return f"{self.op}:{text}"

    def with_batch(self, batch: int) -> Self:
        """Return the same layer for another number of images; weights are the same for any."""
        return self if self._operation.of_weights else replace(self, batch=batch)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor that some pass reads or writes, by role."""
        return {
            role: self.dims(role)
            for pass_ in self.passes
            for propagation in ("inference", "training")
            for role in (*self.reads(pass_, propagation), *self.writes(pass_, propagation))
        }

    def problem_fields(self) -> dict[str, Any]:
        """Return the operation with its passes and parameters, and the sizes."""
        sizes = ("op", "batch", "channels", "height", "width")
        one_order = self._operation.in_one_order or self._operation.of_weights
        of_operation = {"passes": list(self.passes), "in_one_order": one_order}
        return {field: getattr(self, field) for field in sizes} | of_operation | self.parameters

    @classmethod
    def claims(cls, text: str, pool: str | None) -> bool:  # noqa: ARG003 - of poolings
        """Whether a descriptor starts with an operation, perhaps a misspelt one, and a colon."""
        return _START.match(text) is not None

    @classmethod
    def parse(cls, text: str, pool: str | None) -> Self:  # noqa: ARG003 - of poolings
        """Read ``op:fields``; of weights there is no batch."""
        op, _, _ = text.partition(":")
        if op not in OPERATIONS:
            choices = ", ".join(nearest(op, OPERATIONS) or OPERATIONS)
            raise malformed(0, f"expected an operation; nearest: {choices}", op)
        values, name = _scan(text, op)
        if "channels" not in values:
            raise malformed(len(text), "expected ic (channels), which is missing", "")
        values.setdefault("width", values.get("height", 1))
        return cls(op=op, name=name, **values)

    def reads(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:
        """Return the roles of what a pass reads."""
        return self._all_sources(self._step(pass_, propagation).reads)

    def writes(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:
        """Return the roles of what a pass writes, its main result first."""
        return self._all_sources(self._step(pass_, propagation).writes)

    def in_float32(self, role: str) -> bool:
        """Whether a tensor is float32 whatever the precision."""
        return role in self._operation.in_float32

    def dims(self, role: str) -> tuple[int, ...]:
        """Return the shape of a tensor: NCHW, or one dimension."""
        if role in ("loss", "labels"):
            return (1,) if role == "loss" else (self.batch,)
        if self._operation.of_weights:
            return (1,) if role == "dst" else (self.channels,)
        if not role.startswith(("src", "dst", "result")):
            if not self._operation.rows:
                return (self.channels,)
            trained = role in self._operation.weights
            return (self.width if trained else self.batch * self.channels * self.height,)
        if role in self._operation.per_channel:
            return self.batch, self.channels, 1, 1
        channels = self.channels
        if self.sources and role != "dst":
            channels = self.sources[int(role[3:] or 1) - 1]
        return self.batch, channels, self.height, self.width

    def flops(self, pass_: str) -> int:
        """Return the FLOPs, neighbours beyond the first and the last channel counted.

        Per element: bias, relu, add and dropout 1, concat 0, sgd, l2 and relu6 2, momentum 4;
        hardswish 5, hardsigmoid 4 forward and 3 backward, scale 1 forward and 3 backward; further
        activations, softmax and layernorm as :data:`~pydlbench.layers.pointwise_ops.OPERATIONS`
        adds them up; lrn
        ``4 + 2 local_size`` forward and ``9 + 3 local_size`` backward; batchnorm 2 forward (the
        statistics of training are 3 more) and 8 backward; softmax-xent 5 forward and 1 backward. A
        power, a root, an exponential or a comparison counts as one, and what is done once per
        channel, image or tensor is left out.
        """
        step = self._step(pass_)
        return self._elements * (step.flops + step.tap_flops * self.local_size)

    def flops_executed(self, pass_: str) -> int:
        """Return the FLOPs without neighbours beyond the first and the last channel."""
        step = self._step(pass_)
        taps = 0
        if step.tap_flops:
            channels = Axis(
                size=self.channels,
                out=self.channels,
                kernel=self.local_size,
                stride=1,
                dilation=1,
                pad=self.local_size // 2,
            )
            taps = self._elements // self.channels * channels.taps()
        return self._elements * step.flops + taps * step.tap_flops

    def bytes(self, pass_: str, itemsize: int) -> int:
        """Return the least bytes moved: what is read once, and what is written once.

        The second reading of images by a batch normalisation, of training and backward, which no
        kernel avoids unless they fit into a cache, is not counted; nor are the running statistics
        of training.

        Args:
            pass_: One of the layer's passes.
            itemsize: Bytes per element; those of statistics and losses are four, and of labels too.
        """
        return sum(
            math.prod(self.dims(role)) * self._itemsize(role, itemsize)
            for role in (*self.reads(pass_), *self.writes(pass_))
        )

    @property
    def _operation(self) -> Operation:
        return OPERATIONS[self.op]

    @property
    def _elements(self) -> int:
        return self.batch * self.channels * self.height * self.width

    def _itemsize(self, role: str, itemsize: int) -> int:
        if role == "labels":
            return _LABEL_BYTES
        return _FLOAT32_BYTES if self.in_float32(role) else itemsize

    def _step(self, pass_: str, propagation: str = "inference") -> Step:
        check_pass(pass_, self.passes, self.op)
        training = self._operation.training
        if training is not None and (pass_, propagation) == ("forward", "training"):
            return training
        return self._operation.steps[pass_]

    def _all_sources(self, roles: tuple[str, ...]) -> tuple[str, ...]:
        """Replace the one source by all that are joined."""
        if "src" not in roles or not self.sources:
            return roles
        return ("src", *(f"src{number}" for number in range(2, len(self.sources) + 1)))


# -----------------------------------------------------------------------------
# Reading memory-bound layers: ``relu:mb128ic96ih55``, ``concat:mb32ic64+128+32ih28``.
#
# The operation and a colon, then fields in benchdnn's manner, in any order, ``_`` ignored: ``mb``
# batch, ``ic`` channels (of each source, joined by ``+``, where images are), ``ih`` ``iw`` sides,
# the operation's parameters (``ls11``, ``alpha0.0011``, ``eps0.001``, ``lr0.01`` and so on), and a
# name ``n"..."`` at the end. A missing width takes the height's value, and without both they are
# one.

# A colon between digits belongs to a matrix product, and one behind n" to a name.
_START: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]*:")
_SIZES: Final = {"mb": "batch", "ic": "channels", "ih": "height", "iw": "width", "ls": "local_size"}


def _scan(text: str, op: str) -> tuple[dict[str, Any], str | None]:
    """Return the layer's fields behind the operation, and its name."""
    own = {SPELLINGS[field]: field for field in OPERATIONS[op].parameters if field in SPELLINGS}
    known = {**_SIZES, **own}
    if "ls" not in own:
        del known["ls"]
    values: dict[str, Any] = {}
    position = len(op) + 1
    while position < len(text):
        if text[position] == "_":
            position += 1
            continue
        if text[position] == "n":
            return values, read_name(text, position)
        spelling = next((one for one in known if text.startswith(one, position)), None)
        if spelling is None:
            raise malformed(position, f"expected a field ({' '.join(known)} n)", text[position:])
        field = known[spelling]
        if field in values:
            raise malformed(position, f"expected {spelling} only once", text[position:])
        start = position + len(spelling)
        if op == "concat" and spelling == "ic":
            values["sources"], position = _sources(text, start)
            values["channels"] = sum(values["sources"])
        elif spelling in _SIZES:
            values[field], position = read_number(text, start, spelling, 1)
        else:
            values[field], position = read_real(text, start, spelling)
    return values, None


def _sources(text: str, position: int) -> tuple[tuple[int, ...], int]:
    """Read ``64+128+32``."""
    found = []
    while True:
        channels, position = read_number(text, position, "ic", 1)
        found.append(channels)
        if not text.startswith("+", position):
            break
        position += 1
    if len(found) < 2:
        raise malformed(position, "expected + and the channels of another source", text[position:])
    return tuple(found), position
