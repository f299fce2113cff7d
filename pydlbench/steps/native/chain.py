"""A worker's side of native chains: plans one, checks what can be checked here, makes it ready."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import pydlbench._cpu as _cpu
from pydlbench.backends.native.cpu import native_pass
from pydlbench.errors import UnsupportedError
from pydlbench.models.graph import INPUT
from pydlbench.records.chain import ChainFacts, ChainStep
from pydlbench.records.specs import KernelSpec
from pydlbench.records.step import Check
from pydlbench.steps.inputs import make_batch, make_weights
from pydlbench.steps.native.links import LABELS, list_step, problem_text
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from pydlbench.backends.native.cpu import CpuBackend, CpuKernel
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec
    from pydlbench.steps.native.links import Listing

__all__ = ["NativeChain", "prepare_model"]

#: By the words of ``ChainFacts.layouts``.
_WAYS: Final = {
    "channels last": _cpu.Layouts.channels_last,
    "blocked": _cpu.Layouts.blocked,
    "as each row": _cpu.Layouts.chosen,
}
#: A way is tried so often, after one run that nobody times; or once, if that took so long.
_TRIES: Final = 5
_ENOUGH_S: Final = 2.0
#: Runs with a clock behind each step.
_RUNS: Final = 5
#: Largest difference between updated weights and those that NumPy computes from the gradient, over
#: the largest weight: two roundings in float32.
_UPDATE_TOLERANCE: Final = 1e-6


class NativeChain:
    """A step of native kernels with its tensors, in one way to lay them out.

    Args:
        model: the graph.
        phase: ``forward``, ``forward-backward`` or ``training``.
        layouts: one of the words of :class:`pydlbench.records.chain.ChainFacts`.
        seed: of weights, images and labels.
        dropout: whether it drops anything.
        choices: ``<algorithm> <layout>`` of the fastest kernels alone, by problem.
        cpus: that the process is pinned to.
        known: what other chains have found out about their kernels, and this one will add to.

    Raises:
        UnsupportedError: an operation of which there is no native kernel.
    """

    def __init__(
        self,
        model: Model,
        phase: str,
        layouts: str,
        *,
        seed: int = 0,
        dropout: bool = True,
        choices: Mapping[str, str] | None = None,
        cpus: list[int] | None = None,
        known: _cpu.Choices | None = None,
    ) -> None:
        self._model = model
        self.phase = phase
        self._listing = list_step(model, phase, dropout=dropout)
        self._weights = make_weights(model, seed)
        self.chain = _cpu.Chain(
            _links(self._listing, choices or {}),
            _given(model, self._listing, self._weights, seed),
            self._kept(),
            _cpu.Precision.fp32,
            _WAYS[layouts],
            _cpu.Choices() if known is None else known,
            cpus or [],
        )

    def output(self) -> NDArray[np.float32]:
        """Return the output of the last run, NCHW or (batch, features)."""
        shape = self._model.batch, *self._model.output.shape
        return self.chain.tensor(self._listing.output).reshape(shape)

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the last run's gradient of each trained tensor by name."""
        for name, tensor in self._listing.gradients.items():
            yield name, self.chain.tensor(tensor).reshape(self._weights[name].shape)

    def check_update(self) -> Check:
        """Run one step from the first weights and compare what it makes of them; then start anew.

        The first update of a momentum is that of plain descent: velocities begin at zero.
        """
        self.chain.load()
        self.chain.run()
        worst, where = 0.0, ""
        for name, gradient in self.gradients():
            before = self._weights[name]
            expected = before - np.float32(self._model.optimizer.rate) * gradient
            found = self.chain.tensor(name).reshape(before.shape)
            error = float(np.abs(found - expected).max())
            relative = error / max(float(np.abs(before).max()), 1e-30) if before.any() else error
            if not relative <= worst:
                worst, where = relative, name
        self.chain.load()
        good = worst <= _UPDATE_TOLERANCE
        detail = f"{len(self._listing.gradients)} tensors within {worst:.2g}"
        if not good:
            detail = f"{where} off by {worst:.2g} of its largest element"
        return Check(name="update", status="ok" if good else "failed", detail=detail)

    def seconds(self) -> float:
        """Return the least time of a few runs."""
        first = self.chain.sample(1)["seconds"][0]
        if first > _ENOUGH_S:
            return float(first)
        return float(min(self.chain.sample(_TRIES)["seconds"]))

    def steps(self) -> tuple[ChainStep, ...]:
        """Run a few times with a clock behind each step and return all steps with their times."""
        runs = [self.chain.step_seconds() for _ in range(_RUNS)]
        return tuple(
            ChainStep(**step, seconds=median(float(one[number]) for one in runs))
            for number, step in enumerate(self.chain.steps)
        )

    def save(self, folder: Path) -> None:
        """Run once from the first weights; write output and gradients as numbered files.

        As a framework's step does (:mod:`pydlbench.steps.serving`), with their names in that order.
        """
        folder.mkdir(exist_ok=True)
        self.chain.load()
        self.chain.run()
        names = ["output"]
        np.save(folder / "0.npy", self.output())
        for number, (name, gradient) in enumerate(self.gradients(), start=1):
            np.save(folder / f"{number}.npy", gradient)
            names.append(name)
        (folder / "names.txt").write_text("\n".join(names))
        self.chain.load()

    def _kept(self) -> set[str]:
        """Return the names of what is read back."""
        gradients = self._listing.gradients
        updated = set(gradients) if self.phase == "training" else set()
        return {self._listing.output, *gradients.values(), *updated}


