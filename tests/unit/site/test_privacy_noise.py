import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from medpfl.config.run import make_config
from medpfl.core.noise import STEPS, _gaussian_of, clip_factor, noised, on_grid
from medpfl.site.noise import noise_source

CONFIG = make_config(algorithm="fedap")
SECRET = bytes(range(32))


def source(config=CONFIG, site="site-1", task="update", round_=1, secret=SECRET, more=""):
    return noise_source(config, site, task, round_, secret, more)


def test_it_is_gaussian():
    z = source().gaussian(200_000, b"") / STEPS
    assert abs(z.mean()) < 5 / len(z) ** 0.5
    assert z.std() == pytest.approx(1, abs=0.01)
    assert kstest(z, norm.cdf).pvalue > 1e-4
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 0.01


def test_the_last_random_number_is_finite_and_the_first_ones_mirror():
    least, most = _gaussian_of(np.array([0, 2**64 - 1], "<u8"))
    assert most == -least
    assert 8.2 < most / STEPS < 8.3


def test_the_same_question_with_the_same_answer_gets_the_same_noise():
    steps = on_grid(np.linspace(-1, 1, 50), 0.5)
    assert np.array_equal(noised(steps, 0.5, source()), noised(steps, 0.5, source()))


@pytest.mark.parametrize("secret", [SECRET, None])
@pytest.mark.parametrize(
    "other",
    [
        {"round_": 2},
        {"site": "site-2"},
        {"task": "statistics"},
        {"config": make_config(algorithm="fedap", seed=1)},
    ],
)
def test_another_question_gets_other_noise(other, secret):
    a = source(**{"secret": secret}).gaussian(100, b"x")
    b = source(**{"secret": secret} | other).gaussian(100, b"x")
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.5


def test_under_another_f_it_is_other_noise():
    assert not np.array_equal(source(more="one").gaussian(9, b""), source(more="another").gaussian(9, b""))


def test_another_secret_gives_other_noise():
    assert not np.array_equal(source().gaussian(9, b""), source(secret=SECRET[::-1]).gaussian(9, b""))


def test_another_run_of_the_same_seed_gets_other_noise():
    other = make_config(algorithm="fedap", rounds=21)
    assert not np.array_equal(source().gaussian(9, b""), source(config=other).gaussian(9, b""))


def test_two_answers_to_one_question_cannot_be_subtracted():
    a, b = np.zeros(50, np.int64), np.ones(50, np.int64)
    difference = noised(b, 1.0, source()) - noised(a, 1.0, source())
    assert difference.std() > 0.5  # with the same noise it were 2^-20 everywhere: the answers' own difference


def test_the_same_steps_of_another_size_get_other_noise():
    steps = np.zeros(50, np.int64)
    assert not np.allclose(noised(steps, 1.0, source()), noised(steps, 0.5, source()) / 0.5)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_what_is_clipped_is_below_the_bound_whatever_rounding_does(norm, bound):
    assert clip_factor(norm, bound) * norm < bound
    assert clip_factor(norm, bound) == 1 or norm > bound * (1 - 1e-9)


def test_the_runs_seed_tells_nothing_where_there_is_a_secret():
    steps = on_grid(np.full(20, 0.25), 0.5)
    guessed = noise_source(CONFIG, "site-1", "update", 1, None).gaussian(20, b"") * 0.5 / STEPS
    # In a simulation the server can take the noise off again, which is why a real site needs a secret.
    assert np.allclose(noised(steps, 0.5, source(secret=None)) - guessed, 0.25, atol=1e-5)
    assert np.abs(noised(steps, 0.5, source()) - guessed - 0.25).max() > 0.1


def test_a_short_secret_is_refused():
    with pytest.raises(ValueError, match="can be guessed: 16 at least"):
        source(secret=b"hospital")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), st.floats(1e-3, 1e3))
def test_rounding_onto_the_grid_lengthens_no_vector(values, deviation):
    values = np.array(values)
    on = on_grid(values, deviation) * (deviation / STEPS)
    assert (np.abs(on) <= np.abs(values) * (1 + 1e-15)).all()
    assert np.allclose(on, values, atol=deviation / STEPS * 1.01)


def test_all_answers_lie_on_one_grid():
    # What an answer's last bits would betray: sums of floating-point numbers reach different sets of values.
    answers = [noised(on_grid(np.array([x] * 100), 0.3), 0.3, source()) / (0.3 / STEPS) for x in (0.1, 0.7000001)]
    assert all(np.allclose(a, np.rint(a), atol=1e-6) for a in answers)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_not_hidden_and_refused(bad):
    with pytest.raises(ValueError, match="not finite"):
        on_grid(np.array([0.5, bad]), 1.0)
