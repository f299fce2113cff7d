"""The experiments that test hypotheses: each measures how much time a change saves."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from pydlbench.backends.base import KernelFacts
from pydlbench.backends.steps import requests
from pydlbench.diagnose.evidence import Observations
from pydlbench.errors import PrimitiveError
from pydlbench.records.diagnosis import ALL, Cause, Saving
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.records.step import StepFacts, StepPreparation, StepSpec
from pydlbench.records.trace import OperatorsFacts
from pydlbench.runner.session import Session
from pydlbench.steps.run import prepare_step, step_policy
from pydlbench.study.estimate import Estimate, contrast
from pydlbench.study.loop import ROUNDS, random_order, sample_pair
from pydlbench.timing.policy import LEAST_ROUNDS, Policy
from pydlbench.units import format_seconds, percent
from pydlbench.workers.host import RemoteKernel, releasing

# -----------------------------------------------------------------------------
# The experiments that a hypothesis can name: what is changed, and what it is compared with.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """Times the whole step and the same step with one change, in alternation.

    Attributes:
        what: the change, in words that follow "with": ``huge pages``.
        changes: fields of the step's spec and their new values.
        options: options of the model, and their new values.
        both: options of the model that both sides have in place of the step's own.
        allocator: allocator of the changed step's process.
        images: images of the changed step over those of the step; times are compared per image.
        kept_s: seconds of the difference that are needed in any case, and so not saved.
        kept_how: what these seconds are, and how they were measured.
        checks: whether the changed step is checked (shapes, gradients, descent) before it is timed.
        setup_s: additional preparation time of the changed step, for example of a compiler.
    """

    what: str
    changes: tuple[tuple[str, Any], ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    both: tuple[tuple[str, str], ...] = ()
    allocator: str = "default"
    images: int = 1
    kept_s: float = 0.0
    kept_how: str = ""
    checks: bool = False
    setup_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """Times one operator of the framework and another one, in alternation.

    Attributes:
        what: the change, in words that follow "with".
        spec: the operator as in the step.
        changed: the other operator.
        variant: the framework's variant that the step uses; None for the fastest one.
        changed_variant: the variant of the other operator.
        count: number of such operators in the step.
        images: images of the changed operator over those of the step.
    """

    what: str
    spec: KernelSpec
    changed: KernelSpec
    variant: str | None = None
    changed_variant: str | None = None
    count: int = 1
    images: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstNative:
    """Times one operator of the framework and the fastest native kernel, in alternation.

    Attributes:
        spec: the operator as the framework runs it.
        count: number of such operators in the step.
    """

    spec: KernelSpec
    count: int = 1

    @property
    def what(self) -> str:
        """The change, in words that follow "with"."""
        name = (self.spec.layer.name or self.spec.layer.problem).rpartition("/")[2]
        return f"the fastest native kernel for {name} {self.spec.pass_}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChange:
    """Times a recorded call alone and the same call on other operands, in alternation.

    Attributes:
        what: the change, in words that follow "with".
        signature: signature of the call.
        changed: signature of the call on the other operands.
        count: number of such calls in the step.
    """

    what: str
    signature: str
    changed: str
    count: int = 1
    images: int = 1


Experiment: TypeAlias = StepChange | LayerChange | AgainstNative | CallChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A possible cause of lost time, and the experiment that tests it.

    Attributes:
        problem: short name of the problem; hypotheses about the same problem share it.
        reason: short name of the reason, where a problem may have several.
        symptom: the observation.
        evidence: measurements, and how they were made.
        cause: the suspected cause.
        experiment: measures its cost.
        next: the command to run next.
        where: the layer and pass, if any: ``fc6 forward``.
        part: the part of the step that is concerned, if it is not ``where``.
        most_s: upper limit of the saving in seconds; the largest is tried first.
    """

    problem: str
    symptom: str
    evidence: tuple[str, ...] = ()
    cause: str
    experiment: Experiment
    next: str
    where: str = ""
    part: str = ""
    reason: str = ""
    most_s: float

    @property
    def parts(self) -> frozenset[str]:
        """The parts of the step that are concerned; :data:`ALL` for a change of everything."""
        return frozenset({self.part or self.where or ALL})


