import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medpfl.core.seeding import Chance, derive_seed, generator, seed_global

purposes = st.lists(st.one_of(st.text(max_size=4), st.integers(0, 99)), max_size=4).map(tuple)


@given(st.integers(0, 2**63), purposes)
def test_seeds_fit_torch(seed, purpose):
    derived = derive_seed(seed, *purpose)
    assert 0 <= derived < 2**63
    assert derived == derive_seed(seed, *purpose)
    torch.Generator().manual_seed(derived)


def test_every_purpose_has_a_seed_of_its_own():
    seeds = {
        derive_seed(seed, site, round_, purpose)
        for seed in range(5)
        for site in ("site-1", "site-11", "site-2")
        for round_ in range(20)
        for purpose in ("shuffle", "noise")
    }
    assert len(seeds) == 5 * 3 * 20 * 2
    assert derive_seed(0, "site-1", 1) != derive_seed(0, "site-11")
    assert derive_seed(0, 1, 11) != derive_seed(0, 11, 1)


def test_the_derivation_never_changes():
    assert derive_seed(0, "site-3", 12, "shuffle") == 194705811697161814


def test_generators_repeat():
    a, b, c = generator(1, "x"), generator(1, "x"), generator(1, "y")
    first = torch.rand(5, generator=a)
    assert torch.equal(first, torch.rand(5, generator=b))
    assert not torch.equal(first, torch.rand(5, generator=c))


def test_global_seeds_are_torchs_without_a_traceback(monkeypatch):
    torch.manual_seed(2**63 - 1)
    expected = torch.rand(5)
    monkeypatch.setattr("traceback.format_stack", lambda *_: pytest.fail("a traceback takes a millisecond"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    seed_global(2**63 - 1)
    assert torch.equal(torch.rand(5), expected)


def test_gpus_are_seeded_where_there_are_any(monkeypatch):
    seeds = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.manual_seed_all", seeds.append)
    seed_global(3)
    assert seeds == [3]


def test_what_is_done_to_samples_in_one_order_is_each_rounds_sites_and_purposes_own():
    asked = [("site-1", 1, "a"), ("site-1", 2, "a"), ("site-1", 1, "b"), ("site-2", 1, "a")]
    orders = [Chance(0, one_order=True).order(*of) for of in asked]
    assert len({order.changes.initial_seed() for order in orders}) == 4
    assert [orders[0].initial_seed() == order.initial_seed() for order in orders] == [True, True, False, False]
