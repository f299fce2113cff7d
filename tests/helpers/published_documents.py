"""Lines as published, of every script that a protocol follows, and the formats that print them.

Formats are those of the scripts' print statements, in the manner of printf; where a script puts a
line together from several, they are put together here likewise.
"""

from __future__ import annotations

from dataclasses import dataclass

from published_forms import Form

_STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}"
_STEP = Form("s", "%s: step %d, duration = %.3f", (_STAMP,))
_FORWARD = Form("f", "%s: %s across %d steps, %.3f +/- %.3f sec / batch", (_STAMP, "Forward"))
_BACKWARD = Form(
    "b", "%s: %s across %d steps, %.3f +/- %.3f sec / batch", (_STAMP, "Forward-backward")
)


@dataclass(frozen=True)
class Document:
    """What a script printed, and how it prints.

    Attributes:
        protocol: that follows the script.
        script: its name and repository.
        shown: where the lines were published, and what they were taken on.
        lines: as published; a run of alike ones is cut short.
        forms: every kind of line.
        order: in which they come, a regular expression of the forms' letters.
        head: likewise of lines before them that the document leaves out.
        quirks: of the protocol that print these lines.
    """

    protocol: str
    script: str
    shown: str
    lines: tuple[str, ...]
    forms: tuple[Form, ...]
    order: str
    head: str = ""
    quirks: tuple[str, ...] = ()


ALEXNET = Document(
    protocol="alexnet-tutorial",
    script="tensorflow/models tutorials/image/alexnet/alexnet_benchmark.py",
    shown="schoenemeyer/CPUvsGPU-Performance-Test, README: a GTX 1050 Ti, 2019-01-08, batch 128",
    lines=(
        "conv1   [128, 56, 56, 64]",
        "pool1   [128, 27, 27, 64]",
        "conv2   [128, 27, 27, 192]",
        "pool2   [128, 13, 13, 192]",
        "conv3   [128, 13, 13, 384]",
        "conv4   [128, 13, 13, 256]",
        "conv5   [128, 13, 13, 256]",
        "pool5   [128, 6, 6, 256]",
        "2019-01-08 10:01:15.496202: step 0, duration = 0.131",
        "2019-01-08 10:01:16.811481: step 10, duration = 0.133",
        "2019-01-08 10:01:27.310601: step 90, duration = 0.131",
        "2019-01-08 10:01:28.494875: Forward across 100 steps, 0.131 +/- 0.001 sec / batch",
        "2019-01-08 10:01:33.045798: step 0, duration = 0.316",
        "2019-01-08 10:01:36.194006: step 10, duration = 0.314",
        "2019-01-08 10:02:01.388645: step 90, duration = 0.317",
        (
            "2019-01-08 10:02:04.218553: Forward-backward across 100 steps, "
            "0.315 +/- 0.001 sec / batch"
        ),
    ),
    forms=(Form("a", "%s   %s", (r"\w+", r"\[\d+(?:, \d+)*\]")), _STEP, _FORWARD, _BACKWARD),
    order="a{8}s+fs+b",
)

MNIST = Document(
    protocol="mnist-tutorial",
    script="tensorflow/models tutorials/image/mnist/convolutional.py",
    shown="a published log of 2019-04-25: a GTX 1070, batch 64, 10 epochs",
    lines=(
        "Initialized!",
        "Step 0 (epoch 0.00), 10.0 ms",
        "Minibatch loss: 8.334, learning rate: 0.010000",
        "Minibatch error: 85.9%",
        "Validation error: 84.5%",
        "Step 100 (epoch 0.12), 4.2 ms",
        "Minibatch loss: 3.223, learning rate: 0.010000",
        "Minibatch error: 3.1%",
        "Validation error: 7.7%",
        "Step 8500 (epoch 9.89), 4.1 ms",
        "Minibatch loss: 1.596, learning rate: 0.006302",
        "Minibatch error: 0.0%",
        "Validation error: 0.9%",
        "Test error: 0.8%",
    ),
    forms=(
        Form("i", "Initialized!"),
        Form("s", "Step %d (epoch %.2f), %.1f ms"),
        Form("l", "Minibatch loss: %.3f, learning rate: %.6f"),
        Form("m", "Minibatch error: %.1f%%"),
        Form("v", "Validation error: %.1f%%"),
        Form("t", "Test error: %.1f%%"),
    ),
    order="i(slmv)+t",
)

