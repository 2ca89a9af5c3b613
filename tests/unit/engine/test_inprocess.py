from dataclasses import replace

import pytest
import torch
from tiny import Net, config, figures, images, last_models, run, same, sites_of

from medpfl.core.errors import UserError
from medpfl.core.layers import batch_norm_layers
from medpfl.core.messages import Failure
from medpfl.core.seeding import drawn_apart
from medpfl.core.site_data import SiteLoaders
from medpfl.engine.federation import Federation
from medpfl.engine.first_model import pick_device
from medpfl.engine.inprocess import parallel_sites
from medpfl.server.rounds import QuorumNotMet
from medpfl.site.worker import Site

CPU = torch.device("cpu")


def same_runs(a, b):
    """Whether two runs ended with the same models at every site."""
    (state_a, sites_a), (state_b, sites_b) = a, b
    models_a, models_b = last_models(state_a, sites_a), last_models(state_b, sites_b)
    return all(same(models_a[s], models_b[s]) for s in sites_a)


MORE = ("local", "fedprox", "fedper", "lg-fedavg", "d-fedap")


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "fedap", "f-fedap", *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
)
def test_the_same_seed_gives_the_same_bits(algorithm):
    first, again = run(config(algorithm)), run(config(algorithm))
    assert same_runs(first, again)
    assert figures(first[0].history) == figures(again[0].history)
    assert first[0].final == again[0].final
    assert first[0].failures == ()


def test_another_seed_gives_another_run():
    assert not same_runs(run(config()), run(config(seed=1)))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedap"])
@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_sites_side_by_side_give_the_same_bits(algorithm, workers):
    one, many = run(config(algorithm, local_epochs=3)), run(config(algorithm, local_epochs=3), workers=workers)
    assert same_runs(one, many)
    assert figures(one[0].history) == figures(many[0].history)


def test_sites_side_by_side_have_one_network_also_in_what_is_no_part_of_its_state():
    one, many = run(config(model="tiny:Projected")), run(config(model="tiny:Projected"), workers=3)
    assert same_runs(one, many)
    assert figures(one[0].history) == figures(many[0].history)


@pytest.mark.parametrize("algorithm", ["local", "ditto"])
def test_of_what_is_no_part_of_its_state_a_network_brings_nothing_from_one_site_to_the_next(algorithm):
    one, many = (run(config(algorithm, model="tiny:Remembering"), workers=workers) for workers in (1, 3))
    assert same_runs(one, many)
    assert figures(one[0].history) == figures(many[0].history)
    assert one[0].final == many[0].final


def test_the_global_generator_and_the_threads_are_left():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    run(config(model_args={"dropout": 0.5}, intra_op_threads=2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == 1


def test_dropout_repeats_one_site_at_a_time():
    dropout = config(model_args={"dropout": 0.5})
    federation = Federation.of(dropout)
    assert parallel_sites(sites_of(federation), federation.model(), CPU, cores=8) == 1
    torch.manual_seed(1)
    first = run(dropout)
    torch.manual_seed(2)
    assert same_runs(first, run(dropout))
    assert not same_runs(first, run(config()))


def test_how_many_sites_run_side_by_side():
    federation = Federation.of(config())
    sites = sites_of(federation)
    before = federation.model().state_dict()
    model = federation.model()
    assert [parallel_sites(sites, model, CPU, cores) for cores in (1, 2, 8)] == [1, 2, 3]
    assert same(model.state_dict(), before)
    assert parallel_sites(sites, model, torch.device("cuda"), 8) == 1
    sites["site-2"].data = SiteLoaders([(torch.zeros(2, 1, 4, 4), torch.zeros(2))])
    assert parallel_sites(sites, model, CPU, 8) == 1


@pytest.mark.parametrize("train", [0, 1])
def test_a_first_site_with_too_few_images_to_try_the_model(train):
    federation = Federation.of(config())
    sites = sites_of(federation)
    sites["site-1"].data = images(train=train)
    assert parallel_sites(sites, federation.model(), CPU, 2) == 2


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_a_label_without_an_output_is_named(part):
    def mislabelled(sites):
        sites["site-2"].data.labels[part][0] = 12

    state, _ = run(config(min_sites=2, rounds=1), mislabelled)
    reasons = {f.reason for f in state.failures if f.site == "site-2"}
    assert reasons == {"a label lies outside 0 to 2: the model has 3 outputs"}


class Raises(Site):
    def handle(self, message, model):
        if message.task == "train" and message.round == 2:
            raise KeyError("patient-7")
        return super().handle(message, model)


class SendsNan(Site):
    def handle(self, message, model):
        update = super().handle(message, model)
        for tensor in update.tensors.values() if message.round == 2 else ():
            tensor[0] = float("nan")
        return update


class SendsWrongShapes(Site):
    def handle(self, message, model):
        update = super().handle(message, model)
        tensors = {n: t[:1] for n, t in update.tensors.items()} if message.round == 2 else update.tensors
        return replace(update, tensors=tensors)


class IsAway(Site):
    """Does not even compute in round 2."""

    def handle(self, message, model):
        if message.task == "train" and message.round == 2:
            raise KeyError
        return super().handle(message, model)


def swap(kind):
    def change(sites):
        s = sites["site-2"]
        sites["site-2"] = kind(s.name, s.config, s.split, s.initial_personal, s.data, s.store, s.chance)

    return change


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Raises, "KeyError in task 'train' (the site's log says more)"),
        (SendsNan, "shared entry 'fc1.weight' has non-finite values"),
        (SendsWrongShapes, "shared entry 'fc1.weight' has shape [1, 16], expected [6, 16]"),
    ],
)
def test_a_bad_site_is_named_and_the_others_finish_unharmed(kind, reason):
    state, sites = run(config("fedbn"), swap(kind))
    assert state.phase == "done"
    assert state.failures == (Failure("site-2", 2, reason),)
    assert [r["participants"] for r in state.history] == [
        ["site-1", "site-2", "site-3"],
        ["site-1", "site-3"],
        ["site-1", "site-2", "site-3"],
    ]
    assert len(state.final) == 3
    # The mix of round 2 is the one without it: site-1 starts round 3 as if site-2 had been away.
    away, _ = run(config("fedbn"), swap(IsAway))
    assert state.history[2]["sites"]["site-1"]["validation"] == away.history[2]["sites"]["site-1"]["validation"]
    if kind is Raises:
        assert same_runs((state, sites), run(config("fedbn"), swap(IsAway)))


