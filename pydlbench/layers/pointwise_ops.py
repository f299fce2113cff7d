"""What the memory-bound operations read and write, and how many FLOPs each element costs.

An operation that is not listed with a pass has none: the gradient of an addition is the incoming
gradient itself, for both of its sources, and optimizers have nothing behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One pass of an operation.

    Roles are those of :class:`~pydlbench.layers.pointwise.Pointwise`. One that is read and written
    stands for two tensors, a value and the gradient of it, unless it is among ``updates``.

    Attributes:
        reads: Roles of what is read.
        writes: Roles of what is written, the main result first.
        updates: Roles that are read and overwritten.
        flops: Per element of the largest tensor: an addition, multiplication, division, comparison,
            root, power, exponential or logarithm is one. What is done only once per channel, image
            or tensor is left out.
        tap_flops: Per element and channel of its neighbourhood.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    updates: tuple[str, ...] = ()
    flops: int
    tap_flops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One kind of memory-bound layer.

    Attributes:
        steps: By pass.
        parameters: Fields of the layer beside its sizes.
        of_weights: It works on a weight tensor, which has neither batch nor sides.
        flat: It has no sides.
        rows: It works along the last axis, the width, of each row of each channel.
        weights: Roles of trained tensors.
        in_float32: Roles of what is float32 whatever the precision: parameters of a normalisation,
            and what is summed up over a whole tensor.
        per_channel: Roles of images that have one element for each channel.
        elementwise: Each element comes from those at its own place, whichever that is: the order of
            elements in memory makes no difference.
        spread: Its formula or its slope changes over [-8, 8); some change where a source is 3 or
            6 from zero.
        training: What the forward pass of training does, where that differs from inference.
    """

    steps: Mapping[str, Step]
    parameters: tuple[str, ...] = ()
    of_weights: bool = False
    flat: bool = False
    rows: bool = False
    weights: tuple[str, ...] = ()
    in_float32: tuple[str, ...] = ()
    per_channel: tuple[str, ...] = ()
    elementwise: bool = False
    spread: bool = False
    training: Step | None = None

    @property
    def in_one_order(self) -> bool:
        """Whether its tensors have one layout only, whatever that of images around them."""
        return self.flat or self.rows


#: How descriptors spell the parameters; ``ls``, ``alpha``, ``beta`` and ``k`` are benchdnn's.
SPELLINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "local_size": "ls",
        "alpha": "alpha",
        "beta": "beta",
        "k": "k",
        "epsilon": "eps",
        "momentum": "mom",
        "keep": "keep",
        "decay": "decay",
        "rate": "lr",
        "mu": "mu",
    }
)

_IMAGES_ONLY: Final = Step(reads=("src",), writes=("dst",), flops=1)
_GRADIENT_ONLY: Final = Step(reads=("dst",), writes=("src",), flops=1)


def _activation(forward: int, backward: int, *, spread: bool = False) -> Operation:
    """Return an activation, by the FLOPs of an element and of its gradient."""
    return Operation(
        steps={
            "forward": Step(reads=("src",), writes=("dst",), flops=forward),
            "backward-data": Step(reads=("src", "dst"), writes=("src",), flops=backward),
        },
        elementwise=True,
        spread=spread,
    )


def _softmax(forward: int, backward: int) -> Operation:
    """Return a softmax, by the FLOPs of an element and of its gradient, which reads the result."""
    return Operation(
        steps={
            "forward": Step(reads=("src",), writes=("dst",), flops=forward),
            "backward-data": Step(reads=("result", "dst"), writes=("src",), flops=backward),
        },
        rows=True,
    )


OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType(
    {
        "bias": Operation(
            steps={
                "forward": Step(reads=("src", "bias"), writes=("dst",), flops=1),
                "backward-weights": Step(reads=("dst",), writes=("bias",), flops=1),
            },
            weights=("bias",),
        ),
        "relu": _activation(1, 1),
        # Two comparisons; the gradient passes where both hold.
        "relu6": _activation(2, 2, spread=True),
        # An addition, two comparisons, a product and a division; backward two comparisons, and a
        # division, an addition and a product.
        "hardswish": _activation(5, 5, spread=True),
        # An addition, two comparisons and a division; backward two comparisons and a division.
        "hardsigmoid": _activation(4, 3, spread=True),
        # A sign, an exponential, an addition, a division; backward of the result: a difference and
        # two products.
        "sigmoid": _activation(4, 3, spread=True),
        # Backward of the result: a square, a difference and a product.
        "tanh": _activation(1, 3, spread=True),
        # An exponential, an addition, a logarithm; backward a sigmoid and a product.
        "softplus": _activation(3, 5, spread=True),
        # A comparison, an exponential, a subtraction; backward a product in place of that.
        "elu": _activation(3, 3, spread=True),
        # A sigmoid and a product; backward a sigmoid, and 1 + src (1 - sigmoid) times two factors.
        "silu": _activation(5, 9, spread=True),
        # A softplus, a tanh, a product; backward both, a sigmoid of the same exponential, a square,
        # a difference, two products, an addition and a product.
        "mish": _activation(5, 11, spread=True),
        # Scaling, the error function, an addition, two products; backward the first four, the
        # density (a square, two products, an exponential), a product, an addition and a product.
        "gelu": _activation(5, 11, spread=True),
        # A polynomial of five, a tanh, an addition, two products; backward the polynomial and its
        # derivative of three, a tanh and 1 - tanh^2 (two), the two summands (two and three), their
        # sum and a product.
        "gelu-tanh": _activation(9, 18, spread=True),
        # Backward a product for the images, and a product and an addition for the factors.
        "scale": Operation(
            steps={
                "forward": Step(reads=("src", "src2"), writes=("dst",), flops=1),
                "backward-data": Step(
                    reads=("src", "src2", "dst"), writes=("src", "src2"), flops=3
                ),
            },
            per_channel=("src2",),
        ),
        "lrn": Operation(
            steps={
                # Scale the sum of squares, add k, raise, multiply.
                "forward": Step(reads=("src",), writes=("dst",), flops=4, tap_flops=2),
                # The same again up to the power; the gradient times it; a ratio of two more, whose
                # sum over the neighbourhood is scaled, multiplied and subtracted.
                "backward-data": Step(reads=("src", "dst"), writes=("src",), flops=9, tap_flops=3),
            },
            parameters=("local_size", "alpha", "beta", "k"),
        ),
        "batchnorm": Operation(
            steps={
                "forward": Step(
                    reads=("src", "weights", "bias", "mean", "variance"), writes=("dst",), flops=2
                ),
                # Four for the two sums, four for the combination of gradient and source.
                "backward-data": Step(
                    reads=("src", "dst", "weights", "mean", "variance"),
                    writes=("src", "weights", "bias"),
                    flops=8,
                ),
            },
            training=Step(
                reads=("src", "weights", "bias", "running_mean", "running_variance"),
                writes=("dst", "mean", "variance", "running_mean", "running_variance"),
                updates=("running_mean", "running_variance"),
                flops=5,
            ),
            parameters=("epsilon", "momentum"),
            weights=("weights", "bias"),
            in_float32=(
                *("weights", "bias", "mean", "variance"),
                *("running_mean", "running_variance"),
            ),
        ),
        "add": Operation(
            steps={"forward": Step(reads=("src", "src2"), writes=("dst",), flops=1)},
            elementwise=True,
        ),
        # "src" stands for all sources.
        "concat": Operation(
            steps={
                "forward": Step(reads=("src",), writes=("dst",), flops=0),
                "backward-data": Step(reads=("dst",), writes=("src",), flops=0),
            },
            parameters=("sources",),
        ),
        "softmax-xent": Operation(
            steps={
                # Maximum, difference, exponential, sum, quotient.
                "forward": Step(reads=("src", "labels"), writes=("dst", "loss"), flops=5),
                "backward-data": Step(reads=("dst", "labels"), writes=("src",), flops=1),
            },
            flat=True,
            in_float32=("loss",),
        ),
        # Maximum, difference, exponential, sum, quotient; backward a product and a sum over the
        # row, a difference and a product.
        "softmax": _softmax(5, 4),
        # In place of the quotient the logarithm, which is one of a row, is subtracted; backward a
        # sum over the row, an exponential, a product and a difference.
        "log-softmax": _softmax(5, 4),
        "layernorm": Operation(
            steps={
                # The sums of differences and of their squares (3), and what scales and shifts (4).
                "forward": Step(reads=("src", "weights", "bias"), writes=("dst",), flops=7),
                # Differences times the root (2), the sums for both trained vectors (3), the
                # gradient times the weights (1), its two sums over the row (3), and the
                # combination (5).
                "backward-data": Step(
                    reads=("src", "dst", "weights", "mean", "variance"),
                    writes=("src", "weights", "bias"),
                    flops=14,
                ),
            },
            training=Step(
                reads=("src", "weights", "bias"), writes=("dst", "mean", "variance"), flops=7
            ),
            parameters=("epsilon",),
            rows=True,
            weights=("weights", "bias"),
            in_float32=("weights", "bias", "mean", "variance"),
        ),
        "dropout": Operation(
            steps={"forward": _IMAGES_ONLY, "backward-data": _GRADIENT_ONLY},
            parameters=("keep",),
        ),
        "l2": Operation(
            steps={
                "forward": Step(reads=("weights",), writes=("dst",), flops=2),
                "backward-weights": Step(
                    reads=("weights", "gradient"),
                    writes=("gradient",),
                    updates=("gradient",),
                    flops=2,
                ),
            },
            parameters=("decay",),
            of_weights=True,
            flat=True,
            weights=("weights",),
            in_float32=("dst",),
        ),
        "sgd": Operation(
            steps={
                "forward": Step(
                    reads=("weights", "gradient"),
                    writes=("weights",),
                    updates=("weights",),
                    flops=2,
                ),
            },
            parameters=("rate",),
            of_weights=True,
            flat=True,
            weights=("weights",),
        ),
        "momentum": Operation(
            steps={
                "forward": Step(
                    reads=("weights", "velocity", "gradient"),
                    writes=("weights", "velocity"),
                    updates=("weights", "velocity"),
                    flops=4,
                ),
            },
            parameters=("rate", "mu"),
            of_weights=True,
            flat=True,
            weights=("weights",),
        ),
    }
)
