"""Coordinate-wise median and trimmed mean, by numbers that can be worked out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plans import joined, make_plan, next_values, round_of
from tiny import config, last_models, plan_of, run, same

from medpfl.algorithms import mixings
from medpfl.algorithms.mechanism import Rule
from medpfl.algorithms.robust import Median
from medpfl.core.errors import UserError
from medpfl.engine.federation import Federation
from medpfl.engine.results import build_results
from medpfl.server.checkpoint import load_checkpoint, save_checkpoint
from medpfl.server.newcomer import Welcome


def states(*rows):
    return [{"w": torch.tensor(row, dtype=torch.float32)} for row in rows]


def mixed(mixing, *rows, **options):
    kind = mixings()[mixing]
    return kind(kind.settings_class(**options)).mixed(states(*rows))["w"].tolist()


def test_float64_stays_float64():
    values = [{"w": torch.tensor([v], dtype=torch.float64)} for v in (1.0, 2.0 + 1e-12, 5.0)]
    kind = mixings()["median"]
    assert kind(kind.settings_class()).mixed(values)["w"].item() == 2.0 + 1e-12


def test_median_of_each_coordinate():
    assert mixed("median", [1, 30], [2, 10], [100, 20]) == [2, 20]


def test_median_of_an_even_number_is_the_mean_of_the_middle_two():
    assert mixed("median", [1], [2], [4], [1000]) == [3]


def test_trimmed_mean_leaves_out_as_many_at_both_ends():
    rows = ([1], [2], [3], [4], [1000])
    assert mixed("trimmed-mean", *rows, trim=0.2) == [3]
    assert mixed("trimmed-mean", *rows, trim=0.0) == [202]
    assert mixed("trimmed-mean", *rows, trim=0.21) == [3]  # ceil(1.05) = 2 a side: the median
    assert mixed("trimmed-mean", *rows, trim=0.49) == [3]
    assert mixed("trimmed-mean", [1], [2], [6], trim=0.4) == [2]


@pytest.mark.parametrize(("trim", "sites", "out"), [(0.1, 30, 3), (0.29, 100, 29), (0.28, 25, 7), (0.01, 5, 1)])
def test_how_many_are_left_out(trim, sites, out):
    values = np.arange(sites, dtype=np.float64) ** 2
    (value,) = mixed("trimmed-mean", *[[v] for v in values], trim=trim)
    assert value == pytest.approx(values[out : sites - out].mean())


def test_the_type_stays_and_the_updates_are_consumed():
    updates = [{"w": torch.full((2, 3), float(i), dtype=torch.float16), "b": torch.tensor(float(i))} for i in range(3)]
    found = Median(Median.settings_class()).mixed(updates)
    assert found["w"].dtype == torch.float16
    assert found["w"].tolist() == [[1.0] * 3] * 2
    assert found["b"].tolist() == 1.0
    assert updates == [{}, {}, {}]


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=9),
    st.data(),
    st.floats(0.01, 0.49),
)
def test_a_minority_moves_nothing_beyond_the_honest_range(honest, data, trim):
    extreme = st.floats(-(2.0**126), 2.0**126, width=32)
    hostile = data.draw(st.lists(extreme, min_size=1, max_size=max(1, len(honest) - 1)))
    rows = data.draw(st.permutations([[v] for v in honest + hostile]))
    (value,) = mixed("median", *rows)
    slack = 1e-3 * max(map(abs, honest))
    assert min(honest) - slack <= value <= max(honest) + slack
    if len(hostile) <= trim * len(rows):
        (value,) = mixed("trimmed-mean", *rows, trim=trim)
        assert min(honest) - slack <= value <= max(honest) + slack


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn"])
def test_all_sites_get_the_same(algorithm):
    plan = make_plan(algorithm, mixing="median")
    state = round_of(plan, joined(plan, samples=(1000, 1, 1)), 100, 1, 2)
    assert next_values(plan, state) == [2.0] * 3
    assert state.shared["site-1"] is state.shared["site-3"]
    plan = make_plan(algorithm, mixing="trimmed-mean", sites=5)
    state = round_of(plan, joined(plan, samples=(9, 1, 1, 1, 1)), 100, 1, 2, 6, 0)
    assert next_values(plan, state) == [3.0] * 5


def test_absent_sites_get_the_mix_too():
    plan = make_plan(mixing="median", sites=4)
    state = round_of(plan, joined(plan, samples=(1,) * 4), 1, None, 2, 6)
    assert next_values(plan, state) == [2.0] * 4


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mixing": "median", "sites": 2}, "outvotes a site and needs at least 3 of them, there are 2"),
        ({"mixing": "trimmed-mean", "sites": 1}, "needs at least 3 of them, there are 1"),
        ({"mixing": "median", "min_sites": 2}, "the quorum of 2 is too small for mixing 'median'"),
        ({"mixing": "median", "personal": "everything"}, "with everything personal there is nothing to mix"),
        ({"mixing": "trimmed-mean", "settings": {"trim": 0.5}}, "trim must lie below 0.5, got 0.5"),
        ({"mixing": "trimmed-mean", "settings": {"trim": -0.1}}, "trim must be >= 0"),
        ({"mixing": "median", "settings": {"trim": 0.1}}, "setting 'trim' has no meaning"),
        ({"algorithm": "local", "mixing": "median"}, "local training shares and mixes nothing"),
    ],
)
def test_robust_mixing_where_it_means_nothing(fields, words):
    with pytest.raises(UserError, match=words):
        config(**fields)


def test_the_quorum_is_three():
    assert config(mixing="median", sites=4).turnout.quorum == 3
    assert config(mixing="median", sites=20).turnout.quorum == 10
    assert config(sites=4).turnout.quorum == 2


def test_every_mixing_has_a_rule_for_newcomers():
    assert all(isinstance(kind.newcomer, Rule) for kind in mixings().values())


@pytest.mark.parametrize("mixing", ["median", "trimmed-mean"])
def test_a_run_its_checkpoint_its_results_and_a_newcomer(tmp_path, mixing):
    settings = config(mixing=mixing, sites=4)
    state, sites = run(settings)
    again, _ = run(settings)
    assert state.failures == ()
    models = list(last_models(state, sites).values())
    assert all(torch.equal(models[0]["fc1.weight"], model["fc1.weight"]) for model in models)
    assert same(state.shared["site-1"], again.shared["site-1"])

    save_checkpoint(tmp_path / "server.safetensors", settings, state, durable=False)
    kept = load_checkpoint(tmp_path / "server.safetensors", settings)
    assert all(same(kept.shared[s], state.shared[s]) for s in state.shared)

    federation = Federation.of(settings)
    plan = plan_of(federation)
    results = build_results(plan, state, env="inprocess", data={}, seconds={"total": 0.0, "start": 0.0})
    assert results["mixing"] is None
    assert results["choices"]["mixing"] == mixing
    assert ("trim" in results["config"]["settings"]) == (mixing == "trimmed-mean")

    message, weights = Welcome(plan, kept, {}, 1).offer(None)
    assert same(message.shared, state.shared["site-1"])
    assert list(weights.values()) == [0.25] * 4
