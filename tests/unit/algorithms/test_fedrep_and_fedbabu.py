"""Which parameters FedRep and FedBABU train, and when; fine-tuning at the end."""

import pytest
import torch
from tiny import Net, images, last_models, run, same, sites_of
from tiny import config as tiny_config
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from medpfl.algorithms.fedrep import HeadFirst
from medpfl.algorithms.fine_tuning import FineTuning, FineTuningSettings
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.masked_data import MaskedVolumes
from medpfl.core.messages import Message
from medpfl.core.parameters import StateError
from medpfl.core.permitted_code import permit
from medpfl.core.seeding import generator
from medpfl.core.site_data import SiteLoaders
from medpfl.engine.federation import Federation
from medpfl.server.rounds import QuorumNotMet
from medpfl.site.store import FINISHED, MODEL
from medpfl.training.loop import Epochs, plain_objective, train_epochs
from medpfl.training.part import Part
from medpfl.training.settings import Training
from medpfl.training.trainer import Trainer


def watched(algorithm: str, *, joining: bool = False, **settings) -> list[tuple[int, list[str]]]:
    """In each call for epochs of a round, or of a site that joins: how many, and the parameters that moved."""
    run_config = tiny_config(algorithm, settings=settings)
    site = sites_of(Federation.of(run_config))["site-1"]
    model = Net()
    shared = site.split.shared_state(model)
    found = site._method(Message("train", 1, shared), model, 1, "update", 0)
    found.begin(joining=joining)
    part = next(p for p in found._parts.values() if p.train)
    calls, losses = [], []

    class Watched(Epochs):
        def run(self, number=None, parameters=None):
            before = {n: p.detach().clone() for n, p in model.named_parameters()}
            loss = super().run(number, parameters)
            moved = [n for n, p in model.named_parameters() if not torch.equal(p, before[n])]
            calls.append((self.number if number is None else number, moved))
            losses.append(loss)
            return loss

    objective = found.objective(model)
    told = part.train(Watched(model, site.data, run_config.trainer, 2, torch.Generator().manual_seed(0), objective))
    assert told == losses[-1] and told not in losses[:-1]  # the loss of a round is the shared part's
    return calls


RUN = tiny_config("fedbn")
BODY = ["fc1.weight", "fc1.bias", "norm.weight", "norm.bias"]
HEAD = ["fc2.weight", "fc2.bias"]


def test_fedrep_trains_the_head_first_and_then_the_body():
    assert watched("fedrep", head_epochs=3) == [(3, HEAD), (2, BODY)]


def test_a_site_that_joins_fedrep_trains_the_head_alone():
    assert watched("fedrep", joining=True, head_epochs=3) == [(2, HEAD)]


def test_fedbabu_trains_the_body_alone():
    assert watched("fedbabu") == [(2, BODY)]


def test_fedbabus_head_stays_as_it_was_drawn_until_the_end():
    run_config = tiny_config("fedbabu")
    first = Federation.of(run_config).initial_personal
    _, sites = run(run_config)

    for site in sites.values():
        assert all(torch.equal(site.store.get(MODEL, 3)[entry], first[entry]) for entry in HEAD)
        assert not any(torch.equal(site.store.get(FINISHED, 3)[entry], first[entry]) for entry in HEAD)


@pytest.mark.parametrize("personal", ["nothing", "heads:0.5"])
def test_fedrep_needs_whole_parameters_that_are_personal(personal):
    with pytest.raises(UserError, match="head_epochs trains"):
        tiny_config("fedrep", personal=personal)
    with pytest.raises(UserError, match="fixed"):
        tiny_config("fedbabu", personal=personal)


def test_fine_tuning_is_training_of_what_was_received_and_changes_no_round():
    plain, _ = run(tiny_config("fedbn"))
    tuned, sites = run(tiny_config("fedbn", settings={"finetune_epochs": 2}))
    federation = Federation.of(tiny_config("fedbn"))

    for name, site in sites.items():
        assert same(plain.shared[name], tuned.shared[name])
        model = federation.model()
        model.load_state_dict(site.store.get(MODEL, 3))
        order = generator(0, name, "end", "fine-tuning of round 3")
        torch.manual_seed(order.initial_seed())
        train_epochs(model, site.data, RUN.trainer, 2, order, plain_objective(model, RUN.learned.loss))
        assert same(model.state_dict(), site.store.get(FINISHED, 3))


@pytest.mark.parametrize(("finetune_lr", "rate"), [(0.02, 0.02), (0.0, 0.1)])
def test_fine_tuning_is_at_its_own_rate_or_the_whole_one_whatever_the_schedule_came_to(finetune_lr, rate):
    """One step from the received model: its whole batch, once."""
    settings = {"finetune_epochs": 1, "finetune_lr": finetune_lr, "schedule": "cosine", "batch_size": 64}
    _, sites = run(tiny_config("fedavg", settings=settings))
    for site in sites.values():
        model = Net()
        model.load_state_dict(site.store.get(MODEL, 3))
        x, y = next(site.data.batches("train", 64))
        cross_entropy(model(x), y).backward()
        expected = site.store.get(MODEL, 3)["fc2.bias"] - rate * model.fc2.bias.grad
        torch.testing.assert_close(site.store.get(FINISHED, 3)["fc2.bias"], expected)


