"""Signatures of calls: what is in them, and operands made up from them again."""

import pytest

torch = pytest.importorskip("torch")

from pydlbench.backends.steps import requests  # noqa: E402 - below importorskip
from pydlbench.backends.torch.backend import create  # noqa: E402 - not installed everywhere
from pydlbench.backends.torch.steps import calls_alone  # noqa: E402 - below importorskip
from pydlbench.backends.torch.steps.calls_alone import CallOperator, StepOperands, prepare_calls  # noqa: E402 - below importorskip
from pydlbench.backends.torch.steps.signature import parse, signature  # noqa: E402 - below importorskip
from pydlbench.calls.seen.aten import leaves  # noqa: E402 - below importorskip
from pydlbench.errors import UnsupportedError  # noqa: E402 - below importorskip
from pydlbench.records.step import StepSpec  # noqa: E402 - below importorskip
from pydlbench.timing.chunk import ChunkRequest  # noqa: E402 - below importorskip

aten = torch.ops.aten


def text_of(function, *arguments, **keywords):
    return signature(function, arguments, keywords, "cpu")


def test_a_text_has_what_changes_the_time():
    image = torch.empty(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    row = torch.empty(12, dtype=torch.int64)[3:5]
    assert text_of(aten.add_.Tensor, image, image, alpha=-0.5) == (
        "aten.add_.Tensor(float32[2, 3, 4, 4](48, 1, 12, 3), "
        "float32[2, 3, 4, 4](48, 1, 12, 3, of=0), alpha=-0.5)"
    )
    assert text_of(aten.sum.dim_IntList, row, [0], dtype=torch.float64) == (
        "aten.sum.dim_IntList(int64[2](1, at=24), [0], dtype=torch.float64)"
    )
    assert text_of(aten.mul.Tensor, torch.tensor(1.0), torch.tensor(True)) == (
        "aten.mul.Tensor(float32[()](), bool[()]())"
    )


def test_rows_of_a_large_made_up_operand_differ():
    text = text_of(aten.neg.default, torch.empty(3, 1 << 20))
    (operand,) = CallOperator(parse(text), "cpu").arguments
    assert (operand[0] != operand[1]).float().mean() > 0.99
    assert operand.min() < -0.99
    assert operand.max() > 0.99
    assert abs(operand.mean()) < 0.01


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.empty(4, 6).t(), torch.empty(1, 6).expand(4, 6).t()),
        (torch.empty(40)[8:24].view(4, 4), torch.empty(4, 4, dtype=torch.bfloat16)),
        (torch.empty(0, 3), torch.empty(())),
    ],
)
def test_operands_made_up_from_a_text_have_that_text(arguments):
    text = text_of(aten.add.Tensor, *arguments, alpha=float("inf"))
    made = CallOperator(parse(text), "cpu")
    again = signature(made.function, tuple(made.arguments), made.keywords, "cpu")
    assert again == text


def test_what_shares_memory_shares_it_again():
    block = torch.empty(6, 8)
    text = text_of(aten.copy_.default, block[2:, 1:3], block[:4, 1:3])
    target, source = CallOperator(parse(text), "cpu").arguments
    assert target.untyped_storage()._cdata == source.untyped_storage()._cdata
    assert target.data_ptr() - source.data_ptr() == 2 * 8 * 4


def test_every_distinct_call_of_the_odd_step_runs_alone(odd):
    wanted = [one.signature for one in odd().record().distinct()]
    ready, refused = prepare_calls(dict.fromkeys(wanted), "cpu")
    assert refused == {}
    assert set(ready) == set(wanted)
    for text, one in ready.items():
        floats = [x for x in leaves([one.call()], torch.Tensor) if x.dtype.is_floating_point]
        if "empty" not in text:
            assert all(bool(x.isfinite().all()) for x in floats), text


def test_inference_normalises_by_variances_that_have_a_root():
    running = [torch.empty(64) for _ in range(4)]
    normalised = aten._native_batch_norm_legit_no_training.default
    text = text_of(normalised, torch.empty(2, 64, 4, 4), *running, 0.1, 1e-5)
    assert CallOperator(parse(text), "cpu").call()[0].isfinite().all()


def test_saved_state_is_made_by_its_forward_pass():
    image, small = torch.empty(1, 2, 4, 4), torch.empty(1, 2, 2, 2)
    indices = torch.empty(1, 2, 2, 2, dtype=torch.int64)
    window = [2, 2], [2, 2], [0, 0], [1, 1], False
    text = text_of(aten.max_pool2d_with_indices_backward.default, small, image, *window, indices)
    made = CallOperator(parse(text), "cpu")
    assert len(made.arguments[-1].unique()) > 1
    gradient = made.call()
    assert float(gradient.sum()) == pytest.approx(float(made.arguments[0].sum()), abs=1e-5)


