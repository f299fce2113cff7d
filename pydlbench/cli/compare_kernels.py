"""``pydlbench compare fast.py:launch native --shape conv3``: kernels of two files or backends."""

from dataclasses import replace
from typing import Final

from pydlbench.cli.compare_options import CompareOptions
from pydlbench.cli.layer_options import LayersOptions, layer_backends
from pydlbench.cli.layer_request import read_request
from pydlbench.cli.options import flag_of
from pydlbench.compare.kernels import name_of
from pydlbench.errors import UsageError, nearest
from pydlbench.models.user_model import is_user_model
from pydlbench.runner.tasks import Task

#: Options whose texts ``layers`` reads.
OF_LAYERS: Final = ("shape", "batch", "pass_", "precision", "cache", "mode", "threads", "device")
# Caches of the rows, unless --cache names others.
_CACHES: Final = ("hot", "all-cold")


def read_task(args: CompareOptions) -> tuple[Task, tuple[str, ...]]:
    """Return the task that times both kernels in turn, the rows of A first, and notes.

    Raises:
        UsageError: a value is bad, or there are not two kernels.
    """
    if len(args.runs) != 2 or len({*args.runs}) != 2:  # A and B
        raise UsageError(
            f"KERNEL: {' '.join(args.runs) or 'none'}: two are compared; nearest: pydlbench "
            "compare fast.py:launch native --shape conv3"
        )
    known = layer_backends()
    for name in args.runs:
        if not is_user_model(name) and name not in known:
            raise UsageError(
                f"{name}: --shape is for kernels: FILE.py:LAUNCH, or a backend; nearest: "
                f"{', '.join(nearest(name, known) or known)}"
            )
    texts = {name: getattr(args, name) for name in OF_LAYERS}
    texts |= {"cache": args.cache or _CACHES, "backend": args.runs, "seed": (str(args.seed),)}
    words = [
        word for name, some in texts.items() for text in some for word in (flag_of(name), text)
    ]
    request = read_request(LayersOptions.parse(words))
    task, *others = request.tasks()
    a, b = ([row for row in task.rows if name_of(row.spec) == name] for name in args.runs)
    if others or len({row.spec.mode for row in a}) != 1 or len({row.spec.mode for row in b}) != 1:
        raise UsageError(
            "one kernel is compared with one other; nearest: one value of --mode and of --threads"
        )
    how = {"repetitions": args.repetitions, "budget_s": args.budget * args.repetitions}
    options = {**task.options, **how, "renew": True, "fresh": True}
    return replace(task, rows=(*a, *b), options=options), request.notes
