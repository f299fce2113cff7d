"""ONNX files as steps; imported by onnxruntime's worker only."""
