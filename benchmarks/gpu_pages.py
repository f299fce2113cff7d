"""Adds up the pages of GPU results from the JSON records beside them, and checks each figure.

``python benchmarks/gpu_pages.py`` writes the tables of each page anew. With ``--check`` it
writes nothing, and ends with 1 and a line for each row or sentence that differs from the records.
A table stands between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``. Sentences with
figures are listed in :data:`SENTENCES`. What a page has besides these has no record here, and the
page says so.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_RESULTS: Final = Path(__file__).parent / "results"
_FOLDERS: Final = ("nvidia-h100", "nvidia-h200")
_MISSING: Final = "not recorded"
_BLOCK: Final = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


class Records:
    """The JSON records of a folder, by file name without the suffix."""

    def __init__(self, folder: Path) -> None:
        self.documents: dict[str, Any] = {
            path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))
        }

    def device(self, name: str) -> Mapping[str, Any]:
        """Return the device of a record: that of its run, or what ``device`` has printed."""
        document = self.documents[name]
        found: Mapping[str, Any] = document.get("run", document)["device"]
        return found

    def pairs(self) -> Iterator[Pair]:
        """Yield each layer that was timed natively and in PyTorch, in the order of the records."""
        for name, document in self.documents.items():
            native: dict[tuple[str, ...], Any] = {}
            for row in document.get("measurements", ()):
                key = (row["layer"], row["pass"], row["precision"])
                if row["backend"] == "native":
                    native[key] = row
                elif key in native and row["status"] == native[key]["status"] == "ok":
                    yield Pair(name, native[key], row)


class Pair:
    """A native row and one of PyTorch, of interleaved rounds."""

    def __init__(self, record: str, native: Mapping[str, Any], torch: Mapping[str, Any]) -> None:
        self.record, self.native, self.torch = record, native, torch
        self.layer, self.precision = native["layer"], native["precision"]
        self.what = f"{self.layer} {native['pass']} {self.precision}"
        own, other = native["ratio"], torch["ratio"]
        # The ratio of a row is to the fastest one.
        if other["to"] == "native":
            high, low = other["ci_low"], other["ci_high"]
            self.ratio = (1 / other["median"], 1 / low, 1 / high)
        elif other["median"] == 1:
            self.ratio = (own["median"], own["ci_low"], own["ci_high"])
        else:  # PyTorch's operator is the fastest one, and this row is another kernel in PyTorch
            self.ratio = (own["median"] / other["median"], math.nan, math.nan)

    @property
    def sustained(self) -> float:
        """Native / PyTorch of launches without pauses, between two events."""
        return float(self.native["launch_s"]["event"] / self.torch["launch_s"]["event"])

    @property
    def in_cycles(self) -> float:
        """Native / PyTorch in clocks of the multiprocessors."""
        return float(self.ratio[0] * self.native["clock_hz"] / self.torch["clock_hz"])


def _interval(values: Sequence[float], digits: int = 3) -> str:
    middle, low, high = values
    if math.isnan(low):
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({low:.{digits}f} .. {high:.{digits}f})"


def _time(summary: Mapping[str, Any], scale: float, digits: int) -> str:
    names = ("median", "ci_low", "ci_high")
    return _interval([scale * summary[name] for name in names], digits)


def _table(titles: str, rows: Sequence[Sequence[str]]) -> str:
    heads = titles.split("|")
    sides = [":---" if place == 0 else "---:" for place in range(len(heads))]
    lines = [heads, sides, *rows]
    return "".join(f"| {' | '.join(cell.strip() for cell in line)} |\n" for line in lines)


# -----------------------------------------------------------------------------
# The tables.


def cards(records: Records) -> str:
    """Return the card of each record, with its uuid."""
    rows = []
    for name in records.documents:
        facts = records.device(name).get("facts", {})
        uuid = facts.get("uuid") or _MISSING
        rows.append([f"[{name}]({name}.json)", uuid])
    return _table("record|uuid of the card", rows)


def layers(records: Records) -> str:
    """Return layers with their times, rates and ratios, where a record has few of them."""
    rows = [
        [
            pair.what,
            _time(pair.native["time_s"], 1e6, 1),
            f"{pair.native['tflops']:.0f}",
            _time(pair.torch["time_s"], 1e6, 1),
            _interval(pair.ratio),
            f"{pair.sustained:.3f}",
            f"{pair.in_cycles:.3f}",
            pair.torch["algorithm"].partition(" ")[0],
        ]
        for pair in records.pairs()
        if len(records.documents[pair.record]["measurements"]) < 20
    ]
    titles = (
        "layer|native, us|TFLOP/s|PyTorch, us|native / PyTorch|without pauses|in cycles|"
        "PyTorch's operator"
    )
    return _table(titles, rows)


def precisions(records: Records) -> str:
    """Return the geometric mean of AlexNet's ratios of each precision, and the largest."""
    rows = []
    for precision in ("fp32", "tf32", "fp16-tc", "bf16-tc"):
        found = [pair for pair in _alexnet(records) if pair.precision == precision]
        largest = max(found, key=lambda pair: pair.ratio[0])
        above = [pair for pair in found if pair.ratio[1] > 1.02]
        names = ", ".join(
            f"{pair.layer.partition('/')[2]} {pair.native['pass']} {pair.ratio[0]:.3f}"
            for pair in above
        )
        mean = _mean(found)
        rows.append(
            [precision, f"{len(found)}", f"{mean:.3f}", _interval(largest.ratio), names or "none"]
        )
    return _table("precision|rows|geometric mean|largest|interval wholly above 1.02", rows)


