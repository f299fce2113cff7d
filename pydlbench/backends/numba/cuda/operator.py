"""A kernel with its operands on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.numba.cuda.language import cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["DeviceOperator"]


class DeviceOperator:
    """Launches a kernel that takes its results, then its operands.

    Results are allocated once: Numba has no pool, so that an allocation would wait for the device.

    Args:
        kernel: a compiled kernel.
        launch: its grid and block.
        operands: arrays of the device, and other arguments.
        results: Shape and type of each result; the first one is the main one.
        role: What the main result is.
        plain: Turns the main result into its plain layout.
        stream: where it is launched.
    """

    def __init__(
        self,
        kernel: Any,
        launch: tuple[Any, Any],
        operands: Sequence[Any],
        results: Sequence[tuple[tuple[int, ...], type[np.generic]]],
        role: str,
        plain: Callable[[NDArray[Any]], NDArray[Any]],
        stream: Any,
    ) -> None:
        self._kernel = kernel
        self._launch = launch
        self._stream = stream
        self._role = role
        self._plain = plain
        self._results = [cuda.device_array(shape, kind) for shape, kind in results]
        self._arguments = (*self._results, *operands)
        self.call()  # compiles
        self.wait()

    def call(self) -> None:
        """Launch it."""
        self._kernel[(*self._launch, self._stream)](*self._arguments)

    def wait(self) -> None:
        """Return when it is done."""
        self._stream.synchronize()

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once on a main result full of NaN and return that one."""
        main = self._results[0]
        main.copy_to_device(np.full(main.shape, np.nan, main.dtype), stream=self._stream)
        self.call()
        self.wait()
        return {self._role: self._plain(np.asarray(main.copy_to_host()))}
