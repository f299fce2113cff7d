"""A worker's side of native chains: plans one, checks what can be checked here, makes it ready."""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.backends.native.chains import CpuChains
from pydlbench.backends.native.links import list_step
from pydlbench.backends.native.listing import check_chained
from pydlbench.backends.steps.inputs import save_results
from pydlbench.models.graph import INPUT
from pydlbench.records.agreement import TOLERANCE
from pydlbench.records.chain import ChainFacts, ChainStep
from pydlbench.records.step import Check
from pydlbench.timing.statistics import median
from pydlbench.verification.verify import verify

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    import pydlbench._cpu as _cpu
    from pydlbench.backends.native.cpu import CpuBackend, CpuKernel
    from pydlbench.backends.native.listing import Link, Listing
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec
    from pydlbench.verification.verify import Verdict

#: A way is tried so often, after one run that nobody times; or once, if that took so long.
_TRIES: Final = 5
_ENOUGH_S: Final = 2.0
#: Runs with a clock behind each step: so many have an interval at 95 %, however they are
#: distributed.
_RUNS: Final = 6
#: Largest difference between an update and the one that the gradient says, beyond what storing the
#: weights rounds off, over the largest update: that of the rate and of its product.
_UPDATE_TOLERANCE: Final = 1e-6
#: Tensors that are kept at a time to check kernels one by one, in bytes.
_TOGETHER: Final = 1 << 30
_LISTED: Final = 3


class NativeChain:
    """A step of native kernels with its tensors, in one way to lay them out.

    Args:
        listing: its kernels, and what is given to them.
        layouts: one of the words of :class:`pydlbench.records.chain.ChainFacts`.
        choices: ``<algorithm> <layout>`` of the fastest kernels alone, by problem.
        chains: makes it; None is one of its own.
        kept: tensors that are read back besides output, gradients and updated weights.

    Raises:
        UnsupportedError: an operation of which there is no native kernel.
    """

    def __init__(
        self,
        listing: Listing,
        layouts: str,
        *,
        choices: Mapping[str, str] | None = None,
        chains: CpuChains | None = None,
        kept: Collection[str] = (),
    ) -> None:
        self._listing = listing
        self._given = listing.given
        self.chain: _cpu.Chain = (chains or CpuChains()).make(
            listing.links,
            self._given,
            self._kept() | set(kept) - self._given.keys(),
            layouts,
            choices or {},
        )

    def output(self) -> NDArray[np.float32]:
        """Return the output of the last run, NCHW or (batch, features)."""
        return self.chain.tensor(self._listing.output).reshape(self._listing.output_shape)

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the last run's gradient of each trained tensor by name."""
        for name, tensor in self._listing.gradients.items():
            yield name, self.chain.tensor(tensor).reshape(self._given[name].shape)

    def check_update(self) -> Check:
        """Run one step from the first weights and compare what it makes of them; then start anew.

        The first update of a momentum is that of plain descent: velocities begin at zero.
        """
        rate = self._listing.rate
        assert rate is not None, "there is an update"
        self.chain.load()
        self.chain.run()
        worst, where = 0.0, ""
        for name, gradient in self.gradients():
            before = self._given[name].astype(np.float64)
            update = rate * gradient.astype(np.float64)
            after = self.chain.tensor(name).reshape(before.shape)
            # What is stored is the sum: a small update of a large weight is rounded to its digits.
            rounded = np.spacing(np.maximum(np.abs(before), np.abs(after)).astype("f4")) / 2
            beyond = max(0.0, float((np.abs(after - before + update) - rounded).max()))
            relative = beyond / max(float(np.abs(update).max()), 1e-30)
            if not relative <= worst:
                worst, where = relative, name
        self.chain.load()
        good = worst <= _UPDATE_TOLERANCE
        detail = (
            f"{len(self._listing.gradients)} tensors within {worst:.2g} of their largest update"
        )
        if not good:
            detail = f"{where} off by {worst:.2g} of its largest update"
        return Check(name="update", status="ok" if good else "failed", detail=detail)

    def verdict(self, link: Link) -> Verdict:
        """Hold what a kernel has written in the last run against float64 values.

        These are computed from what the kernel itself has read, so that no rounding of the kernels
        before counts.

        Args:
            link: whose tensors are kept or given, and written by nobody else.
        """
        layer, pass_, propagation = (
            link.step_pass.layer,
            link.step_pass.pass_,
            link.step_pass.propagation,
        )
        shapes, role = layer.shapes(), layer.result(pass_)

        def value(tensor: str, as_role: str) -> NDArray[np.float32]:
            known = self._given.get(tensor)
            tensor_values = self.chain.tensor(tensor) if known is None else known
            return tensor_values.reshape(shapes[as_role])

        algorithms = {step["name"]: step["algorithm"] for step in self.chain.steps}
        return verify(
            layer,
            pass_,
            "fp32",
            {read: value(link.reads[read], read) for read in layer.reads(pass_, propagation)},
            value(link.writes[role], role),
            0,
            algorithm=algorithms.get(link.name),
            extra={
                written: value(link.writes[written], written)
                for written in layer.writes(pass_, propagation)
                if written != role and link.writes.get(written, INPUT) not in self._given
            },
            propagation=propagation,
        )

    def seconds(self) -> float:
        """Return the least time of a few runs."""
        first = float(self.chain.sample(1)["seconds"][0])
        if first > _ENOUGH_S:
            return first
        return float(min(self.chain.sample(_TRIES)["seconds"]))

    def steps(self) -> tuple[tuple[ChainStep, ...], tuple[float, ...]]:
        """Run a few times with a clock behind each step.

        Returns:
            All steps with their times, and the seconds of all conversions run by run.
        """
        runs = [self.chain.step_seconds() for _ in range(_RUNS)]
        steps = tuple(
            ChainStep(**step, seconds=median(float(run[number]) for run in runs))
            for number, step in enumerate(self.chain.steps)
        )
        reorders = [number for number, step in enumerate(steps) if step.tensor]
        return steps, tuple(sum(float(run[number]) for number in reorders) for run in runs)

    def save(self, folder: Path) -> None:
        """Run once from the first weights; write output and gradients."""
        self.chain.load()
        self.chain.run()
        save_results(folder, itertools.chain([("output", self.output())], self.gradients()))
        self.chain.load()

    def _kept(self) -> set[str]:
        """Return the names of what is read back."""
        gradients = self._listing.gradients
        updated = set(gradients) if self._listing.rate is not None else set()
        return {self._listing.output, *gradients.values(), *updated}


