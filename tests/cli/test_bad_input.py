"""Bad input: one line that names it and the nearest valid choice, before anything is started.

What a message says word for word is in ``end_to_end/transcripts/bad_input.txt``. Here each check of
the command line has its place once, however many commands have the option.
"""

import contextlib
import re
import shlex

import pytest

from pydlbench.cli import main
from pydlbench.store.store import Store

# The command line, what of it is named, and what is nearest: None where nothing is, ... where it
# depends on the machine.
REFUSED = [
    # Numbers and lists.
    ("layers --batch 3.5", "--batch 3.5", "4"),
    ("layers --batch many", "--batch many", "1"),
    ("layers --batch 1e99", "--batch 1e99", "999999999999999999"),
    ("layers --batch 1,,2", "--batch '1,,2'", "1,2"),
    ("layers --backend ''", "--backend ''", "leave the option out"),
    ("layers --threads 0", "--threads 0", "1"),
    ("layers --threads 1000000", "--threads 1000000", ...),
    ("layers --budget 0", "--budget 0", "0.1"),
    ("layers --budget inf", "--budget inf", "86400"),
    ("layers --budget nan", "--budget nan", "2"),
    ("layers --seed -1", "--seed -1", "0"),
    ("layers --seed 1180591620717411303424", "--seed 1180591620717411303424", "999999999999999999"),
    ("layers --device cuda:0 --workspace-limit 1Q", "--workspace-limit 1Q", "64M"),
    # What is timed.
    ("layers --shape mb1ic3ih4oc8kh9", "--shape mb1ic3ih4oc8kh9", None),
    (
        "layers --shape mb99999999ic99999999ih9999oc9kh1",
        "--shape mb99999999ic99999999ih9999oc9kh1",
        None,
    ),
    ("layers --shape mb99999ic9ih999oc99kh3", "mb99999ic9ih999oc99oh997kh3", ...),
    ("layers --model alexnet/conv3", "--model alexnet/conv3", "--shape alexnet/conv3"),
    ("layers --shape pool1 --pass backward-weights", "--pass backward-weights", None),
    (
        "layers --propagation training --pass backward-data",
        "--propagation training",
        "--pass forward",
    ),
    ("layers --pool min --shape mb1ic3ih8oh4kh2sh2", "--pool min", None),
    ("layers --pool max --shape conv3", "--pool max", "omit it"),
    ("shapes mb1ic3zz", "mb1ic3zz", None),
    ("shapes ic3ih8kh2", "ic3ih8kh2", None),
    ("shapes ''", "''", "conv3"),
    ("shapes ,", ",", "conv3"),
    # On what.
    ("layers --device ''", "--device ''", "cpu"),
    ("layers --device cuda:-1", "--device cuda:-1", "cuda:0"),
    ("layers --device cuda:x", "--device cuda:x", "cuda:0"),
    ("layers --precision fp32,bf16-tc", "--precision bf16-tc", "--device cuda:0"),
    ("layers --device cuda:0 --precision bf16", "--precision bf16", "bf16-tc"),
    ("layers --cache warm", "--cache warm", None),
    ("layers --device cuda:0 --layout blocked", "--layout blocked", "--layout nhwc"),
    ("layers --device cuda:0 --timing event", "--timing event", "events"),
    ("layers --device cuda:0 --threads 2", "--threads 2", "leave it out"),
    ("layers --timing events", "--timing events", "--device cuda:0"),
    ("layers --fuse relo", "--fuse relo", "relu, elu"),
    ("layers --workspace-limit 1G", "--workspace-limit 1G", "--device cuda:0"),
    ("layers --mode eager", "--mode eager", "--backend torch"),
    ("layers --backend torch --mode xla", "--mode xla", "eager, compiled, frozen"),
    ("layers --backend torch,numba --mode eager,xla", "--mode xla", "eager, compiled, frozen"),
    ("layers --backend native,numba --mode all", "--mode all", "--backend torch"),
    ("device --device cuda:0 --threads 2", "--threads 2", "--device cpu"),
    ("device --known --threads 2", "--threads 2", "leave it out"),
    ("device --known --device cpu", "--device cpu", "leave it out"),
    ("device --price T4=1", "--price T4=1", "--known"),
    ("device --throughput T4=1", "--throughput T4=1", "--known"),
    # Where to.
    ("layers --samples", "--samples", "--samples --json -"),
    ("layers conv3", "conv3", "--shape conv3"),
    ("breakdown mnist --mode frozen", "--mode frozen", None),
    ("layers --gpu", "--gpu", "--device"),
    ("step mnist --dtype bf16", "--dtype", "--precision"),
    ("step --model mnist", "--model", "--mode, MODEL"),
    ("step mnist --faze training", "--faze", "--phase, --feed"),
    ("shapes conv3 --format json --json a", "--format json", "leave one out"),
    ("shapes conv3 --format csv", "--format csv", "json"),
    ("layers --format md --json -", "--md -", "--md results.md"),
    ("layers --json - --csv -", "--csv -", "--csv results.csv"),
    ("layers --json a --md ./a", "--md ./a", "--md results.md"),
    ("layers --json ''", "--json ''", None),
    ("runs --store none.sqlite", "--store none.sqlite", "leave it out"),
    ("report run.json -o none/page.html", "--output none/page.html", "FOLDER"),
    ("report run.json -o .", "--output .", "results"),
    ("report run.json --png run.json", "--png run.json", "--png ."),
    ("report run.json --png ''", "--png ''", "--png figures"),
    ("report run.json --svg none/figures", "--svg none/figures", "FOLDER"),
    (
        "export run.json -o a.xyz",
        "--output a.xyz",
        ".csv, .json, .md, .parquet, or --format csv",
    ),
    # Models and steps.
    (
        "estimate alexnet --phase training",
        "--phase training",
        "--phase forward-backward, or --set optimizer=sgd",
    ),
    ("estimate mnist --precision bf16,fp32", "--precision bf16,fp32", "--precision bf16"),
    (
        "estimate mnist --summary --phase forward,training",
        "--phase forward,training",
        "--phase forward",
    ),
    ("estimate mnist --top 0", "--top 0", "1"),
    ("estimate mnist --summary --budget 3", "--budget 3", "leave it out"),
    ("estimate mnist --summary --threads 1", "--threads 1", "leave it out"),
    ("estimate mnist --summary --top 3", "--top 3", "leave it out"),
    ("estimate mnist --summary --store mine", "--store mine", "leave it out"),
    ("estimate mnist --summary --fail-on failed", "--fail-on failed", "leave it out"),
    ("breakdown mnist --repetitions 3", "--repetitions 3", "4"),
    ("estimate mnist --set lrn", "--set lrn", "--set lrn=VALUE"),
    (
        "estimate mnist --set classes=11 --set classes=12",
        "--set classes=12",
        "leave one out",
    ),
    ("estimate alexnet --set lrn=maybe", "lrn=maybe", "on, off, true, false"),
    ("step", "MODEL", "pydlbench step alexnet-owt --batch 16"),
    ("step mnist --batch 16,0", "--batch 0", "1"),
    ("step mnist --batch ''", "--batch ''", "leave the option out"),
    ("step mnist --framework torch --agree", "--agree", "--framework all"),
    ("step mnist --steps 5", "--steps 5", "--protocol NAME"),
    ("step mnist --cast mixed,whole", "--cast mixed,whole", "--cast mixed"),
    ("breakdown mnist --framework torch --mode xla", "--mode xla", "compiled"),
    ("breakdown mnist --framework tensorflow --mode eager", "--mode eager", "graph"),
    ("breakdown mnist --layout nchw --framework tensorflow", "--layout nchw", "--layout nhwc"),
    ("breakdown vgg11 --batch 1000000 --framework torch", "vgg11 at batch 1000000", ...),
    ("diagnose mnist --mode xla", "--mode xla", "compiled"),
    ("diagnose vgg11 --batch 1000000", "vgg11 at batch 1000000", ...),
    ("diagnose mnist --fail-on ''", "--fail-on ''", "saves:3%"),
    ("diagnose mnist --fail-on 10", "--fail-on 10", "saves:10%"),
    (
        "diagnose vgg11 --set optimizer=none --phase training",
        "--phase training",
        "--phase forward-backward, or --set optimizer=sgd",
    ),
    # Protocols.
    ("step vgg16 --protocol mnist-tutorial", "vgg16", "mnist"),
    ("step --protocol mnist-tutorial --data missing/x", "--data missing/x", "."),
    ("step --protocol mnist-tutorial --data ~nobody-here/x", "--data ~nobody-here/x", "."),
    (
        "step --protocol alexnet-tutorial --data .",
        "--data .",
        "--protocol mnist-tutorial or cifar10-tutorial",
    ),
    ("step --protocol mnist-tutorial --warmup 5", "--warmup 5", "leave it out"),
    ("step --protocol convnet-benchmarks --every 5", "--every 5", "leave it out"),
    ("step --protocol mnist-tutorial --json -", "--json -", "--json results.json"),
    ("step --protocol mnist-tutorial --batch 1,2", "--batch 1,2", "--batch 1"),
    ("step --protocol mnist-tutorial --mode graph,xla", "--mode graph,xla", "--mode graph"),
    ("step --protocol mnist-tutorial --quirk x=y", "--quirk x=y", "--quirk x=off"),
    ("step --protocol mnist-tutorial --steps 3 --epochs 1", "--epochs 1", "leave one out"),
    # Runs.
    ("runs 20300102-aaaa1111", "20300102-aaaa1111", "pydlbench runs show 20300102-aaaa1111"),
    ("runs show a b", "b", None),
    ("runs tag last", "NAME", "pydlbench runs tag RUN NAME"),
    ("runs delete", "RUN", "pydlbench runs delete RUN..."),
    ("runs vacuum x", "x", None),
    ("runs show last --limit 3", "--limit", "--quiet"),
    ("runs show last --json -", "--json", "--store"),
    ("runs tag last x", "last", None),
    ("sweep x --dry-run --resume last", "--resume last", "leave one of them out"),
    ("sweep --resume last", "--resume last", None),
    ("layers --resume last", "--resume last", None),
    ("layers --shape conv3 --resume last", "--resume last", None),
    ("layers --shape conv3 --resume last --store a.sqlite", "--store a.sqlite", "leave it out"),
    ("compare a.json b.json --seed 0", "--seed 0", "--interleave"),
    ("compare --published --fail-on slower:3%", "--fail-on slower:3%", "leave it out"),
    ("compare a.json b.json --repetitions 9", "--repetitions 9", "--interleave"),
    ("compare a.json b.json --model vgg16", "--model vgg16", "--published"),
    ("compare a.json b.json --interleave --repetitions 3", "--repetitions 3", "4"),
    ("compare --published --interleave", "--interleave", "leave it out"),
    ("report last", "run last", None),
    ("export", "RUN", "pydlbench export last"),
    ("export run.json --samples", "--samples", "--format long"),
    ("export run.json --schema layers", "run.json", "leave it out"),
    # What no command knows.
    ("''", "''", ...),
    ("r\x1buns", "runs", "runs"),
    ("--quiet", "--quiet", "--help"),
    ("layers --thread=2", "--thread=2", "--threads, --store"),
    ("report run.json --pdf x", "--pdf", "--png"),
    ("breakdown mnist alexnet", "alexnet", None),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory with a file in it, and a machine on which no process can be started.

    The one that starts while ``layers`` imports is asked for nothing, and is left out.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    ahead = "pydlbench.workers.host.launch_early"
    monkeypatch.setattr(ahead, lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    return tmp_path


@pytest.mark.parametrize(("line", "named", "near"), REFUSED, ids=[line for line, *_ in REFUSED])
def test_it_is_named_with_the_nearest_choice(line, named, near, folder, store_path, capsys):
    assert main(shlex.split(line)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"pydlbench: .*\n", err)
    assert err.startswith(f"pydlbench: {named}: ")
    told = re.search(r"; nearest: (.*?)(; choices: .*)?\n", err)
    if near is not ...:
        assert (told and told[1]) == (near and near.replace("FOLDER", str(folder)))
    assert [one.name for one in folder.iterdir()] == ["run.json"]
    if store_path.exists():
        assert "--resume" not in line  # there is nothing in a store that is made for it
        with Store.open(store_path, readonly=True) as store:
            assert store.runs() == []
