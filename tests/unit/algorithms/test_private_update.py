import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from medpfl.algorithms.fedprox import Proximal
from medpfl.algorithms.update_privacy.update import clip_update, noised_update, protected_update
from medpfl.core.messages import Message, Update
from medpfl.engine.federation import Federation
from medpfl.site.answer import answer
from medpfl.site.method import Method
from medpfl.site.noise import RUN, draw_for_run, noise_source, of_run
from medpfl.site.store import MemoryStore

CONFIG = tiny.config("fedbn", settings={"update_clip": 1, "update_noise": 1})
SECRET = bytes(range(32))


def source(round_=1, secret=SECRET):
    return noise_source(CONFIG, "site-1", "update", round_, secret)


def states(seed=0, size=1.0):
    g = torch.Generator().manual_seed(seed)
    received = {"a": torch.randn(4, 5, generator=g), "b": torch.randn(3, generator=g)}
    return received, {n: t + size * torch.randn(t.shape, generator=g) for n, t in received.items()}


def distance(a, b):
    return sum(float((a[n].double() - b[n].double()).square().sum()) for n in a) ** 0.5


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.floats(1e-2, 1e2))
def test_no_update_is_longer_than_the_bound(seed, size, bound):
    received, trained = states(seed, size)
    found = clip_update(received, trained, bound)
    before, after = distance(trained, received), distance(found, received)
    assert after <= bound * (1 + 1e-5) + 1e-5  # as float32
    if before > bound * 1.001:
        assert after == pytest.approx(bound, rel=1e-4, abs=1e-5)
        direction = (found["a"] - received["a"]).double() / after - (trained["a"] - received["a"]).double() / before
        assert direction.abs().max() < 1e-2


def test_a_short_update_keeps_its_bits():
    received, trained = states(size=0.01)
    assert tiny.same(clip_update(received, trained, 10), trained)


def test_clipping_by_hand():
    received = {"a": torch.tensor([1.0, 1.0])}
    found = clip_update(received, {"a": torch.tensor([4.0, 5.0])}, 2.5)  # (3, 4) is 5 long
    assert torch.allclose(found["a"], torch.tensor([2.5, 3.0]))


def test_without_settings_the_same_bits_leave():
    received, trained = states()
    assert tiny.same(protected_update(received, trained, {}, source()), trained)
    off = {"update_clip": 0.0, "update_noise": 0.0}
    assert tiny.same(protected_update(received, trained, off, source()), trained)


def test_the_noise_has_the_deviation_that_is_accounted_for():
    received = {"a": torch.zeros(300, 300)}
    trained = {"a": torch.full((300, 300), 7.0)}
    found = protected_update(received, trained, {"update_clip": 0.5, "update_noise": 3.0}, source())["a"].double()
    assert found.std() == pytest.approx(1.5, rel=0.01)
    assert found.mean() == pytest.approx(0.5 / 300, abs=0.03)  # the clipped update, spread over 90,000 entries


def test_asked_again_it_sends_the_same_and_another_round_other_noise():
    received, trained = states()
    chosen = {"update_clip": 1.0, "update_noise": 1.0}
    first = protected_update(received, trained, chosen, source())
    assert tiny.same(first, protected_update(received, trained, chosen, source()))
    assert not tiny.same(first, protected_update(received, trained, chosen, source(2)))
    assert not tiny.same(first, protected_update(received, trained, chosen, source(secret=SECRET[::-1])))