def _alexnet(records: Records) -> list[Pair]:
    whole = ("alexnet-owt-bf16-tc", "alexnet-owt-fp32-tf32-fp16-tc")
    return [pair for pair in records.pairs() if pair.record in whole]


def _mean(pairs: Sequence[Pair]) -> float:
    return math.exp(sum(math.log(pair.ratio[0]) for pair in pairs) / len(pairs))


def breakdowns(records: Records) -> str:
    """Return the levels of each breakdown, what tracing cost, and the unexplained share."""
    rows = []
    for name, document in records.documents.items():
        if document.get("kind") != "breakdown" and "levels" not in document:
            continue
        levels = [
            f"{1e3 * document['levels'][level]['median']:.3f}"
            for level in ("limit", "native", "alone", "in_context")
        ]
        unexplained = [document[f"unexplained{end}"] for end in ("", "_low", "_high")]
        share = (
            _MISSING
            if None in unexplained
            else _interval([100 * float(value) for value in unexplained], 1)
        )
        what = f"[{document['model']} {document['phase']} {document['precision']}]({name}.json)"
        step = _time(document["measured_s"], 1e3, 2)
        rows.append([what, *levels, step, f"{document['trace']['cost']:.2f}", share])
    titles = "step|limit, ms|native|alone|in context|step, ms|traced / untraced"
    return _table(f"{titles}|unexplained, % of the step", rows)


def steps(records: Records) -> str:
    """Return the steps with what tracing cost."""
    rows = []
    for name, document in records.documents.items():
        for step in document.get("steps", ()):
            cost = (step.get("trace") or {}).get("cost")
            rows.append(
                [
                    f"[{step['model']} {step['phase']} {step['precision']}]({name}.json)",
                    step["mode"],
                    _time(step["time_s"], 1e3, 2),
                    f"{step['images_per_s']:.0f}",
                    "not traced" if cost is None else f"{cost:.3f}",
                ]
            )
    return _table("step|mode|time, ms|images/s|traced / untraced", rows)


def peaks(records: Records) -> str:
    """Return the peaks and bandwidths of each record with peaks that were measured."""
    rows = []
    for name in records.documents:
        device = records.device(name)
        measured = [peak for peak in device.get("peaks", ()) if peak["measured_flops_per_s"]]
        texts = [
            f"{peak['precision']} {peak['measured_flops_per_s'] / 1e12:.4g} "
            f"({100 * peak['measured_flops_per_s'] / peak['theoretical']['flops_per_s']:.0f} %)"
            for peak in measured
        ]
        copies = {
            item["level"]: item["bytes_per_s"] / 1e12
            for item in device.get("bandwidths", ())
            if item["pattern"] == "copy"
        }
        if measured and copies:
            memory, cache = copies["memory"], copies["l2"]
            rows.append([name, "; ".join(texts), f"{memory:.2f}", f"{cache:.1f}"])
    titles = "record|TFLOP/s (of theoretical at its clock)|copy in memory, TB/s|copy in L2"
    return _table(titles, rows)


TABLES: Final[Mapping[str, Callable[[Records], str]]] = {
    made.__name__: made for made in (cards, layers, precisions, breakdowns, steps, peaks)
}


# -----------------------------------------------------------------------------
# The sentences.


def _product(records: Records, record: str, precision: str) -> Pair:
    return next(
        pair
        for pair in records.pairs()
        if (pair.record, pair.precision) == (record, precision) and "8192" in pair.layer
    )


