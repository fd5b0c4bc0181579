"""Python API: train on objects, open finished runs, compare and explain them."""