def check_kernels(listing: Listing, layouts: str, **how: Any) -> Check:
    """Hold the kernels of a step's backward passes against float64, each distinct one once.

    Normalisations amplify rounding until, many layers back, gradients of two frameworks that are
    both right agree to some per cent only: this is the check that still can fail there. It says
    nothing of which kernel reads what; that is what outputs and gradients of a framework are for.
    Outputs do not move so far: they tell of the forward kernels.

    Args:
        listing: of a step that drops and updates nothing.
        layouts: as in :class:`NativeChain`.
        how: further arguments of it.
    """
    backward = [link for link in listing.links if link.step_pass.pass_ != "forward"]
    links = list({link.problem: link for link in reversed(backward)}.values())
    wrong, worst = [], 0.0
    for group in _groups(links):
        kept = {name for link in group for name in (*link.reads.values(), *link.writes.values())}
        made = NativeChain(listing, layouts, kept=kept, **how)
        made.chain.load()
        made.chain.run()
        for link in group:
            verdict = made.verdict(link)
            error = math.inf if verdict.rel_error is None else verdict.rel_error
            worst = max(worst, error)
            # The tolerance of a verdict is for operands of random signs; a step's have means.
            if verdict.status != "ok" and not error <= TOLERANCE:
                wrong.append(f"{link.name}: {verdict.detail}")
    detail = f"{len(links)} kernels against float64 of what they read, within {worst:.2g}"
    if wrong:
        detail = f"{len(wrong)} of {len(links)} kernels are wrong: {'; '.join(wrong[:_LISTED])}"
    return Check(name="kernels", status="failed" if wrong else "ok", detail=detail)


