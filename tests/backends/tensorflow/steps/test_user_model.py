"""Models of the user's own in TensorFlow and Keras: built, fed, run, recorded, run node by node."""

import textwrap
import warnings

import pytest
from this_cpu import HAS_BF16

pytest.importorskip("tensorflow")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports are full of deprecations
    import keras

    from pydlbench.backends.tensorflow.backend import create
    from pydlbench.backends.tensorflow.settings import Tracer
    from pydlbench.backends.tensorflow.steps.graph import list_calls, run_graphs
    from pydlbench.backends.tensorflow.steps.user_model import UserTensorflowModel

from pydlbench.backends.steps import requests
from pydlbench.calls.seen import meaning_of
from pydlbench.errors import ModelError, UnsupportedError, UsageError
from pydlbench.models import build_model
from pydlbench.models.passes import macs
from pydlbench.records.step import StepSpec
from pydlbench.records.user_model import UserInput, UserModelSpec
from pydlbench.timing.chunk import ChunkRequest

HEAD = """
    import keras
    import tensorflow as tf

"""
CONVOLVED = """
    def build(width=4):
        net = keras.Sequential([
            keras.layers.Conv2D(width, 3, padding="same", activation="relu", name="first"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.MaxPool2D(name="pool"),
            keras.layers.Dropout(0.5, name="drop"),
            keras.layers.Flatten(name="flat"),
            keras.layers.Dense(5, name="head", kernel_regularizer="l2"),
        ])
        return net, tf.random.normal([2, 8, 8, 3])
"""
MODULE = """
    class Net(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = tf.Variable(tf.ones([4, 3]))

        @tf.Module.with_name_scope
        def __call__(self, rows):
            return {"loss": tf.reduce_sum(tf.nn.relu(rows @ self.weights)), "rows": rows}

    def build():
        return Net()
"""
FUNCTION = """
    def build():
        weights = tf.Variable(tf.ones([4, 3]))
        function = tf.function(lambda rows: tf.nn.relu(rows @ weights))
        return function, tf.ones([6, 4]), lambda output: tf.reduce_mean(output * output)
"""
LOOPED = """
    def build():
        given = keras.Input([6, 4])
        net = keras.Model(given, keras.layers.LSTM(3, name="cell")(given))
        return net, tf.random.normal([2, 6, 4])
"""
LOOKED_UP = """
    def build(length=None):
        first = [] if length is None else [keras.Input([length])]
        return keras.Sequential([*first, keras.layers.Embedding(900, 4), keras.layers.Dense(2)])
"""
FROZEN = """
    def build():
        net = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
        net.trainable = False
        return net, tf.ones([3, 4])
"""
STOPPED = """
    def build():
        weights = tf.Variable(tf.ones([4, 4]))
        return tf.function(lambda x: tf.stop_gradient(x @ weights)), tf.ones([3, 4])
"""
EAGER = """
    class Net(keras.Model):
        def call(self, rows):
            return float(tf.reduce_sum(rows)) * rows

    def build():
        return Net(), tf.ones([3, 4])
"""
REPEATED = """
    def build():
        weights = tf.Variable(tf.ones([4, 4]))

        @tf.function
        def step(rows):
            with tf.name_scope("again"):
                def body(n, one):
                    return n + 1, tf.tanh(one @ weights)
                return tf.while_loop(lambda n, _: n < 5, body, [0, rows])[1]

        return step, tf.random.normal([3, 4])
"""
CHOSEN = """
    def build():
        weights = tf.Variable(tf.ones([4, 4]))

        @tf.function
        def step(rows):
            with tf.name_scope("choice"):
                return tf.cond(
                    tf.reduce_sum(rows) > 0, lambda: rows @ weights, lambda: tf.tanh(rows)
                )

        return step, tf.ones([3, 4])
"""
GROWING = """
    def build():
        @tf.function
        def step(rows):
            with tf.name_scope("again"):
                return tf.while_loop(
                    lambda n, _: n < 3,
                    lambda n, one: (n + 1, tf.concat([one, rows], 0)),
                    [0, rows],
                    [tf.TensorShape([]), tf.TensorShape([None, 4])],
                )[1]

        return step, tf.ones([3, 4])
"""


@pytest.fixture(scope="module")
def backend():
    return create("cpu")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return a step of a model whose file has some text."""
    monkeypatch.chdir(tmp_path)

    def step(text, own=None, **case):
        # A file is run once in a process.
        number = len(list(tmp_path.glob("*.py"))) + 1
        (tmp_path / f"net{number}.py").write_text(textwrap.dedent(HEAD + text))
        how = {"framework": "tensorflow", "own": own, **case}
        return StepSpec(model=f"net{number}.py:build", **how).to_dict()

    return step


def inputs(*texts, **more):
    return UserModelSpec(inputs=tuple(map(UserInput.parse, texts)), **more)


UNNAMED = """
    stem = keras.layers.Dense(3)

    def build():
        given = keras.Input([4])
        return keras.Model(given, keras.layers.Dense(2)(keras.layers.Dense(3)(stem(given))))
