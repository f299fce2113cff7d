"""Models of the user's own: built from a file, fed, run, recorded, and what they raise."""

import textwrap
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from this_cpu import HAS_BF16

torch = pytest.importorskip("torch")

from pydlbench.analysis.mapped import map_calls  # noqa: E402 - below importorskip
from pydlbench.backends.steps import requests  # noqa: E402 - below importorskip
from pydlbench.backends.torch.backend import create  # noqa: E402 - not installed everywhere
from pydlbench.backends.torch.steps.user_model import UserTorchModel  # noqa: E402 - likewise
from pydlbench.errors import ModelError, UsageError  # noqa: E402 - below importorskip
from pydlbench.records.step import StepSpec  # noqa: E402 - below importorskip
from pydlbench.records.user_model import UserInput, UserModelSpec  # noqa: E402 - below importorskip
from pydlbench.timing.chunk import ChunkRequest  # noqa: E402 - below importorskip

HEAD = """
    import torch
    from torch import nn

"""
CONVOLVED = """
    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU())
            self.head = nn.Linear(width * 36, 5)

        def forward(self, images):
            return self.head(self.features(images).view(images.shape[0], -1))

    def build(width=4):
        return Net(width), torch.randn(2, 3, 8, 8)
"""
VIDEO = """
    def unit(ins, outs, stride):
        return (
            nn.Conv3d(ins, outs, 3, stride, 1, bias=False),
            nn.BatchNorm3d(outs),
            nn.ReLU(inplace=True),
        )

    def build():
        return nn.Sequential(
            *unit(3, 8, (1, 2, 2)),
            nn.MaxPool3d(2),
            *unit(8, 16, 1),
            nn.AvgPool3d((1, 2, 2)),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(16, 5),
        ), torch.randn(2, 3, 4, 16, 16)
"""
LLAMA = """
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self, width=32, heads=4, kv_heads=2, hidden=48):
            super().__init__()
            self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
            self.heads, size = (heads, kv_heads, kv_heads), width // heads
            self.places = nn.Linear(width, (heads + 2 * kv_heads) * size, bias=False)
            self.sizes = [count * size for count in self.heads]
            self.joined = nn.Linear(width, width, bias=False)
            self.gate = nn.Linear(width, hidden, bias=False)
            self.up = nn.Linear(width, hidden, bias=False)
            self.down = nn.Linear(hidden, width, bias=False)

        def forward(self, x):
            parts = self.places(self.first(x)).split(self.sizes, -1)
            turned = [
                part.unflatten(-1, (count, -1)).transpose(1, 2)
                for part, count in zip(parts, self.heads)
            ]
            seen = F.scaled_dot_product_attention(*turned, is_causal=True, enable_gqa=True)
            x = x + self.joined(seen.transpose(1, 2).flatten(2))
            y = self.second(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def build():
        return Block(), torch.randn(2, 6, 32)
"""
TIED = """
    from dataclasses import dataclass

    @dataclass
    class Output:
        logits: torch.Tensor
        parts: tuple
        loss: torch.Tensor | None = None

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(7, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 7, bias=False)
            self.head.weight = self.table.weight

        def forward(self, tokens, labels=None):
            found = self.table(tokens)
            found = found + self.attention(found, found, found, need_weights=False)[0]
            logits = self.head(found)
            loss = None
            if labels is not None:
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            return Output(logits, (found[:, 0], {"last": found[:, -1]}), loss)

    def build():
        return Net()
"""
ALONE = """
    def build():
        return nn.ReLU(), (torch.randn(4, 8),), lambda output: output.square().mean()
"""