# -----------------------------------------------------------------------------
# Two kernels in alternating rounds, and the time that one of them saves.
#
# The interval is computed from the ratios of single rounds: common disturbances cancel there.


def in_turn(
    kernels: Sequence[RemoteKernel[Any]],
    policies: Sequence[Policy],
    seed: int,
    rounds: int = ROUNDS,
) -> tuple[Estimate, float]:
    """Return the ratio of the second to the first, and the first's median in seconds.

    Args:
        kernels: the two kernels.
        policies: sizes of the samples of each.
        seed: seed of the order in each round.
        rounds: number of rounds.
    """
    own, changed = sample_pair(
        [kernel.sample for kernel in kernels],
        [dataclasses.replace(policy, visits=rounds) for policy in policies],
        random_order(seed),
        rounds,
    )
    ratio = contrast(changed, own)
    assert ratio is not None, "they shared all rounds"
    return ratio, own.median


def saving_of(
    ratio: Estimate,
    base_s: float,
    step_s: float,
    scope: str,
    how: str,
    *,
    images: int = 1,
    count: int = 1,
    kept_s: float = 0.0,
) -> Saving:
    """Compute the saving of a step from the ratio of changed to unchanged times.

    Args:
        ratio: the ratio of paired rounds.
        base_s: time of the unchanged side in seconds.
        step_s: time of the step in seconds.
        scope: ``step`` or ``layer``.
        how: what was compared.
        images: images of the changed side over those of the unchanged one.
        count: number of occurrences in the step.
        kept_s: seconds of the difference that are needed in any case.
    """

    def saved(times: float) -> float:
        return count * base_s * (1 - times / images) - kept_s

    interval = ratio.interval
    return Saving(
        seconds=saved(ratio.median),
        low=None if interval is None else saved(interval.high),
        high=None if interval is None else saved(interval.low),
        # The share refers to the step's time in these rounds.
        step_s=base_s if scope == "step" else step_s,
        subject=scope,
        how=how,
        rounds=ratio.rounds,
        contended=ratio.contended,
        otherwise=_disturbed([ratio.reason] if ratio.contended else []),
    )


def how_compared(
    subject: str,
    experiment: StepChange | LayerChange | CallChange,
    ratio: Estimate,
    base_s: float,
    batch: int,
) -> str:
    """Describe the comparison of a change with the unchanged side.

    Args:
        subject: what was changed.
        experiment: the change.
        ratio: result of :func:`in_turn`.
        base_s: time of the unchanged side in seconds.
        batch: images that times are given for.
    """
    changed_s = ratio.median * base_s / experiment.images
    times = f"{format_seconds(base_s)} as it is, {format_seconds(changed_s)}"
    words = f"{subject}, interleaved, {ratio.rounds} rounds: {times} with {experiment.what}"
    if experiment.images > 1:
        words += f", per {batch} images"
    return words


# -----------------------------------------------------------------------------
# The time that the framework's operator loses to the fastest native kernel of the same layer.

# Costs that have findings of their own; a native kernel has neither.
_ELSEWHERE: Final = ("allocation", "dispatch")
_UNEXPLAINED: Final = "unexplained"
#: Descriptions of causes.
_MEANING: Final = {
    "weights not packed": "the operator reads its weights as they lie; packed once, they are read "
    "in the order in which the kernel needs them",
    "reorders": "the library converts operands to other layouts in every call",
    "slower kernel": "the operator's kernel is slower than the fastest one on these sizes",
    "rest of the call": "the call takes longer than the fastest one, by more than was explained; "
    "its kernel was not timed alone",
    "generic kernel": "the library falls back to a kernel that is not optimised for this case",
    "one thread": "only one thread works",
    "idle threads": "threads wait for others",
}


