"""Digests of one small instance of every record that travels, is hashed, or lies on disk.

Class names, field names and labels are inside these bytes: what renames one is noticed here before
a fingerprint moves, a client refuses a sum, or a checkpoint cannot be read. If that was meant,
`VERGENCE_GOLDEN=write python -m pytest tests/golden/test_packed_records.py` stores the new ones.
"""

import hashlib
import json
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conformance.test_methods import build, task_of
from tests.engine.toys import run_toy
from vergence.core.masks import Mask
from vergence.core.messages import Message, reply, seal
from vergence.core.method import Exposure, Global, Method
from vergence.core.params import Layout, Params
from vergence.core.randomness import RandomStream
from vergence.core.serialization import Packed, pack, unpack
from vergence.core.tags import literal_text, tag, tagged
from vergence.data.synthetic.crowd import Crowd
from vergence.deployment import main_server
from vergence.deployment.protocol import ClientRequest, framed
from vergence.deployment.secure_sum_client import StoredRow
from vergence.engine.records import ClientState, ClientTask
from vergence.engine.secure_sum_attempts import SumAnswer, SumRequest
from vergence.engine.secure_sums import about_of, request_of
from vergence.engine.storage.state_journal import StateJournal, StateRef
from vergence.engine.virtual_clock import ClockState
from vergence.experiment.registry import names
from vergence.methods.fedavg import FedAvg
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.release_log import Release, ReleaseLog
from vergence.privacy.secure_aggregation import additive_messages as shares
from vergence.privacy.secure_aggregation import pairwise_messages as pads
from vergence.privacy.secure_aggregation.client_checkpoint import Pending
from vergence.privacy.secure_aggregation.masking import derived
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout, ValueLimits
from vergence.privacy.secure_aggregation.session import Invitation, statement, sum_digest
from vergence.wire.encoding import encode

STORED = Path(__file__).parent / "packed.json"
PARAMS = Params(torch.arange(6, dtype=torch.float32) / 4, Layout(("a", "b"), ((2, 2), (2,))))
WHOLE = PARAMS.like(torch.tensor([0.0, 1, 2, 0, 4, 3]))
MASK = Mask(torch.tensor([True, False, True, True, False, False]), PARAMS.layout)
GIVEN = {
    pads.PairwiseParams: {"fewest": 3, "words": 8},
    shares.AdditiveParams: {
        "fewest": 3,
        "words": 8,
        "aggregators": ("one", "two"),
        "gated": 2,
        "least": 3,
        "count_bits": 4,
        "dealer": "three",
    },
    ClientState: {"state": Global(PARAMS)},
}
"""Fields that may not hold just anything; all others are filled in by their types."""
NEVER_SENT = {pads.Total, shares.SharedTotal}
"""Messages of protocols, by their module, that stay where they are."""


def protocol() -> set[type]:
    """All records of the two protocols' modules."""
    named = [(module, kind) for module in (pads, shares) for kind in vars(module).values()]
    kinds = {
        kind for module, kind in named if is_dataclass(kind) and kind.__module__ == module.__name__
    }
    return kinds - NEVER_SENT


RECORDS = sorted(
    {
        ClockState,
        ClientTask,
        ClientRequest,
        Invitation,
        ClientState,
        main_server.SessionRequest,
        Message,
        Pending,
        StoredRow,
    }
    | protocol(),
    key=lambda kind: kind.__name__,
)


def example(hint, name: str):
    """A fixed value of a type; `name` tells fields of one type apart."""
    kind, inside = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return example(next(part for part in inside if part is not type(None)), name)
    if kind is typing.Literal:
        return inside[0]
    if kind is tuple:
        several = inside[:1] if inside[-1] is Ellipsis else inside
        return tuple(example(part, f"{name}.{i}") for i, part in enumerate(several))
    if kind is Mapping:
        return {"first": example(inside[1], f"{name}.first")}
    plain = {
        bool: True,
        int: len(name),
        float: len(name) / 8,
        str: f"a {name}",
        bytes: hashlib.sha256(name.encode()).digest(),
        Params: PARAMS,
        Mask: MASK,
        torch.Tensor: torch.arange(4, dtype=torch.int64),
    }
    return plain[kind] if kind in plain else instance(kind)


def instance(kind: type):
    """A record every field of which is filled in."""
    hints, known = typing.get_type_hints(kind), GIVEN.get(kind, {})
    return kind(
        **{
            f.name: known[f.name] if f.name in known else example(hints[f.name], f.name)
            for f in fields(kind)
        }
    )


def records() -> dict[str, bytes]:
    """Every packed record, and what of it is signed or agreed upon."""
    found = {}
    for kind in RECORDS:
        made = instance(kind)
        found[tag(kind)] = pack(made)
        found |= {
            f"{tag(kind)}.{name}": getattr(made, name)
            for name in ("signed", "digest")
            if hasattr(kind, name)
        }
    return found


def states() -> dict[str, bytes]:
    """Names of records and fields in every method's states; numbers depend on the processor."""
    found = {}
    for name in names("methods", Method):
        method = build(name)
        task = task_of(method)
        for side in ("server", "client"):
            state = getattr(method, side)(task)
            found[f"state of {name}.{side}"] = Packed(state).header.encode()
    return found