def _groups(links: Sequence[Link]) -> Iterator[list[Link]]:
    """Yield links whose tensors have room together, in their order."""
    group: list[Link] = []
    size = 0
    for link in links:
        layer = link.step_pass.layer
        own = 4 * sum(layer.operands(link.step_pass.pass_).values())
        if group and size + own > _TOGETHER:
            yield group
            group, size = [], 0
        group.append(link)
        size += own
    if group:
        yield group


def prepare_model(
    backend: CpuBackend,
    model: Model,
    spec: StepSpec,
    choices: Mapping[str, str] | None = None,
    save: Path | None = None,
) -> CpuKernel[ChainFacts]:
    """Make the native chain of a given graph ready; see :func:`prepare_listed`.

    Args:
        backend: of the worker.
        model: the graph; the case's name and options are not looked at.
        spec: phase, precision, seed, and whether dropout drops anything.
        choices: as there.
        save: folder to write output and gradients into, dropout off.

    Raises:
        UnsupportedError: an operation of which there is no native kernel, or another precision.
        PrimitiveError: the library refused or failed.
    """

    def listed(phase: str = spec.phase, *, dropout: bool = False) -> Listing:
        return list_step(model, phase, dropout=dropout, seed=spec.seed)

    operations = {node.op for node in model} if spec.backward else set()
    drops = spec.dropout and "dropout" in operations
    normalises = save is not None and "batchnorm" in operations
    return prepare_listed(
        backend,
        listed(dropout=spec.dropout),
        spec,
        choices,
        save,
        undropped=listed() if drops else None,
        checked=listed("forward-backward") if normalises else None,
    )


def prepare_listed(
    backend: CpuBackend,
    listing: Listing,
    spec: StepSpec,
    choices: Mapping[str, str] | None = None,
    save: Path | None = None,
    *,
    undropped: Listing | None = None,
    checked: Listing | None = None,
) -> CpuKernel[ChainFacts]:
    """Make a native chain ready, in the fastest way to lay it out.

    Args:
        backend: of the worker.
        listing: its kernels.
        spec: the step that it is of.
        choices: ``<algorithm> <layout>`` of the fastest kernels alone, by
            :func:`pydlbench.backends.native.listing.problem_text`.
        save: folder to write output and gradients into.
        undropped: the same without dropout, of which output and gradients are saved then.
        checked: a step whose backward kernels are held against float64 (:func:`check_kernels`).

    Raises:
        UnsupportedError: another precision than float32.
        PrimitiveError: the library refused or failed.
    """
    check_chained(spec)
    start = time.perf_counter()
    chains = CpuChains(backend)
    how: dict[str, Any] = {"choices": choices, "chains": chains}
    tried: dict[str, float] = {}
    chain: NativeChain | None = None
    for layouts in chains.ways:
        made = NativeChain(listing, layouts, **how)
        tried[layouts] = made.seconds()
        if tried[layouts] == min(tried.values()):
            chain = made
        del made
    assert chain is not None, "there is more than one way"
    layouts = min(tried, key=lambda way: tried[way])
    setup_s = time.perf_counter() - start
    checks = [chain.check_update()] if listing.rate is not None else []
    if checked is not None:
        checks.append(check_kernels(checked, layouts, **how))
    notes = ["memory stays between executions; images, labels and first weights are loaded before"]
    notes += ["checked with dropout off"] if undropped is not None else []
    if save is not None:
        (chain if undropped is None else NativeChain(undropped, layouts, **how)).save(save)
    library = backend.describe()
    steps, reorder_runs = chain.steps()
    facts = ChainFacts(
        library=f"{library['name']} {library['version']}",
        layouts=layouts,
        tried=tried,
        steps=steps,
        reorder_runs=reorder_runs,
        loaded=tuple(
            f"{load['tensor']} as {load['layout']}"
            for load in chain.chain.loads
            if not load["plain"]
        ),
        memory=chain.chain.memory,
        checks=tuple(checks),
        setup_s=setup_s,
        notes=tuple(notes),
    )
    chain.chain.load()
    return chains.kernel(chain.chain, facts)
