"""Whether sites should take part: a yes only where seeds say so, and no gain by steps that training alone has not."""

import numpy as np
import pytest
from accuracies import FEDAP, FEDAVG, LOCAL, blended, fine_tuned

from medpfl.report.best_variant import advice
from medpfl.report.compare_table import comparison_note
from medpfl.report.side_by_side import compare


def advised(make_run, seeds=2, **accuracy):
    """The advice where local training has 0.80 at each of two sites, and all seeds are alike."""
    methods = {**accuracy, "local": (0.8, 0.8)}
    runs = [
        make_run(n, dict(zip("ab", each, strict=True)), seed=s) for s in range(seeds) for n, each in methods.items()
    ]
    return " ".join(advice(compare(runs)))


def test_the_best_by_mean_and_the_best_by_the_worst_site(make_run):
    text = advised(make_run, fedap=(0.9, 0.78), fedbn=(0.82, 0.81))
    assert (
        "FedAP is best by the mean over sites (+4.0 points) and FedBN by the worst site (+1.0 points there; 0 %" in text
    )
    assert (
        "yes, with FedBN, where the worst site does not lose either; FedAP gives more on average, but its "
        "worst site loses. The best of 2 by these same test cases will as a rule gain less on others." in text
    )


@pytest.mark.parametrize(
    ("accuracy", "answer"),
    [
        ((0.79, 0.8), "not: with no method do sites do better on average than alone."),
        ((0.7, 0.95), "on average, with FedAP; but with every method the worst site loses."),
        ((0.81, 0.95), "yes, with FedAP, where the worst site does not lose either."),
    ],
)
def test_whether_a_site_should_take_part(make_run, accuracy, answer):
    text = advised(make_run, fedap=accuracy)
    verb = "loses least" if sum(accuracy) < 1.6 else "is best"
    assert f"FedAP {verb} by the mean over sites (" in text and " and by the worst site (" in text
    assert text.endswith(f"By these figures {answer}")


def test_a_difference_that_is_not_shown_is_level(make_run):
    text = advised(make_run, fedap=(0.8001, 0.7997))
    assert "FedAP is level by the mean over sites (0.0 points)" in text


def test_one_seed_is_no_yes(make_run):
    text = advised(make_run, seeds=1, fedap=(0.9, 0.95))
    assert "Should a site take part? One seed cannot tell; by it on average, with FedAP. Three show how" in text
    assert advised(make_run, seeds=1, fedap=(0.7, 0.8)).endswith("sites do better on average than alone.")


