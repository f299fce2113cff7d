"""The native chain of a step: its native kernels run in order, and held against a framework.

The chain stands between the native sum, whose rows are timed one by one on hot and on cold caches,
and a framework's step: the kernels find what the ones before have left in the caches, conversions
between layouts and the packing of changed weights are in it, and nothing else is.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pydlbench.backends.native.links import check_listed
from pydlbench.backends.native.listing import check_chained, problem_text
from pydlbench.backends.steps import requests
from pydlbench.errors import BackendMissingError, PydlbenchError, UnsupportedError
from pydlbench.models import build_model
from pydlbench.records.agreement import DISTURBED
from pydlbench.records.chain import ChainFacts
from pydlbench.steps.agreement import agree_with, compare
from pydlbench.words import RECORDED_FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.records.agreement import Agreement
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.workers.host import RemoteKernel


def prepare_native_chain(
    step: StepSpec,
    session: Session,
    rows: Mapping[KernelSpec, Measurement] | None = None,
) -> RemoteKernel[ChainFacts]:
    """Have a step's native chain made ready in the native worker of CPUs.

    Its kernels are those of the calls that the framework makes, where a recorded step tells them,
    and else those of the model's graph. Its output and gradients are held against those of the
    case's framework, in its first mode. With no such framework installed the chain's facts have no
    check named ``agreement``, and a note that says so.

    Args:
        step: model, batch and phase; framework for the comparison.
        session: whose workers are used.
        rows: native rows of the same session: their kernels are the chain's first choice in the
            way to lay tensors out that takes each kernel as it was the fastest alone.

    Returns:
        A kernel to sample: seconds per execution of the whole chain.

    Raises:
        UnsupportedError: the step runs on a GPU or has an operation of which there is no native
            kernel (the message names it), or the precision is not float32.
        PydlbenchError: the chain computes something else than the framework, or itself; it must not
            be timed.
    """
    check_chained(step)
    with tempfile.TemporaryDirectory() as name:
        saved, listed = Path(name) / "native", Path(name) / "listed"
        reference = Path(name) / step.framework
        notes = _recorded(step, session, listed, reference) if _is_recorded(step) else None
        if notes is None:
            check_listed(build_model(step.model, step.batch, **step.options), step.phase)
        kernel = session.worker().build(
            requests.prepare_native_chain,
            ChainFacts,
            spec=step.to_dict(),
            choices=choices_of(rows or {}),
            save=str(saved),
            listed=None if notes is None else str(listed),
        )
        try:
            if notes is not None:
                every = (*kernel.facts.notes, *notes)
                facts = msgspec.structs.replace(kernel.facts, notes=every)
                kernel.facts = _with_check(facts, _recorded_agreement(reference, saved), step)
            else:
                kernel.facts = _checked(kernel.facts, saved, step, session)
            wrong = [each for each in kernel.facts.checks if each.status != "ok"]
            if wrong:
                errors = "; ".join(f"{each.name}: {each.detail}" for each in wrong)
                raise PydlbenchError(f"the native chain of {step.model} is wrong: {errors}")
        except BaseException:
            kernel.release()
            raise
    return kernel


def _is_recorded(step: StepSpec) -> bool:
    """Whether a recorded step tells the kernels: of all models of the user's own.

    A local response normalisation, which PyTorch calls as several operators, is one kernel of the
    graph's.
    """
    if step.own is not None:
        return True
    if step.framework != RECORDED_FRAMEWORK or step.backward:
        return False
    model = build_model(step.model, step.batch, **step.options)
    return all(node.op != "lrn" for node in model)


def _recorded(
    step: StepSpec, session: Session, listed: Path, reference: Path
) -> tuple[str, ...] | None:
    """List a step's kernels in the framework's process; return notes.

    None where there is no such framework: a model of the catalogue still has its graph.
    """
    try:
        notes: list[str] = session.worker(step.framework, step.device).call(
            requests.list_links,
            lambda _: None,
            spec=step.to_dict(),
            listed=str(listed),
            saved=str(reference),
        )
    except BackendMissingError:
        if step.own is not None:
            raise
        return None
    return tuple(notes)


def _recorded_agreement(reference: Path, saved: Path) -> Agreement:
    """Compare a chain with the recorded step, whose gradients rounding may move."""
    disturbed = reference / DISTURBED
    if not disturbed.is_dir():
        return compare(reference, saved)
    floors = compare(reference, disturbed, again=True).norms
    return msgspec.structs.replace(compare(reference, saved), floors=floors)


def choices_of(rows: Mapping[KernelSpec, Measurement]) -> dict[str, str]:
    """Return ``<algorithm> <layout>`` of hot native rows by problem."""
    return {
        problem_text(step.layer, step.pass_, step.propagation): f"{row.algorithm} {row.layout}"
        for step, row in rows.items()
        if row.ok and step.backend == "native" and step.cache == "hot"
    }


def _checked(facts: ChainFacts, saved: Path, step: StepSpec, session: Session) -> ChainFacts:
    """Return the facts with the framework's verdict, or with the note that there is none."""
    try:
        agreement = agree_with(saved, step, step.framework, session)
    except (BackendMissingError, UnsupportedError) as error:
        note = f"unchecked against a framework: {error}"
        return msgspec.structs.replace(facts, notes=(*facts.notes, note))
    return _with_check(facts, agreement, step)


def _with_check(facts: ChainFacts, agreement: Agreement, step: StepSpec) -> ChainFacts:
    verdict = agreement.check
    named = msgspec.structs.replace(verdict, detail=f"{step.framework}: {verdict.detail}")
    return msgspec.structs.replace(facts, checks=(*facts.checks, named))
