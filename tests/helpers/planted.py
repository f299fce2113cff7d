"""A session without processes: steps, operators and native rows take invented times."""

from types import SimpleNamespace

from breakdown_records import level, make_record
from planted_world import KERNEL_S, World, summary

from pydlbench.diagnose.run import diagnoses
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.models import build_model
from pydlbench.models.passes import step_passes
from pydlbench.records.breakdown import BrokenDownCall, Term
from pydlbench.records.measurement import Correctness, Measurement, Roofline
from pydlbench.records.step import StepFacts, StepSpec
from pydlbench.runner.options import RunnerOptions
from pydlbench.study.table import Interference
from pydlbench.timing.chunk import Chunk
from pydlbench.workers.channel import Release, Sample
from pydlbench.workers.host import RemoteKernel

__all__ = ["KERNEL_S", "Bench", "Kernels", "World", "calls", "explainer", "run"]


class Kernels:
    """What stands for the worker of a framework."""

    pid = 1
    generation = 1
    backend = "torch"

    def __init__(self, session, allocator):
        self.session, self.allocator = session, allocator
        self.made = {}

    def launch(self):
        """Every invented process is there."""

    def describe(self):
        return {}

    def build(self, _builder, _facts, spec, **_words):
        spec = StepSpec.from_dict(spec)
        world = self.session.world
        for word in world.refuses:
            if word in (spec.mode, spec.precision, self.allocator):
                raise UnsupportedError(f"no {word} here")
        number = self.session.count = self.session.count + 1
        model = build_model(spec.model, spec.batch, **spec.options)
        own = build_model(self.session.model, self.session.batch).batch
        self.made[number] = world.step(spec, self.allocator, own)
        facts = StepFacts(
            library="invented 1",
            timing="steady",
            batch=model.batch,
            output=(1,),
            parameters=1,
            setup_s=0.0,
        )
        return RemoteKernel(self, number, facts)

    def request(self, operation):
        if isinstance(operation, Sample):
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
        self.options = RunnerOptions(seed=1, budget_s=0.2)
        self.cpus = (0, 1)
        self.count = 0
        self.workers = {}
        self.asked = []
        self.recorded = {}

    def interference(self, *, reads=True):  # noqa: ARG002 - as a session's
        return Interference()

    def renew(self):
        """Nothing has run in its processes."""

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

    def prepare(self, case, *, variant=None, alone=False):  # noqa: ARG002 - as a session's
        worker = self.worker(case.backend)
        number = self.count = self.count + 1
        worker.made[number] = self.world.operator(case, variant)
        if case.layer.with_batch(1).batch == 1 and case.layer.batch > self.batch:
            worker.made[number] *= case.layer.batch / self.batch
        return RemoteKernel(worker, number, SimpleNamespace(correct=Correctness(status="ok")))

    def measure(self, cases, *_, **__):
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


def explainer(world):
    """Return what stands for the breakdown: it knows what was planted, as the real one would."""

    def break_down(case, *_, **__):
        model = build_model(case.model, case.batch, **case.options)
        step_s = world.step(case, "default", model.batch)
        times = {}
        for one in step_passes(model, case.phase):
            if one.node in [node.name for node in model]:
                times[one.node] = times.get(one.node, 0.0) + KERNEL_S
        found = []
        for node in model:
            if node.name not in times:
                continue
            lost = world.unpacked_s.get(node.name, 0.0) + world.slow_s.get(node.name, 0.0)
            library = node.op in ("conv", "linear", "pool")
            name = "aten.convolution" if library else "aten.relu"
            found.append(calls(node.name, name, "forward", times[node.name] + lost))
        loss_s = world.decay_s + world.slow_s.get("loss", 0.0)
        found.append(calls("loss", "aten.sum", "loss", loss_s))
        found.append(calls("optimizer", "aten.add_", "optimizer", world.optimizer_s))
        terms = {"fresh memory": world.fresh_s, "dispatch": world.gaps_s}
        if world.returned_s:
            terms["returned memory"] = world.returned_s
        if case.mode in ("eager", "graph"):
            terms["reorders"] = world.reorder_s if case.layout == "nchw" else 0.0
        yield make_record(
            model=case.model,
            batch=model.batch,
            phase=case.phase,
            framework=case.framework,
            mode=case.mode,
            layout=case.layout,
            measured=level(1e3 * step_s),
            terms=tuple(
                Term(
                    term=name,
                    kind="experiment",
                    seconds=seconds,
                    share=seconds / step_s,
                    how="planted",
                    level="alone",
                )
                for name, seconds in terms.items()
            ),
            calls=tuple(found),
            modules=(),
            notes=("an invented breakdown",),
        )

    return break_down


def calls(module, operator, direction, seconds, **more):
    return BrokenDownCall(
        operator=operator,
        module=module,
        direction=direction,
        count=more.pop("count", 1),
        in_context_s=seconds,
        share=seconds,
        alone_s=seconds,
        signatures=(f"{operator}({module})",),
        **more,
    )


def run(
    world, *, explained=True, limit=1e6, batch=4, model="mnist", stop=None, resumed=None, **words
):
    """Diagnose a step of the invented machine, until ``stop`` returns true for an answer.

    ``resumed`` has more arguments of the diagnosis.
    """
    case = StepSpec(model=model, batch=batch, **words)

    def no_breakdown(*_, **__):
        yield from ()
        raise PrimitiveError("no breakdown today")

    session = Bench(world, model, batch)
    explains = explainer(world) if explained else no_breakdown
    found = None
    for answer in diagnoses(case, session, limit, explainer=explains, **(resumed or {})):
        found = answer
        if stop is not None and stop(answer):
            break
    return found
