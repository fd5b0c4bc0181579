"""A client that knows the page docs/explanation/clients_without_python.md and nothing of ours.

`Foreign` reads and writes bytes with json, struct, NumPy, XXH3 and ECDSA alone, as a client in
another language would. The server's own functions make its requests and check its answers.
"""

import base64
import hashlib
import json
import struct

import numpy as np
import pytest
import torch
import xxhash
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from vergence.core.messages import Message
from vergence.core.params import Params
from vergence.core.serialization import pack, quick_digest
from vergence.deployment import client_registry
from vergence.deployment.keys import genuine
from vergence.deployment.protocol import (
    ClientRequest,
    SharedBytes,
    checked_result,
    split_answer,
    unframed,
)
from vergence.wire.encoding import decode

RATE, SAMPLES = 0.5, 12


class Foreign:
    """One turn of FedAvg: the model's weights move half the way to 1."""

    def __init__(self, name):
        self.name, self.key = name, ec.generate_private_key(ec.SECP384R1())

    def frame(self, note, body=b""):
        head = json.dumps(note).encode()
        return struct.pack("<I", len(head)) + head + body

    def unframe(self, data):
        (size,) = struct.unpack("<I", data[:4])
        return json.loads(data[4 : 4 + size]), data[4 + size :]

    def answer(self, asked):
        note, body = self.unframe(asked)
        assert note["kind"] == "request"
        shared = note.get("shared", 0)
        first, tail = asked[: len(asked) - shared], asked[len(asked) - shared :]
        signed = hashlib.sha256(first + (hashlib.sha256(tail).digest() if tail else b"")).digest()
        inner = self.frame({"client": self.name, "error": "", "own": 0.1}, self.turn(body))
        signature = self.key.sign(signed + inner, ec.ECDSA(hashes.SHA384()))
        return self.frame({"sign": base64.b64encode(signature).decode()}, inner)

    def turn(self, request):
        (size,) = struct.unpack("<Q", request[:8])
        about = json.loads(request[8 : 8 + size])
        said = json.loads(about["__metadata__"]["vergence"])
        message = said["tree"]["fields"]["message"]["fields"]
        assert (said["tree"]["fields"]["client"], message["verb"]) == (self.name, "train")
        tree = message["trees"]["map"]["model"]
        at, end = about[tree["params"]]["data_offsets"]
        model = np.frombuffer(request[8 + size :][at:end], "<f4")
        update = (SAMPLES * RATE * (1 - model)).astype("<f4")
        head = {
            "round": message["round"],
            "metrics": {"loss": 1.5},
            "trees": {
                "model": {
                    "kind": "float",
                    "level": float(SAMPLES),
                    "layout": said["layouts"][tree["layout"]],
                    "dtype": "float32",
                }
            },
        }
        arrays = {
            "__metadata__": {"vergence": json.dumps(head)},
            "model.values": {
                "dtype": "F32",
                "shape": [len(update)],
                "data_offsets": [0, update.nbytes],
            },
        }
        text = json.dumps(arrays).encode()
        text += b" " * (-len(text) % 8)
        reply = struct.pack("<Q", len(text)) + text + update.tobytes()
        note = {
            "to": xxhash.xxh3_128_hexdigest(request),
            "client": self.name,
            "status": "ok",
            "examples": float(SAMPLES),
            "steps": 3,
            "measured": {},
            "filed": None,
        }
        return self.frame(note, reply)


@pytest.mark.parametrize("shared", [False, True])
def test_the_server_takes_the_answer_of_a_client_in_another_language(tmp_path, shared):
    model = Params.of(torch.nn.Linear(3, 2))
    request = ClientRequest("turn", "p01", Message("train", {"model": model}, {}, 3), stamp="3.1")
    body, note = pack(request), {"run": "r", "label": "fedavg", "seed": 0}
    arrays = SharedBytes(body[-32:]) if shared else None
    own = body[:-32] if shared else body
    first = client_registry.request("request", note, own, arrays)
    asked = first + (arrays.data if arrays else b"")
    foreign = Foreign("p01")
    public = tmp_path / "p01.pub"
    public.write_bytes(
        foreign.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    outer, inner = unframed(foreign.answer(asked))
    bound = client_registry.request_digest(first, arrays.digest if arrays else b"")
    assert genuine(public, bound + inner, outer["sign"])
    said, answer = unframed(inner)
    assert (said["client"], said["error"]) == ("p01", "")
    (whole,) = split_answer(answer, 0)
    note, packed = unframed(whole)
    assert note["to"] == quick_digest(body)
    result = checked_result(note, request, 0)
    assert (result.client, result.examples, result.steps) == ("p01", SAMPLES, 3)
    sealed = decode(packed, {})
    assert sealed.round == 3
    tree = sealed.trees["model"]
    # A sealed tree holds its weight times the update, so that trees can be added.
    torch.testing.assert_close(tree.total.flat / SAMPLES, RATE * (1 - model.flat))


def test_an_answer_to_another_request_is_not_genuine(tmp_path):
    foreign = Foreign("p01")
    model = Params.of(torch.nn.Linear(3, 2))
    body = pack(ClientRequest("turn", "p01", Message("train", {"model": model}, {}, 3)))
    asked, again = (client_registry.request("request", {"run": "r"}, body) for _ in range(2))
    public = tmp_path / "p01.pub"
    public.write_bytes(
        foreign.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    outer, inner = unframed(foreign.answer(asked))
    assert not genuine(public, client_registry.request_digest(again, b"") + inner, outer["sign"])
