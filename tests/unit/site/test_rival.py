"""A site's own rival is what local training is, and outlives rounds that fail and files that are damaged."""

import logging

import pytest
from tiny import config, run, same

from medpfl.core.errors import TornFile
from medpfl.site.rival import ALONE, ALONE_BEST, ALONE_FINISHED, ALONE_LOSS, ALONE_OPTIMIZER
from medpfl.site.store import PERSONAL
from medpfl.tasks.task import Task
from medpfl.training.loop import TrainingDiverged, train_plainly

KEPT = {"momentum": 0.9, "optimizer_state": "kept"}


def rivals(rounds=3, **fields):
    """The sites after a run in which each trains alone too."""
    return run(config("fedavg", alone="yes", rounds=rounds, **fields))[1]


@pytest.mark.parametrize(
    ("settings", "local_epochs"),
    [({}, 1), (KEPT, 1), ({"schedule": "cosine"}, 2)],
    ids=["afresh", "kept", "by a schedule, two epochs a round"],
)
def test_it_is_what_local_training_is(settings, local_epochs):
    fields = {"settings": settings, "local_epochs": local_epochs}
    _, local = run(config("local", rounds=3, **fields))
    for name, site in rivals(**fields).items():
        assert same(site.store.get(ALONE, 3), local[name].store.get(PERSONAL, 3))
        assert (3 in site.store.rounds(ALONE_OPTIMIZER)) is (settings is KEPT)


def test_the_best_rounds_model_is_that_rounds():
    sites = rivals()
    for name, site in sites.items():
        [best] = site.store.rounds(ALONE_BEST)
        assert site.rival.round == best
        assert same(site.rival.best(), rivals(rounds=best)[name].store.get(ALONE, best))


def test_a_new_run_finds_nothing_of_the_one_before():
    """By an earlier run's least loss no later round would be the best."""
    kinds = (ALONE, ALONE_BEST, ALONE_LOSS, ALONE_FINISHED, ALONE_OPTIMIZER)
    site = rivals(rounds=1, settings=KEPT | {"finetune_epochs": 1})["site-1"]
    assert all(site.store.rounds(kind) for kind in kinds)
    site.rival.forget()
    assert not any(site.store.rounds(kind) for kind in kinds)


def test_where_the_best_rounds_file_is_damaged_it_is_the_last_one_that_is_not(monkeypatch, caplog):
    site = rivals()["site-1"]
    whole = type(site.store).get

    def damaged(store, kind, round_):
        if kind == ALONE_BEST:
            raise TornFile(f"{kind} is damaged")
        return whole(store, kind, round_)

    monkeypatch.setattr(type(site.store), "get", damaged)
    with caplog.at_level(logging.WARNING):
        assert site.rival.round == 3 and same(site.rival.best(), whole(site.store, ALONE, 3))


def test_a_round_that_diverges_leaves_it_as_it_was(monkeypatch):
    whole, calls = train_plainly, []

    def diverges_in_the_second(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise TrainingDiverged("the loss is NaN")
        return whole(*arguments)

    sites = rivals(rounds=1)
    monkeypatch.setattr("medpfl.site.rival.train_plainly", diverges_in_the_second)
    again = run(config("fedavg", alone="yes", rounds=2, sites=1))[1]["site-1"]
    assert again.store.rounds(ALONE) == again.store.rounds(ALONE_BEST) == [1]
    assert same(again.store.get(ALONE, 1), sites["site-1"].store.get(ALONE, 1))
    assert again.rival._before(3)[0] == 1  # from which the next goes on


def test_a_round_whose_loss_is_no_number_is_the_best_only_until_there_is_one(monkeypatch):
    losses = iter([float("nan"), 0.6, float("nan"), 0.5, 0.7])
    monkeypatch.setattr(Task, "mean_loss", lambda *_: next(losses))
    site = run(config("fedavg", alone="yes", rounds=5, sites=1))[1]["site-1"]
    assert site.rival.round == 4 and site.rival._least() == (4, 0.5)


def test_without_validation_cases_it_is_the_last_rounds():
    for site in rivals(data_args={"validation": 0}).values():
        assert site.rival.round == 3
        assert same(site.rival.best(), site.store.get(ALONE, 3))


def test_a_loss_that_is_no_number_is_no_best_round(monkeypatch):
    """Of a task of somebody else's: nothing compares with it, and no later round would be worse."""
    losses = iter([0.5] * 3 + [float("nan")] * 3 + [0.7] * 3)  # of three sites in three rounds
    monkeypatch.setattr(Task, "mean_loss", lambda *_: next(losses))
    assert {site.rival.round for site in rivals().values()} == {1}