def test_nan_images_of_one_site_are_its_own_failure():
    def spoil(sites):
        data = sites["site-3"].data
        nan = {part: torch.full(x.shape, float("nan")) for part, x in data.images.items()}
        sites["site-3"].data = replace(data, images=nan)

    state, sites = run(config("fedavg"), spoil)
    assert {f.site for f in state.failures} == {"site-3"}
    assert "the training loss became nan" in state.failures[0].reason
    assert all(torch.isfinite(t).all() for t in last_models(state, sites)["site-1"].values())
    assert "site-1" in state.final


def test_too_few_answers_end_the_run_with_their_reasons():
    with pytest.raises(QuorumNotMet, match=r"the quorum is 3 of 3.*site-2: KeyError in task 'train'"):
        run(config("fedavg", min_sites=3), swap(Raises))


def test_lambda_1_is_local_training():
    local = run(config("local"))
    assert same_runs(run(config("fedap", settings={"lambda": 1})), local)
    assert same_runs(run(config("fedbn", mixing="uniform", settings={"lambda": 1})), local)
    assert not same_runs(run(config("fedap", settings={"lambda": 0.9})), local)


@pytest.mark.parametrize("algorithm", ["fedbn", "fedavg", "fedper"])
def test_a_federation_of_one_is_local_training(algorithm):
    assert same_runs(run(config(algorithm, sites=1)), run(config("local", sites=1)))


def test_fedprox_without_mu_is_fedavg():
    assert same_runs(run(config("fedprox", settings={"mu": 0})), run(config("fedavg")))
    assert not same_runs(run(config("fedprox", settings={"mu": 1})), run(config("fedavg")))


@pytest.mark.parametrize("algorithm", ["fedbn", "fedper", "lg-fedavg", "fedap"])
def test_with_nothing_personal_and_mixed_by_samples_every_method_is_fedavg(algorithm):
    assert same_runs(run(config(algorithm, personal="nothing", mixing="samples")), run(config("fedavg")))


def test_fedavg_sites_end_with_one_model_and_fedbn_sites_differ_in_batch_norm_only():
    whole = [n for n in Net().state_dict() if "tracked" not in n]
    models = last_models(*run(config("fedavg")))
    assert all(torch.equal(models["site-1"][n], models["site-3"][n]) for n in whole)
    models = last_models(*run(config("fedbn")))
    norm = {f"{path}.{n}" for path, layer in batch_norm_layers(Net()).items() for n in layer.state_dict()}
    for name in whole:
        assert torch.equal(models["site-1"][name], models["site-3"][name]) == (name not in norm)


