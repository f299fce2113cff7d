"""A pass of a layer in a framework: its function, operands and results."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.frameworks.backend import op_of
from pydlbench.backends.frameworks.operands import LayerLayout, roles_of
from pydlbench.records.specs import KernelSpec

Function = Callable[..., Any]


class FrameworkLayerPass:
    """A pass of a layer: the function that computes it, and the roles of its tensors.

    Attributes:
        function: the pass; for a gradient that the framework derives, the forward pass that it is
            derived from.
        turns: values of a last operand that alternate from call to call: an optimizer that steps
            forth and back does the same work in each call, and the weights do not drift.

    Args:
        spec: the case.
        forward: the function of the layer's tensors, in the order of the roles that it reads.
        layout: layout of the tensors.
        gradients: functions of the gradients that cannot be derived, by op.
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
        """Positions of the operands that the function overwrites."""
        return tuple(map(self.roles.reads.index, self.roles.updated))

    def by_role(self, returned: Sequence[Any], operands: Sequence[Any]) -> dict[str, Any]:
        """Return the results by role, including operands that were overwritten.

        Args:
            returned: results of the function.
            operands: operands of the function.
        """
        roles = self.roles
        updated = {
            role: operands[index] for role, index in zip(roles.updated, self.changed, strict=True)
        }
        written = [role for role in roles.writes if role not in updated]
        return dict(zip(written, returned, strict=False)) | updated

    def plain(
        self, results: Mapping[str, Any], read: Callable[[Any], NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        """Return results in plain layouts, in the order in which the layer writes them.

        Args:
            results: results by role.
            read: function that copies a tensor to the host, as float32.
        """
        written = [role for role in self.roles.writes if role in results]
        return {
            role: np.ascontiguousarray(self.layout.plain(role, read(results[role])))
            for role in written
        }


class FrameworkOperator:
    """A framework's function with its operands; see ``host_clock.Operator``.

    Attributes:
        call: runs the function once. No Python frame of pydlbench stands between the clock and the
            framework, unless calls alternate.
        operands: arguments of the first call.
        guard: makes the context of its calls, which the caller enters.
        wait: returns when all calls have finished.

    Args:
        function: the function to call.
        operands: arguments of the function, without the alternating one.
        results: function that copies the results to the host by role, in plain layouts, as float32.
        guard: makes the context of its calls.
        wait: returns when all calls have finished; by default calls return with their results.
        turns: values of an alternating last argument, see :class:`FrameworkLayerPass`.
        restore: function that resets overwritten operands to their initial values.
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
        calls = [functools.partial(first, value) for value in turns] or [first]
        self.operands = calls[0].args
        self.call: Callable[[], Any] = calls[0] if len(calls) == 1 else _alternate(calls)
        self.guard, self.wait = guard, wait
        self._results, self._restore = results, restore
        self._alternates, self._first = len(calls) > 1, calls[0]

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run the function once on its first operands; return float32 results in plain layouts.

        Overwritten operands have their initial values in this call.
        """
        with self.guard():
            self._restore()
            results = self._results((self._first if self._alternates else self.call)())
            self._restore()
        return dict(results)


def _alternate(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """Return a function that calls several functions in turn."""
    next_call = itertools.cycle(calls).__next__

    def call() -> Any:
        return next_call()()

    return call
