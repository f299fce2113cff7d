"""Experiments that a hypothesis can name, and running them: what a change saves."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from pydlbench.errors import PrimitiveError
from pydlbench.records.diagnosis import ALL, Cause, Saving
from pydlbench.records.step import StepPreparation
from pydlbench.steps.prepare import prepare_step
from pydlbench.steps.run import step_policy
from pydlbench.study.estimate import contrast
from pydlbench.study.loop import LEAST_ROUNDS, ROUNDS, Study, Subject, random_order
from pydlbench.timing.policy import Policy
from pydlbench.units import format_seconds, percent
from pydlbench.workers.host import releasing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.backends.base import KernelFacts
    from pydlbench.diagnose.evidence import Observations
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.records.step import StepFacts, StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.timing.statistics import Ratio
    from pydlbench.workers.host import RemoteKernel


# -----------------------------------------------------------------------------
# Experiments that a hypothesis can name: what is changed, and beside what it runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """The whole step beside the same with one thing changed, in turn.

    Attributes:
        what: in words that follow "with": ``huge pages``.
        changes: fields of the step's spec and their new values.
        options: of the model, and their new values.
        both: options of the model that differ from the step's on both sides.
        allocator: of the changed step's process.
        images: of the changed step over those of the step: times are compared per image.
        kept_s: what of the difference has to be done all the same, in seconds: it is no saving.
        kept_how: what that is, and how it was measured.
        checks: check the changed step (shapes, gradients, descent) before it is timed.
        setup_s: what making it ready may take longer than the step itself: compilers are slow.
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
    """One operator of the framework beside another one, in turn.

    Attributes:
        what: in words that follow "with".
        spec: as the step has it.
        changed: the other one.
        variant: how the step runs it, where the framework has several ways; None is its best.
        changed_variant: how the other one is run.
        count: how often the step has it.
        images: of the changed one over those of the step.
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
    """One operator of the framework beside the native library's fastest kernel, in turn.

    Attributes:
        spec: as the framework runs it.
        count: how often the step has it.
    """

    spec: KernelSpec
    count: int = 1

    @property
    def what(self) -> str:
        """In words that follow "with"."""
        name = (self.spec.layer.name or self.spec.layer.problem).rpartition("/")[2]
        return f"the fastest native kernel for {name} {self.spec.pass_}"


Experiment: TypeAlias = StepChange | LayerChange | AgainstNative


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """Something that may cost time, and the experiment that tells.

    Attributes:
        problem: what is seen, in few words; hypotheses that may share it have the same.
        reason: what it would come from, in few words, where a problem may have several reasons.
        symptom: what is seen.
        evidence: measurements, and how they were made.
        cause: why it would be.
        experiment: shows what it costs.
        next: the command to run next.
        where: the layer and pass, where there is one: ``fc6 forward``.
        part: of the step that it is about, where that is no layer and pass.
        most_s: what it can save at the most; the largest is tried first.
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
        """Of the step, what it is about; :data:`ALL` for a change of everything."""
        return frozenset({self.where or self.part or ALL})


# -----------------------------------------------------------------------------
# Two kernels in turn, round by round, and what the one saves beside the other.
#
# The interval is that of the ratios of single rounds. What a machine does to both cancels there.


def in_turn(
    kernels: Sequence[RemoteKernel[Any]],
    policies: Sequence[Policy],
    seed: int,
    images: int,
    rounds: int = ROUNDS,
) -> tuple[Ratio, float, str]:
    """Return the ratio of the second to the first, per image, the first one's median, a warning.

    Args:
        kernels: the two.
        policies: how large the visits of each are.
        seed: of the order in each round.
        images: of the second one over those of the first.
        rounds: how many are taken.
    """
    study = Study(random_order(seed))
    subjects = [
        Subject(key=number, sample=kernel.sample, policy=dataclasses.replace(policy, visits=rounds))
        for number, (kernel, policy) in enumerate(zip(kernels, policies, strict=True))
    ]
    for error in study.take(subjects, rounds=rounds).values():
        raise error
    own, changed = study.table.of(0), study.table.of(1)
    estimate = contrast(changed, own)
    assert estimate is not None, "they shared all rounds"
    words = f"; other work disturbed them: {estimate.reason}" if estimate.contended else ""
    return per_image(estimate.to_ratio(), images), own.median, words


def per_image(ratio: Ratio, images: int) -> Ratio:
    """Return a ratio of times as one of times per image.

    Args:
        ratio: of two steps.
        images: of the first one over those of the second.
    """
    interval = ratio.interval
    if interval is not None:
        low, high = interval.low / images, interval.high / images
        interval = dataclasses.replace(interval, low=low, high=high)
    return dataclasses.replace(ratio, median=ratio.median / images, interval=interval)


def saving_of(
    ratio: Ratio,
    base_s: float,
    step_s: float,
    scope: str,
    how: str,
    *,
    count: int = 1,
    kept_s: float = 0.0,
) -> Saving:
    """Return what a ratio of changed to unchanged times says of a step.

    Args:
        ratio: of paired rounds.
        base_s: what was not changed, in seconds.
        step_s: the step, in seconds.
        scope: ``step`` or ``layer``.
        how: what ran beside what.
        count: how often the step has it.
        kept_s: what of the difference has to be done all the same, in seconds.
    """

    def saved(times: float) -> float:
        return count * base_s * (1 - times) - kept_s

    interval = ratio.interval
    return Saving(
        seconds=saved(ratio.median),
        low=None if interval is None else saved(interval.high),
        high=None if interval is None else saved(interval.low),
        # The share is of the step as it was in these rounds.
        step_s=base_s if scope == "step" else step_s,
        of=scope,
        how=how,
        rounds=ratio.n,
    )