def test_labels_are_below_the_number_of_classes_and_differ():
    scores, labels = torch.empty(64, 5), torch.empty(64, dtype=torch.int64)
    text = text_of(aten.nll_loss_forward.default, scores, labels, None, 1, -100)
    drawn = CallOperator(parse(text), "cpu").arguments[1]
    assert set(drawn.tolist()) == set(range(5))


def test_indices_that_repeat_one_place_in_memory_are_drawn_for_it_once():
    places = torch.empty(1, 7, dtype=torch.int64).expand(3, 7)
    made = CallOperator(parse(text_of(aten.embedding.default, torch.empty(5, 2), places)), "cpu")
    drawn = made.arguments[1]
    assert drawn.stride() == (0, 1)
    assert len(drawn.unique()) > 1
    assert made.call().shape == (3, 7, 2)


def test_operands_of_a_step_are_copies_from_before_the_call():
    block = torch.arange(48.0).view(6, 8)
    bias = torch.arange(2.0).expand(4, 2)
    calls = [(block[2:, 1:3], block[:4, 1:3]), (block[2:, 1:3], bias)]
    texts = [text_of(aten.add_.Tensor, *arguments) for arguments in calls]
    before = [[each.clone() for each in arguments] for arguments in calls[:1]]
    step = StepOperands("cpu", [*texts, "aten.relu.default(float32[3](1))"])
    with step:
        calls[0][0].add_(calls[0][1])
        before += [[each.clone() for each in calls[1]]]
        calls[1][0].add_(calls[1][1])
        calls[0][0].add_(calls[0][1])  # the first of a signature counts
    assert list(step.copied) == texts
    for text, values in zip(texts, before, strict=True):
        (target, other), keywords = step.copied[text]
        assert torch.equal(target, values[0])
        assert torch.equal(other, values[1])
        assert signature(aten.add_.Tensor, (target, other), keywords, "cpu") == text
        made = CallOperator(parse(text), "cpu", operands=step.copied[text])
        made.run()
        made.settle()
        assert torch.equal(made.arguments[0], values[0])


def test_a_sum_of_gradients_has_its_operands_although_a_mode_makes_it_another_call():
    value = torch.ones(3, requires_grad=True)
    text = text_of(aten.add_.Tensor, torch.empty(3), torch.empty(3))
    step = StepOperands("cpu", [text, text.replace("add_", "add")])
    with step:
        (value.detach() + value.detach()).sum()  # not a sum of gradients
        ((3 * value).sum() + (2 * value).sum()).backward()
    (target, added), _ = step.copied[text]
    assert sorted(map(tuple, (target.tolist(), added.tolist()))) == [(2.0,) * 3, (3.0,) * 3]


@pytest.mark.parametrize(
    ("operand", "copies"),
    [
        (torch.tensor([True, False, True]), True),
        (torch.arange(3), True),
        (torch.tensor([1 + 2j, 3j]), True),
        (torch.empty(0, 3), True),
        (torch.arange(6, dtype=torch.uint8)[1:3], True),
        (torch.arange(20.0)[:12].view(3, 4)[1:, ::2], True),
        # These are more than their memory.
        (torch.eye(3).to_sparse(), False),
        (torch.tensor([1 + 2j, 3j]).conj(), False),
    ],
)
def test_operands_of_all_types_are_copied(operand, copies):
    text = text_of(aten.clone.default, operand)
    step = StepOperands("cpu", [text])
    with step:
        aten.clone.default(operand)
    if not copies:
        assert step.copied == {}
        return
    ((copied,), _) = step.copied[text]
    assert torch.equal(copied, operand)
    assert text_of(aten.clone.default, copied) == text
    if operand.numel():
        assert copied.data_ptr() != operand.data_ptr()


def test_calls_that_a_step_does_not_make_are_named():
    unknown = text_of(aten.relu.default, torch.empty(3))
    backend, case = create("cpu"), StepSpec(model="mnist", batch=2).to_dict()
    facts = requests.request_calls(backend, case, [unknown], of_step=True).facts
    assert facts.names == (unknown,)
    assert "aten.relu.default" in facts.notes[0]


def test_what_cannot_be_made_up_is_refused_with_its_reason_and_costs_no_other():
    good = text_of(aten.relu.default, torch.empty(3))
    wrong = text_of(aten.mm.default, torch.empty(3, 4), torch.empty(3, 4))
    odd = text_of(aten.bernoulli_.float, torch.empty(3), 0.5, generator=torch.Generator())
    unknown = "nobody.knows.this(float32[3](1))"
    backend, case = create("cpu"), StepSpec(model="mnist").to_dict()
    kernel = requests.request_calls(backend, case, [good, wrong, odd, unknown])
    assert kernel.facts.names == (good,)
    assert set(kernel.facts.refused) == {wrong, odd, unknown}
    assert "Generator" in kernel.facts.refused[odd]
    assert "nobody.knows.this" in kernel.facts.refused[unknown]
    assert len(kernel.sample(ChunkRequest(samples=2)).seconds) == 2


