"""Figures on the pages of GPU results are those of the records beside them."""

import importlib.util
import shutil
from pathlib import Path

import pytest

_BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
_SPEC = importlib.util.spec_from_file_location("gpu_pages", _BENCHMARKS / "gpu_pages.py")
gpu_pages = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(gpu_pages)


def test_the_pages_are_those_of_their_records(capsys):
    assert gpu_pages.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("folder", "was", "becomes"),
    [
        ("nvidia-h200", "0.955 (0.890 .. 0.968)", "0.955 +-4.3 %"),
        ("nvidia-h200", "1.36", "1.01"),  # traced over untraced of GPT-2
        ("nvidia-h200", "0.870 over these 77", "0.780 over these 77"),
        ("nvidia-h100", "3.15, 3.31, 3.04", "3.15, 3.31, 3.40"),
        ("nvidia-h100", "GPU-278882dc", "GPU-278882dd"),
    ],
)
def test_a_figure_that_differs_from_the_records_is_named(tmp_path, folder, was, becomes):
    copied = tmp_path / folder
    shutil.copytree(_BENCHMARKS / "results" / folder, copied)
    page = copied / "README.md"
    text = page.read_text()
    assert was in text
    page.write_text(text.replace(was, becomes))
    assert any(was in line for line in gpu_pages.differences(copied))


def test_a_row_without_a_record_is_named(tmp_path):
    copied = tmp_path / "nvidia-h200"
    shutil.copytree(_BENCHMARKS / "results" / copied.name, copied)
    page = copied / "README.md"
    page.write_text(page.read_text().replace("<!-- end", "| invented | 1.0 |\n<!-- end", 1))
    (only,) = gpu_pages.differences(copied)
    assert "invented" in only


def test_a_ratio_is_native_over_pytorch_whichever_is_the_fastest():
    def row(to, median, low, high):
        ratio = {"to": to, "median": median, "ci_low": low, "ci_high": high}
        return {
            "layer": "a",
            "pass": "forward",
            "precision": "fp32",
            "ratio": ratio,
            "launch_s": {"event": median},
            "clock_hz": 1e9 / median,
        }

    native_first = gpu_pages.Pair("r", row("native", 1, 1, 1), row("native", 1.25, 1, 2))
    assert native_first.ratio == (0.8, 0.5, 1.0)
    assert native_first.in_cycles == pytest.approx(1.0)
    torch_first = gpu_pages.Pair("r", row("torch eager", 1.25, 1, 2), row("torch eager", 1, 1, 1))
    assert torch_first.ratio == (1.25, 1, 2)
    assert torch_first.sustained == 1.25