@pytest.fixture(scope="module")
def backend():
    return create("cpu")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return a step of a model whose file has some text; its folder has a blank in its name."""
    folder = tmp_path / "my models"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)

    def step(text, name="build", own=None, **case):
        # A file is run once in a process.
        number = len(list(folder.glob("*.py"))) + 1
        (folder / f"net{number}.py").write_text(textwrap.dedent(HEAD + text))
        return StepSpec(model=f"my models/net{number}.py:{name}", own=own, **case).to_dict()

    return step


def inputs(*texts, **more):
    return UserModelSpec(inputs=tuple(map(UserInput.parse, texts)), **more)


def notes_of(backend, case):
    return requests.request_step(backend, case, {}).facts.notes


@pytest.mark.parametrize(
    ("text", "case", "output", "parameters", "names"),
    [
        (
            CONVOLVED,
            {"phase": "training", "own": UserModelSpec(optimizer="momentum"), "layout": "nchw"},
            (2, 5),
            4 * 27 + 3 * 4 + 5 * 4 * 36 + 5,
            {"features.0", "features.1", "features.2", "head"},
        ),
        pytest.param(
            CONVOLVED,
            {"phase": "forward-backward", "options": {"width": "6"}, "own": inputs("1x3x8x8")},
            (1, 5),
            6 * 27 + 3 * 6 + 5 * 6 * 36 + 5,
            {"features.0", "features.1", "features.2", "head"},
            marks=pytest.mark.deep,
        ),
        (
            TIED,
            {
                "phase": "training",
                "own": inputs("3x4:int64", "labels=3x4:int64", optimizer="adam"),
            },
            (3, 4, 7),
            7 * 8 + 4 * 64 + 4 * 8,
            {"table", "attention", "head"},
        ),
        (TIED, {"own": inputs("tokens=3x4:int64")}, (3, 4, 7), 344, {"table", "attention", "head"}),
        (ALONE, {"phase": "forward-backward"}, (4, 8), 0, {"input"}),
    ],
)
def test_a_model_is_timed_listed_call_by_call_and_run_as_a_chain(
    own, backend, text, case, output, parameters, names
):
    step = own(text, **case)
    kernel = requests.request_step(backend, step, {})
    facts = kernel.facts
    assert (facts.output, facts.batch, facts.parameters) == (output, output[0], parameters)
    assert [one.status for one in facts.checks] == ["ok"] * (2 if "phase" in case else 1)
    chunk = kernel.sample(ChunkRequest(samples=2, untimed=1))
    assert len(chunk.seconds) == 2
    assert min(chunk.seconds) > 0

    listed = requests.request_call_list(backend, step).facts
    assert listed.batch == output[0]
    # An activation alone has no weights, so that its module's name is not among the gradients'.
    assert names <= {name for one in listed.calls for name in one.names} | {"input"}
    directions = {"forward", "loss", "backward", "optimizer"}
    left = {"forward-backward": {"optimizer"}, "training": set()}
    phase = case.get("phase", "forward")
    assert {one.direction for one in listed.calls} == (
        {"forward"} if phase == "forward" else directions - left[phase]
    )
    signatures = [one.signature for one in listed.calls]
    again = requests.request_calls(backend, step, signatures)
    assert again.facts.refused == {}
    # On the step's operands, too: it makes the very calls that were recorded.
    again = requests.request_calls(backend, step, signatures, of_step=True)
    assert (again.facts.refused, again.facts.notes) == ({}, ())


def test_the_trace_of_an_eager_training_step_needs_no_optimizer_besides_its_own(own, backend):
    step = own(CONVOLVED, phase="training", own=UserModelSpec(optimizer="adamw"))
    with UserTorchModel(backend, StepSpec.from_dict(step)) as model:
        model.run()
        runs = []
        model.module.register_forward_hook(lambda *_: runs.append(1))
        tracer = model.tracer(model.run)
        assert len(runs) == 2  # both are recorded
        (optimizer,) = {model.eager_step().optimizer, model.step.optimizer}
        assert len(optimizer.state) == len(model.parameters)
    assert not any("zeros" in call.operator for call in tracer.operators.calls)


@pytest.mark.parametrize("layers", ["bag", "bag, nn.Linear(4, 2)"])
def test_recording_a_step_leaves_the_counts_of_its_optimizers(own, backend, layers):
    text = f"""
    def build():
        bag = nn.EmbeddingBag(50, 4)
        return nn.Sequential({layers}), torch.arange(6).reshape(2, 3)
    """
    step = own(text, phase="training", own=UserModelSpec(optimizer="adam-sparse"))
    with UserTorchModel(backend, StepSpec.from_dict(step)) as model:
        model.run()
        optimizers = model.optimizers(model.step)
        model.tracer(model.run)
        counts = [state["step"] for one in optimizers for state in one.state.values()]
    assert len(counts) == len(model.parameters)
    assert [int(count) for count in counts] == [1] * len(counts)


FAILING = """
    class Net(nn.Linear):
        def forward(self, x):
            raise ValueError("enough")

    def build():
        return Net(4, 3), torch.randn(2, 4)
