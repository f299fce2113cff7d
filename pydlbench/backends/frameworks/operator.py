"""A pass of a layer as a framework runs it: its function, what that reads, and what it gives."""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.backend import op_of
from pydlbench.backends.frameworks.operands import roles_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.frameworks.operands import LayerLayout
    from pydlbench.records.specs import KernelSpec

    Function = Callable[..., Any]


class FrameworkLayerPass:
    """A pass of a layer: what is called for it, and the roles of its tensors.

    Attributes:
        function: the pass; of a gradient that the framework derives, the forward pass that it is
            derived from.
        turns: values of a last operand that take turns from call to call: an optimizer that steps
            forth and back does the same work and leaves the weights where they were, however often
            it runs.

    Args:
        spec: what is computed.
        forward: the function of the layer's tensors, in the order of the roles that it reads.
        layout: how the tensors lie.
        gradients: functions of the gradients that are none of the forward pass alone, by op.
    """

    def __init__(
        self,
        spec: KernelSpec,
        forward: Function,
        layout: LayerLayout,
        gradients: Mapping[str, Callable[[Any], Function]],
    ) -> None:
        self.spec, self.layer, self.op, self.layout = spec, spec.layer, op_of(spec.layer), layout
        self.roles = roles_of(spec, gradients)
        written_out = spec.pass_ != "forward" and not self.roles.derived
        self.function = gradients[self.op](spec.layer) if written_out else forward
        optimizer = self.op in ("sgd", "momentum")
        self.turns: tuple[float, ...] = (self.layer.rate, -self.layer.rate) if optimizer else ()

    @property
    def changed(self) -> tuple[int, ...]:
        """Places of the operands that the function overwrites."""
        return tuple(map(self.roles.reads.index, self.roles.updated))

    def by_role(self, returned: Sequence[Any], operands: Sequence[Any]) -> dict[str, Any]:
        """Return the results by role, those among the operands that were overwritten included.

        Args:
            returned: what the function has returned.
            operands: what it was called with.
        """
        roles = self.roles
        updated = {
            role: operands[place] for role, place in zip(roles.updated, self.changed, strict=True)
        }
        written = [role for role in roles.writes if role not in updated]
        return dict(zip(written, returned, strict=False)) | updated

    def plain(
        self, results: Mapping[str, Any], read: Callable[[Any], NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        """Return results in their plain layouts, in the order in which the layer writes them.

        Args:
            results: by role.
            read: brings one to the host, as float32.
        """
        written = [role for role in self.roles.writes if role in results]
        return {
            role: np.ascontiguousarray(self.layout.plain(role, read(results[role])))
            for role in written
        }


class FrameworkOperator:
    """A function of a framework's with its operands in place; see ``host_clock.Operator``.

    Attributes:
        call: runs it once. No frame of ours stands between the clock and the framework, unless
            calls take turns.
        operands: what the first call is made with.
        guard: makes the context in which it is to be called; whoever calls it enters that.
        wait: returns when everything that was called is done.

    Args:
        function: what is called.
        operands: its arguments, but for what takes turns.
        results: brings what it returned to the host by role, in plain layouts, as float32.
        guard: see above.
        wait: see above; nothing to do where a call is done when it returns.
        turns: last arguments that take turns from call to call, see :class:`FrameworkLayerPass`.
        restore: gives operands that it overwrites the values that they had before any call.
    """

    def __init__(
        self,
        function: Function,
        operands: Sequence[Any],
        results: Callable[[Any], Mapping[str, NDArray[Any]]],
        *,
        guard: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        wait: Callable[[], None] = lambda: None,
        turns: Sequence[Any] = (),
        restore: Callable[[], None] = lambda: None,
    ) -> None:
        first = functools.partial(function, *operands)
        calls = [functools.partial(first, each) for each in turns] or [first]
        self.operands = calls[0].args
        self.call: Callable[[], Any] = calls[0] if len(calls) == 1 else _in_turn(calls)
        self.guard, self.wait = guard, wait
        self._results, self._restore = results, restore
        self._is_turning, self._first = len(calls) > 1, calls[0]

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once, on its first operands, and return its results as float32 in plain layouts.

        Operands that it overwrites are what they were before any call, in this call.
        """
        with self.guard():
            self._restore()
            results = self._results((self._first if self._is_turning else self.call)())
            self._restore()
        return dict(results)


def _in_turn(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """Return a call of the first, of the second, and so on, around and around."""
    following = itertools.cycle(calls).__next__

    def call() -> Any:
        return following()()

    return call
