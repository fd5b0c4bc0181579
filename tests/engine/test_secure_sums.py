"""Secure sums in a simulation: exact, in any order, of enough people; the protocols' own bits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.conformance.test_methods import NAMES, Shuffled, build, run, trees
from tests.engine.toys import mostly_slow, table
from tests.engine.turns import watch_turns
from vergence.core.aggregation import Sum, add_up
from vergence.core.masks import Mask
from vergence.core.messages import reply, seal
from vergence.core.params import Params
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.engine.secure_sums import SecureSum, sums_for, unpack_words
from vergence.engine.workers import pools
from vergence.errors import ConfigError
from vergence.experiment.privacy.schema import build_privacy
from vergence.experiment.schema import check
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.privacy.config import Privacy, SecureAggregationConfig, UserLevelConfig
from vergence.privacy.keyed_noise import NoiseKey

PADS, SHARES = (
    Privacy(aggregation=SecureAggregationConfig()),
    Privacy(aggregation=SecureAggregationConfig("additive")),
)
KINDS = pytest.mark.parametrize("privacy", [PADS, SHARES], ids=["pads", "shares"])
RING = Privacy(aggregation=SecureAggregationConfig(min_contributors=3, colluders=1))
REFUSED = {
    "centralised": "collects everybody's data",
    "fedpac": "every single reply to 'share'",
    "cfedvs": "every single reply to 'measure'",
    "fedgroup": "every single reply to 'probe'",
    "feddf": "every single reply to 'train'",
    "fedgen": "every single reply to 'train'",
    "pe_zsl": "every single reply to 'guide'",
    "sg_zsl": "every single reply to 'guide'",
    "ap_fl": "every single reply to 'tell'",
    "split": "every single reply to 'train'",
}
HALF = Privacy(aggregation=SecureAggregationConfig(range=8.0, weight=1000.0, entry_bits=32))
MASKED = ("fedcpf", "fedselect", "ifca")
QUICK = ("fedavg", "fedcpf", "fedadam", "scaffold", "splitfed")


def test_a_ring_gives_the_simulators_bits(tmp_path):
    here = run(FedAvg(), tmp_path / "here", rounds=2, privacy=RING)[1]
    there = run(FedAvg(), tmp_path / "there", rounds=2, privacy=RING, engine="bytes")[1]
    assert there.fingerprint == here.fingerprint


@KINDS
@pytest.mark.parametrize("name", mostly_slow(NAMES, *QUICK, *REFUSED))
def test_every_method_runs_by_a_protocol_to_the_simulators_bits_or_is_refused(
    name, privacy, tmp_path
):
    why = REFUSED.get(name)
    if name in MASKED and privacy is PADS:
        why = "entries that one person shares; use"
    if why is not None:
        with pytest.raises(ConfigError, match=why) as error:
            run(build(name), tmp_path, privacy=privacy)
        assert "\n" not in str(error.value)
        return
    plain = run(build(name), tmp_path / "plain", rounds=2)[1]
    here = run(build(name), tmp_path / "here", rounds=2, privacy=privacy)[1]
    by_protocol = run(build(name), tmp_path / "there", rounds=2, privacy=privacy, engine="bytes")[1]
    assert by_protocol.fingerprint == here.fingerprint
    for told in ("rounds.csv", "turns.csv"):
        assert untimed(tmp_path / "there", told) == untimed(tmp_path / "here", told)
    if name not in MASKED:  # there few contributors stay hidden
        for secret, open_ in zip(trees(here.server), trees(plain.server), strict=True):
            assert torch.allclose(secret.flat, open_.flat, atol=1e-6)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_entries_of_32_bits_halve_what_is_sent_and_give_the_simulators_bits(name, tmp_path):
    plain = run(build(name), tmp_path / "plain", rounds=2)[1]
    whole = run(build(name), tmp_path / "whole", rounds=2, privacy=PADS)[1]
    here = run(build(name), tmp_path / "here", rounds=2, privacy=HALF)[1]
    there = run(build(name), tmp_path / "there", rounds=2, privacy=HALF, engine="bytes")[1]
    assert there.fingerprint == here.fingerprint != whole.fingerprint
    for secret, open_ in zip(trees(here.server), trees(plain.server), strict=True):
        assert torch.allclose(secret.flat, open_.flat, atol=1e-3)
    up = [float(table(tmp_path / f, "rounds.csv")[0]["bytes_up"]) for f in ("whole", "here")]
    assert up == {"fedavg": [56, 40], "scaffold": [104, 72]}[name]  # 5 entries a tree


@KINDS
def test_the_cipher_of_pads_changes_no_bit(privacy, tmp_path):
    other = replace(privacy, aggregation=replace(privacy.aggregation, cipher="chacha20"))
    ways = {"here": privacy, "aes": privacy, "chacha20": other}
    found = {
        name: run(
            build("fedavg"),
            tmp_path / name,
            rounds=2,
            privacy=how,
            engine="simulator" if name == "here" else "bytes",
        )[1].fingerprint
        for name, how in ways.items()
    }
    assert len(set(found.values())) == 1


@pytest.mark.parametrize(
    ("method", "privacy", "why"),
    [
        (
            FedAvg(),
            Privacy(aggregation=SecureAggregationConfig(entry_bits=32)),
            "weight 100000 adds up in steps of",
        ),
        (
            FedCPF(),
            Privacy(aggregation=SecureAggregationConfig("additive", entry_bits=32)),
            "no room for the weights",
        ),
        (
            FedAvg(),
            replace(HALF, user=UserLevelConfig(clip=1.0, noise=1.0)),
            "no room for the noise",
        ),
    ],
)
def test_where_32_bits_are_too_few_nothing_is_trained(method, privacy, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        run(method, tmp_path, privacy=privacy)
    assert not table(tmp_path, "rounds.csv")


def untimed(path, name):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in table(path, name)]


@pytest.mark.parametrize("name", ["fedavg", "fedcpf", "fedadam", "scaffold"])
@pytest.mark.parametrize("many", [2, 3, 4])
def test_the_number_of_aggregators_changes_no_bit(name, many, tmp_path):
    names = ("a", "b", "c", "d")[:many]
    privacy = Privacy(aggregation=SecureAggregationConfig("additive", aggregators=names))
    here = run(build(name), tmp_path / "here", privacy=SHARES)[1].fingerprint
    there = run(build(name), tmp_path / "there", privacy=privacy, engine="bytes")[1].fingerprint
    assert here == there


@pytest.mark.parametrize("name", ["fedavg", "fedcpf"])
def test_sums_do_not_depend_on_order_or_processes(name, tmp_path, monkeypatch):
    """To the bit, also where people come in another order, which plain sums do not promise."""
    people = People(people=7).load()
    back = replace(people, people=dict(reversed(people.people.items())))
    ran = {
        kind: run(build(name), tmp_path / kind, them, privacy=SHARES, **plan)[1]
        for kind, them, plan in (("a", people, {}), ("b", back, {}), ("c", people, {"workers": 2}))
    }
    monkeypatch.setattr(
        "vergence.engine.round_loop.worker_pool", lambda runner, *_: Shuffled(runner)
    )
    ran["d"] = run(build(name), tmp_path / "d", people, privacy=SHARES)[1]
    assert len({outcome.fingerprint for outcome in ran.values()}) == 1


def updates(kind, people=6, n=500, size=0.1):
    rng = torch.Generator().manual_seed(1)
    like = Params.named(a=torch.zeros(n))
    for _ in range(people):
        update = like.like(size * torch.randn(n, generator=rng))
        mask = Mask(torch.rand(n, generator=rng) < 0.4, like.layout)
        weight = mask if kind == "mask" else float(torch.randint(20, 3000, (1,), generator=rng))
        yield seal(reply(weight, {"loss": 0.5}, model=update), 0)


@pytest.mark.parametrize("method", [FedAvg(), FedCPF()], ids=["numbers", "masks"])
def test_what_the_server_learns_is_the_quantised_sum_and_nothing_of_fewer_than_three(method):
    """By hand: each total rounded to a step, added as integers; masked, where three share it."""
    kind = "mask" if isinstance(method, FedCPF) else "number"
    sealed = list(updates(kind))
    sums = SecureSum(SecureAggregationConfig("additive", min_contributors=3), 6)
    form = sums.form(method, "train", {"model": sealed[0].trees["model"].total})
    whole = Sum()
    for one in sealed:
        whole.add(sums.encode(form, one, NoiseKey.new))
    got, plain = sums.total(form, whole), add_up(sealed, {})
    step = form.trees["model"].step
    steps = np.sum(
        [np.rint(one.trees["model"].total.flat.double().numpy() / step) for one in sealed], axis=0
    )
    wanted = torch.from_numpy((steps * step).astype(np.float32))
    if kind == "mask":
        count = sum(one.trees["model"].weight.bits.int() for one in sealed)
        assert {0, 1, 2, 3} <= set(count.tolist())
        wanted[count < 3] = 0
        count[count < 3] = 0
        assert torch.equal(got.weights["model"].flat, count.float())
    else:
        assert got.weights == {"model": plain.weights["model"]}
    assert torch.equal(got.totals["model"].flat, wanted)
    assert (got.count, got.metrics) == (6, {"loss": 0.5})


def test_an_update_out_of_range_is_quarantined_by_name_and_never_clipped(tmp_path, monkeypatch):
    def large(task, sealed):
        if task.client == "p01":
            sealed.trees["model"].total.flat[:1] = 1e9

    with monkeypatch.context() as patch:
        watch_turns(patch, large)
        folder, bad = run(build("scaffold"), tmp_path / "bad", privacy=PADS)
    with monkeypatch.context() as patch:
        patch.setattr(
            "vergence.engine.participation.Participation.loses",
            lambda _, client, *__: client == "p01",
        )
        quiet = run(build("scaffold"), tmp_path / "quiet", privacy=PADS)[1]
    assert bad.fingerprint == quiet.fingerprint
    status = {r["status"] for r in table(folder.path, "turns.csv") if r["client"] == "p01"}
    assert status == {"quarantined: range: 'model' holds more than 6.4e+06, the largest allowed"}


@pytest.mark.parametrize("engine", ["simulator", "bytes"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_round_of_too_few_is_nobodys(name, engine, tmp_path, monkeypatch):
    """In round 2 two of four answer: server and all states stay as round 1 left them."""

    def loses(_, client, round, __):
        return round == 1 and client in ("p00", "p02")

    monkeypatch.setattr("vergence.engine.participation.Participation.loses", loses)
    folder, outcome = run(build(name), tmp_path / "a", rounds=2, privacy=PADS, engine=engine)
    rows = [r for r in table(folder.path, "turns.csv") if r["round"] == "2"]
    few = "lost: a sum of 2 is not opened, 3 are needed"
    told = {r["client"]: r["status"] for r in rows}
    assert told == {"p00": "lost", "p01": few, "p02": "lost", "p03": few}
    alone = run(build(name), tmp_path / "c", rounds=1, privacy=PADS)[1]
    assert [p.flat.tolist() for p in trees(outcome.server)] == [
        p.flat.tolist() for p in trees(alone.server)
    ]
    assert outcome.clients.sha256() == alone.clients.sha256()


@pytest.mark.parametrize("name", ["fedavg", "fedcpf"])
def test_tables_hold_nothing_that_the_sum_hides(name, tmp_path):
    """No weight, share, samples or steps of a person; the mean loss is that of all."""
    method = replace(build(name), weights="samples")
    privacy = Privacy(aggregation=SecureAggregationConfig("additive", weight=1000))
    folder, _ = run(method, tmp_path / "a", privacy=privacy)
    for row in table(folder.path, "turns.csv"):
        hidden = {k: row[k] for k in ("examples", "weight", "steps", "personal_fraction")}
        assert set(hidden.values()) <= {"", "0"}
    losses = [r["value"] for r in table(folder.path, "rounds.csv") if r["metric"] == "loss"]
    plain, _ = run(method, tmp_path / "b")
    wanted = [r["value"] for r in table(plain.path, "rounds.csv") if r["metric"] == "loss"]
    assert [float(x) for x in losses][:1] == pytest.approx([float(x) for x in wanted][:1])


def test_the_server_is_not_told_masks(tmp_path):
    """What a client remembers of what the server knows stays empty."""
    _, outcome = run(build("fedcpf"), tmp_path, privacy=SHARES)
    registry = outcome.clients
    assert all(not registry.store.read(entry.file).known_masks for entry in registry.filed.values())


TABLE = {
    "task": {"name": "toy"},
    "model": {"name": "linear"},
    "federation": {"name": "toy", "people": 4},
    "methods": ["fedavg"],
}


@pytest.mark.parametrize(
    ("privacy", "more", "why"),
    [
        (
            "secure",
            {"delivery": {"name": "fedbuff", "replies": 3}},
            "by 'fedbuff' replies arrive one",
        ),
        (
            "secure",
            {"delivery": {"name": "quorum", "replies": 2}},
            "replies = 2 is fewer than the 3",
        ),
        ("secure", {"wire": {"codec": "int8"}}, 'not by wire.codec = "int8"'),
        ("secure", {"presence": {"cohort": 2}}, "cohort = 2 is fewer than the 3"),
        ("secure", {"methods": ["fedavg", "centralised"]}, "Centralised collects everybody's data"),
        ("secure", {"methods": ["fedcpf"]}, r'"additive", aggregators = \["a", "b", "c"\] }'),
        ("secure", {"robust": "median"}, "a robust rule looks at single replies; let it"),
        ("secure", {"poison": {"attack": "sign_flip"}}, "whoever poisons updates looks at single"),
        ({"name": "additive", "aggregators": ["a"]}, {}, "2 to 4 different names"),
        ({"name": "pairwise", "aggregators": ["a", "b"]}, {}, "aggregators are for 'additive'"),
        ({"min_contributors": 2}, {}, "min_contributors must be >= 3"),
        ({"range": 0}, {}, "range must be > 0"),
        ("secret", {}, 'must be "secure", "plain", or a table'),
        ({"bits": 9}, {}, "unknown key 'bits'"),
    ],
)
def test_what_cannot_be_combined_is_refused_at_load_in_one_sentence(privacy, more, why):
    rule = {"robust": more["robust"]} if "robust" in more else {}
    rest = {key: value for key, value in more.items() if key != "robust"}
    with pytest.raises(ConfigError, match=why) as error:
        check({**TABLE, "privacy": {"aggregation": privacy, **rule}, **rest})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("method", "people", "cohort", "why"),
    [
        (FedAvg(), 2, 1.0, "2 people are asked at once"),
        (FedAvg(), 10, 0.2, "2 people are asked at once"),
        (FedCPF(), 64, 1.0, "for up to 63 people; the federation has 64"),
    ],
)
def test_too_few_or_too_many_people_are_refused_before_anything_is_trained(
    method, people, cohort, why
):
    plan = Plan(presence=Participation(cohort=cohort), privacy=SHARES)
    with pytest.raises(ConfigError, match=why):
        sums_for(plan, method, people)


def test_the_words_of_a_table():
    assert build_privacy({}) == build_privacy({"aggregation": "plain"}) == Privacy()
    assert build_privacy({"aggregation": "secure"}) == PADS
    assert build_privacy({"aggregation": {"name": "additive"}}) == SHARES


def test_without_the_table_nothing_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "InProcessProtocol", lambda *_: pytest.fail("a protocol was made"))
    run(build("fedavg"), tmp_path, engine="bytes")
    assert check(TABLE).plan.privacy == Privacy()


def test_rows_of_words_wrap_around_like_the_ring():
    """Sums of 64-bit words of a worker pool are sums modulo 2^64, negative numbers among them."""
    sums = SecureSum(SecureAggregationConfig(), 3)
    like = Params.named(a=torch.tensor([-1.5, 2.0, 0.0]))
    form = sums.form(FedAvg(), "train", {"model": like})
    whole = Sum()
    for scale in (1.0, 2.0, -4.0):
        sealed = seal(reply(1.0, {"loss": 1.0}, model=like * scale), 0)
        whole.add(sums.encode(form, sealed, NoiseKey.new))
    got = sums.total(form, whole)
    assert got.totals["model"].flat.tolist() == [1.5, -2.0, 0.0]
    assert unpack_words(whole.totals["words"]).dtype == np.uint64


@KINDS
def test_every_round_in_bytes_is_summed_by_the_protocol(privacy, tmp_path, monkeypatch):
    """Not by adding up replies, which gives the same numbers."""
    opened, total = [], pools.InProcessProtocol.total

    def watched(self, form, message, rows):
        opened.append(len(rows))
        return total(self, form, message, rows)

    monkeypatch.setattr(pools.InProcessProtocol, "total", watched)
    run(build("fedavg"), tmp_path, rounds=3, privacy=privacy, engine="bytes")
    assert opened == [4, 4, 4]