"""


def test_layers_without_a_name_have_one_name_in_all_models_of_a_process(own, backend):
    before = keras.layers.Dense(1).name
    step = StepSpec.from_dict(own(UNNAMED, own=inputs("2x4")))
    names = [set(UserTensorflowModel(backend, step).scopes) for _ in range(3)]
    assert {"dense", "dense_1", "dense_2"} <= names[0]
    assert names[1:] == names[:1] * 2
    assert keras.layers.Dense(1).name not in ("dense", before)


def test_whole_numbers_span_the_embedding_or_what_is_asked_for(own, backend):
    def spans(text):
        model = UserTensorflowModel(backend, StepSpec.from_dict(own(LOOKED_UP, own=inputs(text))))
        return int(model.arguments[0].numpy().max()) + 1

    assert 850 < spans("16x64:int64") <= 900
    assert 90 < spans("16x64:int64:100") <= 100


@pytest.mark.parametrize(
    ("text", "case", "output", "parameters", "names", "left"),
    [
        pytest.param(
            CONVOLVED,
            {"phase": "training", "own": UserModelSpec(optimizer="momentum")},
            (2, 5),
            4 * 27 + 3 * 4 + 5 * 4 * 16 + 5,
            {"first", "norm", "pool", "drop", "head"},
            set(),
            marks=pytest.mark.deep,
        ),
        (
            MODULE,
            {"phase": "forward-backward", "own": inputs("rows=6x4")},
            (),
            12,
            {"net"},
            {"optimizer", "loss"},
        ),
        pytest.param(
            FUNCTION,
            {"phase": "training", "own": UserModelSpec(optimizer="adam")},
            (6, 3),
            12,
            {"loss"},
            set(),
            marks=pytest.mark.deep,
        ),
        pytest.param(
            CONVOLVED,
            {"precision": "bf16", "options": {"width": "2"}, "own": inputs("3x8x8x3")},
            (3, 5),
            2 * 27 + 3 * 2 + 5 * 2 * 16 + 5,
            {"first", "norm", "pool", "head"},
            {"backward", "optimizer", "loss"},
            marks=[
                pytest.mark.deep,
                pytest.mark.skipif(not HAS_BF16, reason="this CPU refuses bf16"),
            ],
        ),
    ],
)
def test_a_model_is_timed_and_listed_node_by_node(
    own, backend, text, case, output, parameters, names, left
):
    step = own(text, **case)
    kernel = requests.request_step(backend, step, {})
    facts = kernel.facts
    assert (facts.output, facts.parameters) == (output, parameters)
    if given := case["own"].inputs:
        assert facts.inputs == tuple(one.text for one in given)
    assert facts.checks
    assert all(one.status == "ok" for one in facts.checks)
    assert min(kernel.sample(ChunkRequest(samples=2, untimed=1)).seconds) > 0

    listed = requests.request_call_list(backend, step).facts
    assert listed.batch == (case["own"].inputs[0].shape[0] if case["own"].inputs else output[0])
    assert names <= {name for one in listed.calls for name in one.names}
    assert {one.direction for one in listed.calls} == {
        "forward",
        "loss",
        "backward",
        "optimizer",
    } - left
    signatures = list(dict.fromkeys(one.signature for one in listed.calls))
    ready = requests.request_calls(backend, step, signatures)
    assert ready.facts.refused == {}
    assert list(ready.facts.names) == signatures
    chunk = ready.sample(ChunkRequest(samples=1))
    assert len(chunk.seconds) == len(signatures)


NUMBERED = """
    def build():  # as Keras names them
        sizes = {"dense": 5, "dense_1": 6, "dense_2": 7}
        net = keras.Sequential([keras.layers.Dense(sizes[name], name=name) for name in sizes])
        return net, tf.random.normal([2, 4])
