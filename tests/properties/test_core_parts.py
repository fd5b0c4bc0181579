"""Small parts of `core`: masks, ids, names, random streams, records as text, sizes, rates."""

import hashlib
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from torch import nn

from vergence.core.data import Samples, SharedRows
from vergence.core.identifiers import check_ids
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.naming import plural, registry_name
from vergence.core.objectives import FeatureAlignment, loss_per_sample
from vergence.core.optional import import_optional
from vergence.core.params import Layout, Params
from vergence.core.randomness import RandomStream
from vergence.core.tags import field_tags, literal_text, tag, tagged
from vergence.errors import ConfigError, DataError

LAYOUT = Layout(("a", "b"), ((2, 2), (3,)))


@pytest.mark.parametrize(
    "bits", [torch.zeros(6) > 0, torch.zeros(8) > 0, torch.zeros(7, 1) > 0, torch.zeros(7)]
)
def test_a_mask_has_a_truth_value_for_every_entry(bits):
    with pytest.raises(ConfigError, match=r"a mask of 7 entries needs bool \[7\]"):
        Mask(bits, LAYOUT)


def test_counts_and_parts_of_a_mask_by_hand():
    mask = Mask(torch.tensor([1, 0, 0, 1, 0, 0, 1]) > 0, LAYOUT)
    assert mask.counts() == {"a": 2, "b": 1}
    assert (mask.count, (~mask).count, (~~mask).count) == (3, 4, 3)
    assert (~Mask(mask.bits, LAYOUT)).count == 4
    assert mask.fraction == 3 / 7
    assert Mask.none(Layout((), ())).fraction == 0
    assert Mask.layers(LAYOUT, "b").counts() == {"a": 0, "b": 3}
    params = Params(torch.arange(7.0), LAYOUT)
    assert mask.take(params).tolist() == [0, 3, 6]
    assert mask.put(torch.tensor([7.0, 8.0, 9.0])).flat.tolist() == [7, 0, 0, 8, 0, 0, 9]
    for wrong in (torch.zeros(2), torch.zeros(4)):
        with pytest.raises(ConfigError, match=rf"takes 3 values, not \({len(wrong)},\)"):
            mask.put(wrong)
    kept = mask.keep(Params(torch.tensor([1, math.nan, 2, 3, math.inf, 4, 5]), LAYOUT))
    assert kept.flat.tolist() == [1, 0, 0, 3, 0, 0, 5]
    best = Mask.top_each(params, {"a": 3, "b": 0}, Mask.full(LAYOUT))
    assert best.bits.tolist() == [False, True, True, True, False, False, False]
    few = Mask.top_each(params, {"a": 3, "b": 9}, mask)
    assert few == mask
    assert Mask.top(params, 0, mask) == Mask.top(params, -1, mask) == Mask.none(LAYOUT)
    assert Mask.top(params, 1, mask).bits.tolist() == [False] * 6 + [True]


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["a", 3], "person id 3 is no text"),
        (["a", " "], "is empty"),
        (["a\nb"], "cannot be printed"),
        (["a/b"], "another folder"),
        (["a\\b"], "another folder"),
        (["."], "another folder"),
        ([".."], "another folder"),
        (["é" * 50 + "x"], "has 101 bytes"),
        (["a", "b", "a"], "'a' is there twice"),
        (["Anna", "anna"], "'anna' and 'Anna' are one file's name"),
        (["\u00e9", "e\u0301"], "are one file's name"),
        (["=1+1"], "begins with ="),
        (["@SUM(A1)"], "begins with @"),
        (["+4"], "begins with +"),
        (["-4"], "begins with -"),
        (["STRASSE", "stra\u00dfe"], "are one file's name"),
    ],
)
def test_ids_that_cannot_be_told_apart_or_written(ids, said):
    with pytest.raises(DataError, match="here: person id ") as caught:
        check_ids(ids, "here")
    assert said in str(caught.value)


def test_ids_at_the_limits_are_taken():
    check_ids(["é" * 50, "x" * 100, "...", "a b", "b"], "here")
    with pytest.raises(DataError, match=r"person id 'q{199} has 300 bytes"):
        check_ids(["q" * 300], "here")


def test_names_and_plurals():
    assert registry_name(Mask) == "masks"
    assert registry_name(Mask.none(LAYOUT)) == "masks"
    assert registry_name(Tagged) == f"{__name__}:Tagged"
    own = type("Own", (), {"__module__": "vergence_file_lab"})
    assert registry_name(own) == registry_name(own()) == "lab:Own"
    said = [plural(n, "reply") for n in (0, 1, 2)]
    assert said == ["0 replies", "1 reply", "2 replies"]
    assert plural(2, "new person") == "2 new people"


def test_streams_are_the_digest_of_their_key():
    """The upper 63 bits of BLAKE2b of the key's `repr`, highest byte first."""
    stream = RandomStream("run", 0).child("p", 7)
    digest = hashlib.blake2b(b"('run', 0, 'p', 7)", digest_size=8).digest()
    assert stream.number() == int.from_bytes(digest, "big") // 2
    assert stream.key == ("run", 0, "p", 7)
    assert stream.torch().initial_seed() == stream.number()
    assert stream.numpy().integers(2**62) == RandomStream("run", 0, "p", 7).numpy().integers(2**62)


