"""What a reply must be to count: the nearest that is taken, and the first that is not."""

import math

import pytest
import torch

from vergence.core.masks import Mask
from vergence.core.messages import SealedReply, SealedTree
from vergence.core.method import Exposure
from vergence.core.params import Layout, Params
from vergence.errors import ConfigError
from vergence.privacy.reply_checks import fault, zeros_for
from vergence.privacy.split.output_range import Span

LAYOUT = Layout(("w",), ((2,),))
NUMBER = Exposure(trees=("a",), metrics=("loss",))
MASKED = Exposure(trees=("a",), weight="mask")
EACH = Exposure(trees=("a",), weight="per entry")


def params(*values, layout=None, dtype=torch.float32):
    layout = layout or Layout(("w",), ((len(values),),))
    return Params(torch.tensor(values, dtype=dtype), layout)


MASK = Mask(torch.tensor([True, False]), LAYOUT)


def said(total, weight=1.0, exposed=NUMBER, offered=None, metrics=None, round=3, name="a"):
    sealed = SealedReply(round, {name: SealedTree(total, weight)}, metrics or {})
    return fault(sealed, 3, {"a": params(0.0, 0.0)} if offered is None else offered, exposed)


@pytest.mark.parametrize(
    ("total", "options"),
    [
        (params(1.0, 2.0), {}),
        (params(1.0, 2.0), {"weight": 0.0}),
        (params(1.0, 2.0), {"weight": 1e9}),
        (params(1.0, 2.0), {"metrics": {"loss": 1.5e308}}),
        (params(1.0, 2.0), {"metrics": {"loss": 10**300}}),
        (params(1.0, 2.0, 3.0), {"offered": {}}),
        (params(1.0, 0.0), {"weight": MASK, "exposed": MASKED}),
        (params(1.0, 0.0), {"weight": MASK, "exposed": EACH}),
        (params(1.0, 0.0), {"weight": params(0.5, 0.0), "exposed": EACH}),
        (params(1.0, 3e38), {"weight": params(0.5, 1.0), "exposed": EACH}),
        (params(3e38, 0.0), {"weight": 1.0}),
        # Their sum is infinite.
        (params(3e38, 3e38), {"weight": 1.0}),
    ],
)
def test_replies_that_count(total, options):
    assert said(total, **options) is None


@pytest.mark.parametrize(
    ("total", "options", "why"),
    [
        (params(1.0, 2.0), {"round": 2}, "round: answers round 2, now is 3"),
        (params(1.0, 2.0), {"name": "b"}, "names: sent ['b'], expected ['a']"),
        (
            params(1.0, 2.0, layout=Layout(("v",), ((2,),))),
            {},
            "names: the tensors of 'a' are not those that were sent",
        ),
        (params(1.0, 2.0, 3.0), {}, "shape: the tensors of 'a' have other shapes"),
        (params(1.0, 2.0, dtype=torch.float64), {}, "dtype: 'a' is torch.float64, sent"),
        (
            params(1.0, layout=Layout(("w",), ((),))),
            {"offered": {}, "exposed": Exposure(trees=("a",), raw=True)},
            "shape: 'a' holds data without rows",
        ),
        (
            params(1.0, 2.0, 3.0),
            {"offered": {}, "weight": MASK, "exposed": MASKED},
            "shape: 'a' has weights for other entries",
        ),
        (params(1.0, math.nan), {}, "finite: 'a' holds NaN or infinity"),
        (params(-math.inf, 1.0), {}, "finite: 'a' holds NaN or infinity"),
        (params(-math.inf, math.inf), {}, "finite: 'a' holds NaN or infinity"),
        (params(1.0, 2.0), {"weight": -1e-9}, "weight: 'a' claims a weight outside [0, 1e+09]"),
        (params(1.0, 2.0), {"weight": 1e9 + 1}, "weight: 'a' claims a weight outside"),
        (params(1.0, 2.0), {"weight": math.nan}, "weight: 'a' claims a weight outside"),
        (
            params(1.0, 2.0),
            {"weight": params(-0.5, 1.0), "exposed": EACH},
            "weight: 'a' claims a weight outside",
        ),
        (params(3e38, 0.0), {"weight": 0.5}, "finite: 'a' over its weight is infinite"),
        (
            params(0, 100, dtype=torch.int64),
            {"weight": 1e-38, "offered": {}},
            "finite: 'a' over its weight is infinite",
        ),
        (
            params(1.0, 3e38),
            {"weight": params(1.0, 0.5), "exposed": EACH},
            "finite: 'a' over its weight is infinite",
        ),
        (params(1.0, 0.0), {"weight": MASK}, "weight: 'a' is weighed by more than the declared"),
        (
            params(1.0, 0.0),
            {"weight": params(0.5, 0.0), "exposed": NUMBER},
            "weight: 'a' is weighed by more than the declared",
        ),
        (params(1.0, 2.0), {"metrics": {"more": 1.0}}, "names: metric 'more' is not declared"),
        (params(1.0, 2.0), {"metrics": {"loss": math.inf}}, "finite: metric 'loss' is inf"),
        (params(1.0, 2.0), {"metrics": {"loss": math.nan}}, "finite: metric 'loss' is nan"),
        (params(1.0, 2.0), {"metrics": {"loss": 10**309}}, "finite: metric 'loss' is 1000"),
        (params(1.0, 2.0), {"metrics": {"loss": "1"}}, "finite: metric 'loss' is 1"),
    ],
)
def test_replies_that_do_not_count(total, options, why):
    found = said(total, **options)
    assert found is not None
    assert found.startswith(why)


def test_zeros_in_place_of_a_reply():
    sealed = SealedReply(3, {"a": SealedTree(params(7.0, 8.0), 5.0)}, {"loss": 1.0})
    found = zeros_for(sealed, {}, NUMBER)
    assert found is not None
    assert (found.round, found.metrics, found.trees["a"].weight) == (3, {}, 1.0)
    assert found.trees["a"].total.flat.tolist() == [0, 0]
    sent = zeros_for(sealed, {"a": params(1.0, 2.0, 3.0)}, NUMBER)
    assert sent is not None
    assert sent.trees["a"].total.flat.tolist() == [0, 0, 0]
    assert zeros_for(sealed, {}, Exposure(trees=("a", "b"))) is None


def test_ranges_of_smashed_data_by_hand():
    """Of (3, 4) and (-1, 0): values from -1 to 4, norms up to 5; widened by a half both ways."""
    found = Span.of(torch.tensor([[3.0, 4.0], [-1.0, 0.0]]))
    assert found == Span(-1, 4, 5)
    assert found.widened(0.5) == Span(-3.5, 6.5, 7.5)
    agreed = Span.agreed([found, Span(0, 9, 7), Span(-5, 5, 6)])
    assert agreed == Span(-1, 5, 6)
    assert found.fault("a", torch.tensor([[3.0, 4.0], [-1.0, 4.0]])) is None
    assert found.fault("a", torch.zeros(0, 2)) is None
    for wrong in ([[-1.001, 0.0]], [[0.0, 4.001]], [[math.nan, 0.0]]):
        assert str(found.fault("a", torch.tensor(wrong))).startswith("range: 'a' reaches from")
    long = str(found.fault("a", torch.tensor([[3.01, 4.0], [0.0, 0.0]])))
    assert long == "range: a sample of 'a' has norm 5.006, calibrated are at most 5"
    for nothing in (torch.zeros(0, 2), torch.tensor([[1.0, math.inf]])):
        with pytest.raises(ConfigError, match="at least one sample of finite values"):
            Span.of(nothing)
