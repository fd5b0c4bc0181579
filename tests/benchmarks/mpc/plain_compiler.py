"""The words of MP-SPDZ's compiler that `mp_spdz/network.py` uses, on plain numbers, at once.

Checks addresses, layouts and scales of the program without MP-SPDZ; nothing is secret here.
"""

import importlib.util
import sys
from types import ModuleType

import numpy as np
from torch import from_numpy
from torch.nn.functional import conv2d

from benchmarks.mpc.mp_spdz_parties import PROGRAM

memory = np.zeros(0, np.int64)


class Sint(np.ndarray):
    """A vector of numbers."""

    def __new__(cls, size):
        return np.zeros(size, np.int64).view(cls)

    @staticmethod
    def load_mem(places):
        return memory[places].view(Sint)

    def store_in_mem(self, places):
        memory[places] = self

    def greater_equal(self, other, _bits):
        return (np.asarray(self) >= other).astype(np.int64).view(Sint)

    def round(self, bits, fraction, nearest):
        assert nearest
        assert np.abs(self).max() < 2 ** (bits - 1)
        return (self + 2 ** (fraction - 1)) >> fraction

    class Array:
        def __init__(self, size):
            global memory
            self.address, self.size = len(memory), size
            memory = np.concatenate([memory, np.full(size, 2**40)])  # what is not written shows

        def assign_vector(self, values):
            memory[self.address : self.address + self.size] = values

        def get_vector(self):
            return memory[self.address : self.address + self.size].view(Sint)


class Regint:
    @staticmethod
    def inc(size, base=0, step=1, repeat=1, wrap=None):
        return base + step * ((np.arange(size) // repeat) % (wrap or size))


class Matrix:
    def __init__(self, rows, columns, _type, address):
        self.at = memory[address : address + rows * columns].reshape(rows, columns)

    def direct_mul_trans(self, other):
        return (self.at @ other.at.T).ravel().view(Sint)


def conv2ds(found, images, weight, *sizes):
    rows, columns, high, wide, m, n, _, _, channels, _, _, batch = sizes
    x = np.asarray(images).reshape(batch, high, wide, channels).transpose(0, 3, 1, 2)
    w = np.asarray(weight).reshape(1, m, n, channels).transpose(0, 3, 1, 2)
    y = conv2d(from_numpy(x.astype(np.float64)), from_numpy(w.astype(np.float64)))
    assert y.shape == (batch, 1, rows, columns)
    found[:] = y.numpy().ravel()  # below 2^53, so exact


def network():
    """Return the program as a module that computes on plain numbers."""
    words = {
        "compilerLib": {"Compiler": None},
        "instructions": {"conv2ds": conv2ds},
        "library": dict.fromkeys(["break_point", "check_point", "start_timer", "stop_timer"], int),
        "types": {"Matrix": Matrix, "regint": Regint, "sint": Sint},
    }
    for name, of_it in words.items():
        module = ModuleType(f"Compiler.{name}")
        vars(module).update(of_it)
        sys.modules[module.__name__] = module
    spec = importlib.util.spec_from_file_location("mp_spdz_network", PROGRAM)
    made = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(made)
    finally:
        for name in words:
            del sys.modules[f"Compiler.{name}"]
    return made