"""


def test_a_step_that_fails_while_operands_are_copied_costs_no_call(own, backend):
    step = own(FAILING)
    call = "aten.relu.default(float32[3](1))"
    facts = requests.request_calls(backend, step, [call], of_step=True).facts
    assert (facts.names, facts.refused) == ((call,), {})
    assert "enough" in facts.notes[0]
    assert "aten.relu.default" in facts.notes[1]


BAG = """
    def build():
        bag = nn.EmbeddingBag(50, 4)
        return nn.Sequential(bag, nn.Linear(4, 2)), torch.arange(6).reshape(2, 3)
"""


@pytest.mark.parametrize("update", ["sgd", "adam", "adamw"])
def test_a_sparse_optimizer_updates_the_rows_that_were_used(own, backend, update):
    step = own(BAG, phase="training", own=UserModelSpec(optimizer=f"{update}-sparse"))
    with UserTorchModel(backend, StepSpec.from_dict(step)) as model:
        before = {name: weight.detach().clone() for name, weight in model.module.named_parameters()}
        model.results(model.run())
        changed = {name: before[name] != weight for name, weight in model.module.named_parameters()}
    assert changed["0.weight"].any(1).nonzero().flatten().tolist() == list(range(6))
    assert changed["1.weight"].any()


MIXED = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.again = nn.Embedding(50, 4), nn.Embedding(50, 4)
            self.again.weight = self.words.weight
            self.most = nn.EmbeddingBag(60, 4, mode="max")
            self.tied, self.head = nn.Embedding(70, 4), nn.Linear(4, 70)
            self.head.weight = self.tied.weight

        def forward(self, x):
            mean = self.words(x).mean(1) + self.again(x).mean(1) + self.tied(x).mean(1)
            return self.head(self.most(x) + mean)

    def build():
        return Net(), torch.arange(6).reshape(2, 3)
"""


@pytest.mark.parametrize("update", ["sgd", "adam"])
def test_tables_that_cannot_have_sparse_gradients_keep_dense_ones(own, backend, update):
    step = own(MIXED, phase="training", own=UserModelSpec(optimizer=f"{update}-sparse"))
    with UserTorchModel(backend, StepSpec.from_dict(step)) as model:
        before = {name: weight.detach().clone() for name, weight in model.module.named_parameters()}
        model.results(model.run())
        weights = dict(model.module.named_parameters())
    assert {name: weight.grad.is_sparse for name, weight in weights.items()} == {
        "words.weight": True,
        "most.weight": False,
        "tied.weight": False,
        "head.bias": False,
    }
    assert all((before[name] != weight).any() for name, weight in weights.items())


def test_a_module_comes_with_the_line_that_calls_it_and_inputs_as_they_are_asked_for(own, backend):
    step = own(CONVOLVED, phase="training", own=UserModelSpec(optimizer="adam-fused"))
    file = step["model"].rpartition(":")[0]
    text = Path(file).read_text().splitlines()
    (line,) = (number for number, one in enumerate(text, start=1) if "return self.head" in one)
    found = requests.request_call_list(backend, step).facts
    names = ("features.0", "features.1", "features.2", "head")
    assert found.lines == dict.fromkeys(names, f"{file}:{line}")
    assert "aten._fused_adam_" in {one.operator for one in found.calls}
    assert requests.request_step(backend, step, {}).facts.inputs == ("2x3x8x8",)


@pytest.mark.parametrize(
    ("made", "spec", "types"),
    [
        ("model", {}, ""),
        ("model.bfloat16()", {}, "bf16"),
        ("nn.Sequential(model.double(), nn.Linear(4, 4).bfloat16())", {}, "mixed (bf16, float64)"),
        ("model", {"precision": "bf16", "cast": "whole"}, ""),
    ],
)
def test_what_a_model_computes_in_is_told_by_its_weights(own, backend, made, spec, types):
    if spec.get("precision") == "bf16" and not HAS_BF16:
        pytest.skip("this CPU refuses bf16")
    text = f"""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            model = nn.Linear(4, 4)
            self.layers = {made}

        def forward(self, x):
            return x * sum(weight.sum().float() for weight in self.parameters())

    def build():
        return Net(), torch.randn(2, 4)
    """
    assert requests.request_step(backend, own(text, **spec), {}).facts.types == types