def test_calls_are_logged_one_by_one_and_those_that_run_no_library_log_nothing():
    conv = text_of(
        aten.convolution.default,
        *(torch.empty(2, 8, 12, 12), torch.empty(8, 8, 3, 3), None),
        *([1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    )
    relu = text_of(aten.relu.default, torch.empty(3))
    wrong = text_of(aten.mm.default, torch.empty(3, 4), torch.empty(3, 4))
    backend, case = create("cpu"), StepSpec(model="mnist").to_dict()
    kernel = requests.request_logged_calls(backend, case, [conv, relu, wrong])
    assert kernel.facts.names == (conv, relu)
    assert set(kernel.facts.refused) == {wrong}
    assert kernel.facts.executions[relu] == {}
    seconds = kernel.sample(ChunkRequest(samples=2)).seconds
    assert len(seconds) == 2 * 2 * 5
    assert seconds[7:10] == (0.0, 0.0, 0.0)
    if torch.backends.mkldnn.is_available():  # else nobody logs a convolution
        assert kernel.facts.executions[conv]["oneDNN convolution"] == 1
        plain, logged, executed, reordered, created = seconds[:5]
        assert 0 <= reordered < executed < logged
        assert plain > 0
        assert created >= 0


def test_a_text_that_is_none_is_refused():
    with pytest.raises(UnsupportedError):
        parse("aten.relu.default(float32[3](1)")


def test_an_operand_that_is_changed_in_place_is_restored():
    calls = [
        text_of(aten.transpose_.default, torch.empty(4, 6), 0, 1),
        text_of(aten.unsqueeze_.default, torch.empty(4, 6), 0),
        text_of(aten.squeeze_.default, torch.empty(4, 1, 6)),
        text_of(aten.resize_.default, torch.empty(4, 6), [8, 6]),
        text_of(aten.mul_.Tensor, torch.empty(4, 6), 0.5),
    ]
    ready, refused = prepare_calls(calls, "cpu")
    assert refused == {}
    for text, made in ready.items():
        before = made.arguments[0].clone()
        for _ in range(2):
            made.run()
        made.settle()
        assert text_of(made.function, *made.arguments) == text
        assert torch.equal(made.arguments[0], before)


class Forwards:
    """Stands for operators that a CPU has not: their results are ones, of the shapes given."""

    def __init__(self, *shapes):
        self.shapes = shapes
        self.called = []

    def __getattr__(self, name):
        def forward(*arguments, **keywords):
            self.called.append((name, arguments, keywords))
            return tuple(torch.ones(shape) for shape in self.shapes)

        return forward


@pytest.mark.parametrize(
    ("name", "before", "behind", "between"),
    [
        ("flash", (), (None, None, 4, 4, 0.0, False, None, None), ()),
        ("efficient", (None,), (None, None, 0.0, [True] * 4), (None, True)),
        ("cudnn", (), (None, None, None, None, None, 4, 4, 0.0, False), (None, True)),
    ],
)
def test_what_a_gpus_attention_has_left_is_made_by_its_forward_pass(
    monkeypatch, name, before, behind, between
):
    forwards = Forwards((1, 2, 4, 8), (1, 2, 4))
    monkeypatch.setattr(calls_alone, "_aten", forwards)
    kernel = f"_scaled_dot_product_{name}_attention"
    outer, query, key, value, out = (torch.zeros(1, 2, 4, 8) for _ in range(5))
    sums = torch.zeros(1, 2, 4)
    arguments = [outer, query, key, value, *before, out, sums, *behind]
    calls_alone._fit(getattr(aten, f"{kernel}_backward").default, arguments, {"is_causal": False})
    assert out.sum() == 64
    assert sums.sum() == 8
    ((called, (*operands,), _),) = forwards.called
    assert called == kernel
    assert operands == [query, key, value, *between, 0.0, False]


def test_what_cudnns_normalisation_has_left_is_made_by_its_forward_pass(monkeypatch):
    forwards = Forwards((2, 3, 4, 4), (3,), (3,), (5,))
    monkeypatch.setattr(calls_alone, "_aten", forwards)
    source, outer = torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 4)
    weight, *running, mean, scale = (torch.zeros(3) for _ in range(5))
    reserve = torch.zeros(5)
    arguments = [source, outer, weight, *running, mean, scale, 1e-5, reserve]
    calls_alone._fit(aten.cudnn_batch_norm_backward.default, arguments, {})
    assert [float(one.sum()) for one in (mean, scale, reserve)] == [3, 3, 5]
    ((called, operands, _),) = forwards.called
    assert called == "cudnn_batch_norm"
    assert operands[0] is source
    assert operands[3:] == (None, None, True, 0.1, 1e-5)