def saving_against_native(experiment: AgainstNative, step_s: float, session: Session) -> Saving:
    """Return the saving of the fastest native kernel, limited to causes that were measured.

    The costs of newly allocated results and of the call are excluded: other findings have them.

    Args:
        experiment: the operator.
        step_s: time of the step in seconds.
        session: the session that measures.

    Raises:
        PrimitiveError: one of the two could not be timed; the message gives the reason.
    """
    native = msgspec.structs.replace(experiment.spec, backend="native", mode=None)
    (_, own), (_, best) = session.measure([experiment.spec, native])
    for row in (own, best):
        if not row.ok:
            raise PrimitiveError(f"{row.backend} {row.layer}: {row.reason or row.status}")
    assert own.time is not None
    assert own.ratio is not None
    causes = [cause for cause in own.causes if cause["cause"] not in (*_ELSEWHERE, _UNEXPLAINED)]
    elsewhere_s = sum(
        float(cause["seconds"]) for cause in own.causes if cause["cause"] in _ELSEWHERE
    )
    seconds = sum(float(cause["seconds"]) for cause in causes)
    time_s, ratio = own.time.median, own.ratio

    def gap(times: float) -> float:
        """Return the seconds lost at a ratio, without those of other findings."""
        return time_s * (1 - 1 / times) - elsewhere_s

    explained = seconds / gap(ratio["median"]) if gap(ratio["median"]) > 0 else 0.0
    share = min(1.0, explained)  # no more than the gap
    low, high = ratio["ci_low"], ratio["ci_high"]
    count = experiment.count
    disturbed = [row.contention_reason or row.who for row in (own, best) if row.contended]
    saved = count * share * gap(ratio["median"])
    return Saving(
        seconds=saved,
        low=None if low is None else count * share * gap(low),
        high=None if high is None else count * share * gap(high),
        step_s=step_s,
        subject="layer",
        how=_how(own, best, count),
        rounds=ratio["rounds"],
        causes=tuple(
            Cause(
                name=str(cause["cause"]),
                meaning=_MEANING.get(cause["cause"], str(cause["how"])),
                seconds=saved * float(cause["seconds"]) / seconds,
            )
            for cause in sorted(causes, key=lambda cause: -float(cause["seconds"]))
            if seconds > 0
        ),
        evidence=tuple(_line(cause) for cause in causes),
        contended=bool(disturbed),
        otherwise=_disturbed(disturbed) or ("" if causes else _unexplained(ratio)),
    )


def _disturbed(reasons: Sequence[str]) -> str:
    """Return why a disturbed comparison has no conclusion; empty if it was undisturbed."""
    return f"other work disturbed it: {reasons[0]}" if reasons else ""


def _unexplained(ratio: Mapping[str, Any]) -> str:
    """Return the text for a gap whose cause was not measured."""
    if ratio["ci_low"] is None or ratio["ci_low"] <= 1:
        return ""
    return f"{ratio['median']:.2f}x {ratio['to']}, but no cause of it was measured"


def _how(own: Measurement, best: Measurement, count: int) -> str:
    assert own.time is not None
    assert own.ratio is not None
    times = f"{own.who} {format_seconds(own.time.median)}"
    times += f", {own.ratio['median']:.2f}x {own.ratio['to']} ({best.algorithm or best.who})"
    often = f"; {count} times in the step" if count > 1 else ""
    return f"the layer alone, interleaved, {own.ratio['rounds']} rounds: {times}{often}"


def _line(cause: Mapping[str, Any]) -> str:
    share = percent(cause["share"])
    return (
        f"{cause['cause']}: {format_seconds(cause['seconds'])} ({share} of the gap): {cause['how']}"
    )


# -----------------------------------------------------------------------------
# Running experiments: the change, the comparison, and the duration.

# Slow steps get the smallest number of rounds that gives an interval.
_SLOW_S = 0.5
# Approximate number of executions for calibration and warm-up.
_WARMUP = 5
# Selecting and checking kernels takes longer than timing them.
_LAYER_S = 6.0


def try_out(experiment: Experiment, seen: Observations, session: Session) -> Saving:
    """Run an experiment and return the saving, which is negative if the change costs time.

    Args:
        experiment: the change.
        seen: the observations of the step.
        session: the session whose workers are used.

    Raises:
        PydlbenchError: it cannot be run; the message gives the reason.
    """
    if isinstance(experiment, StepChange):
        return _of_step(experiment, seen, session)
    if isinstance(experiment, LayerChange):
        return _of_layer(experiment, seen.step_s, session)
    if isinstance(experiment, CallChange):
        return _of_call(experiment, seen, session)
    return saving_against_native(experiment, seen.step_s, session)


