"""Pickles as Python 2 wrote them with protocol 2, byte for byte: what the CIFAR archives hold."""

import numpy as np


def python2(value) -> bytes:
    """Return the pickle of text (as bytes), whole numbers, lists, dicts and uint8 arrays."""
    return b"\x80\x02" + _ops(value) + b"."


def _number(value: int) -> bytes:
    return b"J" + value.to_bytes(4, "little", signed=True)


def _text(value: bytes) -> bytes:
    return b"T" + len(value).to_bytes(4, "little") + value


def _ops(value) -> bytes:
    match value:
        case bytes():
            return _text(value)
        case int():
            return _number(value)
        case list():
            return b"](" + b"".join(map(_ops, value)) + b"e"
        case dict():
            return b"}(" + b"".join(_ops(k) + _ops(v) for k, v in value.items()) + b"u"
        case np.ndarray():
            return _array(value)
    raise TypeError(value)


def _array(value: np.ndarray) -> bytes:
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _text(b"b")
    kind = b"cnumpy\ndtype\n" + _text(b"u1") + b"K\x00K\x01\x87R"
    kind += b"(K\x03" + _text(b"|") + b"NNN" + _number(-1) + _number(-1) + b"K\x00tb"
    shape = b"(" + b"".join(map(_number, value.shape)) + b"t"
    return empty + b"\x87R(K\x01" + shape + kind + b"\x89" + _text(value.tobytes()) + b"tb"
