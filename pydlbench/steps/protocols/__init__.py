"""Published benchmarks: what is inside their number, how often they step, what they print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError, nearest
from pydlbench.steps.protocols import (
    alexnet_tutorial,
    cifar10_tutorial,
    convnet_benchmarks,
    convnet_benchmarks_tf,
    deep_learning_benchmark,
    mnist_tutorial,
    tf_cnn_benchmarks,
)

if TYPE_CHECKING:
    from pydlbench.steps.protocols.protocol import Published

__all__ = ["PROTOCOLS", "find_protocol"]

#: By name, in the order in which they are listed.
PROTOCOLS: Final[dict[str, Published]] = {
    module.PROTOCOL.name: module.PROTOCOL
    for module in (
        alexnet_tutorial,
        mnist_tutorial,
        cifar10_tutorial,
        tf_cnn_benchmarks,
        deep_learning_benchmark,
        convnet_benchmarks,
        convnet_benchmarks_tf,
    )
}


def find_protocol(name: str) -> Published:
    """Return a protocol by name; UsageError with the nearest names for an unknown one."""
    if name in PROTOCOLS:
        return PROTOCOLS[name]
    near = nearest(name, PROTOCOLS) or list(PROTOCOLS)
    raise UsageError(f"--protocol {name}: unknown protocol; nearest: {', '.join(near)}")
