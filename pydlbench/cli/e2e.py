"""``pydlbench e2e``: a real framework step, also in the published scripts' own protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    from pydlbench.cli.store_option import add_store_option

    parser = subparsers.add_parser(
        "e2e",
        help="a real framework step, also as the published scripts time and print it",
        description="Check that PyTorch's and TensorFlow's steps are the model, then time them in "
        "turn; or run a published benchmark's own protocol and print what its script prints.",
    )
    many: dict[str, Any] = {"nargs": "+", "action": "extend"}
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="alexnet-owt, vgg16, resnet50, mnist..."
    )
    what = parser.add_argument_group("what is timed")
    what.add_argument(
        "--framework", **many, metavar="NAME", help="torch, tensorflow or all (default)"
    )
    what.add_argument(
        "--mode",
        **many,
        metavar="MODE",
        help="eager, compiled (torch), graph, xla (tensorflow) or all; default: eager and graph",
    )
    what.add_argument(
        "--phase",
        **many,
        metavar="PHASE",
        help="forward (default), forward-backward, training (with L2 terms and optimizer) or all",
    )
    what.add_argument("--batch", metavar="N", help="images per step; default: as published")
    what.add_argument(
        "--sweep", metavar="batch=N,N", help="several batch sizes one after another: batch=16,32,64"
    )
    what.add_argument(
        "--precision",
        **many,
        metavar="P",
        help="fp32 (default), bf16, fp16; on a GPU fp32, tf32, fp16-tc, bf16-tc; or all",
    )
    what.add_argument(
        "--cast",
        metavar="HOW",
        help="below fp32: mixed (weights stay in fp32: autocast; default) or whole",
    )
    what.add_argument("--layout", metavar="LAYOUT", default="nhwc", help="nhwc (default) or nchw")
    what.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="a variant of the model: lrn=off, classes=1001",
    )
    what.add_argument(
        "--feed",
        metavar="FROM",
        help="resident images (default), or new ones from the host in each step",
    )

    how = parser.add_argument_group("how it is timed")
    how.add_argument(
        "--device",
        **many,
        metavar="DEVICE",
        help="cpu, cuda:N, or both for their ratio; default: the GPU if there is one",
    )
    how.add_argument("--threads", metavar="N", help="default: one per physical core")
    how.add_argument("--budget", metavar="S", help="seconds of sampling per step (10)")
    how.add_argument("--seed", metavar="N", default="0", help="seed of weights and images (0)")
    how.add_argument("--no-checks", action="store_true", help="time without checking first")
    how.add_argument(
        "--agree", action="store_true", help="hold the two frameworks' numbers against each other"
    )

    script = parser.add_argument_group("as a published script")
    script.add_argument(
        "--protocol",
        metavar="NAME",
        help="alexnet-tutorial, mnist-tutorial, cifar10-tutorial, tf-cnn-benchmarks, "
        "deep-learning-benchmark, convnet-benchmarks, convnet-benchmarks-tf",
    )
    script.add_argument("--steps", metavar="N", help="steps that count; default: the script's")
    script.add_argument("--warmup", metavar="N", help="steps before them")
    script.add_argument("--every", metavar="N", help="steps between two lines")
    script.add_argument("--epochs", metavar="X", help="of mnist-tutorial, instead of --steps (10)")
    script.add_argument(
        "--quirk",
        action="append",
        metavar="NAME[=off]",
        help="switch one of the script's oddities on or off",
    )
    script.add_argument(
        "--data", metavar="DIR", help="MNIST's or CIFAR-10's files; default: generated images"
    )
    script.add_argument(
        "--download", metavar="URL-BASE", help="fetch the files that --data lacks from there"
    )

    output = parser.add_argument_group("what is shown")
    for kind in ("json", "csv", "md"):
        output.add_argument(f"--{kind}", metavar="FILE", help=f"write {kind}; - is stdout")
    output.add_argument("--quiet", action="store_true", help="no progress and no remarks")
    add_store_option(output)


def run(args: argparse.Namespace, session_factory: Callable[..., Any] | None = None) -> int:
    """Time steps, or play a protocol.

    Args:
        args: the command's options.
        session_factory: gives a session (see :mod:`pydlbench.cli.e2e_session`) for the options of
            ``measure.Options`` as keywords.

    Returns:
        0; 1 if no row is ok, or the frameworks disagree; 130 after Ctrl-C.

    Raises:
        UsageError: bad input; nothing was run and nothing written.
    """
    if args.protocol is not None:
        from pydlbench.cli.e2e_protocol import run_protocol

        return run_protocol(args, session_factory)
    from pydlbench.cli.e2e_steps import run_steps

    return run_steps(args, session_factory)