def test_types_and_shapes_are_kept():
    received, trained = states()
    received["c"], trained["c"] = torch.tensor(1.0, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    found = noised_update(received, trained, 1.0, 1.0, source())
    assert {n: (t.shape, t.dtype) for n, t in found.items()} == {n: (t.shape, t.dtype) for n, t in trained.items()}


def test_noise_would_make_running_variances_negative():
    # Why update_noise is refused where they are shared (test_differential_privacy).
    received, trained = {"running_var": torch.full((100,), 0.5)}, {"running_var": torch.full((100,), 0.6)}
    found = noised_update(received, trained, 1.0, 1.0, source())["running_var"]
    assert (found < 0).any()
    clipped = clip_update(received, trained, 0.01)["running_var"]
    assert ((clipped >= 0.5) & (clipped <= 0.6)).all()


def test_sites_send_clipped_updates():
    sent = {}

    def record(sites):
        for name, site in sites.items():
            sent[name] = _Recorder(site)
        sites.update(sent)

    tiny.run(tiny.config("fedbn", settings={"update_clip": 0.05}), record)
    for site in sent.values():
        assert site.distances
        assert max(site.distances) <= 0.05 * (1 + 1e-4)
    plain = {}

    def record_plain(sites):
        plain.update({name: _Recorder(site) for name, site in sites.items()})
        sites.update(plain)

    tiny.run(tiny.config("fedbn"), record_plain)
    assert min(min(site.distances) for site in plain.values()) > 0.05


class _Recorder:
    def __init__(self, site):
        self.site, self.name, self.distances = site, site.name, []

    def handle(self, message, model):
        update = self.site.handle(message, model)
        if message.task == "train":
            self.distances.append(distance(update.tensors, message.shared))
        return update


def test_what_stays_at_the_site_is_neither_clipped_nor_noised():
    chosen = {"update_clip": 1.0, "update_noise": 1.0}
    _, noisy = tiny.run(tiny.config("fedbn", rounds=1, settings=chosen))
    _, plain = tiny.run(tiny.config("fedbn", rounds=1))
    for name in noisy:
        assert tiny.same(noisy[name].store.get("personal", 1), plain[name].store.get("personal", 1))


def test_a_run_with_noise_repeats_bit_for_bit_and_stays_finite():
    config = tiny.config("fedbn", settings={"update_clip": 1.0, "update_noise": 1.0})
    (state, sites), (again, others) = tiny.run(config), tiny.run(config, workers=3)
    assert tiny.figures(state.history) == tiny.figures(again.history)
    models, same = tiny.last_models(state, sites), tiny.last_models(again, others)
    for name, model in models.items():
        assert tiny.same(model, same[name])
        assert all(np.isfinite(t.numpy()).all() for t in model.values())
    quiet, quiet_sites = tiny.run(tiny.config("fedbn"))
    assert not tiny.same(models["site-1"], tiny.last_models(quiet, quiet_sites)["site-1"])


@pytest.mark.parametrize("again", [False, True])
def test_where_updates_are_the_same_no_two_runs_show_it(monkeypatch, again):
    """Of one contract: weights under which a patient alone has a part would tell whether that one is there."""
    monkeypatch.setattr(Method, "train", lambda self, model, data, epochs, order: 0.0)  # nobody has any
    federation, store = Federation.of(CONFIG), MemoryStore()
    site, model = federation.site("site-1", store, secret=SECRET), federation.model()
    hello, first = Message("prepare", 0, {}, {"split": federation.split.description()}), federation.initial_shared
    noise = []
    for k in (1, 2):
        assert isinstance(answer(site, hello, model), Update)
        came = {name: tensor if again else k * tensor for name, tensor in first.items()}
        for _ in range(2):  # asked again in a run it is the same
            sent = answer(site, Message("train", 2, came, {"best_round": 0}), model)
            noise.append(torch.cat([(sent.tensors[n].double() - came[n].double()).flatten() for n in came]))
    assert torch.equal(noise[0], noise[1]) and torch.equal(noise[2], noise[3])
    assert (noise[0] - noise[2]).std() == pytest.approx(2**0.5, rel=0.2)


def test_what_the_noise_of_a_run_depends_on_is_drawn_again_where_it_is_gone():
    store = MemoryStore()
    drawn = draw_for_run(store)
    assert len(drawn) == 32 and of_run(store, "site-1") == drawn
    store.keep(RUN, ())
    assert of_run(store, "site-1") != drawn


def test_nothing_comes_after_the_noise(monkeypatch):
    """Another mechanism's step out may lead far from what was received: what leaves is within the bound."""
    fields = {"settings": {"update_clip": 1.0, "mu": 0.1, "prior": 1.0, "finetune_epochs": 1}}
    made = tiny.config("fedavg", **fields)
    assert made.parts[-1].name == "update_privacy"
    far = {n: t + 9 for n, t in Federation.of(made).initial_shared.items()}
    monkeypatch.setattr(Proximal, "leaving", lambda self, shared, round_: far)
    federation = Federation.of(made)
    site, model = federation.site("site-1", MemoryStore()), federation.model()
    hello = {"split": federation.split.description()}
    assert isinstance(answer(site, Message("prepare", 0, {}, hello), model), Update)
    first = federation.initial_shared
    sent = answer(site, Message("train", 1, first, {"best_round": 0}), model)
    assert distance(sent.tensors, first) == pytest.approx(1, rel=1e-4)
