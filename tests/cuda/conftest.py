"""What the tests on a GPU have in common. Where there is no GPU they are skipped, saying why."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pydlbench.errors import UnsupportedError
from pydlbench.records.measurement import KernelSpec
from pydlbench.verification.inputs import make_inputs, round_to
from pydlbench.verification.verify import Verdict, verify

if TYPE_CHECKING:
    from pydlbench.ops.op import Layer

_WORKSPACE = 1 << 30


class Checked:
    """A plan that was run on poisoned outputs, and the two verdicts on what it wrote.

    ``host`` is None where the host's reference does not know the layer (a fused one); ``device``
    where the device has none.
    """

    def __init__(self, plan: Any, device: Verdict | None, host: Verdict | None) -> None:
        self.plan = plan
        self.device = device
        self.host = host

    def __str__(self) -> str:
        return f"{self.plan.algorithm} [{self.plan.layout}]: {self.device}; {self.host}"

    @property
    def error(self) -> float:
        """The relative error, by whoever has one."""
        verdict = self.device or self.host
        assert verdict is not None
        assert verdict.rel_error is not None, str(self)
        return verdict.rel_error

    @property
    def right(self) -> bool:
        """Whether all who judged agree that it is right."""
        return all(one.status == "ok" for one in (self.device, self.host) if one is not None)


class Gpu:
    """The first GPU with its libraries, and the functions that the product itself uses on it."""

    def __init__(self) -> None:
        self.native = importlib.import_module("pydlbench._cuda")
        self.device = self.native.Device(0)
        name = "pydlbench.backends.native"
        importlib.import_module(f"{name}.modules").load_libraries()
        self._plans = importlib.import_module(f"{name}.cuda_plans")

    def plans(self, case: KernelSpec, workspace: int = _WORKSPACE) -> list[Any]:
        """Return all plans of a case."""
        found: list[Any] = self._plans.plans(self.device, case, workspace)
        return found

    def inputs(self, case: KernelSpec, seed: int = 0) -> dict[str, Any]:
        """Return what a case reads."""
        inputs = make_inputs(case.layer, case.pass_, case.precision, seed, case.propagation)
        if case.fuse == "bias-relu":
            shape = (1, case.layer.out_channels, 1, 1) if _is_conv(case) else (1, 1, case.layer.n)
            rng = np.random.default_rng(seed)
            bias = rng.uniform(-1, 1, shape).astype(np.float32)
            inputs["bias"] = round_to(case.precision, bias)
        return inputs

    def kernel(self, case: KernelSpec, plan: Any = None, **words: Any) -> Any:
        """Return a kernel of a case: of one plan, or of the first that can be built."""
        arena = self.native.Arena(self.device, self.inputs(case))
        for one in [plan] if plan is not None else self.plans(case):
            try:
                return self.native.Kernel(one, arena, **words)
            except UnsupportedError:
                if plan is not None:
                    raise
        raise AssertionError(f"no plan of {case.label} can be built")

    def check(self, case: KernelSpec, inputs: dict[str, Any] | None = None) -> list[Checked]:
        """Run every plan that can be built and judge it on the device and on the host."""
        inputs = self.inputs(case) if inputs is None else inputs
        arena = self.native.Arena(self.device, inputs)
        reference = self._plans.reference(case)
        checked = []
        for plan in self.plans(case):
            try:
                kernel = self.native.Kernel(plan, arena)
                kernel.run_poisoned()  # cuDNN's pooling tells only now what it cannot do
            except UnsupportedError:
                continue
            on_device = None
            if reference is not None:
                on_device = self._judge(case, plan, kernel.verify(reference, arena))
            on_host = None if case.fuse != "none" else self._on_host(case, plan, inputs, kernel)
            checked.append(Checked(plan, on_device, on_host))
        return checked

    def _judge(self, case: KernelSpec, plan: Any, comparison: Any) -> Verdict:
        accumulate = self._plans.accumulator(plan, case.precision)
        found: Verdict = self._plans.judge(comparison, case.precision, accumulate, plan.algorithm)
        return found

    def _on_host(self, case: KernelSpec, plan: Any, inputs: dict[str, Any], kernel: Any) -> Verdict:
        return verify(
            case.layer,
            case.pass_,
            case.precision,
            inputs,
            kernel.output(),
            seed=1,
            accumulate=self._plans.accumulator(plan, case.precision),
            algorithm=plan.algorithm,
            extra=kernel.outputs() if case.layer.kind == "pointwise" else None,
            propagation=case.propagation,
        )


def _is_conv(case: KernelSpec) -> bool:
    return case.layer.kind == "conv2d"


@pytest.fixture(scope="module")
def gpu():
    """The GPU; its memory is given back after each file."""
    one = Gpu()
    yield one
    one.device.synchronize()


@pytest.fixture(scope="module")
def cuda(gpu):
    """The native module."""
    return gpu.native


@pytest.fixture(scope="module")
def device(gpu):
    """The GPU as the native module knows it."""
    return gpu.device


@pytest.fixture
def all_right(gpu):
    """Run every plan of a case, or show that the GPU refuses the mode in a sentence."""

    def check(layer: Layer, **words: str) -> list[Checked]:
        case = KernelSpec(layer=layer, device="cuda:0", **words)
        try:
            found = gpu.check(case)
        except UnsupportedError as error:
            text = _sentence(error)
            # Libraries may have nothing for a shape; our own kernels have something for every one.
            assert "it needs" in text or layer.kind in ("conv2d", "gemm"), text
            pytest.skip(text)
        right = [one for one in found if one.right]
        assert right, f"no plan of {case.label} is right: {[str(one) for one in found]}"
        wrong = [one for one in found if not one.right]
        other = [str(one) for one in wrong if not _may_be_wrong(one.plan.algorithm, layer)]
        assert other == [], f"{len(other)} of {len(found)} plans"
        for one in wrong:
            assert one.device is None or one.host is None or one.device.status == one.host.status
        for one in right:
            _compare(one)
        return right

    return check


# What cuDNN 9.19 gets wrong on Hopper, which is left out of rows: these engines, its max pooling's
# gradient in 16 bits, and others where there is more padding on one side than on the other.
_WRONG_ENGINES = {"2", "17", "26", "47", "50", "61", "70", "78"}


def _may_be_wrong(algorithm: str, layer: Layer) -> bool:
    engine = re.search(r"engine (\d+)", algorithm)
    if engine is None:
        return algorithm == "cudnnPoolingBackward"
    padding = tuple(layer.padding) if layer.kind == "conv2d" else ()
    uneven = len(padding) == 4 and padding[:2] != padding[2:]
    padded = algorithm.startswith(("pad ", "crop "))  # by us, evenly
    return engine[1] in _WRONG_ENGINES or (uneven and not padded)


def _sentence(error: UnsupportedError) -> str:
    """Return the reason, if it is one that a user can read."""
    text = str(error)
    assert text
    assert "\n" not in text
    assert "cudaError" not in text
    return text


def _compare(one: Checked) -> None:
    """Hold the two verdicts against each other where both recomputed every element."""
    if one.device is None or one.host is None:
        return
    assert one.device.unwritten == one.host.unwritten == 0, str(one)
    assert one.device.rel_error is not None
    assert one.host.rel_error is not None
    # The host leaves out what is padding, up to half of a small sum.
    assert one.host.tolerance <= 1.001 * one.device.tolerance, str(one)
    assert one.device.tolerance <= 2 * one.host.tolerance, str(one)
    if one.host.points == one.device.points:
        # The host's may be larger: it holds checksums against the reference, too.
        assert one.host.rel_error >= 0.5 * one.device.rel_error - 1e-12, str(one)
    if one.host.checksums == 0:
        assert one.device.rel_error >= 0.5 * one.host.rel_error - 1e-12, str(one)
