"""What fails in a framework's search costs its variant, with a reason; the rest goes on."""

import functools

import pytest

from pydlbench.backends.base import Preparation
from pydlbench.backends.frameworks.backend import FrameworkBackend, Variant, framework_errors
from pydlbench.errors import (
    DeviceLostError,
    InsufficientMemoryError,
    PrimitiveError,
    UnsupportedError,
)
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest

PREPARATION = Preparation(seed=1, cold_bytes=0, memory_bytes=1 << 30, all_candidates=True)


class Product:
    """A product of matrices that breaks where a test wants it to."""

    def __init__(self, breaks, inputs):
        self.source, self.weights, self.breaks = inputs["src"], inputs["weights"], breaks
        self.call()  # as builders do

    def call(self):
        return self.source @ self.weights

    def wait(self):
        pass

    def outputs(self):
        if self.breaks == "outputs":
            raise MemoryError
        return {"dst": self.source @ self.weights}


class Second(Product):
    """Breaks when it is called once more."""

    def __init__(self, breaks, inputs):
        self.calls = 0
        super().__init__(breaks, inputs)

    def call(self):
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError("the kernel   gave up")
        return super().call()


class Framework(FrameworkBackend):
    name = library = "invented"

    def __init__(self, *kinds):
        super().__init__("cpu", (0,))
        self.kinds = kinds

    def describe(self):
        return {"name": self.name}

    def empty(self, mode):
        raise UnsupportedError(str(mode))

    def variants(self, case):  # noqa: ARG002 - it has one thing to compute
        return [
            Variant(
                algorithm=f"product {number}",
                layout="plain",
                variant="plain",
                build=functools.partial(kind, breaks),
            )
            for number, (kind, breaks) in enumerate(self.kinds)
        ]


def prepared(*kinds):
    case = KernelSpec(layer=build_layer("gemm", m=4, k=5, n=3), backend="torch")
    return Framework(*kinds).prepare(case, PREPARATION)


@pytest.mark.parametrize("bad", [(Second, ""), (Product, "outputs")])
def test_what_breaks_after_it_was_built_costs_its_variant(bad):
    kernel = prepared(bad, (Product, ""))
    assert kernel.facts.algorithm == "product 1"
    assert kernel.facts.correct.status == "ok"
    failed = [one for one in kernel.facts.candidates if one["status"] == "failed"]
    assert [one["algorithm"] for one in failed] == ["product 0"]
    assert len(kernel.sample(ChunkRequest(samples=2)).seconds) == 2


def test_when_all_break_the_reason_is_said():
    with pytest.raises(PrimitiveError, match="RuntimeError: the kernel gave up"):
        prepared((Second, ""))
    with pytest.raises(PrimitiveError, match=r"out of memory; .*--batch"):
        prepared((Product, "outputs"))


def test_what_breaks_while_it_is_timed_is_named():
    kernel = prepared((Product, ""))
    kernel.operator.source = None
    with pytest.raises(PrimitiveError, match="product 0: ValueError: matmul"):
        kernel.sample(ChunkRequest(samples=1))


@pytest.mark.parametrize(
    "layer", [build_layer("gemm", m=4, k=5, n=3), build_layer("sgd", channels=6)]
)
def test_nothing_is_blocked_where_there_is_one_layout_only(layer):
    backend = Framework((Product, ""))
    with pytest.raises(UnsupportedError, match=r"invented .*--layout blocked"):
        backend.prepare(KernelSpec(layer=layer, layout="blocked"), PREPARATION)


def test_the_weights_of_a_product_lie_as_it_asks():
    backend = Framework((Product, ""))  # with plain weights
    kernel = backend.prepare(
        KernelSpec(layer=build_layer("gemm", m=4, k=5, n=3, weights_tag="kn")), PREPARATION
    )
    assert kernel.facts.correct.status == "ok"
    with pytest.raises(UnsupportedError, match=r"invented .*nk"):
        backend.prepare(
            KernelSpec(layer=build_layer("gemm", m=4, k=5, n=3, weights_tag="nk")), PREPARATION
        )


class AcceleratorError(RuntimeError):
    """As torch calls it."""

    def __init__(self, text: str, error_code: int = 700) -> None:
        super().__init__(text)
        self.error_code = error_code


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (AcceleratorError("CUDA error"), DeviceLostError, "mm: AcceleratorError: CUDA error"),
        # cudaErrorStreamCaptureUnsupported: a call that no graph can have.
        (AcceleratorError("capturing", 900), PrimitiveError, "mm: AcceleratorError: capturing"),
        (RuntimeError("can't allocate memory"), InsufficientMemoryError, "try a smaller --batch"),
        (UnsupportedError("no such thing"), UnsupportedError, "^no such thing$"),
    ],
)
def test_errors_by_their_kind(error, kind, text):
    with pytest.raises(kind, match=text), framework_errors("mm"):
        raise error
