"""Where a model runs: ONNX, sparse kernels, and what each takes."""
