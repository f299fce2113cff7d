"""A session without processes: steps, operators and native rows take invented times."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydlbench.crosscheck import CheckRecord, LedgerTerm, PieceRow
from pydlbench.endtoend import StepCase
from pydlbench.errors import UnsupportedError
from pydlbench.models import build_model
from pydlbench.models.work import work
from pydlbench.results import Measurement
from pydlbench.results.parts import Roofline, TimeSummary
from pydlbench.session.options import Options
from pydlbench.timing.chunk import Chunk
from pydlbench.workers.host import RemoteKernel

#: Seconds of every native kernel, hot or cold.
KERNEL_S = 2e-3


def summary(seconds):
    return TimeSummary(
        median=seconds,
        ci_low=0.999 * seconds,
        ci_high=1.001 * seconds,
        q1=seconds,
        q3=seconds,
        min=seconds,
        n=10,
    )


@dataclass
class World:
    """Planted faults; seconds per step.

    Attributes:
        step_s: what the step takes without any of them, at its own batch.
        fresh_s: first touch of fresh memory; less with huge pages, nothing with kept ones.
        reorder_s: layouts converted in NCHW.
        gaps_s: starting operators, whatever the batch; nothing where they are joined.
        pointwise_s: of the step without faults, what joining saves.
        optimizer_s: the updates' share of the step without faults.
        decay_s: likewise that of L2 terms.
        unpacked_s: by node, what its forward pass loses by unpacked weights.
        slow_s: by node, what its forward pass loses by a slower kernel.
        copy_s: what an uneven padding costs an operator.
        ragged_s: what channels that are no multiple of eight cost one.
        other_way_s: what the framework's usual way costs a product or convolution.
        batch_s: of the step, what it takes whatever the batch.
        efficiency: of native rows.
        bound: of native rows.
        refuses: words of cases that cannot be prepared.
    """

    step_s: float = 0.2
    fresh_s: float = 0.0
    reorder_s: float = 0.0
    gaps_s: float = 0.0
    pointwise_s: float = 0.0
    optimizer_s: float = 0.0
    decay_s: float = 0.0
    unpacked_s: dict = field(default_factory=dict)
    slow_s: dict = field(default_factory=dict)
    copy_s: float = 0.0
    ragged_s: float = 0.0
    other_way_s: float = 0.0
    batch_s: float = 0.0
    efficiency: float = 0.95
    bound: str = "memory"
    refuses: tuple = ()
    drift: float = 1.0

    def step(self, case, allocator, own_batch):
        """Seconds of a step."""
        fused = case.mode in ("compiled", "xla")
        seconds = self.step_s - self.batch_s
        seconds += sum(self.unpacked_s.values()) + sum(self.slow_s.values())
        seconds += self.copy_s + self.ragged_s + self.other_way_s
        fresh = {"default": 1.0, "huge pages": 0.1, "kept pages": 0.0}[allocator]
        seconds += fresh * self.fresh_s
        seconds += self.reorder_s if case.layout == "nchw" else 0.0
        if fused:
            seconds -= self.pointwise_s
        if case.phase == "forward-backward":
            seconds -= self.optimizer_s
        if case.options.get("decay") == "0":
            seconds -= self.decay_s
        seconds *= (case.batch or own_batch) / own_batch
        return seconds + self.batch_s + (0.0 if fused else self.gaps_s)

    def operator(self, case, variant):
        """Seconds of one operator of the framework alone."""
        layer, name = case.layer, (case.layer.name or "").rpartition("/")[2]
        seconds = KERNEL_S
        if case.pass_ == "forward":
            seconds += self.unpacked_s.get(name, 0.0) + self.slow_s.get(name, 0.0)
        if layer.kind == "conv2d":
            uneven = layer.pad_top != layer.pad_bottom or layer.pad_left != layer.pad_right
            seconds += self.copy_s if uneven else 0.0
            seconds += self.ragged_s if layer.in_channels % 8 else 0.0
        if variant in ("transposed", "nhwc"):
            seconds += self.other_way_s
        return seconds


class Kernels:
    """What stands for the worker of a framework."""

    pid = 1
    generation = 1
    backend = "torch"

    def __init__(self, session, allocator):
        self.session, self.allocator = session, allocator
        self.made = {}

    def ask(self, request, **words):
        if request == "prepare":
            case = StepCase.from_dict(words["case"]["step"])
            return self.prepare(case, words["preparation"])
        if request == "sample":
            return self.session.chunk(self.made[words["kernel"]], words, self.allocator)
        assert request == "release"
        del self.made[words["kernel"]]
        return None

    def prepare(self, case, preparation):
        world = self.session.world
        for word in world.refuses:
            if word in (case.mode, case.precision, self.allocator):
                raise UnsupportedError(f"no {word} here")
        number = self.session.count = self.session.count + 1
        wanted = preparation.get("pieces")
        if wanted is not None:  # the log
            assert wanted["kind"] == "log"
            self.made[number] = 0.0
            seconds = {"reorder": world.reorder_s if case.layout == "nchw" else 0.0}
            return {"kernel": number, "facts": {"log": {"seconds": seconds, "calls": 3}}}
        model = build_model(case.model, case.batch, **case.options)
        own = build_model(self.session.model, self.session.batch).batch
        self.made[number] = world.step(case, self.allocator, own)
        facts = {
            "library": "invented 1",
            "timing": "steady",
            "batch": model.batch,
            "output": [1],
            "parameters": 1,
            "setup_s": 0.0,
            "checks": [],
            "checks_s": 0.0,
            "notes": [],
            "environment": {},
        }
        return {"kernel": number, "facts": facts}

    def probe(self, name, **words):  # noqa: ARG002 - as a worker's
        assert name == "empty_call"
        return {"seconds": 1e-6}


class Bench:
    """A session of the invented machine."""

    def __init__(self, world, model, batch):
        self.world, self.model, self.batch = world, model, batch
        self.options = Options(seed=1, budget_s=0.2)
        self.cpus = (0, 1)
        self.count = 0
        self.workers = {}
        self.asked = []

    def worker(self, backend="native", device="cpu", *, warm=False, logging=False, allocator=None):
        del logging, device
        name = allocator or ("kept pages" if warm else "default")
        return self.workers.setdefault((backend, name), Kernels(self, name))

    def chunk(self, seconds, words, allocator):
        self.world.drift *= 1.0005
        seconds *= self.world.drift
        count, inner = words["samples"], words["inner"]
        faults = self.world.fresh_s / 1e-6 if allocator == "default" else 0.0
        return Chunk(
            seconds=(seconds,) * count, wall_s=seconds * count * inner, faults=faults
        ).to_dict()

    def cache_bytes(self, device="cpu"):  # noqa: ARG002 - as a session's
        return 1

    def prepare(self, case, *, warm=False, variant=None):
        assert not warm
        worker = self.worker(case.backend)
        number = self.count = self.count + 1
        worker.made[number] = self.world.operator(case, variant)
        if case.layer.with_batch(1).batch == 1 and case.layer.batch > self.batch:
            worker.made[number] *= case.layer.batch / self.batch
        return RemoteKernel(worker, number, {"correct": {"status": "ok"}})

    def measure(self, cases, progress=None):  # noqa: ARG002 - as a session's
        for case in cases:
            self.asked.append(case)
            yield self.row(case)

    def row(self, case):
        name = (case.layer.name or "").rpartition("/")[2]
        lost = {
            "weights not packed": self.world.unpacked_s.get(name, 0.0),
            "slower kernel": self.world.slow_s.get(name, 0.0),
        }
        native = case.backend == "native"
        gap = 0.0 if native or case.pass_ != "forward" else sum(lost.values())
        seconds = KERNEL_S + gap
        causes = [
            {"cause": cause, "seconds": one, "share": one / gap, "how": "planted"}
            for cause, one in lost.items()
            if gap and one
        ]
        ratio = seconds / KERNEL_S
        return Measurement(
            layer=case.layer.name or case.layer.problem,
            kind=case.layer.kind,
            problem=case.layer.problem,
            batch=case.layer.batch,
            pass_=case.pass_,
            precision=case.precision,
            backend=case.backend,
            mode=case.mode,
            status="ok",
            time=summary(seconds),
            algorithm="invented",
            roofline=Roofline(
                bound=self.world.bound,
                time_s=KERNEL_S * self.world.efficiency,
                efficiency=self.world.efficiency,
            ),
            flops=1,
            flops_executed=1,
            bytes=1,
            ratio={
                "to": "native",
                "median": ratio,
                "ci_low": 0.999 * ratio if gap else 1.0,
                "ci_high": 1.001 * ratio,
                "rounds": 9,
            },
            causes=tuple(causes),
        )


def checker(world):
    """Return what stands for the cross-check: it knows what was planted, as the real one would."""

    def check(name, options, batch, phase, precision, framework, mode, *_, **__):
        model = build_model(name, batch, **options)
        case = StepCase(model=name, batch=batch, phase=phase, mode=mode, options=options)
        step_s = world.step(case, "default", model.batch)
        times = {}
        for one in work(model, phase):
            if one.node in [node.name for node in model]:
                times[one.node] = times.get(one.node, 0.0) + KERNEL_S
        pieces = []
        for node in model:
            if node.name not in times:
                continue
            lost = world.unpacked_s.get(node.name, 0.0) + world.slow_s.get(node.name, 0.0)
            kind = "layer" if node.op in ("conv", "linear", "pool") else "pointwise"
            pieces.append(piece(node.name, kind, times[node.name] + lost, times[node.name]))
        loss = world.decay_s
        pieces.append(piece("loss", "loss", loss, 0.0, ()))
        pieces.append(piece("optimizer", "optimizer", world.optimizer_s, KERNEL_S, ()))
        terms = {"allocation, first touch": world.fresh_s, "dispatch": world.gaps_s}
        if mode in ("eager", "graph"):
            terms["layout reorders"] = 0.0
        ledger = [
            LedgerTerm(term=term, seconds=s, share=s / step_s, how="planted")
            for term, s in terms.items()
        ]
        return CheckRecord(
            model=name,
            batch=model.batch,
            phase=phase,
            precision=precision,
            framework=framework,
            mode=mode,
            library="invented 1",
            threads=2,
            estimate_s=step_s,
            estimate_native_s=step_s,
            native_low_s=step_s,
            native_high_s=step_s,
            measured=summary(step_s),
            ledger=tuple(ledger),
            rounds=(),
            pieces=tuple(pieces),
            faults={},
            calibration={"dispatch_s": 1e-6},
            notes=("an invented cross-check",),
        )

    return check


def piece(name, kind, seconds, native_s, nodes=None):
    return PieceRow(
        name=name,
        kind=kind,
        count=1,
        seconds=seconds,
        native_s=native_s,
        nodes=(name,) if nodes is None else nodes,
    )
