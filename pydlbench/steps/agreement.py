"""Compares results: of two frameworks, or of two steps, with the same weights and inputs."""

import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.steps.inputs import INPUTS, VALUES, WEIGHTS, matching_tensors, saved_results
from pydlbench.backends.steps.timed_results import BUFFER, STATE
from pydlbench.backends.steps.user_model import DRAWS
from pydlbench.records.agreement import DISTURBANCE, OUTPUT, TOLERANCE, Agreement, StepAgreement
from pydlbench.records.step import StepFacts, StepPreparation, StepSpec
from pydlbench.runner.session import Session
from pydlbench.steps.run import prepare_step
from pydlbench.steps.unchanged import changed, fingerprint
from pydlbench.verification.inputs import significand_bits
from pydlbench.verification.verify import tolerance
from pydlbench.words import FRAMEWORKS


def agree(step: StepSpec, session: Session, frameworks: tuple[str, str] = FRAMEWORKS) -> Agreement:
    """Run a step once in each of two frameworks and compare output and gradients, whole tensors.

    In float32, without dropout, each framework in its first mode.

    Args:
        step: its model, batch and phase are used.
        session: provides the workers.
        frameworks: the two frameworks; errors are relative to the first one.

    Raises:
        PydlbenchError: a framework is missing or refuses.
    """
    with tempfile.TemporaryDirectory() as name:
        first, second = (Path(name) / framework for framework in frameworks)
        for folder in (second, first):
            _saved(step, folder.name, session, folder)
        agreement = compare(first, second)
        if agreement.check.status != "ok":
            disturbed = Path(name) / "disturbed"
            _saved(step, first.name, session, first)
            _saved(step, first.name, session, disturbed, DISTURBANCE)
            agreement = msgspec.structs.replace(agreement, floors=compare(first, disturbed).norms)
        return agreement


def _saved(
    step: StepSpec, framework: str, session: Session, folder: Path, disturbance: float = 0.0
) -> None:
    """Have a framework write output and gradients into a folder."""
    folder.mkdir(exist_ok=True)
    own = msgspec.structs.replace(
        step, framework=framework, mode=None, precision="fp32", layout="nhwc", dropout=False
    )
    how = StepPreparation(checks=False, save=str(folder), disturbance=disturbance)
    prepare_step(own, session, preparation=how).release()


