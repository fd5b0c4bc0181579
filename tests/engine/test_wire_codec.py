"""Compressed runs: the same bits from every engine, fewer bytes, and a residual that resumes."""

import pytest

from tests.engine.toys import LOCAL, Interrupt, mostly_slow, run_toy, table, untimed
from vergence.core import files
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.wire.codecs import Compression

HOW = [
    Compression("fp16"),
    Compression("int8", feedback=True),
    Compression("topk", share=0.3, value_codec="fp16", feedback=True),
]
METHODS = [
    FedAvg(local=LOCAL),
    FedCPF(local=LOCAL, rate=0.2),
    FedCPF(local=LOCAL, rate=0.2, weights="samples"),
]


@pytest.mark.parametrize("how", HOW, ids=lambda h: h.codec)
@pytest.mark.parametrize(
    "method", mostly_slow(METHODS, METHODS[1]), ids=["fedavg", "fedcpf", "fedcpf by samples"]
)
def test_every_engine_gives_the_same_bits(tmp_path, method, how):
    one = run_toy(tmp_path / "one", method, wire=how)
    two = run_toy(tmp_path / "two", method, wire=how, workers=2)
    frozen = run_toy(tmp_path / "frozen", method, wire=how, engine="bytes")
    assert one.fingerprint == two.fingerprint == frozen.fingerprint
    assert untimed(tmp_path / "one") == untimed(tmp_path / "frozen")
    plain = run_toy(tmp_path / "plain", method)
    assert plain.fingerprint != one.fingerprint


def test_bytes_in_the_table_are_those_of_the_codec(tmp_path):
    """Weight [1, 20] and bias: 21 values: 84 bytes, halves 42, int8 21 + 4, top 6 halves 12 + 3."""
    rows = {}
    for how in [Compression(), *HOW]:
        run_toy(tmp_path / how.codec, METHODS[0], inputs=20, wire=how)
        rows[how.codec] = {r["bytes_up"] for r in table(tmp_path / how.codec, "turns.csv")}
    assert rows == {"fp32": {"84"}, "fp16": {"42"}, "int8": {"25"}, "topk": {"15"}}


def test_what_is_owed_survives_an_interruption(tmp_path, monkeypatch):
    whole = run_toy(tmp_path / "whole", METHODS[1], wire=HOW[2])
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", Interrupt(9, after=True))
        with pytest.raises(KeyboardInterrupt):
            run_toy(tmp_path / "cut", METHODS[1], wire=HOW[2])
    assert run_toy(tmp_path / "cut", METHODS[1], wire=HOW[2]).fingerprint == whole.fingerprint