def _links(listing: Listing, choices: Mapping[str, str]) -> list[_cpu.Link]:
    """Return the links as the native module takes them."""
    found = []
    for link in listing.links:
        work = link.work
        case = KernelSpec(layer=work.layer, pass_=work.pass_, propagation=work.propagation)
        problem = problem_text(work.layer, work.pass_, work.propagation)
        found.append(
            _cpu.Link(
                name=link.name,
                problem=problem,
                kind=work.layer.kind,
                fields=work.layer.problem_fields(),
                pass_=native_pass(case),
                reads=link.reads,
                writes=link.writes,
                workspace=link.workspace,
                choice=choices.get(problem, ""),
            )
        )
    return found


def _given(
    model: Model, listing: Listing, weights: Mapping[str, NDArray[np.float32]], seed: int
) -> dict[str, NDArray[np.float32]]:
    """Return all tensors that no kernel makes, as far as some kernel reads them."""
    batch = make_batch(model, seed)
    found = {INPUT: batch.images, **weights}
    if batch.labels is not None:
        # The native module stores them as integers.
        found[LABELS] = batch.labels.reshape(-1).astype(np.float32)
    for name, (shape, value) in listing.constants.items():
        found[name] = np.full(shape, value, np.float32)
    return found


def prepare_model(
    backend: CpuBackend,
    model: Model,
    case: StepSpec,
    choices: Mapping[str, str] | None = None,
    save: Path | None = None,
) -> CpuKernel[ChainFacts]:
    """Make the native chain of a given graph ready, in the fastest way to lay it out.

    Args:
        backend: of the worker.
        model: the graph; the case's name and options are not looked at.
        case: phase, precision, seed, and whether dropout drops anything.
        choices: ``<algorithm> <layout>`` of the fastest kernels alone, by
            :func:`pydlbench.steps.native.links.problem_text`.
        save: folder to write output and gradients into, dropout off.

    Raises:
        UnsupportedError: an operation of which there is no native kernel, or another precision.
        PrimitiveError: the library refused or failed.
    """
    if case.precision != "fp32":
        raise UnsupportedError(f"native chains are in fp32 so far, not in {case.precision}")
    if case.running_statistics and case.backward:
        raise UnsupportedError("native kernels train normalisations with the batch's statistics")
    start = time.perf_counter()
    how: dict[str, Any] = {
        "seed": case.seed,
        "choices": choices,
        "cpus": backend.cpus,
        "known": _cpu.Choices(),
    }
    tried: dict[str, float] = {}
    chain: NativeChain | None = None
    for layouts in _WAYS:
        made = NativeChain(model, case.phase, layouts, dropout=case.dropout, **how)
        tried[layouts] = made.seconds()
        if tried[layouts] == min(tried.values()):
            chain = made
        del made
    assert chain is not None, "there is more than one way"
    layouts = min(tried, key=lambda one: tried[one])
    setup_s = time.perf_counter() - start
    checks = [chain.check_update()] if case.phase == "training" else []
    notes = ["memory stays between executions; images, labels and first weights are loaded before"]
    if case.backward and case.dropout and any(node.op == "dropout" for node in model):
        notes.append("checked with dropout off")
        if save is not None:
            NativeChain(model, case.phase, layouts, dropout=False, **how).save(save)
    elif save is not None:
        chain.save(save)
    library = backend.describe()
    facts = ChainFacts(
        library=f"{library['name']} {library['version']}",
        layouts=layouts,
        tried=tried,
        steps=chain.steps(),
        loaded=tuple(
            f"{one['tensor']} as {one['layout']}" for one in chain.chain.loads if not one["plain"]
        ),
        memory=chain.chain.memory,
        checks=tuple(checks),
        setup_s=setup_s,
        notes=tuple(notes),
    )
    chain.chain.load()
    return backend.clocked(chain.chain, facts)