@pytest.mark.parametrize(
    ("settings", "samples", "accumulate", "epochs"),
    [
        ({"finetune_steps": 200}, 73, 1, 67),  # batches of 32, 32 and 9: three steps an epoch
        ({"finetune_steps": 200}, 1000, 1, 7),  # 32 steps
        ({"finetune_steps": 200}, 73, 2, 100),  # two batches a step, and one that is left
        ({"finetune_steps": 10, "finetune_epochs": 5}, 73, 1, 5),
    ],
)
def test_steps_are_as_many_whole_epochs_as_have_them(settings, samples, accumulate, epochs):
    trainer = Trainer(Training(batch_size=32, accumulate=accumulate))
    data = images(train=samples)
    assert FineTuning(FineTuningSettings(**settings)).epochs(data, trainer) == epochs


@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps_are_counted_as_they_are_made(accumulate):
    """Volumes train in patches, and loaders of one's own have batches of their own size."""
    pixels, masks = [torch.rand(1, 8, 8, 8) for _ in range(10)], [torch.zeros(8, 8, 8, dtype=torch.uint8)] * 10
    volumes = MaskedVolumes({"train": pixels}, {"train": masks}, window=(4, 4, 4), patches=4)
    pairs = [(torch.rand(1, 4, 4), k % 3) for k in range(40)]
    own = SiteLoaders(DataLoader(pairs, batch_size=5, shuffle=True))
    unsized = SiteLoaders(Unsized(own.train))
    trainer = Trainer(Training(batch_size=2, accumulate=accumulate))
    stream = SiteLoaders(DataLoader(Stream(), batch_size=5))
    for data, batches in ((volumes, 20), (own, 8), (unsized, 8), (stream, 8)):
        found = list(data.training_batches(trainer.batch_size, generator(0, "order")))
        assert len(found) == data.batches_in_epoch(trainer.batch_size) == batches
        steps = -(-batches // accumulate)
        assert FineTuning(FineTuningSettings(finetune_steps=200)).epochs(data, trainer) == -(-200 // steps)


class Stream(IterableDataset):
    """Of 40 samples."""

    def __iter__(self):
        return iter([(torch.zeros(1, 4, 4), k % 3) for k in range(40)])


class Unsized:
    """Batches without a length."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def test_asked_twice_a_site_fine_tunes_once():
    state, sites = run(tiny_config("fedavg", settings={"finetune_epochs": 2}))
    site, question = sites["site-1"], Message("test", 3, {}, {"selected_round": state.best_round or 3})

    assert site.handle(question, Net()).metrics == state.final["site-1"]


def test_without_epochs_nothing_is_fine_tuned():
    plain, of_plain = run(tiny_config("fedavg"))
    off, of_off = run(tiny_config("fedavg", settings={"finetune_epochs": 0}))

    assert plain.final == off.final
    assert all(same(last_models(plain, of_plain)[name], last_models(off, of_off)[name]) for name in of_off)


def test_a_head_that_is_trained_by_itself_is_not_frozen():
    with pytest.raises(UserError, match="head_epochs trains the personal part by itself, and all of it is frozen"):
        Federation.of(make_config(algorithm="fedrep", frozen="top:1", model="lenet5", sites=2, device="cpu"))
    part = make_config(algorithm="fedrep", frozen="modules:fc3.bias", model="lenet5", sites=2, device="cpu")
    Federation.of(part)  # what is left of the head can be trained


class WithMore(Net):
    def __init__(self):
        super().__init__()
        self.more = torch.nn.Linear(2, 2)


def test_a_head_that_the_output_does_not_come_through_is_refused_in_words():
    """The layer that is created last is taken for the head; training it by itself would find no gradient."""
    permit("test_fedrep_and_fedbabu")
    with pytest.raises(QuorumNotMet, match="the output does not come through it: name the layers that classify"):
        run(tiny_config("fedrep", model="test_fedrep_and_fedbabu:WithMore"))
    run(tiny_config("fedrep", model="test_fedrep_and_fedbabu:WithMore", personal="modules:fc2"))


def test_fedbabus_head_may_be_frozen():
    Federation.of(make_config(algorithm="fedbabu", frozen="top:1", model="lenet5", sites=2, device="cpu"))


def test_a_training_of_its_own_tells_its_loss(monkeypatch):
    monkeypatch.setattr(HeadFirst, "begin", lambda *_: Part(train=lambda work: None))
    site = sites_of(Federation.of(tiny_config("fedrep")))["site-1"]
    found = site._method(Message("train", 1, {}), Net(), 1, "update", 0)
    found.begin()
    with pytest.raises(StateError, match="head_first: its training gave None, not the mean loss per sample"):
        found.train(Net(), site.data, 1, generator(0))
