"""Optimisers and schedules that the user gives as functions, beside the fused ones of that name."""

from functools import partial

import pytest
import torch

import vergence as vg
from tests.experiment.made_up import arrays, regression, trained
from vergence.engine.compatibility import InvalidCombination
from vergence.engine.compatibility_check import check
from vergence.engine.plan import Plan
from vergence.experiment.privacy.schema import build_privacy

LOCAL = partial(vg.LocalTraining, lr=0.02, batch=8)
SGD = partial(torch.optim.SGD, momentum=0.9, weight_decay=1e-4)


def scores(method, out, **options):
    return trained(out, method, **options).scores.to_numpy()


@pytest.mark.parametrize(
    ("named", "made"),
    [
        ({"optimizer": "sgd"}, SGD),
        ({"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}, torch.optim.SGD),
        ({"optimizer": "adam", "weight_decay": 0.0}, torch.optim.Adam),
        ({"optimizer": "adamw"}, partial(torch.optim.AdamW, weight_decay=1e-4)),
        ({"optimizer": "sgd", "schedule": "cosine"}, SGD),
    ],
    ids=["sgd", "plain sgd", "adam", "adamw", "with a schedule"],
)
@pytest.mark.parametrize("method", [vg.methods.FedAvg, vg.methods.LocalOnly])
def test_torchs_own_optimiser_ends_where_the_fused_one_does(named, made, method, tmp_path):
    """LocalOnly keeps the optimiser's state between rounds, FedAvg begins anew."""
    fused = scores(method(local=LOCAL(**named)), tmp_path / "a")
    schedule = {k: v for k, v in named.items() if k == "schedule"}
    own = scores(method(local=LOCAL(optimizer=made, **schedule)), tmp_path / "b")
    assert own == pytest.approx(fused, rel=1e-5)


def test_bits_repeat_over_workers_and_resume(tmp_path):
    method = vg.methods.LocalOnly(local=LOCAL(optimizer=torch.optim.RMSprop))
    whole = trained(tmp_path / "a", method, rounds=4)
    assert trained(tmp_path / "b", method, rounds=4, workers=2).fingerprint == whole.fingerprint

    def stop(report):
        if report.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(vg.PartialRun):
        trained(tmp_path / "c", method, rounds=4, on_round=stop)
    resumed = trained(tmp_path / "c", method, rounds=4, resume=True)
    assert resumed.fingerprint == whole.fingerprint
    other = vg.methods.LocalOnly(local=LOCAL(optimizer=partial(torch.optim.RMSprop, alpha=0.5)))
    with pytest.raises(vg.VergenceError, match="other settings"):
        trained(tmp_path / "c", other, rounds=4, resume=True)


def test_a_run_is_opened_with_the_method_that_made_it(tmp_path):
    def method(lr=0.02, **options):
        local = LOCAL(optimizer=torch.optim.NAdam, **options)
        return vg.methods.FedAvg(local=vg.LocalTraining(**{**vars(local), "lr": lr}))

    people = vg.Federation.from_arrays(arrays())
    run = trained(tmp_path / "a", method(schedule=lambda done: 1 - done), people=people)
    again = {"task": regression(), "people": people}
    opened = vg.open_run(run.folder, method=method(schedule=lambda done: 1 - done), **again)
    assert opened.scores.equals(run.scores)
    for other in (method(), method(lr=0.03, schedule=lambda done: 1 - done)):
        with pytest.raises(vg.StateError, match="made by another"):
            vg.open_run(run.folder, method=other, **again)
    with pytest.raises(vg.ConfigError, match="its method came from Python"):
        vg.open_run(run.folder, **again)


def test_a_schedule_gives_the_factor_of_the_rate():
    local = LOCAL(schedule=lambda done: 0.5 ** (4 * done))
    assert [local.learning_rate(done) for done in (0.0, 0.25, 0.5)] == [0.02, 0.01, 0.005]
    for wrong in (0.0, -1.0, float("nan"), float("inf"), "half", None):
        with pytest.raises(vg.ConfigError, match=r"schedule\(0.5\) must be a factor of lr"):
            LOCAL(schedule=lambda _, wrong=wrong: wrong).learning_rate(0.5)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (partial(torch.optim.SGD, lr=0.1), "lr stands in LocalTraining"),
        (lambda tensors: torch.optim.SGD(tensors), "lr"),
        (lambda *_, **__: None, "it returns a NoneType"),
        (torch.optim.LBFGS, "closure"),
        (torch.nn.Linear, "optimizer must be a class of torch.optim"),
    ],
)
def test_what_is_no_optimiser_is_refused_before_anything_trains(optimizer, message, tmp_path):
    with pytest.raises(vg.ConfigError, match=message):
        trained(tmp_path / "a", vg.methods.FedAvg(local=LOCAL(optimizer=optimizer)))
    assert not (tmp_path / "a").exists()
    with pytest.raises(vg.ConfigError, match="optimizer must be one of sgd, adam, adamw"):
        LOCAL(optimizer="rmsprop")


def test_what_users_of_torch_write_first_is_explained():
    made = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    with pytest.raises(vg.ConfigError, match=r"give the class, optimizer=torch\.optim\.Adam"):
        LOCAL(optimizer=made)
    for schedule in (torch.optim.lr_scheduler.StepLR, partial(torch.optim.lr_scheduler.LinearLR)):
        with pytest.raises(vg.ConfigError, match="a function of the share of the rounds"):
            trained(method=vg.methods.FedAvg(local=LOCAL(schedule=schedule)))


@pytest.mark.parametrize(
    ("kind", "option"),
    [(vg.methods.FedAvg, "weights"), (vg.Plan, "engine"), (vg.methods.FedCPF, "select")],
)
def test_options_with_names_alone_take_no_function(kind, option):
    """Only an option whose type names functions takes one."""
    with pytest.raises(vg.ConfigError, match=f"{option} must be one of"):
        kind(**{option: print})


def test_who_takes_steps_of_another_kind_refuses_it():
    own = LOCAL(optimizer=torch.optim.RMSprop)
    check(Plan(), vg.methods.FedAvg(local=own))
    with pytest.raises(InvalidCombination, match="takes steps batch by batch"):
        check(Plan(), vg.methods.SplitFed(local=own))
    for plan in (Plan(solver="stacked"), Plan(engine="ray")):
        with pytest.raises(InvalidCombination, match="clients one by one, on this"):
            check(plan, vg.methods.FedAvg(local=own))
    private = build_privacy({"solver": {"epsilon": 8.0}})
    with pytest.raises(InvalidCombination, match="takes steps of its own"):
        check(Plan(privacy=private), vg.methods.FedAvg(local=own))


def test_a_state_that_no_round_could_keep_is_refused(tmp_path):
    """ASGD has numbers for a whole tensor; only methods that keep the state mind."""
    own = LOCAL(optimizer=torch.optim.ASGD)
    trained(tmp_path / "a", vg.methods.FedAvg(local=own))
    with pytest.raises(vg.VergenceError, match="ASGD has a state 'eta'"):
        trained(tmp_path / "b", vg.methods.LocalOnly(local=own))
