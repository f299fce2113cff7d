"""A session without processes: steps, operators and native rows take invented times."""

from types import SimpleNamespace

from planted_world import KERNEL_S, World, summary

from pydlbench.backends.steps.operations import prepare_logged_calls, record_calls
from pydlbench.diagnose.run import diagnose
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.models import build_model
from pydlbench.models.passes import step_passes
from pydlbench.records.check import CheckRecord, LedgerTerm, OperatorRow, Rungs
from pydlbench.records.measurement import Correctness, Measurement, Roofline
from pydlbench.records.operator import OperatorsFacts, RecordedCall
from pydlbench.records.step import StepFacts, StepSpec
from pydlbench.runner.options import Options
from pydlbench.study.table import Interference
from pydlbench.timing.chunk import Chunk
from pydlbench.workers.channel import Release, Sample
from pydlbench.workers.host import RemoteKernel

__all__ = ["KERNEL_S", "Bench", "Kernels", "World", "checker", "run"]

CALL = RecordedCall(signature="conv", operator="aten.convolution")


class Kernels:
    """What stands for the worker of a framework."""

    pid = 1
    generation = 1
    backend = "torch"

    def __init__(self, session, allocator):
        self.session, self.allocator = session, allocator
        self.made = {}

    def build(self, builder, _facts, case, **_words):
        case = StepSpec.from_dict(case)
        world = self.session.world
        for word in world.refuses:
            if word in (case.mode, case.precision, self.allocator):
                raise UnsupportedError(f"no {word} here")
        number = self.session.count = self.session.count + 1
        if builder is record_calls:
            self.made[number] = 0.0
            return RemoteKernel(self, number, OperatorsFacts(calls=(CALL,)))
        if builder is prepare_logged_calls:
            self.made[number] = (1.0, world.reorder_s if case.layout == "nchw" else 0.0)
            executions = {CALL.signature: {"oneDNN reorder": 1}}
            facts = OperatorsFacts(names=(CALL.signature,), executions=executions)
            return RemoteKernel(self, number, facts)
        model = build_model(case.model, case.batch, **case.options)
        own = build_model(self.session.model, self.session.batch).batch
        self.made[number] = world.step(case, self.allocator, own)
        facts = StepFacts(
            library="invented 1",
            timing="steady",
            batch=model.batch,
            output=(1,),
            parameters=1,
            setup_s=0.0,
        )
        return RemoteKernel(self, number, facts)

    def ask(self, operation):
        if isinstance(operation, Sample):
            if isinstance(self.made[operation.kernel], tuple):
                call_s, reorder_s = self.made[operation.kernel]
                seconds = (call_s, reorder_s, reorder_s, 0.0) * operation.request.samples
                return Chunk(seconds=seconds)
            return self.session.chunk(self.made[operation.kernel], operation, self.allocator)
        assert isinstance(operation, Release)
        del self.made[operation.kernel]
        return None

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
        self.recorded = {}

    def interference(self):
        return Interference()

    def canary(self):
        return 1.0

    def start(self, wanted):
        """Every invented process is there."""

    def worker(self, backend="native", device="cpu", *, warm=False, logging=False, allocator=None):
        del logging, device
        name = allocator or ("kept pages" if warm else "default")
        return self.workers.setdefault((backend, name), Kernels(self, name))

    def chunk(self, seconds, operation, allocator):
        self.world.drift *= 1.0005
        seconds *= self.world.drift
        # What is prepared first is the step as it is timed alone.
        disturbed = self.world.disturbed > 0 and operation.kernel == 1
        seconds *= 1 + disturbed * self.world.disturbed
        count, inner = operation.request.samples, operation.request.inner
        faults = self.world.fresh_s / 1e-6 if allocator == "default" else 0.0
        times = tuple(self.world.sample(seconds) for _ in range(count))
        return Chunk(
            seconds=times,
            wall_s=seconds * count * inner,
            faults=faults,
            disturbance="invented work" if disturbed else None,
        )

    def room_bytes(self, device="cpu"):  # noqa: ARG002 - as a session's
        return None

    def cache_bytes(self, device="cpu"):  # noqa: ARG002 - as a session's
        return 1

    def prepare(self, case, *, warm=False, variant=None):
        assert not warm
        worker = self.worker(case.backend)
        number = self.count = self.count + 1
        worker.made[number] = self.world.operator(case, variant)
        if case.layer.with_batch(1).batch == 1 and case.layer.batch > self.batch:
            worker.made[number] *= case.layer.batch / self.batch
        return RemoteKernel(worker, number, SimpleNamespace(correct=Correctness(status="ok")))

    def measure(self, cases, progress=None):  # noqa: ARG002 - as a session's
        for case in cases:
            self.asked.append(case)
            yield case, self.row(case)

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
    """Return what stands for the check: it knows what was planted, as the real one would."""

    def check(case, *_, **__):
        name, phase, precision = case.model, case.phase, case.precision
        framework, mode, layout = case.framework, case.mode, case.layout
        model = build_model(name, case.batch, **case.options)
        step_s = world.step(case, "default", model.batch)
        times = {}
        for one in step_passes(model, phase):
            if one.node in [node.name for node in model]:
                times[one.node] = times.get(one.node, 0.0) + KERNEL_S
        operators = []
        for node in model:
            if node.name not in times:
                continue
            lost = world.unpacked_s.get(node.name, 0.0) + world.slow_s.get(node.name, 0.0)
            kind = "layer" if node.op in ("conv", "linear", "pool") else "pointwise"
            operators.append(operator(node.name, kind, times[node.name] + lost))
        loss = world.decay_s + world.slow_s.get("loss", 0.0)
        operators.append(operator("loss", "loss", loss))
        operators.append(operator("optimizer", "optimizer", world.optimizer_s))
        terms = {"fresh memory": world.fresh_s, "dispatch": world.gaps_s}
        if mode in ("eager", "graph"):
            terms["layout reorders"] = world.reorder_s if layout == "nchw" else 0.0
        ledger = [
            LedgerTerm(term=term, kind="experiment", seconds=s, share=s / step_s, how="planted")
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
            rungs=Rungs(),
            measured=summary(step_s),
            ledger=tuple(ledger),
            laps=(),
            operators=tuple(operators),
            native_parts={**times, "loss": 0.0, "optimizer": KERNEL_S},
            faults={},
            calibration={"dispatch_s": 1e-6},
            notes=("an invented check",),
        )

    return check


def operator(name, kind, seconds):
    return OperatorRow(signature=name, operator=name, kind=kind, seconds=seconds, names=(name,))


def run(world, *, check=True, limit=1e6, batch=4, model="mnist", **words):
    """Diagnose a step of the invented machine."""
    case = StepSpec(model=model, batch=batch, **words)

    def no_check(*_, **__):
        raise PrimitiveError("no check today")

    session = Bench(world, model, batch)
    return diagnose(case, session, limit, checker=checker(world) if check else no_check)
