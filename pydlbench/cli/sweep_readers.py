"""From the checked options of a table to jobs: what each command's own reader returns, as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.sweep import Job, Row

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.backends.case import Case

__all__ = ["READERS"]


def _layers(args: argparse.Namespace) -> tuple[list[Job], tuple[str, ...]]:
    from pydlbench.cli.request import read_request

    request = read_request(args)
    jobs = []
    for threads in request.threads:
        rows = [
            Row(fields=_case_fields(case, threads), label=case.label, case=case)
            for case in request.cases
        ]
        options = {**request.options, "threads": threads}
        jobs.append(_job("layers", rows, options, request))
    return jobs, request.notes


def _case_fields(case: Case, threads: int | None) -> dict[str, str]:
    name = case.layer.name or case.layer.problem
    return {
        "shape": name,
        "model": name.rpartition("/")[0],
        "kind": case.layer.kind,
        "batch": str(case.layer.batch),
        "pass": case.pass_,
        "precision": case.precision,
        "propagation": case.propagation,
        "cache": case.cache,
        "layout": case.layout,
        "threads": "default" if threads is None else str(threads),
        "device": case.device,
        "backend": case.backend,
        "mode": case.mode or "",
        "timing": case.timing,
        "fuse": case.fuse,
    }


def _model(args: argparse.Namespace) -> tuple[list[Job], tuple[str, ...]]:
    from pydlbench.cli.model_request import read_model

    request = read_model(args)
    fields = {
        **_variant(args),
        "model": request.model.name,
        "batch": str(request.model.batch),
        "phase": request.phase,
        "precision": request.precision,
        "device": request.device,
        "threads": _threads(request.options),
    }
    label = f"{request.model.name} batch {request.model.batch} {request.phase} {request.precision}"
    return [_job("model", [Row(fields=fields, label=label)], request.options, request)], (
        request.notes
    )


def _e2e(args: argparse.Namespace) -> tuple[list[Job], tuple[str, ...]]:
    from pydlbench.cli.e2e_request import read_request

    request = read_request(args)
    jobs = []
    for group in request.groups:
        rows = [
            Row(
                fields={
                    **_variant(args),
                    "model": case.model,
                    "batch": str(case.batch),
                    "phase": case.phase,
                    "framework": case.framework,
                    "mode": str(case.mode),
                    "precision": case.precision,
                    "cast": case.cast,
                    "layout": case.layout,
                    "feed": case.feed,
                    "device": case.device,
                    "threads": _threads(request.options),
                },
                label=case.label,
                case=case,
            )
            for case in group.cases
        ]
        jobs.append(_job("e2e", rows, request.options, (group.model, not args.no_checks)))
    return jobs, request.notes


def _check(args: argparse.Namespace) -> tuple[list[Job], tuple[str, ...]]:
    from pydlbench.cli.check_request import read_check

    request = read_check(args)
    what = f"{request.model.name} batch {request.model.batch} {request.phase} {request.precision}"
    rows = [
        Row(
            fields={
                **_variant(args),
                "model": request.model.name,
                "batch": str(request.model.batch),
                "phase": request.phase,
                "precision": request.precision,
                "framework": framework,
                "mode": mode,
                "layout": request.layout,
                "feed": request.feed,
                "device": "cpu",
                "threads": _threads(request.options),
            },
            label=f"{what} {framework} {mode}",
            case=(framework, mode),
        )
        for framework, mode in request.subjects
    ]
    return [_job("check", rows, request.options, request)], request.notes


#: By kind of table, what reads its options.
READERS: Final[Mapping[str, Callable[[argparse.Namespace], tuple[list[Job], tuple[str, ...]]]]] = {
    "layers": _layers,
    "model": _model,
    "e2e": _e2e,
    "check": _check,
}


def _job(kind: str, rows: Sequence[Row], options: Mapping[str, Any], request: Any) -> Job:
    return Job(
        kind=kind,
        table=0,
        place="",
        words=(),
        rows=tuple(rows),
        options=dict(options),
        request=request,
    )


def _variant(args: argparse.Namespace) -> dict[str, str]:
    return {"option": " ".join(sorted(args.option))} if args.option else {}


def _threads(options: Mapping[str, Any]) -> str:
    threads = options.get("threads")
    return "default" if threads is None else str(threads)