CIFAR10 = Document(
    protocol="cifar10-tutorial",
    script="tensorflow/models tutorials/image/cifar10/cifar10_train.py",
    shown="a published log of 2018-09-09, but for its line on the queue: a GTX 1060, batch 128",
    lines=(
        "2018-09-09 23:09:06.600383: step 0, loss = 4.67 (213.6 examples/sec; 0.599 sec/batch)",
        "2018-09-09 23:09:06.868952: step 10, loss = 4.63 (4765.9 examples/sec; 0.027 sec/batch)",
        "2018-09-09 23:09:07.032658: step 20, loss = 4.46 (7818.8 examples/sec; 0.016 sec/batch)",
        "2018-09-09 23:09:07.194632: step 30, loss = 4.60 (7902.7 examples/sec; 0.016 sec/batch)",
        "2018-09-09 23:09:07.355291: step 40, loss = 4.37 (7967.4 examples/sec; 0.016 sec/batch)",
    ),
    forms=(Form("s", "%s: step %d, loss = %.2f (%.1f examples/sec; %.3f sec/batch)", (_STAMP,)),),
    order="s+",
)

# The page shows the script's tabs as spaces, and nothing of its heading.
TF_CNN = Document(
    protocol="tf-cnn-benchmarks",
    script="tensorflow/benchmarks scripts/tf_cnn_benchmarks",
    shown="schoenemeyer/CPUvsGPU-Performance-Test, README: a GTX 1050 Ti, resnet50, batch 32",
    lines=(
        "Done warm up",
        "Step    Img/sec total_loss",
        "1       images/sec: 52.3 +/- 0.0 (jitter = 0.0) 8.169",
        "10      images/sec: 51.8 +/- 0.2 (jitter = 0.1) 7.593",
        "20      images/sec: 51.8 +/- 0.1 (jitter = 0.1) 7.696",
        "100     images/sec: 51.7 +/- 0.1 (jitter = 0.3) 7.797",
        "----------------------------------------------------------------",
        "total images/sec: 51.66",
        "----------------------------------------------------------------",
    ),
    forms=(
        Form("d", "Done warm up"),
        Form("t", "Step\tImg/sec\ttotal_loss"),
        Form("s", "%i\timages/sec: %.1f +/- %.1f (jitter = %.1f)\t%.3f"),
        Form("r", "-" * 64),
        Form("e", "total images/sec: %.2f"),
        # What print_info and its caller write before.
        Form("h", "%s:  %i.%i", ("TensorFlow",)),
        Form("H", "%s:     %i.%i", ("PyTorch",)),
        Form("h", "Model:       %s", (r"\S+",)),
        Form("h", "Dataset:     %s", (r"\S+ \(synthetic\)",)),
        Form("h", "Mode:        %s", (r"\S+",)),
        Form("h", "SingleSess:  %s", ("True|False",)),
        Form("h", "Batch size:  %s global", (r"\d+",)),
        Form("h", "             %s per device", (r"\d+",)),
        Form("h", "Num batches: %d"),
        Form("h", "Num epochs:  %.2f"),
        Form("h", "Devices:     %s", (r"\[.*\]",)),
        Form("h", "Data format: %s", (r"\S+",)),
        Form("h", "Optimizer:   %s", (r"\S+",)),
        Form("h", "Variables:   %s", (r"\S+",)),
        Form("h", "=========="),
        Form("h", "Generating model"),
        Form("h", "Running warm up"),
    ),
    order="dts+rer",
    head="[hH]h{15}",
)