def test_complements():
    """FedPer shares what LG-FedAvg keeps."""
    fedper, lg = (last_models(*run(config(a))) for a in ("fedper", "lg-fedavg"))
    alike = lambda models, name: torch.equal(models["site-1"][name], models["site-2"][name])  # noqa: E731
    assert alike(fedper, "fc1.weight") and not alike(fedper, "fc2.weight")
    assert alike(lg, "fc2.weight") and not alike(lg, "fc1.weight")


def test_progress_is_told():
    seen = []
    run(config(rounds=2), watch=seen.append)
    assert [(p.phase, p.round) for p in seen if p.answered == 0] == [
        ("prepare", 0),
        ("train", 0),
        ("train", 1),
        ("validate", 2),
        ("test", 2),
    ]
    assert all(p.expected == 3 for p in seen)
    assert [p.answered for p in seen] == [0, 1, 2, 3] * 5


def test_similarity_needs_batch_norm():
    with pytest.raises(UserError, match="Linear has no batch-norm layer"):
        Federation.of(config("fedap", model="torch.nn:Linear", model_args={"in_features": 4, "out_features": 2}))


def test_a_personal_part_that_leaves_nothing():
    with pytest.raises(UserError, match=r"modules:fc1,norm,fc2 leaves nothing to share for tiny:Net"):
        Federation.of(config(personal="modules:fc1,norm,fc2"))


def test_every_end_starts_from_the_same_model():
    a, b = Federation.of(config()), Federation.of(config())
    torch.manual_seed(99)
    assert same(a.initial_shared, b.initial_shared)
    assert same(a.model().state_dict(), b.model().state_dict())
    assert not same(Federation.of(config(seed=1)).initial_shared, a.initial_shared)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu():
    with pytest.raises(UserError, match="--device cuda:1: torch sees no GPU here"):
        Federation.of(config(device="cuda:1"))


def test_a_gpu_beyond_those_that_are_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="--device cuda:7: torch sees 2 GPUs here, up to cuda:1"):
        pick_device(config(device="cuda:7"))
    assert pick_device(config(device="cuda:1")) == torch.device("cuda:1")
    assert pick_device(config(device="auto")) == torch.device("cuda")


def test_of_gpus_that_nobody_uses_no_generator_is_looked_at(monkeypatch):
    """To read one begins a context on it: several hundred MB of every GPU of the machine, for a run on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *_: pytest.fail("a GPU's generator was read"))
    before = torch.get_rng_state()
    with drawn_apart():
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    run(config(device="cpu", rounds=1))


class Poisons(Site):
    """Sends what it should, a thousand times as far away, but no variance below 0, which nobody takes."""

    def handle(self, message, model):
        update = super().handle(message, model)
        for name, tensor in update.tensors.items() if message.task == "train" else ():
            away = message.tensors[name] + 1000 * (tensor - message.tensors[name])
            update.tensors[name] = away.abs() if name.endswith("running_var") else away
        return update


def test_a_poisoned_site_ruins_fedavg_only_where_its_updates_are_accepted():
    def losses(change=lambda sites: None, **fields):
        state, _ = run(config("fedavg", sites=4, min_sites=2, **fields), change)
        last = state.history[-1]["sites"]
        return [last[s]["train_loss"] for s in ("site-1", "site-3", "site-4") if s in last], state

    usual, _ = losses()
    refused, state = losses(swap(Poisons), large_updates="refuse", large_factor=100)
    assert max(refused) < 1.5 * max(usual)
    assert [f.site for f in state.failures] == ["site-2"] * 3
    assert all("100 times is the limit" in f.reason for f in state.failures)
    assert all(r["participants"] == ["site-1", "site-3", "site-4"] for r in state.history)
    clipped, state = losses(swap(Poisons), large_updates="clip", large_factor=2)
    assert max(clipped) < 1.5 * max(usual)
    assert all("scaled back to 2 times" in f.reason for f in state.failures)
    assert all("site-2" in r["participants"] for r in state.history)
    ruined, state = losses(swap(Poisons), large_updates="accept")
    # Sites diverge, one by one, or train from a model far away.
    assert len(ruined) < 3 or max(ruined) > 10 * max(usual)


def test_a_mistake_that_all_sites_meet_is_traced_once(caplog):
    def fail(sites):
        for site in sites.values():
            site.data.training_batches = lambda *_: [][0]

    with pytest.raises(QuorumNotMet, match="IndexError in task 'train'"):
        run(config("fedavg"), fail)
    told = [record for record in caplog.records if record.exc_info or "list index" in record.getMessage()]
    assert [(record.getMessage().partition(",")[0], bool(record.exc_info)) for record in told] == [
        ("site-1", True),
        ("site-2", False),
        ("site-3", False),
    ]