@tagged("Old", first="one")
@dataclass(frozen=True)
class Tagged:
    first: int
    second: object = None
    unsaid: int = field(default=3, repr=False)


@dataclass(frozen=True)
class Below(Tagged):
    pass


class Pair(NamedTuple):
    x: int
    y: object


def test_records_as_text_have_their_fixed_names():
    """Names in the decorator are of this class alone; named tuples keep their own `repr`."""
    assert (tag(Tagged), tag(Below)) == ("Old", "Below")
    assert list(field_tags(Tagged)) == [("first", "one"), ("second", "second"), ("unsaid",) * 2]
    value = Tagged(1, [(), (2,), (3, "a"), {"k": Below(4), 5: [6]}])
    wanted = "Old(one=1, second=[(), (2,), (3, 'a'), {'k': Below(first=4, second=None), 5: [6]}])"
    assert literal_text(value) == wanted
    assert literal_text(Pair(1, 2)) == "Pair(x=1, y=2)"
    assert literal_text(Tagged) == repr(Tagged)


def test_sizes_and_nouns_of_samples_by_hand():
    """Five numbers of four bytes and ids of eight; of three rows two are used, 6 numbers each."""
    bank = SharedRows(torch.zeros(3, 2, 3), "id")
    columns = {"x": torch.zeros(5), "id": torch.tensor([0, 2, 2, 0, 2])}
    assert Samples(columns, {"frames": bank}).bytes() == 5 * 4 + 5 * 8 + 2 * 6 * 4
    assert Samples({"x": torch.zeros(5)}).bytes() == 20
    assert Samples({"x": torch.zeros(5)}).kind == "sample"
    pictures = SharedRows(torch.zeros(9, 2, 2), "id")
    each = {"id": torch.arange(4), "y": torch.zeros(4)}
    assert Samples(each, {"image": pictures}).kind == "picture"
    assert Samples({**each, "id": torch.tensor([0, 1, 1, 2])}, {"image": pictures}).kind == "sample"
    windows = {"id": torch.arange(8).view(4, 2)}
    assert Samples(windows, {"image": pictures}).kind == "window of 2 frames"


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [2.0] * 6),
        ("step", [2.0, 2.0, 0.2, 0.2, 0.02, 0.02]),
        ("cosine", [2.0, None, 2 * 0.505, None, None, 0.02]),
    ],
)
def test_learning_rates_in_the_course_of_a_run(schedule, rates):
    local = LocalTraining(optimizer="sgd", lr=2.0, schedule=schedule)
    for at, rate in zip((0, 0.499, 0.5, 0.749, 0.75, 1), rates, strict=True):
        cosine = 2 * (0.01 + 0.99 * (1 + math.cos(math.pi * at)) / 2)
        assert local.learning_rate(at) == pytest.approx(cosine if rate is None else rate)


@pytest.mark.parametrize(
    ("options", "buffers"),
    [
        ({"optimizer": "sgd", "momentum": 0.0}, False),
        ({"optimizer": "sgd", "momentum": 1e-9}, True),
        ({"optimizer": "adam", "momentum": 0.0}, True),
    ],
)
def test_optimisers_with_a_state(options, buffers):
    assert LocalTraining(**options).buffers is buffers


def test_features_are_pulled_to_the_centre_of_their_class():
    """Loss 5, features (1, 2) and (3, 5), centres (0, 2) and (3, 3): 5 + 2 (1 + 0 + 0 + 4) / 4."""

    class Four:
        def features(self, module, batch):
            return None, torch.tensor([[1.0, 2.0], [3.0, 5.0]])

        def class_of(self, batch):
            return torch.tensor([1, 0])

        def loss(self, output, batch):
            return torch.tensor(5.0)

    pull = FeatureAlignment(torch.tensor([[3.0, 3.0], [0.0, 2.0]]), 2.0)
    assert float(pull.loss(Four(), nn.Identity(), {}, torch.Generator())) == 5 + 2 * 5 / 4


def test_losses_of_outputs_with_parts_are_taken_one_by_one():
    """A part with a row a sample is cut, and another one is whole for everybody."""

    class Parts:
        labels = ("y",)

        def loss(self, output, batch):
            assert list(batch) == ["y"]
            return ((output["rows"] - batch["y"]) ** 2).mean() + output["whole"].sum()

    y = torch.tensor([[1.0], [2.0], [4.0]])
    output = {"rows": torch.zeros(3, 1), "whole": torch.tensor([10.0, 20.0])}
    batch = {"x": torch.zeros(3, 2), "y": y}
    assert loss_per_sample(Parts(), output, batch).tolist() == [31, 34, 46]


def test_a_missing_library_is_named_with_its_extra():
    assert import_optional("math", "this", "extra") is math
    with pytest.raises(ConfigError) as caught:
        import_optional("no_such_library.part", "this", "extra")
    assert str(caught.value) == "this needs no_such_library: pip install 'vergence[extra]'"
