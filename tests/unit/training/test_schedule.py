"""The rate of a round: by hand, as torch's own schedulers have it, and in what reads it."""

import pytest
import torch
from tiny import config
from torch import nn
from torch.optim import lr_scheduler

from medpfl.core.errors import UserError
from medpfl.training.schedule import rate
from medpfl.training.settings import Training
from medpfl.training.trainer import Trainer


def rates(rounds, **settings):
    return [rate(Training(**settings), r, rounds) for r in range(1, rounds + 1)]


def test_warm_up_and_cosine_by_hand():
    # Two rounds of warm-up: 1/3, 2/3; then a quarter of the cosine more in each of four rounds.
    found = rates(6, lr=0.3, schedule="cosine", lr_warmup=2)
    root = 2**-0.5
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.15 * (1 + root), 0.15, 0.15 * (1 - root)])


def test_poly_and_step_by_hand():
    assert rates(4, lr=1, schedule="poly", poly_power=2) == pytest.approx([1, 9 / 16, 1 / 4, 1 / 16])
    assert rates(5, lr=1, schedule="step", step_rounds=2, step_factor=0.5) == [1, 1, 0.5, 0.5, 0.25]
    assert rates(3, lr=0.1) == [0.1, 0.1, 0.1]


def test_the_steps_of_a_schedule_are_counted_from_the_end_of_the_warm_up():
    found = rates(6, lr=1, schedule="step", step_rounds=2, step_factor=0.5, lr_warmup=1)
    assert found == [0.5, 1, 1, 0.5, 0.5, 0.25]


@pytest.mark.parametrize(
    ("settings", "scheduler"),
    [
        ({"schedule": "cosine"}, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=10)),
        ({"schedule": "poly"}, lambda o: lr_scheduler.PolynomialLR(o, total_iters=10, power=0.9)),
        ({"schedule": "step", "step_rounds": 3}, lambda o: lr_scheduler.StepLR(o, step_size=3, gamma=0.1)),
        (
            {"schedule": "cosine", "lr_warmup": 4},
            lambda o: lr_scheduler.SequentialLR(
                o,
                [lr_scheduler.LinearLR(o, start_factor=0.2, total_iters=4), lr_scheduler.CosineAnnealingLR(o, 6)],
                milestones=[4],
            ),
        ),
    ],
)
def test_as_torchs_schedulers(settings, scheduler):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    steps, found = scheduler(optimizer), []
    for _ in range(10):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        steps.step()
    assert rates(10, lr=0.2, **settings) == pytest.approx(found)


def test_the_trainer_of_a_round_has_its_rate_and_outside_of_rounds_the_full_one():
    run_config = config("fedavg", rounds=4, settings={"lr": 0.4, "schedule": "poly", "poly_power": 1})
    assert [run_config.trainer.at(r).lr for r in (1, 2, 3, 4)] == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert {run_config.trainer.at(when).lr for when in ("join", "end")} == {run_config.trainer.lr} == {0.4}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr_warmup": 3}, "lr_warmup=3 leaves no round at the full rate: the run has 3"),
        ({"poly_power": 2}, "setting poly_power is for schedule=poly; the schedule is constant"),
        ({"schedule": "cosine", "step_rounds": 2}, "setting step_rounds is for schedule=step; the schedule is cosine"),
        ({"schedule": "poly", "step_factor": 0.5}, "setting step_factor is for schedule=step; the schedule is poly"),
        ({"schedule": "cosin"}, r"schedule must be one of constant, .* \(did you mean cosine\?\), got cosin"),
    ],
)
def test_what_is_no_schedule(settings, words):
    with pytest.raises(UserError, match=words):
        config("fedavg", settings=settings)


@pytest.mark.parametrize("schedule", ["cosine", "poly", "step"])
def test_a_round_after_the_last_has_the_rate_of_the_last(schedule):
    trainer = Trainer.of({"lr": 0.1, "schedule": schedule}, rounds=5)
    assert trainer.at(6).lr == trainer.at(5).lr > 0
    assert trainer.at("end").lr == 0.1
