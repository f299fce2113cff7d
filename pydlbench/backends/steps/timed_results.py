"""Results of timed steps: each sample has other inputs; the results of random ones are kept.

A model that is fast only while nobody looks computes nothing, or something else, in timed steps. So
its inputs change in place before each sample, and its state is restored. The outputs are copied as
soon as the clock has stopped, and a process of the other model computes the same
(:func:`pydlbench.steps.agreement.agree_timed`).
"""

import builtins
import os
import random
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.host_clock import HostClock, check_sealed, seal, sealed
from pydlbench.backends.steps.inputs import INPUTS, VALUES, save_results, saved_results
from pydlbench.backends.steps.user_model import UserModel
from pydlbench.errors import RefusedKernelError

#: Name of the number by which the inputs were changed.
CHANGE: Final = "change"
#: First words of the names of buffers, and of all tensors that a model keeps.
BUFFER: Final = "buffer"
STATE: Final = "state"
# The system draws it: it follows from no seed.
_RANDOM: Final = random.SystemRandom()
# Share of the samples whose results are kept, besides the first one of a process: each takes a step
# more. Results that a process keeps at most, and their bytes.
_KEPT_SHARE: Final = 0.1
_MAX_KEPT: Final = 8
_KEPT_BYTES: Final = 1 << 22
# Places at which the values of an input are cut.
_CUTS: Final = 16
# Functions by which results are kept.
seal(np, "save", "load", "split", "concatenate", "array_equal", "asanyarray")
seal(np.lib.format, "write_array")
seal(builtins, "open")
seal(os, "urandom", "fspath")


@sealed
class TimedResults:
    """The results of a user model's timed steps.

    Args:
        model: the model, with the weights and inputs that it starts from.
        given: folder of the values that it has started from.
        folder: folder of the kept results; None to replay those of others only.
    """

    def __init__(self, model: UserModel, given: str, folder: str | None) -> None:
        self._model, self._folder = model, folder
        self._inputs = list(model.tensors.find([value for _, value in model.inputs()]))
        values = saved_results(Path(given) / VALUES)
        self._values = [np.load(values[f"{INPUTS}{n}"]) for n in range(len(self._inputs))]
        self._restore = model.remembered()
        self._outputs: list[Any] = []
        self._shift = self._runs = self._kept = 0

    def watch(self, clock: HostClock) -> None:
        """Judge the samples of a clock."""
        self._clock, self._around = clock, (self.before, self.after)
        clock.around = self._around

    @property
    def changes(self) -> bool:
        """Whether other inputs can be made of these."""
        return any(_changed(values, 1) is not values for values in self._values)

    def call(self) -> None:
        """Run the step and find its outputs, which may compute when a container is read."""
        self._runs += 1
        self._outputs = self._model.outputs(self._model.run())

    def before(self, _: int) -> None:
        """Change the inputs before a sample, and restore all else."""
        self._check()
        self._change(_RANDOM.randrange(1 << 30))

    def after(self, _: int) -> None:
        """Copy the outputs of a sample; keep them by chance, in the place of others if need be."""
        outputs = self._copied()
        self._check()
        if self._runs > 1:  # a loop
            return
        if self._kept and _RANDOM.random() >= _KEPT_SHARE:
            return
        size = sum(values.nbytes for values in outputs.values())
        most = max(1, min(_MAX_KEPT, _KEPT_BYTES // max(1, size)))
        place = self._kept if self._kept < most else _RANDOM.randrange(most)
        self._kept += 1
        self._save(Path(str(self._folder)) / str(place), outputs)

    def replay(self, folder: Path) -> None:
        """Compute again what another process has kept in a folder, from the same inputs."""
        (shift,) = np.load(saved_results(folder)[CHANGE]).tolist()
        self._change(shift)
        self.call()
        self._save(folder / "expected", self._copied())

    def _check(self) -> None:
        check_sealed(self, self._clock, self._model)
        if self._clock.around is not self._around:
            raise RefusedKernelError("its code replaces the functions around a timed sample")

    def _change(self, shift: int) -> None:
        """Restore the model, its optimizer and random numbers, and feed other inputs."""
        self._outputs, self._shift, self._runs = [], shift, 0
        self._model.forget_updates()
        self._restore()
        self._feed(shift)

    def _feed(self, shift: int) -> None:
        self._model.draw_from(shift)
        for tensor, values in zip(self._inputs, self._values, strict=True):
            self._model.tensors.assign(tensor, _changed(values, shift))

    def _copied(self) -> dict[str, NDArray[Any]]:
        """Return copies of the outputs by name."""
        copies = self._model.copied(self._outputs)
        return {f"output {n}": values for n, values in enumerate(copies, start=1)}

    def _save(self, folder: Path, outputs: dict[str, NDArray[Any]]) -> None:
        """Write outputs and the state after them, and the outputs of a step that begins there."""
        host = self._model.tensors.host
        given = {f"input {n}": x for n, x in enumerate(self._inputs, start=1)}
        given |= {f"{BUFFER} {name}": x for name, x in self._model.named_buffers().items()}
        given |= {f"{STATE} {n}": x for n, x in enumerate(self._model.kept_tensors(), start=1)}
        named = outputs | {name: host(tensor) for name, tensor in given.items()}
        self._feed(self._shift + 1)
        self.call()
        named |= {f"next {name}": values for name, values in self._copied().items()}
        save_results(folder, {**named, CHANGE: np.array([self._shift])}.items())


def _changed(values: NDArray[Any], shift: int) -> NDArray[Any]:
    """Return other values of an input: pieces in another order, or scaled if all are the same.

    Offsets are in order, a mask's infinite values have their places, and a zero is a zero.
    """
    flat, stream = values.reshape(-1), np.random.default_rng(shift)
    if values.dtype.kind in "fc" and np.isfinite(flat).all():
        if (flat == flat[:1]).all():
            factors = stream.uniform(1, 2, values.shape).astype(values.dtype)
            return values * factors if flat[:1].any() else values
    elif values.dtype.kind not in "iu" or (values.ndim < 2 and _in_order(flat)):
        return values
    # Values that are only rolled could be known in advance, one result for each place.
    cuts = np.sort(stream.integers(0, flat.size + 1, _CUTS))
    pieces = np.split(flat, cuts)
    order = stream.permutation(len(pieces))
    return np.concatenate([pieces[place] for place in order]).reshape(values.shape)


def _in_order(flat: NDArray[Any]) -> bool:
    steps = np.diff(flat)
    return bool((steps >= 0).all() or (steps <= 0).all())