def compare(
    first: Path, second: Path, names: Mapping[str, str] | None = None, tolerance: float = TOLERANCE
) -> Agreement:
    """Compare results in folders.

    Args:
        first: errors are relative to it.
        second: the other folder; folders are named after their frameworks or steps.
        names: results to compare: name in ``first`` -> name in ``second``; by default all of them,
            which have the same names in both.
        tolerance: see :class:`~pydlbench.records.agreement.Agreement`.
    """
    files, others = saved_results(first), saved_results(second)
    if names is None:
        assert list(files) == list(others), (list(files), list(others))
        names = {name: name for name in files}
    errors, norms = {}, {}
    for name, other in names.items():
        errors[name], norms[name] = _errors(files[name], others[other])
    outputs = [error for name, error in errors.items() if name.partition(" ")[0] == OUTPUT]
    gradients = {name: error for name, error in errors.items() if name.partition(" ")[0] != OUTPUT}
    ranked = sorted(gradients, key=lambda name: gradients[name])
    return Agreement(
        frameworks=(first.name, second.name),
        tolerance=tolerance,
        output=max(outputs, default=0.0),
        gradients=gradients[ranked[-1]] if ranked else None,
        worst=ranked[-1] if ranked else None,
        median=gradients[ranked[len(ranked) // 2]] if ranked else None,
        tensors=errors,
        norms=norms,
    )


def _real(array: NDArray[Any]) -> NDArray[Any]:
    """Return complex values as pairs."""
    return np.stack([array.real, array.imag], -1) if np.iscomplexobj(array) else array


def _errors(first: Path, second: Path) -> tuple[float, float]:
    """Return the largest difference over the largest value, and the ratio of norms.

    If all values are zero, the difference itself. Infinite if shapes differ, or other values are
    finite.
    """
    own, other = (
        array if array.dtype == np.float32 else array.astype(np.float64)
        for array in (_real(np.load(path)) for path in (first, second))
    )
    if own.shape != other.shape:
        return math.inf, math.inf
    if own.size == 0:
        return 0.0, 0.0
    if not np.isfinite(own).all():  # such as logarithms of zero
        kept = np.isfinite(own)
        if not np.array_equal(own[~kept], other[~kept], equal_nan=True):
            return math.inf, math.inf
        own, other = np.where(kept, own, 0), np.where(kept, other, 0)
    largest = float(np.abs(own).max())
    norm = math.sqrt(np.dot(own.ravel(), own.ravel()))
    np.subtract(own, other, out=other)
    error = float(np.abs(other).max()) / (largest or 1.0)
    whole = math.sqrt(np.dot(other.ravel(), other.ravel())) / (norm or 1.0)
    return (error, whole) if math.isfinite(error) else (math.inf, math.inf)


# -----------------------------------------------------------------------------
# Two steps of one comparison: a model before and after a change.

# First words of results that are no gradients.
_RESULTS = (OUTPUT, "loss")
# Results of timed samples have other inputs, whose errors may be larger than those of the first.
_MAX_TIMES_TOLERANCE: Final = 10
# Seconds in which results of timed samples are computed again, at least one of each process.
_REPLAY_S: Final = 5.0


def agree_steps(steps: Sequence[StepSpec], session: Session, root: Path) -> StepAgreement:
    """Run two steps once each, with the same weights and inputs, and compare their results.

    The second one takes the weights of the first that correspond
    (:func:`~pydlbench.backends.steps.definition.matching_tensors`), and its inputs. Each has a
    process of its own: two versions of a user's code have modules of the same names.

    Args:
        steps: A and B.
        session: provides the workers.
        root: an empty folder, whose folder ``A`` then has A's weights and inputs.

    Raises:
        PydlbenchError: one of them cannot be run.
    """
    mixed = len({step.own is None for step in steps}) > 1
    if mixed and any((step.framework, step.phase) != ("torch", "forward") for step in steps):
        return StepAgreement(
            unchecked="a model of the catalogue and a user's model share their weights in PyTorch "
            "and forward only"
        )
    # A graph of TensorFlow's training returns no gradients.
    steps = [
        msgspec.structs.replace(step, phase="forward-backward")
        if step.own is not None and step.phase == "training"
        else step
        for step in steps
    ]
    a, b, disturbed = (root / side for side in ("A", "B", "disturbed"))
    facts: dict[int, StepFacts] = {}
    # The weights of the catalogue follow from a seed; it takes none.
    giver = int(mixed and steps[1].own is None)
    facts[giver] = _exchanged(steps[giver], session, (a, b)[giver], values=mixed)
    written = fingerprint((a, b)[giver].rglob("*"))
    facts[1 - giver] = _exchanged(steps[1 - giver], session, (a, b)[1 - giver], (a, b)[giver])
    values = [_shapes(folder / VALUES) for folder in (a, b)]
    weights = [_beginning(WEIGHTS, shapes) for shapes in values]
    shared = len(matching_tensors(weights[1], weights[0]))
    about: dict[str, Any] = {"shared": shared, "weights": tuple(map(len, weights))}
    about["refused"] = changed(written)
    if mixed and (reason := _unmatched(*weights)):
        return StepAgreement(unchecked=reason, **about)
    inputs = [_beginning(INPUTS, shapes) for shapes in values]
    if not _same_inputs(a / VALUES, b / VALUES, inputs):
        given = " and ".join(_sizes(shapes) for shapes in inputs)
        return StepAgreement(unchecked=f"the inputs differ: {given}", **about)
    results = [_shapes(folder) for folder in (a, b)]
    tensors = [[name for name in shapes if _is_result(name)] for shapes in results]
    if tensors[0] != tensors[1]:
        given = " and ".join(", ".join(each) for each in tensors)
        return StepAgreement(unchecked=f"they return other tensors: {given}", **about)
    names = _compared(*results)
    if not names:
        return StepAgreement(unchecked="they return no tensor", **about)
    allowed = _tolerance(steps[0].precision, weights[0], facts[0].parameters)
    agreement = compare(a, b, names, allowed)
    if agreement.check.status != "ok":
        change = max(DISTURBANCE, 2.0 ** -significand_bits(steps[0].precision))
        _exchanged(steps[0], session, disturbed, a, change)
        floors = compare(a, disturbed, {name: name for name in names}).norms
        agreement = msgspec.structs.replace(agreement, floors=floors)
    return StepAgreement(agreement=agreement, draws=DRAWS in facts[0].notes, **about)


def agree_timed(
    step: StepSpec, session: Session, root: Path, known: StepAgreement, step_s: float
) -> StepAgreement:
    """Compare results of timed samples with those of A in a new process, from the same inputs.

    Args:
        step: A.
        session: provides the worker.
        root: folder of :func:`agree_steps`, with the results of timed samples in ``timed``.
        known: the agreement of both steps.
        step_s: seconds of a step of A.
    """
    kept = [sorted(path.glob("*/names.txt")) for path in sorted(root.glob("timed/[01]-*"))]
    # Each result is that of two steps.
    most = max(1, int(_REPLAY_S / (2 * step_s * max(1, len(kept)))))
    folders = [path.parent for some in kept for path in some[:most]]
    if known.agreement is None or not folders:
        return msgspec.structs.replace(known, timed=0)
    session.renew()
    how = StepPreparation(checks=False, load=str(root / "A"), replays=tuple(map(str, folders)))
    prepare_step(step, session, preparation=how).release()
    errors = known.agreement.tensors.items()
    largest = max((error for name, error in errors if _is_result(name)), default=0.0)
    allowed = max(_MAX_TIMES_TOLERANCE * known.agreement.tolerance, 3 * largest)
    first = saved_results(root / "A" / VALUES)
    wrong: dict[Path, str | None] = {}
    for folder in folders:
        wrong[folder.parent] = wrong.get(folder.parent) or _wrong_result(folder, first, allowed)
    refused: dict[str, str] = {}
    for path in sorted(root.glob("timed/[01]-*")):
        side, worst = "AB"[int(path.name[0])], wrong.get(path, "its result was not kept")
        if worst is not None:
            refused[side] = (
                f"{side} is not ranked: in a timed step {worst}; every step must compute its "
                "results from its inputs and its state, before it returns"
            )
    every = (*known.refused, *refused.values())
    return msgspec.structs.replace(known, timed=len(folders), refused=every)


def _wrong_result(folder: Path, first: Mapping[str, Path], allowed: float) -> str | None:
    """Return the worst wrong result of a timed sample; None if all are right.

    A rewritten model may keep A's buffers under other names, but has to change them as A does.

    Args:
        folder: the results, with those of A in ``expected``.
        first: files of the weights that A starts from.
        allowed: largest error.
    """
    own, expected = saved_results(folder), saved_results(folder / "expected")
    pairs = {}
    for name, path in expected.items():
        places = [name]
        if name not in own and name.startswith(BUFFER):
            begin = first.get(name.replace(f"{BUFFER} ", WEIGHTS, 1))
            if begin is None or _errors(begin, path)[0] == 0:
                continue
            places = [each for each in own if each.startswith(STATE)]
        elif name.startswith(STATE):
            continue
        fits = [each for each in places if each in own and _errors(path, own[each])[0] <= allowed]
        pairs[name] = (fits or [each for each in places if each in own] or [""])[0]
    if missing := [name for name, other in pairs.items() if not other]:
        return f"its {missing[0]} is missing"
    agreement = compare(folder / "expected", folder, pairs, allowed)
    if not agreement.wrong:
        return None
    worst = agreement.wrong[0]
    return f"it changes {worst}" if worst.startswith("input") else f"its {worst} is wrong"


def copied_bytes(step: StepSpec, root: Path) -> int:
    """Return the bytes that change or are kept around each timed sample.

    Args:
        step: A.
        root: folder of :func:`agree_steps`.
    """
    values, results = saved_results(root / "A" / VALUES), saved_results(root / "A")
    kept = WEIGHTS if step.phase == "training" else INPUTS
    changed = [path for name, path in values.items() if name.startswith((kept, INPUTS))]
    changed += [path for name, path in results.items() if _is_result(name)]
    return sum(path.stat().st_size for path in changed)


def _exchanged(
    step: StepSpec,
    session: Session,
    folder: Path,
    other: Path | None = None,
    disturbance: float = 0.0,
    values: bool = False,
) -> StepFacts:
    """Have a step write its results into a folder, in a new process."""
    session.renew()
    load = None if other is None else str(other)
    how = StepPreparation(
        checks=False, save=str(folder), load=load, disturbance=disturbance, values=values
    )
    kernel = prepare_step(step, session, preparation=how)
    kernel.release()
    return kernel.facts


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    files = saved_results(folder).items()
    return {name: np.load(path, mmap_mode="r").shape for name, path in files}


def _beginning(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in shapes.items() if name.startswith(prefix)}


def _unmatched(a: Mapping[str, tuple[int, ...]], b: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return why the weights of two models do not correspond one by one; None if they do.

    They do by name and shape, or, without a name in common, in their order.
    """
    # Counters, such as those of batches, have no shape.
    one, other = ({name: shape for name, shape in each.items() if shape} for each in (a, b))
    if one == other:
        return None
    if one.keys() & other.keys():
        wrong = sorted(
            name for name in one.keys() | other.keys() if one.get(name) != other.get(name)
        )
        return f"{wrong[0].removeprefix(WEIGHTS)} has no counterpart of its name and shape"
    pairs = enumerate(itertools.zip_longest(one.values(), other.values()), start=1)
    for number, (own, counterpart) in pairs:
        if own != counterpart:
            shapes = " and ".join("none" if x is None else str(x) for x in (own, counterpart))
            return f"weights in order do not correspond: number {number} has the shapes {shapes}"
    return None


def _same_inputs(a: Path, b: Path, inputs: Sequence[Mapping[str, tuple[int, ...]]]) -> bool:
    if inputs[0] != inputs[1]:
        return False
    files, others = saved_results(a), saved_results(b)
    return all(
        np.array_equal(np.load(files[name]), np.load(others[name]), equal_nan=False)
        for name in inputs[0]
    )


def _sizes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, shape)) or "a number" for shape in shapes.values()) or "none"


def _compared(a: Mapping[str, tuple[int, ...]], b: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return the results to compare: outputs by their names, gradients as the weights are."""
    pairs = {other: own for own, other in matching_tensors(b, a).items()}
    return {name: name if _is_result(name) else pairs[name] for name in a if name in pairs} | {
        name: name for name in a if _is_result(name)
    }


def _is_result(name: str) -> bool:
    """Whether a saved tensor is no gradient."""
    return name.partition(" ")[0] in _RESULTS


def _tolerance(precision: str, weights: Mapping[str, tuple[int, ...]], parameters: int) -> float:
    """Return the error that rounding explains: that of the longest sum, once for each layer.

    Errors of layers have random signs, so their squares add up.

    Args:
        precision: precision of the products.
        weights: shapes of the weights.
        parameters: number of trained elements, which bounds the terms of all sums together if the
            weights are not known.
    """
    sums = [math.prod(shape[1:]) for shape in weights.values() if len(shape) > 1] or [parameters]
    return tolerance(precision, max(1, *sums)) * math.sqrt(len(sums))
