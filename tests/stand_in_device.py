"""A device for tests on machines without a GPU, which sees what the host reads from it.

Its tensors say that they are on another device, and compute in main memory. As on a GPU, work of
tensors of both places is an error, and no array of numpy shares their memory. Where a value is
read (`item`, `tolist`, `bool`, a copy to main memory, a size that depends on values), it is noted
with the function of vergence that asked, and refused unless the test names that function.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import vergence

# Autograd works for this kind of device on the thread of the CPU: others have threads of their own,
# after which a process cannot be forked.
DEVICE = torch.device("lazy", 0)
SOURCE = str(Path(vergence.__file__).parent)
ATEN = torch.ops.aten
SET_DATA: Any = Tensor.data.__set__  # pyright: ignore[reportAttributeAccessIssue]
READ = {ATEN._local_scalar_dense.default, ATEN.equal.default, ATEN.is_nonzero.default}
"""Operations that bring a value home."""
LEARNS = ("aten._fused_", "aten.addmm.", "aten.convolution")
"""First words of the names of operations of training: optimisers' steps and layers."""
SIZED: Any = {ATEN.nonzero.default, ATEN.masked_select.default, ATEN._unique2.default}
"""Operations whose result has a size that the host must learn."""


class HostRead(Exception):
    """The host read from the device in a function that the test does not name."""


class StandIn(TorchDispatchMode):
    """Lets tensors be made on the device, and counts what is read from it.

    Args:
        allowed: functions that may read, as `module.function`; None: all may.

    Attributes:
        reads: number of readings by function.
        bytes: number of bytes that came home, by function.
        trained: number of layers computed and optimisers' steps taken in main memory, by function.
    """

    def __init__(self, allowed: Collection[str] | None = None) -> None:
        super().__init__()
        self.allowed = allowed
        self.reads: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.trained: Counter[str] = Counter()

    def __enter__(self) -> StandIn:
        DeviceTensor.seen_by = self
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    def read(self, size: int) -> None:
        """Note that `size` bytes are read."""
        who = reader()
        self.reads[who] += 1
        self.bytes[who] += size
        if self.allowed is not None and who not in self.allowed:
            raise HostRead(f"{who} reads {size} bytes from the device")


def reader() -> str:
    """Name the innermost function of vergence that runs now; else "test"."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(SOURCE) and not code.co_name.startswith("<"):
            return f"{Path(code.co_filename).stem}.{code.co_name}"
        frame = frame.f_back
    return "test"


class DeviceTensor(Tensor):
    """A tensor on the device; `raw` has its values, in main memory."""

    seen_by: StandIn
    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> DeviceTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=DEVICE,
        )
        made.raw = raw
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == SET_DATA:
            # Strides too: gradients are laid out as the parameter is.
            with torch._C.DisableTorchFunctionSubclass():
                func(*args)
            args[0].raw = args[1].raw
            return None
        if func in (Tensor.data_ptr, Tensor.untyped_storage):
            return func(args[0].raw)
        if func is Tensor.tolist:
            cls.seen_by.read(args[0].nbytes)
            return args[0].raw.tolist()
        if func is Tensor.numpy:
            raise TypeError("can't convert a tensor of the stand-in device to numpy")
        # Without this torch would call what came home a tensor of the device, too.
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out an operation in main memory; its result lies where torch would put it."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    device = kwargs.get("device")
    wanted = None if device is None else torch.device(device).type
    if not there and wanted != DEVICE.type:
        if str(func).startswith(LEARNS):
            DeviceTensor.seen_by.trained[reader()] += 1
        return func(*args, **kwargs)
    seen_by, home = DeviceTensor.seen_by, wanted == "cpu"
    into_home = func is ATEN.copy_.default and not isinstance(args[0], DeviceTensor)
    if func is not ATEN.copy_.default and any(t.ndim for t in tensors) and there:
        stray = [t for t in tensors if not isinstance(t, DeviceTensor) and t.ndim]
        if stray:
            raise RuntimeError(f"{func}: tensors on two devices, cpu and {DEVICE}")
    if func in READ or home or into_home:
        seen_by.read(1 if func is ATEN.equal.default else there[0].nbytes)
    chosen = [t for t in pytree.tree_leaves(args[1:]) if isinstance(t, DeviceTensor)]
    picks = func in (ATEN.index.Tensor, ATEN.index_put_.default) and chosen[0].dtype == torch.bool
    if func in SIZED or picks:
        seen_by.read(8)
    raw_args, raw_kwargs = pytree.tree_map_only(DeviceTensor, lambda t: t.raw, (args, kwargs))
    if device is not None:
        raw_kwargs = {**raw_kwargs, "device": "cpu"}
    if func is ATEN._to_copy.default and not there:
        seen_by.bytes["to the device"] += tensors[0].nbytes
    result = func(*raw_args, **raw_kwargs)
    if home or into_home:
        return result
    same = {id(tensor.raw): tensor for tensor in there}
    return pytree.tree_map_only(
        Tensor, lambda t: same[id(t)] if id(t) in same else DeviceTensor(t), result
    )
