"""A model that rewrites another one, or the results with which its own are compared."""

from pydlbench.records.step import StepSpec
from pydlbench.records.user_model import UserModelSpec
from pydlbench.steps import unchanged


def test_files_of_models_and_what_they_import_stay_as_they_are(tmp_path):
    texts = {"a.py": "import parts\ndef build(): pass\n", "parts.py": "size = 1\n", "other.py": ""}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    step = StepSpec(model=f"{tmp_path / 'a.py'}:build", own=UserModelSpec())
    before = unchanged.fingerprint(unchanged.sources([step, StepSpec(model="mnist")]))
    assert {path.name for path in before if path.parent == tmp_path} == {"a.py", "parts.py"}
    assert any(path.name == "host_clock.py" for path in before)
    assert unchanged.changed(before) == ()
    (tmp_path / "other.py").write_text("size = 2\n")
    assert unchanged.changed(before) == ()
    (tmp_path / "parts.py").write_text("size = 2\n")
    (reason,) = unchanged.changed(before)
    assert reason.startswith("neither is ranked")
    assert "parts.py" in reason
    (tmp_path / "parts.py").unlink()
    assert unchanged.changed(before)
