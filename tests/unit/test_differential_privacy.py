import json
import sys

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from medpfl.config.run import RunConfig, make_config
from medpfl.core.differential_privacy import (
    DELTA,
    epsilon_of_updates,
    gaussian_delta,
    least_patients,
    noise_multiplier,
)
from medpfl.core.errors import UserError
from medpfl.engine.federation import Federation
from medpfl.engine.results import build_results

EPSILON = {"statistics_epsilon": 3}
NOISE = {"update_clip": 1, "update_noise": 2}


@pytest.fixture(scope="module")
def accountants():
    """Opacus', imported by those who ask them: it takes seconds."""
    import opacus.accountants.analysis.gdp

    return opacus.accountants


@given(epsilon=st.floats(0.01, 50), delta=st.floats(1e-9, 0.1))
def test_the_noise_is_the_least_that_is_private(accountants, epsilon, delta):
    scale = noise_multiplier(epsilon, delta)
    assert gaussian_delta(epsilon, scale) <= delta
    assert gaussian_delta(epsilon, scale * 0.999) > delta
    # Gaussian differential privacy has the same curve in another form (Dong, Roth and Su 2019), here from Opacus.
    assert accountants.analysis.gdp.delta_eps_mu(eps=epsilon, mu=1 / scale) == pytest.approx(delta, rel=1e-6)


def test_less_noise_than_the_textbook_mechanism():
    # sqrt(2 ln(1.25 / delta)) / epsilon, for epsilon <= 1, is 4.84 at (1, 1e-5); the analytic one is 3.7306.
    assert noise_multiplier(1, 1e-5) == pytest.approx(3.7306, abs=1e-4)


def test_least_patients_by_hand():
    # Twice the bound of 2 * sqrt(16), times 3.7306, is 59.7: in units of f's spread, shared by the patients.
    assert least_patients(1, 1e-5, 2.0, 16) == 60


@pytest.mark.filterwarnings("ignore:Optimal order")
@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 1), (2.0, 20), (20.0, 20), (200.0, 300), (0.1, 5)])
def test_epsilon_of_updates_is_the_accountants_and_no_less_than_the_exact_one(accountants, noise, rounds):
    epsilon = epsilon_of_updates(noise, rounds)
    accountant = accountants.RDPAccountant()
    for _ in range(rounds):  # one data set in place of another: twice the bound
        accountant.step(noise_multiplier=noise / 2, sample_rate=1.0)
    library = accountant.get_epsilon(DELTA)  # over a coarser grid of orders
    assert epsilon <= library * 1.001
    # Without sampling, T rounds are one with noise smaller by sqrt(T), whose delta is exact.
    assert gaussian_delta(epsilon, noise / 2 / rounds**0.5) <= DELTA
    assert gaussian_delta(0.85 * epsilon, noise / 2 / rounds**0.5) > DELTA


def test_off_by_default():
    for algorithm in ("fedap", "fedavg", "local", "f-fedap"):
        config = make_config(algorithm=algorithm)
        assert config.privacy() == {}
    assert "update_clip" not in make_config(algorithm="local").all_settings
    assert "statistics_epsilon" not in make_config(algorithm="f-fedap").all_settings
    assert "statistics_epsilon" in make_config(algorithm="fedap").all_settings


@pytest.mark.parametrize(
    ("algorithm", "fields", "message"),
    [
        ("f-fedap", EPSILON, "f-FedAP's running statistics follow the training's momentum, so one patient's share"),
        ("fedavg", EPSILON, "statistics_epsilon: mixing 'samples' rests on no statistics"),
        ("fedap", {"statistics_clip": 2}, "statistics_clip without statistics_epsilon changes nothing"),
        ("fedap", {"statistics_epsilon": -1}, "statistics_epsilon must be >= 0"),
        ("fedap", {**EPSILON, "statistics_delta": 0}, "statistics_delta must be positive"),
        ("fedap", {**EPSILON, "statistics_delta": 2}, "statistics_delta must be above 0 and at most 1"),
        ("local", {"update_clip": 1}, "update_clip: with everything personal no update leaves a site"),
        ("local", NOISE, "with everything personal no update leaves a site"),
        ("fedbn", {"update_noise": 1e-9, "update_clip": 1}, "update_noise=1e-09 protects nothing: give 0.001 at least"),
        ("fedbn", {"update_noise": 1}, "update_noise without update_clip protects nothing"),
        ("f-fedap", NOISE, "f-FedAP sends running batch-norm statistics beside it as they are"),
    ],
)
def test_refused_where_it_means_nothing(algorithm, fields, message):
    with pytest.raises(UserError) as error:
        make_config(algorithm=algorithm, settings=fields)
    assert message in str(error.value)


def test_refused_with_equal_weights():
    with pytest.raises(UserError, match="mixing 'uniform' rests on no statistics"):
        make_config(algorithm="fedap", mixing="uniform", settings=EPSILON)


def test_noise_on_running_variances_is_refused():
    with pytest.raises(UserError) as error:
        Federation.of(tiny.config("fedavg", settings=NOISE))
    assert "update_noise: norm.running_var is shared, and noise makes a running variance negative" in str(error.value)
    assert "--personal batch-norm" in str(error.value)
    Federation.of(tiny.config("fedbn", settings=NOISE))
    Federation.of(tiny.config("fedavg", settings={"update_clip": 1}))  # clipping alone stays between two variances


def test_defaults_written_out_are_the_same_run():
    for algorithm in ("fedap", "fedavg", "local", "f-fedap"):
        config = make_config(algorithm=algorithm)
        again = RunConfig(**config.model_dump() | {"settings": config.all_settings})
        assert again.all_settings == config.all_settings


def test_results_give_the_account():
    config = tiny.config("fedap", settings={**EPSILON, "statistics_clip": 0.1, **NOISE}, rounds=2)
    federation = Federation.of(config)
    state, _ = tiny.run(config)
    results = build_results(tiny.plan_of(federation), state, env="inprocess", data={}, seconds={})
    json.dumps(results, allow_nan=False)
    statistics, updates = results["privacy"]["statistics"], results["privacy"]["updates"]
    assert (statistics["epsilon"], statistics["delta"], statistics["releases"]) == (3, 1e-5, 1)
    assert statistics["noise_multiplier"] == 2 * noise_multiplier(3, 1e-5)
    assert updates["epsilon"] == epsilon_of_updates(2, 2)
    assert (updates["delta"], updates["clip"], updates["noise_multiplier"], updates["releases"]) == (1e-5, 1, 2, 2)
    assert updates["neighbours"] == "all data of the site replaced by any others"
    assert "epsilon 3 at delta 1e-05" in " ".join(results["notes"])
    assert any("covers no numbers of samples, losses and measures" in note for note in results["notes"])
    plain = build_results(tiny.plan_of(federation), state, env="inprocess", data={}, seconds={})
    assert plain == results


def test_without_the_accountant_the_run_is_refused_before_its_first_round(monkeypatch):
    epsilon_of_updates.cache_clear()
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(UserError, match=r"Opacus, which is not installed here: pip install 'medpfl\[privacy\]'"):
        Federation.of(tiny.config("fedbn", settings=NOISE)).plan()
    Federation.of(tiny.config("fedbn")).plan()
