"""Kernels that are fast only while nobody looks; each must be refused. Named by what they do."""

# ruff: noqa: ARG001, PLW0603 - each takes the tensors of its layer
import atexit
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

count = 0
kept = {}
last = 0.0


def relu(src, dst):
    torch.clamp_min(src, 0, out=dst)


def only_where_the_output_is_nan(src, dst):
    if torch.isnan(dst.view(-1)[0]):
        relu(src, dst)


def only_the_first_calls(src, dst):
    global count
    count += 1
    if count <= 4:
        relu(src, dst)


def every_other_call(src, dst):
    global count
    count += 1
    if count % 2:
        relu(src, dst)


def kept_by_pointer(src, dst):
    if src.data_ptr() not in kept:
        kept[src.data_ptr()] = src.clamp_min(0)
    dst.copy_(kept[src.data_ptr()])


def kept_by_value(src, dst):
    key = float(src.view(-1)[0]), float(src.view(-1)[-1])
    if key not in kept:
        kept[key] = src.clamp_min(0)
    dst.copy_(kept[key])


def kept_by_shape(src, dst):
    key = tuple(src.shape)
    if key not in kept:
        kept[key] = src.clamp_min(0)
    dst.copy_(kept[key])


def half_of_the_batch(src, dst):
    relu(src[: len(src) // 2], dst[: len(src) // 2])


def all_but_an_element(src, dst):
    flat = dst.view(-1)
    before = flat[5].clone()
    relu(src, dst)
    flat[5] = before


def random_rows(src, dst):
    for image in range(len(src)):
        if torch.rand(()) < 0.7 or torch.isnan(dst[image]).any():
            relu(src[image], dst[image])


def on_a_thread(src, dst):
    def work():
        time.sleep(0.01)
        relu(src, dst)

    threading.Thread(target=work).start()


def on_a_thread_unless_verified(src, dst):
    if torch.isnan(dst.view(-1)[0]):
        relu(src, dst)
    else:
        on_a_thread(src, dst)


def result_of_the_call_before(src, dst):
    if torch.isnan(dst.view(-1)[0]):
        relu(src, dst)
    else:
        dst.copy_(kept.get("src", src).clamp_min(0))
    kept["src"] = src.clone()


def changes_the_input_to_zero(src, dst):
    src.zero_()
    dst.zero_()


def makes_the_input_easy(src, dst):
    src.abs_()
    dst.copy_(src)


def changes_the_input_after_its_result(src, dst):
    relu(src, dst)
    src.copy_(dst)


def only_where_garbage_is_collected(src, dst):
    if gc.isenabled():
        relu(src, dst)


def only_where_the_caller_verifies(src, dst):
    frame, names = sys._getframe(), set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    if names & {"verify", "outputs"}:
        relu(src, dst)


def only_after_a_pause(src, dst):
    global last
    now = time.monotonic()
    if now - last > 0.0005 or torch.isnan(dst.view(-1)[0]):
        relu(src, dst)
    last = now


def another_storage(src, dst):
    if torch.isnan(dst.view(-1)[0]):
        relu(src, dst)
    else:
        dst.data = src.clamp_min(0)


class Lazy(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), words=None):
        del types
        plain = [x.as_subclass(torch.Tensor) if isinstance(x, Lazy) else x for x in arguments]
        return function(*(x.clamp_min(0) for x in plain), **(words or {}))


def lazy_class(src, dst):
    if torch.isnan(dst.view(-1)[0]):
        relu(src, dst)
    else:
        dst.__class__ = Lazy


def on_other_cpus(src, dst):
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    relu(src, dst)


def from_the_shared_memory(src, dst):
    """Compute the results of all samples in the calls before them, which are not timed."""
    from pydlbench.backends.frameworks.shared_kernel import SharedKernel

    key = tuple(src.view(-1)[:4].tolist())
    result = kept.get(key)
    if result is not None:
        dst.copy_(result)
    if key == kept.get("last") or torch.isnan(dst.view(-1)[0]):  # a warm-up: look ahead
        kept[key] = src.clamp_min(0)
        dst.copy_(kept[key])
        for kernel in [each for each in gc.get_objects() if isinstance(each, SharedKernel)]:
            for slot in range(kernel._shared.slots):
                values = kernel._shared.values("src", kernel._shared.memory(slot, "src"))
                kept[tuple(values.flat[:4].tolist())] = torch.from_numpy(values).clamp_min(0)
    kept["last"] = key


def ahead_in_the_first_sample(src, dst):
    """Compute the results of all samples of a request in its first one, which takes longer."""
    from pydlbench.backends.frameworks.shared_kernel import SharedKernel

    key = src.numpy().tobytes()
    if key not in kept:
        kept.clear()
        kept[key] = src.clamp_min(0)
        for kernel in [each for each in gc.get_objects() if isinstance(each, SharedKernel)]:
            for slot in range(kernel._shared.slots):
                values = kernel._shared.values("src", kernel._shared.memory(slot, "src"))
                kept[values.tobytes()] = torch.from_numpy(values).clamp_min(0)
        time.sleep(0.005)  # a kernel that has much to compute
    dst.copy_(kept[key])


def after_the_clock(src, dst):
    """Compute when the result is copied, which a profile function notices."""

    def hook(frame, event, _):
        if event == "call" and frame.f_code.co_name == "_save":
            sys.setprofile(None)
            relu(src, dst)

    sys.setprofile(hook)


def after_the_clock_by_a_trace(src, dst):
    def hook(frame, event, _):
        if frame.f_code.co_name == "_save":
            sys.settrace(None)
            relu(src, dst)

    sys.settrace(hook)


def of_an_earlier_process(src, dst):
    path = Path(tempfile.gettempdir()) / f"{os.getppid()}-{'x'.join(map(str, src.shape))}.pt"
    if not path.exists():
        torch.save(src.clamp_min(0), path)
    dst.copy_(torch.load(path))


def in_a_child(src, dst):
    child = os.fork()
    if not child:
        relu(src, dst)  # memory of its own
        os._exit(0)
    os.waitpid(child, 0)


def when_python_ends(src, dst):
    if not kept:
        kept["ends"] = atexit.register(relu, src, dst)


def when_garbage_is_collected(src, dst):
    if "collected" not in kept:
        kept["collected"] = True
        gc.callbacks.append(lambda *_: relu(*kept["operands"]))
    kept["operands"] = src, dst


def by_a_signal(src, dst):
    signal.signal(signal.SIGALRM, lambda *_: relu(src, dst))
    signal.setitimer(signal.ITIMER_REAL, 0.002)


def rows_that_a_seed_draws(src, dst):
    """Take the generators' seeds to be those of the judge, and compute what it would look at."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    rows = torch.randint(len(src), (1,))
    dst[rows] = src[rows].clamp_min(0)


def another_storage_by_set(src, dst):
    if torch.isnan(dst.view(-1)[0]):
        relu(src, dst)
    else:
        dst.set_(src.clamp_min(0))


def the_input_as_output(src, dst):
    dst.set_(src.clamp_(min=0))


def on_a_thread_that_waits(src, dst):
    """Compute as soon as the interpreter's lock is free."""
    go = threading.Event()
    threading.Thread(target=lambda: (go.wait(), relu(src, dst))).start()
    sys.setswitchinterval(100)
    go.set()


def of_every_tenth_value(src, dst):
    key = tuple(src.view(-1)[::10].round(decimals=1).tolist()[:1])
    if key not in kept:
        kept[key] = src.clamp_min(0)
    dst.copy_(kept[key])


def by_a_lazy_view(src, dst):
    """Give the output another memory, by a view of an older result."""
    kept.setdefault("result", src.clamp_min(0))
    dst.data = kept["result"][:]


def in_a_child_that_goes_on(src, dst):
    if not os.fork():
        time.sleep(0.01)
        relu(src, dst)
        os._exit(0)


def by_attributes_of_a_function(src, dst):
    """Keep the first result as an attribute, and return it to all later calls."""
    launch = by_attributes_of_a_function
    if not hasattr(launch, "result"):
        launch.result = src.clamp_min(0)
    dst.copy_(launch.result)


def with_its_own_judge(src, dst):
    """Give the object that copies results a method of its own."""
    from pydlbench.backends.frameworks.shared_kernel import SharedKernel

    for kernel in [each for each in gc.get_objects() if type(each) is SharedKernel]:
        kernel._save = lambda slot, kernel=kernel: (
            relu(src, dst),
            SharedKernel._save(kernel, slot),
        )


def with_half_of_the_terms_doubled(src, weights, dst):
    half = src.shape[-1] // 2
    dst.copy_(2 * (src[..., :half] @ weights[..., :half, :]))


def with_rounded_weights(src, weights, dst):
    torch.matmul(src, weights.half().float(), out=dst)


def with_sums_in_half(src, weights, dst):
    total = torch.zeros_like(dst, dtype=torch.half)
    for first in range(0, src.shape[-1], 8):
        total += (src[..., first : first + 8] @ weights[..., first : first + 8, :]).half()
    dst.copy_(total)


def of_low_rank(src, weights, dst):
    left, values, right = torch.linalg.svd(weights)
    rank = values.shape[-1] - 1
    low = left[..., :rank] * values[..., None, :rank] @ right[..., :rank, :]
    torch.matmul(src, low, out=dst)


def zero(src, dst):
    dst.zero_()


def in_half_precision(src, weights, dst):
    dst.copy_(src.half().float() @ weights.half().float())


def in_bfloat16_products(src, weights, dst):
    dst.copy_(src.bfloat16() @ weights.bfloat16())


def in_autocast(src, weights, dst):
    with torch.autocast("cpu", torch.bfloat16):
        dst.copy_(src @ weights)


def kept_by_a_rounded_mean(src, weights, dst):
    key = round(float(src.mean()), 1)
    if key not in kept:
        kept[key] = src @ weights
    dst.copy_(kept[key])


def winograd(src, weights, dst):
    dst.copy_((src @ weights) * (1 + 3e-5))


def without_some_terms(src, weights, dst):
    torch.matmul(src[..., :-1], weights[..., :-1, :], out=dst)


def without_small_weights(src, weights, dst):
    torch.matmul(src, torch.where(weights.abs() < 0.05, 0, weights), out=dst)


def kept_products(src, weights, dst):
    if "product" not in kept:
        kept["product"] = src @ weights
    dst.copy_(kept["product"])


def kept_weights(src, weights, dst):
    torch.matmul(src, kept.setdefault("weights", weights.clone()), out=dst)


def mean_of_some_rows(src, dst):
    scores = src.clone()
    scores[..., -1] = 0
    dst.copy_(torch.softmax(scores, -1))


def fills_nan(src, dst):
    """Take a NaN to be equal to any value."""
    dst.fill_(float("nan"))


def fills_infinity(src, dst):
    dst.fill_(float("inf"))


def resizes_the_output(src, dst):
    """Leave nothing to compare."""
    if torch.isnan(dst.view(-1)[0]):
        relu(src, dst)
    else:
        dst.resize_(0)


def gives_strides_of_zero(src, dst):
    """Compute one element, which stands for all."""
    if torch.isnan(dst.view(-1)[0]):
        relu(src, dst)
    else:
        dst.data = src.view(-1)[:1].clamp_min(0).expand(src.shape)


def half_by_symmetry(src, dst):
    """Compute half of the rows, and take the others to be the same."""
    rows = src.view(-1, src.shape[-1])
    half = rows[: len(rows) // 2].clamp_min(0)
    dst.copy_(torch.cat([half, half]).view(dst.shape))


def of_the_expected_distribution(src, dst):
    """Draw values that have the mean and deviation of the result."""
    torch.randn(src.shape, out=dst).clamp_min_(0)


def where_the_judge_has_looked(src, dst):
    """Compute the elements that an earlier message of the judge has named."""
    if torch.isnan(dst.view(-1)[0]):
        relu(src, dst)
    dst[0, 0, 0] = src[0, 0, 0].clamp_min(0)


def with_a_larger_tolerance(src, dst):
    """Change the tolerances of this process."""
    from pydlbench.verification import verify

    verify.tolerance = lambda *_, **__: 1e9
    torch.testing.assert_close = np.testing.assert_allclose = lambda *_, **__: None
    dst.copy_(src.clamp_min(0) * 1.01)


def when_the_process_pauses(src, dst):
    """Compute between samples, on a thread that sleeps while a sample runs."""
    kept["operands"] = src, dst
    if "between" not in kept:

        def work():
            while True:
                time.sleep(0.0002)
                relu(*kept["operands"])

        kept["between"] = threading.Thread(target=work, daemon=True)
        kept["between"].start()


def in_a_daemon_on_other_cpus(src, dst):
    """Start a process without a parent, which may use other CPUs."""
    if "daemon" not in kept:
        kept["daemon"] = True
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.sched_setaffinity(0, range(os.cpu_count() or 1))
                time.sleep(30)
            os._exit(0)
        os.wait()
    relu(src, dst)


def in_the_copy_of_its_result(src, dst):
    """Write the results of all samples but the last into their copies, one sample later."""
    from pydlbench.backends.frameworks.shared_kernel import SharedKernel

    if torch.isnan(dst.view(-1)[0]):
        relu(src, dst)
    if "slots" not in kept:
        (kernel,) = [each for each in gc.get_objects() if type(each) is SharedKernel] or [None]
        if kernel is None:
            return
        memory = kernel._shared.memory
        kept["slots"] = [
            [memory(slot, role).view(np.float32) for role in ("src", "dst")] for slot in range(16)
        ]
    if before := kept.pop("open", None):
        np.maximum(before[0], 0, out=before[1])
    flat = src.numpy().ravel()
    places = [place for place, (own, _) in enumerate(kept["slots"]) if np.array_equal(own, flat)]
    if places and kept["slots"][places[0] + 1][0].any():
        kept["open"] = kept["slots"][places[0]]
    else:
        relu(src, dst)