"""


def test_numbers_of_layers_are_told_from_those_of_scopes(own, backend):
    listed = requests.request_call_list(backend, own(NUMBERED)).facts
    products = {one.names: one.signature for one in listed.calls if one.operator.endswith("MatMul")}
    for name, weights in {"dense": "[4,5]", "dense_1": "[5,6]", "dense_2": "[6,7]"}.items():
        assert weights in products[name,]


@pytest.mark.parametrize(
    ("text", "operator", "names", "count", "refused"),
    [
        # Two products in each of six steps.
        pytest.param(LOOPED, "MatMul", {"cell.lstm_cell"}, 12, "", marks=pytest.mark.deep),
        (REPEATED, "MatMul", {"again.while.body"}, 5, ""),
        (CHOSEN, "MatMul", {"choice.cond.then"}, 1, ""),
        (CHOSEN, "Tanh", set(), 0, ""),  # of the other branch
        (GROWING, "Concat", {"again.while.body"}, 3, "of unknown shape"),
    ],
)
def test_nodes_in_loops_and_branches_count_as_often_as_they_run(
    own, backend, text, operator, names, count, refused
):
    step = own(text)
    listed = requests.request_call_list(backend, step).facts
    found = [one for one in listed.calls if operator in one.operator]
    assert {name for one in found for name in one.names} == names
    assert sum(one.count for one in found) == count
    assert any("loops and branches" in one for one in listed.notes)
    ready = requests.request_calls(backend, step, [one.signature for one in found]).facts
    assert len(ready.names) == (0 if refused else len(found))
    assert all(refused in why for why in ready.refused.values())


def test_a_loop_that_nobody_has_counted_is_refused(own, backend):
    with UserTensorflowModel(backend, StepSpec.from_dict(own(REPEATED))) as made:
        graphs = run_graphs(Tracer("/CPU:0", "graph")(made.body), made.operands())
    products = [one for one in list_calls(graphs, {}) if "MatMul" in one.operator]
    assert [one.count for one in products] == [1]
    ready = requests.request_calls(backend, made.spec.to_dict(), [products[0].signature])
    assert "in a loop" in ready.facts.refused[products[0].signature]
    assert "in a loop" in (meaning_of(products[0]).layers_missing or "")


@pytest.mark.parametrize(
    ("text", "case", "error", "told"),
    [
        (CONVOLVED, {"layout": "nhwc"}, UnsupportedError, "nearest: leave it out"),
        (CONVOLVED, {"precision": "bf16", "cast": "whole"}, UnsupportedError, "--cast mixed"),
        (FUNCTION, {"precision": "bf16"}, UnsupportedError, "nearest: --precision fp32"),
        (FUNCTION, {"own": UserModelSpec(train=True)}, UsageError, "leave --train-mode"),
        (MODULE, {}, UsageError, "nearest: --input 8x224x224x3"),
        (LOOKED_UP, {}, UsageError, "nearest: --input 8x128:int64,"),
        (LOOKED_UP, {"options": {"length": "7"}}, UsageError, "nearest: --input 8x7:int64,"),
        (
            FUNCTION,
            {"phase": "training", "own": UserModelSpec(loss="keras.losses:mean_squared_error")},
            UsageError,
            "--loss keras.losses:mean_squared_error: cannot be called with the output alone",
        ),
        (
            "    def build():\n        return 3\n",
            {},
            UsageError,
            "returns int; nearest: a torch.nn",
        ),
        ("    def build():\n        1 / 0\n", {}, ModelError, "net1.py:6: ZeroDivisionError"),
        (MODULE, {"own": inputs("rows=6x5")}, ModelError, "net1.py:13: InvalidArgumentError"),
        (FROZEN, {"own": inputs("3x5")}, ModelError, "net1.py:build: ValueError"),
        ("    def build():\n        exit(3)\n", {}, ModelError, "net1.py:6: SystemExit: 3"),
        ("    def build(width): pass\n", {}, UsageError, "nearest: --set width=VALUE"),
        (FROZEN, {"phase": "training"}, UsageError, "no weights to train"),
        (STOPPED, {"phase": "training"}, UsageError, "its loss has no gradient"),
        (EAGER, {}, ModelError, "net1.py:8: TypeError"),
        pytest.param(
            "    from torch import nn\n    build = nn.ReLU()\n",
            {},
            UnsupportedError,
            "--framework torch",
            marks=pytest.mark.deep,  # it imports both frameworks
        ),
    ],
)
def test_bad_input_is_told_in_one_line(own, backend, text, case, error, told):
    if case.get("precision") == "bf16" and not HAS_BF16:
        pytest.skip("this CPU refuses bf16 before")
    if "torch" in text:
        pytest.importorskip("torch")
    with pytest.raises(error) as raised:
        requests.request_step(backend, own(text, **case), {})
    assert told in str(raised.value)
    assert str(raised.value).isprintable()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("phase", ["forward", "training"])
@pytest.mark.parametrize("name", ["mnist", pytest.param("resnet18", marks=pytest.mark.deep)])
def test_the_graph_of_a_catalogue_model_has_its_flops(backend, name, phase):
    model = build_model(name, 2)
    case = StepSpec(model=name, batch=2, phase=phase, framework="tensorflow")
    calls = requests.request_call_list(backend, case.to_dict()).facts.calls
    found = sum(one.count * (meaning_of(one).product_flops or 0) for one in calls)
    assert found == 2 * 2 * macs(model, phase)
    products = [meaning_of(one) for one in calls if meaning_of(one).product_flops]
    assert all(one.layers for one in products)
