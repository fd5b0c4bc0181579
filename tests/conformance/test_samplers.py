"""Every method trains on samples that `local.sampler` draws, or refuses to."""

from dataclasses import replace

import pytest
import torch

from tests.conformance.test_methods import LOCAL, NAMES, build, run, task_of
from tests.engine.toys import mostly_slow
from vergence.core.data import SAMPLING_WEIGHT, Samples
from vergence.data.synthetic.toy import Toy as People
from vergence.errors import ConfigError
from vergence.training.sequential import Solver

LOOKS_AT_ALL = {
    "ap_fl": "made-up samples have the classes of all samples",
    "cfedvs": "people are grouped by their sequences",
    "fedgen": "the generator weighs clients by their numbers of samples of a class",
    "fedpac": "centres of classes and the heads' mix are of all samples",
    "pe_zsl": "made-up samples are compared with real ones",
    "qfedavg": "the server weighs clients by the loss on all samples",
    "sg_zsl": "made-up samples are compared with real ones",
}
"""Methods that compute something else over a client's samples, besides training on them."""


def people(factor):
    """Four people; every second training sample has weight 0, and columns times `factor`."""

    def weighted(part):
        drawn, columns = torch.arange(len(part)) % 2, {}
        for name, column in part.columns.items():
            columns[name] = column.clone()
            columns[name][drawn == 0] *= factor
        return Samples({**columns, SAMPLING_WEIGHT: drawn}, part.banks)

    data = People(people=4).load()
    own = {
        who: replace(splits, train=weighted(splits.train)) for who, splits in data.people.items()
    }
    return replace(data, people=own)


@pytest.mark.parametrize("name", mostly_slow(NAMES, "apfl"))
def test_a_sample_of_weight_0_is_trained_on_by_no_method(name, tmp_path, monkeypatch):
    method = build(name)
    method = replace(method, local=replace(LOCAL, sampler="weighted"))
    if name in ("fedridge", "smashed_average"):
        with pytest.raises(ConfigError, match=r"local\.sampler"):
            method.check(task_of(method))
        return
    plain, asked, federations = Solver.fit, [], [people(1.0), people(-2.0)]

    def fit(self, ask, *more):
        asked.append(ask)
        return plain(self, ask, *more)

    monkeypatch.setattr(Solver, "fit", fit)
    one, other = (
        run(method, tmp_path / str(n), data, rounds=2, solver="sequential")[1]
        for n, data in enumerate(federations)
    )
    assert (one.fingerprint == other.fingerprint) == (name not in LOOKS_AT_ALL)
    # What was drawn once is not drawn again: a batch would miss some of its samples.
    whole = {id(s.train) for data in federations for s in data.people.values()}
    again = {ask.local.sampler for ask in asked if id(ask.data) not in whole}
    assert again <= ({"weighted"} if method.pooled else {"shuffle"})