def cost_s(experiment: Experiment, step_s: float) -> float:
    """Return the approximate duration of an experiment in seconds."""
    if isinstance(experiment, StepChange):
        executions = (_rounds(step_s) + _WARMUP) * (1 + experiment.images)
        return executions * step_s + experiment.setup_s
    return _LAYER_S


def _rounds(step_s: float) -> int:
    return LEAST_ROUNDS if step_s > _SLOW_S else ROUNDS


def _of_step(experiment: StepChange, seen: Observations, session: Session) -> Saving:
    spec = _with_options(seen.spec, experiment.both)
    changes: dict[str, Any] = dict(experiment.changes)
    other = msgspec.structs.replace(_with_options(spec, experiment.options), **changes)
    kernels: list[RemoteKernel[StepFacts]] = []
    with releasing(kernels):
        kernels.append(prepare_step(spec, session, preparation=StepPreparation(checks=False)))
        how = StepPreparation(checks=experiment.checks)
        changed = prepare_step(other, session, allocator=experiment.allocator, preparation=how)
        kernels.append(changed)
        if wrong := changed.facts.wrong:
            raise PrimitiveError(f"a check failed: {wrong}")
        policies = [
            step_policy(own, kernel.facts, Policy(budget_s=session.options.budget_s))
            for own, kernel in zip((spec, other), kernels, strict=True)
        ]
        ratio, base = in_turn(kernels, policies, session.options.seed, _rounds(seen.step_s))
    words = how_compared("the whole step", experiment, ratio, base, seen.plan.batch)
    if experiment.kept_s:
        words += f"; less {format_seconds(experiment.kept_s)}: {experiment.kept_how}"
    return saving_of(
        *(ratio, base, seen.step_s, "step", words),
        images=experiment.images,
        kept_s=experiment.kept_s,
    )


def _with_options(spec: StepSpec, options: Sequence[tuple[str, str]]) -> StepSpec:
    return msgspec.structs.replace(spec, options={**spec.options, **dict(options)})


def _of_layer(experiment: LayerChange, step_s: float, session: Session) -> Saving:
    kernels: list[RemoteKernel[KernelFacts]] = []
    with releasing(kernels):
        kernels.append(session.prepare(experiment.spec, variant=experiment.variant))
        kernels.append(session.prepare(experiment.changed, variant=experiment.changed_variant))
        verdict = kernels[1].facts.correct
        if verdict.status == "failed":
            raise PrimitiveError(f"its result is wrong: {verdict.detail or 'checked'}")
        policies = [Policy(budget_s=session.options.budget_s)] * 2
        ratio, base = in_turn(kernels, policies, session.options.seed)
    how = how_compared("the layer alone", experiment, ratio, base, experiment.spec.layer.batch)
    if experiment.count > 1:
        how += f"; {experiment.count} times in the step"
    return saving_of(
        *(ratio, base, step_s, "layer", how), images=experiment.images, count=experiment.count
    )


def _of_call(experiment: CallChange, seen: Observations, session: Session) -> Saving:
    worker = session.worker(seen.spec.framework, seen.spec.device, warm=True)
    spec = msgspec.structs.replace(seen.spec, feed="resident").to_dict()
    kernels: list[RemoteKernel[OperatorsFacts]] = []
    with releasing(kernels):
        for signature in (experiment.signature, experiment.changed):
            kernel = worker.build(
                requests.request_calls, OperatorsFacts, spec=spec, signatures=[signature]
            )
            kernels.append(kernel)
            if reason := kernel.facts.refused.get(signature):
                raise PrimitiveError(reason)
        policies = [Policy(budget_s=session.options.budget_s)] * 2
        ratio, base = in_turn(kernels, policies, session.options.seed)
    how = how_compared("the call alone", experiment, ratio, base, seen.plan.batch)
    return saving_of(*(ratio, base, seen.step_s, "layer", how), count=experiment.count)