def replies() -> dict[str, bytes]:
    """Replies as they travel, and as what a sum agrees on."""
    update = {"model": PARAMS}
    weights = {"number": 2.0, "mask": MASK, "per entry": WHOLE}
    message = Message("train", update, {"number": 1, "why": None, "rate": 0.5}, 3)
    found = {"a message": pack(message), "frame": framed({"client": "p00"}, b"body")}
    for kind, weight in weights.items():
        sealed = seal(reply(weight, {"loss": 0.25}, **update), 3)
        exposed = Exposure(weight=kind, numbered=("number",))
        form = ReplyLayout(exposed, update, ValueLimits(people=5, total=8.0, weight=4.0))
        found[f"reply, {kind}"] = encode(sealed, {})
        found[f"form, {kind}"] = form.digest
        found[f"about, {kind}"] = about_of(form, message)
        found[f"request, {kind}"] = request_of(form, message).encode()
        found[f"row, {kind}"] = form.row(sealed).tobytes()
    found["form of halves"] = replace(
        form, exposed=Exposure(), ranges=ValueLimits(5, bits=32)
    ).digest
    return found


def keys() -> dict[str, bytes]:
    """Random streams, derived keys and signed statements: they hang on names and on reprs."""
    secret = NoiseKey(bytes(32)).child("user", 0).child("p00", 1, "model")
    return {
        "stream": str(RandomStream("run", 0).child("p00", 7, "train").number()).encode(),
        "draws": RandomStream("run", 0).numpy().integers(1 << 62, size=8).astype("<i8").tobytes(),
        "secret": secret.words(8).tobytes() + secret.draws().words(8).tobytes(),
        "derived": derived(bytes(32), b"salt", "box"),
        "statement": statement("advert", bytes(32), "p00", b"one", b"two"),
        "contribution": sum_digest(("p01", "p00"), bytes(32)).encode(),
        "recipe of a crowd": str(Crowd(people=9).load().recipe).encode(),
    }


def files(folder: Path) -> dict[str, bytes]:
    """What a run leaves, less its numbers: names of files, the keys of the checkpoint, books."""
    run_toy(folder / "run", FedAvg(), rounds=1)
    state = folder / "run" / "state"
    left = sorted(path.name for path in state.iterdir())
    entries = {
        "p00": StateRef("seed0.client.p00.0.1.safetensors", "ab", 0.5),
        "p01": StateRef("seed0.client.p01.0.1.safetensors", "cd", None),
    }
    journal = StateJournal(folder, 0).add(entries, entries)
    book = ReleaseLog(folder / "book.csv")
    book.enter(Release("0", "0.1.mark", 2.0, 0.25, 3))
    return {
        "files of a run": "\n".join(left).encode(),
        "checkpoint": json.dumps(
            kinds(json.loads((state / "checkpoint.json").read_text()))
        ).encode(),
        "journal": journal.path.read_bytes(),
        "book": book.path.read_bytes(),
    }


def kinds(value):
    """A JSON value with the kinds of its leaves in their places."""
    if isinstance(value, dict):
        return {key: kinds(part) for key, part in value.items()}
    if isinstance(value, list):
        return [kinds(part) for part in value]
    return type(value).__name__


GROUPS = {"records": records, "states": states, "replies": replies, "keys": keys, "files": files}


@pytest.mark.parametrize("group", GROUPS)
def test_digests_stay(group, tmp_path):
    found = GROUPS[group](tmp_path) if group == "files" else GROUPS[group]()
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(found.items())}
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if os.environ.get("VERGENCE_GOLDEN") == "write":
        stored = {**stored, group: digests}
        STORED.write_text(json.dumps(dict(sorted(stored.items())), indent=1) + "\n")
    assert digests.keys() == stored.get(group, {}).keys()
    moved = {n: found[n] for n, sha in digests.items() if sha != stored[group][n]}
    assert not moved, f"other bytes than were stored: {moved}"


def test_every_message_of_a_sum_is_in_the_list():
    said = {*typing.get_args(SumRequest), *typing.get_args(SumAnswer)}
    assert said <= set(RECORDS)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_what_a_record_is_called_in_bytes_is_literal(kind):
    """Written beside the class, and not the class's name: that may be renamed."""
    assert "__tag__" in vars(kind)


def test_a_renamed_record_packs_into_the_same_bytes():
    @tagged("Message", words="facts")
    @dataclass(frozen=True)
    class Renamed:
        verb: str
        trees: Mapping
        words: Mapping
        round: int

    message = Message("train", {"model": PARAMS}, {"number": 1}, 3)
    renamed = Renamed("train", {"model": PARAMS}, {"number": 1}, 3)
    assert pack(renamed) == pack(message)
    assert pack(unpack(pack(message), Renamed)) == pack(message)
    assert unpack(pack(message), Renamed).words == {"number": 1}
    told, said = [Exposure(), (renamed,), {"a": 1}], [Exposure(), (message,), {"a": 1}]
    assert literal_text(told) == repr(said).replace("Exposure", "Exposed")


def test_a_renamed_class_or_field_would_be_noticed():
    """The digests stand for names, not for numbers alone."""

    @dataclass(frozen=True)
    class Renamed:
        verb: str
        trees: Mapping
        facts: Mapping
        round: int

    message = Message("train", {"model": PARAMS}, {"number": 1}, 3)
    assert pack(message) != pack(Renamed(**vars(message)))
    assert np.array_equal(Packed(message).arrays["s.trees.model"], PARAMS.flat)
