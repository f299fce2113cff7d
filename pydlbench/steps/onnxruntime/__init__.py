"""ONNX files as steps.

Imported by onnxruntime's worker only, but for ``node`` and ``work``, which import neither it nor
``onnx``.
"""
