"""Tools for trained networks: split costs, pruning, ONNX and latency."""