LOOKED_UP = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.kinds = nn.Embedding(5000, 4), nn.Embedding(3, 4)
            self.places = nn.Embedding(64, 4)

        def forward(self, words, kinds, mask):
            places = torch.arange(words.shape[1])
            made = self.words(words.int()) + self.places(places)
            made = made + nn.functional.embedding(kinds, self.kinds.weight)
            return made * mask[..., None]

    def build():
        return Net()
"""


def test_named_tuples_are_one_input_files_have_values_and_most_inputs_the_batch(
    own, backend, tmp_path
):
    text = """
    from torch.nn.utils.rnn import pack_padded_sequence

    def build():
        lengths = torch.tensor([5, 3, 1])
        steps = pack_padded_sequence(torch.randn(3, 5, 4), lengths, batch_first=True)
        return nn.LSTM(4, 2, batch_first=True), steps
    """
    assert requests.request_step(backend, own(text), {}).facts.batch == 3
    text = """
    class Sum(nn.Linear):
        def forward(self, mask, first, second):
            return super().forward(first + second) + mask

    def build():
        return Sum(4, 4), (torch.randn(1, 4), torch.randn(7, 4), torch.randn(7, 4))
    """
    assert requests.request_step(backend, own(text), {}).facts.batch == 7
    text = """
    def build():
        return nn.EmbeddingBag(50, 4), (torch.arange(20), torch.arange(0, 20, 4))
    """
    assert requests.request_step(backend, own(text), {}).facts.batch == 5
    values = np.arange(28, dtype=np.float32).reshape(7, 4)
    np.save(tmp_path / "x.npy", values)
    step = own("    def build(): return nn.Linear(4, 4)", own=inputs(f"{tmp_path}/x.npy"))
    (given,) = UserTorchModel(backend, StepSpec.from_dict(step)).arguments
    assert np.array_equal(given.numpy(), values)
    for missing in ("y.npy", "y.pb"):
        step = own("    def build(): return nn.Linear(4, 4)", own=inputs(f"{tmp_path}/{missing}"))
        with pytest.raises(UsageError, match=missing):
            UserTorchModel(backend, StepSpec.from_dict(step))


def test_whole_numbers_span_the_table_that_they_index_or_what_is_asked_for(own, backend):
    def spans(*texts):
        model = UserTorchModel(backend, StepSpec.from_dict(own(LOOKED_UP, own=inputs(*texts))))
        return [int(value.max()) + 1 for value in (*model.arguments, *model.keywords.values())]

    rows = spans("8x64:int64", "8x64:int64", "8x64:int64")
    assert 4900 < rows[0] <= 5000
    assert rows[1:] == [3, 2]
    rows = spans("8x64:int64:100", "mask=8x64:int64", "kinds=8x64:int64")
    assert 90 < rows[0] <= 100
    assert rows[1:] == [2, 3]


def test_the_fused_attention_of_inference_is_recorded_as_it_runs(own, backend):
    step = own(TIED, own=inputs("3x4:int64"))
    calls = requests.request_call_list(backend, step).facts.calls
    found = [one.names for one in calls if one.operator == "aten._native_multi_head_attention"]
    assert found == [("attention",)]


@pytest.mark.parametrize(
    ("text", "spec", "told"),
    [
        (TIED, inputs("3x4:int64"), "sum of 3 tensors of the output"),
        (TIED, inputs("3x4:int64", "3x4:int64"), "the model's own"),
        (TIED, inputs("3x4:int64", "3x4:int64", loss="cross-entropy"), "cross-entropy"),
        (CONVOLVED, inputs("1x3x8x8", loss="mean-square"), "mean-square"),
        (CONVOLVED, inputs("1x3x8x8", loss="torch:linalg.norm"), "torch:linalg.norm"),
        (ALONE, None, "the one that the callable returns"),
    ],
)
def test_the_loss_is_what_was_named_or_what_there_is(own, backend, text, spec, told):
    notes = notes_of(backend, own(text, own=spec, phase="forward-backward"))
    assert [one for one in notes if told in one and one.startswith("loss: ")] != []


def test_an_operator_of_the_users_own_is_a_call_like_others(own, backend):
    step = own(
        """
    @torch.library.custom_op("pydlbench_test::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + x

    class Net(nn.Module):
        def forward(self, x):
            return doubled(x) + 1

    def build():
        return Net(), torch.randn(4, 4)
"""
    )
    calls = requests.request_call_list(backend, step).facts.calls
    assert [one.operator for one in calls] == ["pydlbench_test.doubled", "aten.add"]
    kernel = requests.request_calls(backend, step, [calls[0].signature])
    assert kernel.facts.names == (calls[0].signature,)


def test_control_flow_that_differs_between_two_steps_is_said(own, backend):
    step = own(
        """
    class Net(nn.Module):
        seen = 0

        def forward(self, x):
            self.seen += 1
            return x.relu() if self.seen % 2 else x.exp().relu()

    def build():
        return Net(), torch.randn(4, 4)
"""
    )
    assert len(requests.request_call_list(backend, step).facts.notes) == 1
    (note,) = requests.request_step(backend, step, {}).trace().operators.notes
    assert "other calls" in note
    assert requests.request_call_list(backend, own(ALONE)).facts.notes == ()


def test_what_the_code_sets_for_the_whole_process_is_set_back(own, backend):
    before = torch.get_num_threads()
    notes = notes_of(
        backend,
        own(
            f"""
    torch.set_grad_enabled(False)

    def build():
        torch.set_num_threads({before + 1})
        return nn.Linear(2, 2), torch.randn(2, 2)
""",
            phase="training",
        ),
    )
    assert torch.get_num_threads() == before
    assert torch.is_grad_enabled()
    assert any(f"{before + 1} threads" in one for one in notes)


def test_an_exported_program_stays_in_its_mode(own, backend):
    text = """
    def build():
        images = torch.randn(2, 4)
        return torch.export.export(nn.Linear(4, 3).eval(), (images,)).module(), images
"""
    kernel = requests.request_step(backend, own(text), {})
    assert kernel.facts.output == (2, 3)
    assert any("exported" in one for one in kernel.facts.notes)


# What the user's code may do, and what is to come of it.
RAISED = {
    "in the callable": (
        "def build():\n        raise ValueError('no\\nweights')",
        ":6: ValueError: no weights",
    ),
    "at the import": ("1 / 0", ":5: ZeroDivisionError: division by zero"),
    "an exception of its own kind": (
        "class Odd(BaseException): pass\n\n    def build():\n        raise Odd('why')",
        ":8: Odd: why",
    ),
    "an exit": ("def build():\n        exit(3)", ":6: SystemExit: 3"),
    "a missing library": ("import not_there_at_all", ":5: ModuleNotFoundError: No module named"),
    "in forward": (
        """class Net(nn.Module):
        def forward(self, x):
            return x.reshape(3, 3)

    def build():
        return Net(), torch.randn(2)""",
        ":7: RuntimeError: shape '[3, 3]' is invalid",
    ),
}


@pytest.mark.parametrize("kind", RAISED)
def test_what_the_code_raises_names_its_file_and_line(own, backend, kind):
    text, told = RAISED[kind]
    case = own(f"    {text}\n" + ("" if "def build" in text else "    def build(): pass\n"))
    with pytest.raises(ModelError) as raised:
        requests.request_step(backend, case, {})
    assert str(raised.value).startswith(f"my models/net1.py{told}")
    assert "\n" not in str(raised.value)


def test_what_is_raised_while_the_clock_runs_is_told_likewise(own, backend):
    case = own(
        """
    class Net(nn.Module):
        left = 2

        def forward(self, x):
            self.left -= 1
            assert self.left, "worn out"
            return x

    def build():
        return Net(), torch.randn(2)
"""
    )
    kernel = requests.request_step(backend, case, {})
    with pytest.raises(ModelError, match=r"^my models/net1\.py:11: AssertionError: worn out$"):
        kernel.sample(ChunkRequest(samples=3, untimed=0))


@pytest.mark.parametrize(
    ("text", "case", "told"),
    [
        ("def build():\n        return nn.Linear(2, 2)", {}, "--input 8x2,"),
        ("def build():\n        return nn.LSTM(6, 4)", {}, "--input 32x8x6,"),
        (TIED, {}, "--input 8x128:int64,"),
        ("def build():\n        return nn.LazyLinear(4)", {}, "--input 8x3x224x224,"),
        ("def build():\n        return 'resnet50'", {}, "returns str; nearest: a torch.nn.Module"),
        ("def build():\n        return nn.ReLU(), 1, 2", {}, "returns int as third"),
        (
            "def build():\n        return nn.ReLU(), torch.ones(2), nn.MSELoss()",
            {},
            "returns MSELoss as third; nearest: a function of the output alone",
        ),
        ("def build(size): pass", {}, "nearest: --set size=VALUE"),
        ("def build(size=1): pass", {"options": {"sise": "2"}}, "nearest: --set size=VALUE"),
        ("build = 3", {}, "of type int"),
        (
            "def build(): return nn.Linear(2, 2)",
            {"own": inputs("inptu=2x2")},
            "has no argument inptu; nearest: --input input=SHAPE",
        ),
        (
            "def build():\n        return nn.ReLU(), torch.ones(0, 4)",
            {},
            "its first input is 0x4: the batch is empty; nearest: 1x4",
        ),
        (
            "def build():\n        return nn.ReLU(), (torch.ones(2), torch.eye(2).to_sparse())",
            {},
            "its input 2 is a sparse tensor",
        ),
        (ALONE, {"phase": "training"}, "no weights to train"),
        (
            CONVOLVED,
            {"phase": "training", "own": UserModelSpec(optimizer="none")},
            "--optimizer sgd",
        ),
        (
            "def build():\n        return nn.Linear(2, 2), torch.randn(2, 2), lambda found: found",
            {"phase": "training"},
            "its loss (the one that the callable returns) is a Tensor (2, 2)",
        ),
        (
            CONVOLVED,
            {"phase": "training", "own": UserModelSpec(loss="torch.nn.functional:cross_entropy")},
            "--loss torch.nn.functional:cross_entropy: cannot be called with the output alone",
        ),
        (
            "def build():\n        return nn.ReLU(), torch.randn(2), lambda x: x.detach().sum()",
            {"phase": "forward-backward"},
            "has no gradient",
        ),
    ],
)
def test_what_cannot_be_run_is_the_users_mistake(own, backend, text, case, told):
    with pytest.raises(UsageError) as raised:
        requests.request_step(backend, own(f"    {text}\n", **case), {})
    assert told in str(raised.value)


def test_arrays_have_a_batch(own, backend):
    text = """
    class Net(nn.Module):
        def forward(self, x):
            return torch.from_numpy(x) + 1

    def build():
        return Net(), torch.ones(4, 3).numpy()
    """
    assert requests.request_step(backend, own(text), {}).facts.batch == 4


def test_outputs_may_be_sparse_or_nested(own, backend):
    text = """
    class Net(nn.Module):
        def forward(self, x):
            ends = torch.tensor([0, 1, 4])
            return x.to_sparse(), torch.nested.nested_tensor_from_jagged(x, ends)

    def build():
        return Net(), torch.ones(4, 3)
    """
    kernel = requests.request_step(backend, own(text), {})
    assert kernel.facts.batch == 4


@pytest.mark.deep
@pytest.mark.parametrize(
    ("text", "layers", "lacking"),
    [
        (
            VIDEO,
            {
                ("conv3d", "forward"): 2,
                ("conv3d", "backward-data"): 1,
                ("conv3d", "backward-weights"): 2,
                ("pool3d", "forward"): 3,
                ("pool3d", "backward-data"): 2,
                ("gemm", "backward-weights"): 1,
            },
            {"whole numbers have no layer", "div of elements that are repeated has no layer"},
        ),
        (
            LLAMA,
            {
                # Five linear layers, and two products of the attention, made again for its gradient
                # besides the gradients of scores, values, queries and keys.
                ("gemm", "forward"): 5 + 2 + 1,
                ("gemm", "backward-data"): 5 + 2,
                ("gemm", "backward-weights"): 5 + 2,
            },
            {"div of elements that are repeated has no layer"},
        ),
    ],
    ids=["video", "llama"],
)
def test_calls_of_a_training_step_are_layers(backend, tmp_path, text, layers, lacking):
    file = tmp_path / "net.py"
    file.write_text(textwrap.dedent(HEAD) + textwrap.dedent(text))
    step = StepSpec(model=f"{file}:build", phase="training", own=UserModelSpec()).to_dict()
    calls = requests.request_call_list(backend, step).facts.calls
    mapped = map_calls(calls, "training", "fp32", "cpu", None).values()
    counted = Counter()
    for call in mapped:
        for one in call.meaning.layers:
            counted[one.layer.kind, one.pass_] += call.count
    assert {key: counted[key] for key in layers} == layers
    assert {call.lacks for call in mapped if call.lacks} == lacking