@pytest.mark.parametrize("sites", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("methods", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_of_methods_that_gain_nothing_few_are_advised(make_run, sites, methods):
    """Fifty test cases a site, three seeds; every method is right as often as local training, and apart from it."""
    rng, yes = np.random.default_rng(0), 0
    for _ in range(trials := 40):
        runs = [
            make_run(name, dict(zip("abcd"[:sites], rng.binomial(50, 0.8, sites) / 50, strict=True)), seed=seed, **of)
            for seed in range(3)
            for name, of in [("local", {}), *(("fedap", {"settings": {"lambda": k / 20}}) for k in range(methods))]
        ]
        yes += "figures yes" in " ".join(advice(compare(runs)))
    assert yes <= 0.1 * trials


@pytest.mark.parametrize(
    ("worst", "answer"),
    [
        ((0.849, 0.851), "yes, with FedAP, where the worst site does not lose either."),
        (
            (0.79, 0.80),
            "on average, with FedAP; for the worst site that cannot be told: with FedAP it loses on average over "
            "seeds, but the loss (-0.5 ± 0.7 points) is within what seeds lie apart.",
        ),
        ((0.779, 0.781), "on average, with FedAP; but with every method the worst site loses."),
        (
            (0.82, 0.83),
            "on average, with FedAP; for the worst site that cannot be told: with FedAP it gains on average over "
            "seeds, but the gain (+2.5 ± 0.7 points) is within what seeds lie apart.",
        ),
    ],
)
def test_a_gain_within_the_seeds_spread_is_no_yes(make_run, worst, answer):
    runs = [
        make_run(name, {"a": a, "b": b}, seed=seed)
        for seed, of_worst in enumerate(worst)
        for name, a, b in (("fedap", 0.9, of_worst), ("local", 0.8, 0.8))
    ]
    assert " ".join(advice(compare(runs))).endswith(f"By these figures {answer}")


def test_what_is_best_on_average_may_not_be_what_is_safe(make_run):
    runs = [
        make_run(name, {"a": a, "b": b}, seed=seed)
        for seed in (0, 1)
        for name, a, b in (("fedap", 1 - seed / 10, 0.81 + seed / 10), ("fedbn", 0.82, 0.81), ("local", 0.8, 0.8))
    ]
    assert (
        "yes, with FedBN, where the worst site does not lose either; FedAP gives more on average, but "
        "its worst site may lose." in " ".join(advice(compare(runs)))
    )


def test_sites_that_would_lose_and_use_their_own_model_do_not_lose(make_run):
    runs = [
        make_run(name, {"a": a, "b": 0.8}, seed=seed)
        for seed in (0, 1, 2)
        for name, a in (("fedap", 0.9 + seed / 1000), ("local", 0.8))
    ]
    text = " ".join(advice(compare(runs)))
    assert text.endswith("figures yes, with FedAP, where the worst site does not lose either.")


def test_for_the_worst_site_those_count_that_gain_on_average(make_run):
    """FedBN's worst site surely gains, and its mean does not."""
    found = {"fedap": ((0.9, 0.78), (0.91, 0.79), (0.9, 0.81)), "fedbn": ((0.81, 0.81), (0.811, 0.99), (0.812, 0.812))}
    found["local"] = ((0.8, 0.8),) * 3
    runs = [
        make_run(name, dict(zip("ab", of[seed], strict=True)), seed=seed)
        for seed in range(3)
        for name, of in found.items()
    ]
    assert "for the worst site that cannot be told: with FedAP it loses" in " ".join(advice(compare(runs)))


def test_seeds_without_a_value_are_none(make_run):
    """Of three seeds two have a value, and of two one: no yes by the seeds that are not there."""
    for seeds, answer in ((3, "That cannot be told"), (2, "One seed cannot tell")):
        runs = [
            make_run(name, {"a": a, "b": a}, seed=seed)
            for seed in range(seeds)
            for name, a in (("fedap", 0.8 + 0.02 * seed), ("local", 0.8))
        ]
        for site in runs[0]["final"]["selected"]["sites"].values():
            site["accuracy"] = None
        assert f"Should a site take part? {answer}" in " ".join(advice(compare(runs)))


def test_more_steps_alone_are_not_the_same_steps(make_run):
    longer = fine_tuned(make_run, 5) | {"further": "5 epochs"}
    alone = make_run("local", LOCAL[0], settings={"lr": 0.1, "finetune_epochs": 1}) | {"further": "1 epoch"}
    assert "That cannot be told: FedAvg (finetune_epochs=5) trains on" in " ".join(advice(compare([longer, alone])))


def test_more_training_in_each_round_is_told(make_run):
    """As FedRep's ten epochs of the head: training, which local training has not."""
    told = {"each_round": "10 epochs of the personal part"}
    runs = [
        make_run(name, {"a": a, "b": a}, seed=seed) | more
        for seed in range(3)
        for name, a, more in (("fedrep", 0.9 + 0.001 * seed, told), ("local", 0.8, {}))
    ]
    comparison = compare(runs)
    assert "In each round FedRep (10 epochs of the personal part) trains more" in " ".join(advice(comparison))
    words = "beside the local epochs, which local training is not: FedRep 10 epochs of the personal part."
    assert words in comparison_note(comparison)
    plain = compare([make_run("fedap", FEDAP[0]), make_run("local", LOCAL[0])])
    assert "In each round" not in comparison_note(plain) + " ".join(advice(plain))


def test_other_settings_of_training_are_told(make_run):
    """Momentum trains faster, alone too: what is gained over local training without it may be no federation's."""
    runs = [
        make_run(name, {"a": a, "b": a}, seed=seed, settings={"lr": 0.1, "momentum": momentum, "mu": momentum})
        for seed in range(3)
        for name, a, momentum in (("fedap", 0.9 + 0.001 * seed, 0.9), ("local", 0.8, 0.0))
    ]
    comparison = compare(runs)
    assert comparison["groups"][0]["trained_otherwise"] == {"momentum": 0.9}
    assert "FedAP (momentum=0.9, mu=0.9) trains by other settings than local training does" in " ".join(
        advice(comparison)
    )
    assert (
        "than the local training that they are judged by: FedAP (momentum=0.9, mu=0.9) with momentum=0.9."
        in comparison_note(comparison)
    )
    plain = compare([make_run("fedap", FEDAP[0]), make_run("local", LOCAL[0])])
    assert "other settings" not in comparison_note(plain) + " ".join(advice(plain))


def test_all_are_judged_by_the_best_that_sites_reach_alone(make_run):
    """A site may train alone as FedBlend's rival does, whatever method it is offered: FedAvg is no yes then."""
    runs = []
    for seed in range(3):
        plus = 0.001 * seed
        runs += [make_run(n, {"a": a + plus, "b": a}, seed=seed) for n, a in (("local", 0.8), ("fedavg", 0.85))]
        runs.append(blended(make_run, {"a": 0.92 + plus, "b": 0.92}, 0.89, seed=seed))
    comparison = compare(runs)
    best = {group["algorithm"]: group["to_best_alone"] for group in comparison["groups"]}
    assert best["local"] is None and best["fedblend"] is None  # its own rival is the best
    assert best["fedavg"]["mean"] == pytest.approx(-0.0395)
    text = " ".join(advice(comparison))
    assert "FedBlend is best by the mean over sites (+3.0 points)" in text
    assert "By these figures yes, with FedBlend, where the worst site does not lose either." in text
    words = "FedAvg is judged by FedBlend's own rival, the best that sites reach alone here (accuracy 0.890)."
    assert words in text
    alone = compare([run for run in runs if run["algorithm"] != "fedblend"])
    assert "By these figures yes, with FedAvg" in " ".join(advice(alone))


def test_what_is_trained_further_may_be_judged_by_another_methods_rival(make_run):
    """FedAvg with as many steps more and without a rival of its own."""
    longer = make_run("fedavg", {"a": 0.91, "b": 0.91}, settings={"finetune_steps": 200}) | {"further": "200 steps"}
    runs = [longer, blended(make_run, {"a": 0.92, "b": 0.92}, 0.89), make_run("local", {"a": 0.8, "b": 0.8})]
    assert "Left out of this" not in " ".join(advice(compare(runs)))
    runs[0] |= {"further": "300 steps"}
    assert "Left out of this: FedAvg" in " ".join(advice(compare(runs)))


def test_a_mean_within_the_seeds_spread_is_no_gain(make_run):
    runs = [
        make_run(name, {"a": a, "b": a}, seed=seed)
        for seed, gain in enumerate((0.01, 0.05, -0.01))
        for name, a in (("fedap", 0.8 + gain), ("local", 0.8))
    ]
    assert " ".join(advice(compare(runs))).endswith(
        "Should a site take part? That cannot be told: with FedAP sites gain on average over seeds, but the gain "
        "(+1.7 ± 3.1 points) is within what seeds lie apart."
    )


def test_no_advice_without_local_training(make_run):
    assert advice(compare([make_run("fedap", FEDAP[0])])) == []


def test_what_is_trained_further_is_judged_by_local_training_that_is_too(make_run):
    longer = fine_tuned(make_run, 5) | {"further": "5 epochs"}
    plain = make_run("local", LOCAL[0], settings={"lr": 0.1})
    alone = make_run("local", LOCAL[1], settings={"lr": 0.1, "finetune_epochs": 5}) | {"further": "5 epochs"}
    unequal = compare([longer, plain])
    assert (
        "beside it is not, or not as long: FedAvg (finetune_epochs=5) by 5 epochs. Part of the difference"
        in comparison_note(unequal)
    )
    assert advice(unequal) == [
        "Should a site take part? That cannot be told: FedAvg (finetune_epochs=5) trains on at the end, and the local "
        "training beside it not as long, so that the steps alone may be what is gained; only sites that train alone "
        "with the same steps, in the run or as local:finetune_steps=N, tell."
    ]
    both = advice(compare([longer, plain, make_run("fedbn", FEDAP[0], settings={"lr": 0.1})]))
    assert both[0].startswith("Against training alone FedBN ")
    assert "Left out of this: FedAvg (finetune_epochs=5) trains on at the end" in both[1]
    equal = compare([longer, plain, alone])
    assert equal["groups"][0]["to_local"]["baseline"] == "Local training (finetune_epochs=5)"
    assert "Trained further" not in comparison_note(equal)
    assert "Trained further" not in comparison_note(compare([make_run("fedavg", FEDAVG[0]), plain]))


def test_what_has_its_own_rival_is_judged_though_training_alone_otherwise_is_better(make_run):
    """The rival has the same steps, and the better one that all are judged by is a harder test."""
    runs = []
    for seed in range(3):
        plus = 0.001 * seed
        runs += [make_run(n, {"a": a + plus, "b": a}, seed=seed) for n, a in (("local", 0.81), ("fedavg", 0.83))]
        runs.append(blended(make_run, {"a": 0.86 + plus, "b": 0.86}, 0.8, seed=seed))
    text = " ".join(advice(compare(runs)))
    assert "Left out of this" not in text
    assert "FedBlend is best by the mean over sites (+5.0 points)" in text and "yes, with FedBlend" in text


def test_a_loss_that_is_certain_is_not_said_to_be_within_the_seeds_spread(make_run):
    """FedAP gains and surely harms one site; FedBN's worst site is not sure to lose, but nor is its gain."""
    runs = []
    for seed, (fedbn, worst) in enumerate(((-0.05, 0.02), (0.1, -0.06), (0.0, 0.02))):
        runs.append(make_run("local", {"a": 0.8, "b": 0.8}, seed=seed))
        runs.append(make_run("fedap", {"a": 0.95 + 0.001 * seed, "b": 0.75}, seed=seed))
        runs.append(make_run("fedbn", {"a": 0.8 + fedbn, "b": 0.8 + worst}, seed=seed))
    text = " ".join(advice(compare(runs)))
    assert "on average, with FedAP; but with every method that surely gains the worst site loses." in text
    assert "within what seeds" not in text
