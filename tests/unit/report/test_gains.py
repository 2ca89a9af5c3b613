"""What is gained over training alone, by numbers that can be worked out by hand."""

import pytest

from medpfl.core.measure import Measure
from medpfl.report.gains import gains
from medpfl.report.side_by_side import compare
from medpfl.report.trained_alone import Alone, to_best_alone

SHARE = Measure("accuracy", "accuracy")
ERROR = Measure("mae", "mean error in grades", most=1e5, better="lower")


def of_sites(measure, **values):
    """A part of results with the sites' values."""
    return {
        "sites": {site: {measure.name: value} for site, value in values.items()},
        "mean": {measure.name: sum(values.values()) / len(values) if values else None},
    }


@pytest.mark.parametrize(("measure", "below"), [(SHARE, 0.5), (ERROR, 0.75)])
def test_of_a_share_a_site_is_below_by_more_than_a_point_and_of_an_error_by_anything(measure, below):
    sign = 1 if measure is SHARE else -1
    changes = dict(zip("abcd", (0.05, -0.01, -0.004, -0.02), strict=True))
    if measure is SHARE:
        changes["c"] = -0.03
    alone = of_sites(measure, **dict.fromkeys(changes, 0.5))
    found = gains({0: of_sites(measure, **{k: 0.5 + sign * v for k, v in changes.items()})}, {0: alone}, measure)
    assert (found["below"], found["better"], found["worse"], found["pairs"]) == (below, 1, 3, 4)


def test_a_seed_without_a_pair_is_none_of_the_seeds_of_a_test():
    scores = {seed: of_sites(SHARE, a=0.6 + seed / 10) for seed in (0, 1, 2)}
    found = gains(scores, {0: of_sites(SHARE, a=0.5), 1: of_sites(SHARE, a=0.5), 2: of_sites(SHARE, b=0.5)}, SHARE)
    assert (found["seeds"], found["pairs"], found["mean"]) == (2, 2, pytest.approx(0.15))
    assert found["worst"]["mean"] == pytest.approx(0.15)


def test_the_best_alone_is_the_least_error_of_the_same_network(make_run):
    def run(name, model="lenet5"):
        return make_run(name, {"a": 0.5}, model=model)

    def alone(label, value, **fields):
        return Alone(label, run("local", **fields), {0: of_sites(ERROR, a=value)})

    method = run("fedavg") | {"final": {"selected": of_sites(ERROR, a=0.4)}}
    group = {"algorithm": "fedavg", "to_own_rival": None, "to_local": {"mean": 0.2}}
    known = [alone("good", 0.5), alone("bad", 0.9), alone("of another network", 0.1, model="fcn-1d")]
    found = to_best_alone(group, {0: method}, known, ERROR)
    assert (found["baseline"], found["reaches"]) == ("good", 0.5)
    assert found["mean"] == pytest.approx(0.1)


def test_own_rivals_that_not_all_runs_have_are_none(make_run):
    runs = [make_run("fedavg", {"a": 0.8, "b": 0.7}, {"a": 0.7, "b": 0.6}, seed=seed) for seed in (0, 1)]
    gain = {"accuracy": {"difference": 0.1, "low": 0.01, "high": 0.19}}
    verdict = {"measure": "accuracy", "sites": {site: {"gain": gain} for site in "ab"}}
    assert compare([runs[0] | {"verdict": verdict}, runs[1]])["groups"][0]["to_own_rival"] is None
    told = compare([run | {"verdict": verdict} for run in runs])["groups"][0]["to_own_rival"]
    assert told["verdicts"] == {"gains": 4, "no difference found": 0, "loses": 0} and told["seeds"] == 2


def test_what_one_more_local_training_costs_on_other_sites_data_is_below_0(make_run):
    run = make_run("fedavg", {"a": 0.8, "b": 0.7})
    run["forgetting"] = {"mean": {"others": {"before": {"accuracy": 0.7}, "after": {"accuracy": 0.6}}}}
    assert compare([run])["groups"][0]["forgetting"]["mean"] == pytest.approx(-0.1)