def _h100(records: Records) -> Iterator[str]:
    product = _product(records, "product-bf16-tc", "bf16-tc")
    yield f"| {_interval(product.ratio)}, without pauses {product.sustained:.3f}:"
    device = records.device("device")
    rates = {(row["level"], row["pattern"]): row["bytes_per_s"] for row in device["bandwidths"]}
    memory = [f"{rates['memory', pattern] / 1e12:.2f}" for pattern in ("read", "write", "copy")]
    cache = [f"{rates['l2', pattern] / 1e12:.1f}" for pattern in ("read", "write", "copy")]
    yield f"| memory: read, write, copy, in TB/s | {', '.join(memory)} |"
    yield f"| L2: read, write, copy, in TB/s | {', '.join(cache)} |"
    yield f"| a copy moves 2.9 TB/s | {memory[2]} TB/s: met |"
    found = {peak["precision"]: peak for peak in device["peaks"]}
    reached = {name: peak["measured_flops_per_s"] / 1e12 for name, peak in found.items()}
    shares = {
        name: 100 * peak["measured_flops_per_s"] / peak["theoretical"]["flops_per_s"]
        for name, peak in found.items()
    }
    yield f"| fp32, FMA loop | {reached['fp32']:.1f} TFLOP/s | {shares['fp32']:.0f} % |"
    yield f"| fp16 without tensor cores, FMA loop | {reached['fp16']:.0f} |"
    yield f"| tf32, product of 8192 x 8192 | {reached['tf32']:.0f} | {shares['tf32']:.0f} % |"
    yield f"95 % of theoretical at its clock | {shares['fp32']:.1f} %: met |"
    launch = device["launch"]
    times = [1e6 * launch[f"{name}_s"] for name in ("single_kernel", "empty_kernel", "graph_node")]
    yield f"| {times[0]:.1f}; {times[1]:.1f}; {times[2]:.2f} us |"


def _h200(records: Records) -> Iterator[str]:
    first = _product(records, "products", "bf16-tc")
    fourth = _product(records, "products-tf32-bf16-tc", "bf16-tc")
    yield (
        f"| {_interval(first.ratio)} and {_interval(fourth.ratio)}, without pauses "
        f"{first.sustained:.3f} and {fourth.sustained:.3f}:"
    )
    pairs = _alexnet(records)
    above = [pair for pair in pairs if pair.ratio[1] > 1.02]
    plain = [pair for pair in pairs if "pool" not in pair.layer and "fc" not in pair.layer]
    yield f"{len(above)} of the {len(pairs)} rows"
    yield f"| {_mean(pairs):.3f} over these {len(pairs)} rows, {_mean(plain):.3f} without pooling"
    for name in ("conv4", "conv5"):
        again = [
            _interval(pair.ratio)
            for pair in records.pairs()
            if pair.record == "alexnet-owt-conv4-conv5" and name in pair.layer
        ]
        yield f"| {name} forward | {' | '.join(again)} |"


SENTENCES: Final[Mapping[str, Callable[[Records], Iterator[str]]]] = {
    "nvidia-h100": _h100,
    "nvidia-h200": _h200,
}


def rewrite(text: str, records: Records) -> str:
    """Return a page with its tables made anew."""

    def made(block: re.Match[str]) -> str:
        return block[1] + TABLES[block[2]](records) + block[3]

    return _BLOCK.sub(made, text)


def differences(folder: Path) -> list[str]:
    """Return a line for each line of a table, and for each sentence, that differs on the page."""
    records, text = Records(folder), (folder / "README.md").read_text()
    shown, made = text.splitlines(), rewrite(text, records).splitlines()
    found = [f"{folder.name}: the records give: {line}" for line in made if line not in shown]
    found += [f"{folder.name}: not in the records: {line}" for line in shown if line not in made]
    flat = " ".join(text.split())
    lacking = [line for line in SENTENCES[folder.name](records) if line not in flat]
    return [*found, *(f"{folder.name}: not on the page: {line}" for line in lacking)]


def main(words: Sequence[str] | None = None) -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a figure differs")
    options = parser.parse_args(words)
    for name in () if options.check else _FOLDERS:
        page = _RESULTS / name / "README.md"
        page.write_text(rewrite(page.read_text(), Records(page.parent)))
    found = [line for name in _FOLDERS for line in differences(_RESULTS / name)]
    print("\n".join(found) or "all figures with a record are those of the records")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