def step_how(what: str, base_s: float, changed_s: float, rounds: int) -> str:
    """Say what a change of the whole step ran beside."""
    times = f"{format_seconds(base_s)} as it is, {format_seconds(changed_s)} with {what}"
    return f"the whole step, interleaved, {rounds} rounds: {times}"


# -----------------------------------------------------------------------------
# What the framework's operator loses to the native library's fastest kernel on the same layer.

# Of these, findings of their own take care; a native kernel has neither.
_ELSEWHERE: Final = ("allocation", "dispatch")
_UNEXPLAINED: Final = "unexplained"
#: What to say of a cause.
_MEANING: Final = {
    "weights not packed": "the operator reads its weights as they lie; packed once, they are read "
    "in the order in which the kernel needs them",
    "reorders": "the library brings operands into other layouts in every call",
    "slower kernel": "the operator's kernel is slower than the fastest one on these sizes",
    "rest of the call": "the call is slower than the fastest one beside what was measured of it; "
    "its kernel was not timed by itself",
    "generic kernel": "the library falls back to a kernel that is not optimised for this case",
    "one thread": "only one thread works",
    "idle threads": "threads wait for others",
}


def saving_against_native(experiment: AgainstNative, step_s: float, session: Session) -> Saving:
    """Return what the fastest native kernel would save, as far as causes were measured.

    What freshly allocated results and the call itself cost is left out: other findings have that.

    Args:
        experiment: which operator.
        step_s: the step's seconds.
        session: measures.

    Raises:
        PrimitiveError: one of the two has no time; the message says why.
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
        """The seconds that are lost at a ratio, other findings' left out."""
        return time_s * (1 - 1 / times) - elsewhere_s

    explained = seconds / gap(ratio["median"]) if gap(ratio["median"]) > 0 else 0.0
    share = min(1.0, explained)  # no more than there is to win
    low, high = ratio["ci_low"], ratio["ci_high"]
    count = experiment.count
    saved = count * share * gap(ratio["median"])
    return Saving(
        seconds=saved,
        low=None if low is None else count * share * gap(low),
        high=None if high is None else count * share * gap(high),
        step_s=step_s,
        of="layer",
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
        otherwise="" if causes else _unexplained(ratio),
    )


def _unexplained(ratio: Mapping[str, Any]) -> str:
    """What to say of a gap that nobody has measured a cause of."""
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
# Experiments run: what is changed, beside what, and how long that takes.

# Slower steps get the fewest rounds that have an interval.
_SLOW_S = 0.5
# Calibration and warm-up take about so many executions.
_WARMUP = 5
# Choosing kernels and checking them takes longer than timing them.
_LAYER_S = 6.0


def try_out(experiment: Experiment, seen: Observations, session: Session) -> Saving:
    """Run an experiment and return what it saves; below zero where the change costs time.

    Args:
        experiment: what is changed.
        seen: what is known of the step.
        session: whose workers are used.

    Raises:
        PydlbenchError: it cannot be run: the message says why.
    """
    if isinstance(experiment, StepChange):
        return _of_step(experiment, seen, session)
    if isinstance(experiment, LayerChange):
        return _of_layer(experiment, seen.step_s, session)
    return saving_against_native(experiment, seen.step_s, session)


def cost_s(experiment: Experiment, step_s: float) -> float:
    """Return about how long an experiment takes, in seconds."""
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
        if wrong := [check for check in changed.facts.checks if check.status != "ok"]:
            raise PrimitiveError(f"its check {wrong[0].name} failed: {wrong[0].detail}")
        policies = [
            step_policy(own, session, kernel.facts)
            for own, kernel in zip((spec, other), kernels, strict=True)
        ]
        seed, rounds = session.options.seed, _rounds(seen.step_s)
        ratio, base, warning = in_turn(kernels, policies, seed, experiment.images, rounds)
    words = step_how(experiment.what, base, ratio.median * base, ratio.n) + warning
    if experiment.images > 1:
        words += f", per {seen.plan.batch} images"
    if experiment.kept_s:
        words += f"; less {format_seconds(experiment.kept_s)}: {experiment.kept_how}"
    return saving_of(ratio, base, seen.step_s, "step", words, kept_s=experiment.kept_s)


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
        options = session.options
        policy = Policy(confidence=options.confidence, budget_s=options.budget_s)
        policies = [policy] * 2
        ratio, base, warning = in_turn(kernels, policies, options.seed, experiment.images)
    times = f"{format_seconds(base)} as it is, {format_seconds(ratio.median * base)} with "
    how = f"the layer alone, interleaved, {ratio.n} rounds: {times}{experiment.what}{warning}"
    if experiment.images > 1:
        how += f", per {experiment.spec.layer.batch} images"
    if experiment.count > 1:
        how += f"; {experiment.count} times in the step"
    return saving_of(ratio, base, step_s, "layer", how, count=experiment.count)