# No file of the wrapper was published: columns as it names them, results of the table in the
# README, times invented.
WRAPPER = Document(
    protocol="deep-learning-benchmark",
    script="OryanOmer/deep-learning-benchmark benchmarkGPU-warpper.py",
    shown="u39kun/deep-learning-benchmark, README: a GTX 1080 Ti, vgg16, PyTorch 0.3.0, batch 16",
    lines=(
        ",Timestamp,Framework,Algoritem,BenchStage,Precision,Result",
        "0,2019-01-08T10:01:15.496202,pytorch,vgg16,eval,fp32,39.3ms",
        "1,2019-01-08T10:01:15.496202,pytorch,vgg16,train,fp32,131.9ms",
    ),
    forms=(
        Form("c", ",Timestamp,Framework,Algoritem,BenchStage,Precision,Result"),
        Form(
            "r",
            "%d,%s,%s,%s,%s,%s,%sms",
            (
                r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{6})?",
                *("pytorch|tensorflow|caffe2", r"\w+", "eval|train", r"fp\d\d", r"\d+\.\d"),
            ),
        ),
    ),
    order="cr{2}",
    quirks=("wrapper-csv",),
)

TORCH7 = Document(
    protocol="convnet-benchmarks",
    script="soumith/convnet-benchmarks torch7/imagenet_winners/benchmark.lua",
    shown="the same folder's output.log @06f1d1f5c2e0: a GTX Titan Black, batch 128",
    lines=(
        "ModelType: AlexNet\tKernels: cudnn\tInput shape: 128x3x224x224",
        "cudnn                                   :updateOutput():     134.51",
        "cudnn                                :updateGradInput():     188.57",
        "cudnn                              :accGradParameters():     166.68",
        "cudnn                                          :Forward:     134.51",
        "cudnn                                         :Backward:     355.25",
        "cudnn                                            :TOTAL:     489.76",
    ),
    forms=(
        Form("m", "ModelType: %s\tKernels: %s\tInput shape: %dx%dx%dx%d", (r"\S.*?", r"\S+")),
        *(
            Form(letter, "%-30s %25s %10.2f", (r"\S+", name))
            for letter, name in (
                ("o", r":updateOutput\(\):"),
                ("i", r":updateGradInput\(\):"),
                ("w", r":accGradParameters\(\):"),
                ("f", ":Forward:"),
                ("b", ":Backward:"),
                ("t", ":TOTAL:"),
            )
        ),
    ),
    order="moiwfbt",
)

CONVNET_TF = Document(
    protocol="convnet-benchmarks-tf",
    script="soumith/convnet-benchmarks tensorflow/benchmark_alexnet.py",
    shown="the same folder's output_alexnet.log @1d7ce7560892: a GTX Titan X, batch 128",
    lines=(
        "2015-11-13 02:40:05.299299: step 10, duration = 0.123",
        "2015-11-13 02:40:06.378277: step 20, duration = 0.119",
        "2015-11-13 02:40:13.511010: step 90, duration = 0.102",
        "2015-11-13 02:40:14.427704: Forward across 100 steps, 0.100 +/- 0.024 sec / batch",
        "2015-11-13 02:40:22.186802: step 10, duration = 0.331",
        "2015-11-13 02:40:25.498628: step 20, duration = 0.331",
        "2015-11-13 02:40:48.682381: step 90, duration = 0.330",
        (
            "2015-11-13 02:40:51.659479: Forward-backward across 100 steps, "
            "0.328 +/- 0.033 sec / batch"
        ),
    ),
    forms=(_STEP, _FORWARD, _BACKWARD),
    order="s+fs+b",
)

#: In the order of the protocols.
DOCUMENTS = (ALEXNET, MNIST, CIFAR10, TF_CNN, WRAPPER, TORCH7, CONVNET_TF)
