"""Each attack works on a site without guards: what a guarded site refuses is worth refusing."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from unguarded import FULLY_CONNECTED, Unguarded, victims

from medpfl.audit import attempts
from medpfl.audit import batch_norm as bn
from medpfl.audit import chosen_f as cf
from medpfl.audit import known_image as ki
from medpfl.audit.constant_class import constant_class, share_errors
from medpfl.audit.images import recovered
from medpfl.audit.imprint import imprint
from medpfl.audit.inversion import _cosine, _local_training, invert
from medpfl.audit.membership import membership
from medpfl.audit.replay import replay
from medpfl.audit.victim import Foothold, Line, Truth, honest_rounds, norm
from medpfl.core.messages import Failure, Message
from medpfl.core.site_data import ImageTensors
from medpfl.site.policy import SitePolicy
from medpfl.site.store import MemoryStore


@pytest.fixture(scope="module")
def fully_connected():
    return Unguarded.of(settings={"batch_size": 64}, **FULLY_CONNECTED)


@pytest.fixture(scope="module")
def fedbn():
    found = Unguarded.of("fedbn")
    return found, found.probe()


def test_imprint_brings_back_most_images_from_one_update(fully_connected):
    line = fully_connected.line()
    made, way = imprint(line, fully_connected.known, fully_connected.probe(), 1)
    found = recovered(made[0], fully_connected.truth.images)
    assert (line.asked, line.answered, way) == (1, 1, "at once")
    assert found.of == 63
    assert found.exact >= 45  # of which each is a picture of its own
    assert found.psnr > 30


@pytest.mark.slow
def test_imprint_brings_back_images_from_several_batches():
    victim = Unguarded.of(settings={"batch_size": 16, "momentum": 0.9}, **FULLY_CONNECTED)
    made, _ = imprint(victim.line(), victim.known, victim.probe(), 2)
    assert recovered(torch.cat(made), victim.truth.images).exact >= 40


@pytest.mark.slow
def test_imprint_through_convolutions_brings_back_recognisable_images():
    victim = Unguarded.of()
    made, _ = imprint(victim.line(), victim.known, victim.probe(), 3)
    assert recovered(torch.cat(made), victim.truth.images).recognisable >= 15


def test_statistics_under_a_chosen_f_bring_back_most_images():
    victim = Unguarded.of("d-fedap", personal="nothing", **FULLY_CONNECTED)
    line = victim.line()
    made = cf.chosen_f(line, victim.known, victim.probe(), 255, time.monotonic() + 120)
    found = recovered(made, victim.truth.images)
    assert line.asked == line.answered <= 255
    assert found.exact >= 45


def test_constant_classes_give_the_class_counts_of_all_parts(fully_connected):
    line = fully_connected.line()
    shares, way = constant_class(line, fully_connected.known)
    errors = share_errors(shares, fully_connected.truth.labels, 11)
    assert way == "at once"
    assert line.asked == 34  # with the greeting
    assert max(errors.values()) < 1 / 63 / 2  # so that every count is exact


@pytest.mark.slow
def test_constant_classes_where_the_classification_layer_stays():
    victim = Unguarded.of("fedper")
    shares, _ = constant_class(victim.line(), victim.known)
    errors = share_errors(shares, victim.truth.labels, 11)
    assert errors["train"] is None
    assert errors["validation"] < 0.1


@pytest.mark.slow
def test_a_known_image_is_found_with_its_label(fedbn):
    victim, probe = fedbn
    there, others = victim.truth.images["validation"][:2], victim.truth.images["test"][:2]
    said = ki.known_image(victim.line(), victim.known, probe, [*there, *others])
    assert [s.present for s in said] == [True, True, False, False]
    assert [s.label for s in said[:2]] == victim.truth.labels["validation"][:2].tolist()


@pytest.mark.slow
def test_personal_batch_norm_is_read_by_accuracy(fedbn):
    victim, probe = fedbn
    (probed,) = bn.batch_norm(victim.line(), victim.known, probe, channels=1)
    site = replace(victim.federation.site("site-1", MemoryStore()), data=victim.data)
    model = victim.federation.model()
    site.handle(Message("train", 1, victim.known.initial_shared, {"best_round": 0}), model)
    slope, offset = bn.true_channel(model, probed)
    assert probed.in_all == 44
    assert (probed.slope, probed.offset) == (pytest.approx(slope, abs=2e-3), pytest.approx(offset, abs=1e-2))


def test_replays_are_answered(fully_connected):
    kinds = {kind.what: kind for kind in replay(fully_connected.line(), fully_connected.known, times=5)}
    assert kinds["the last round again, with other weights"].answered == 5
    assert kinds["a round after the agreed end"].answered == 5
    assert kinds["a greeting of another contract"].answered == 0


@pytest.mark.slow
def test_inversion_of_a_single_image_is_nearer_than_a_guess():
    victim = Unguarded.of()
    few = ImageTensors(*({**by, "train": by["train"][:1]} for by in (victim.data.images, victim.data.labels)))
    (exchange,) = honest_rounds(Line(victims(victim.federation, "site-1", few)), victim.known, 1)
    made = invert(victim.known, exchange, few.labels["train"], seconds=30)
    image = victim.truth.images["train"][0].flatten()
    near = torch.corrcoef(torch.stack([made.flatten(), image]))[0, 1]
    mean = torch.corrcoef(torch.stack([victim.truth.images["test"].mean(0).flatten(), image]))[0, 1]
    assert near > mean + 0.2


def test_membership_of_samples_that_were_learned_by_heart():
    victim = Unguarded.of(settings={"batch_size": 8, "lr": 0.1}, local_epochs=10, **FULLY_CONNECTED)
    rounds = honest_rounds(victim.line(), victim.known, 3)
    scores = membership(victim.known, rounds, victim.truth)
    assert max(score.interval[0] for score in scores) > 0.6
    assert all(score.interval[0] <= score.auc <= score.interval[1] for score in scores)


def test_membership_is_not_tried_without_test_samples():
    attacked = SimpleNamespace(truth=Truth({"train": torch.zeros(2, 1, 4, 4)}, {"train": torch.zeros(2)}))
    assert attempts.membership(attacked).verdict == "not tried"


class Wary:
    """Refuses start weights that are not the run's, and weights that jump further than so many of its own updates."""

    def __init__(self, victim, first, jump):
        self.victim, self.first, self.jump, self.exchange = victim, first, jump, None

    def __call__(self, message):
        if message.task == "train":
            sent = message.tensors
            if self.exchange is None and any(not torch.equal(sent[k], t) for k, t in self.first.items()):
                return Failure("site-1", message.round, "other start weights")
            if self.exchange is not None:
                before, after = self.exchange
                reach = self.jump * norm({k: after[k] - t for k, t in before.items()})
                if norm({k: sent[k] - t for k, t in before.items()}) > reach:
                    return Failure("site-1", message.round, "too far")
            reply = self.victim(message)
            self.exchange = dict(sent), dict(reply.tensors)
            return reply
        return self.victim(message)


def test_an_attacker_that_is_refused_begins_honestly_and_walks():
    victim = Unguarded.of(
        policy=SitePolicy(largest_jump=10.0), settings={"batch_size": 64, "lr": 0.1}, rounds=200, **FULLY_CONNECTED
    )
    open_victim = victims(victim.federation, "site-1", victim.data)
    line = Line(lambda: Wary(open_victim(), victim.known.initial_shared, 10.0))
    made, way = imprint(line, victim.known, victim.probe(), 1)
    assert way == "after an honest round"
    assert dict(line.refusals) == {"other start weights": 1}
    assert made and recovered(made[0], victim.truth.images).exact >= 20


def test_a_walk_ends_with_the_run():
    victim = Unguarded.of(policy=SitePolicy(largest_jump=1e-6), rounds=4, **FULLY_CONNECTED)
    open_victim = victims(victim.federation, "site-1", victim.data)
    line = Line(lambda: Wary(open_victim(), victim.known.initial_shared, 10.0))
    far = {name: tensor + 1 for name, tensor in victim.known.initial_shared.items()}
    assert Foothold(line, victim.known).train_from(far) is None
    assert line.asked == 1 + 1 + 4  # refused, a greeting, four rounds


def test_few_samples_are_of_many_people():
    """A policy lets nothing of few patients leave: what is inverted must be of as many as there are."""
    persons = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3])
    images = torch.arange(8.0)[:, None, None, None].expand(8, 1, 4, 4)
    parts = {"train": images, "test": images[:2]}
    labels = {"train": torch.arange(8), "test": torch.arange(2)}
    data = ImageTensors(parts, labels, {}, {"train": persons, "test": persons[:2]})
    few = attempts._first(data, 3)
    assert few.labels["train"].tolist() == [0, 3, 5]
    assert few.images["train"][:, 0, 0, 0].tolist() == [0, 3, 5]
    assert few.owners("train").tolist() == [0, 1, 2]
    assert attempts._first(data, 6).labels["train"].tolist() == [0, 1, 2, 3, 5, 6]
    assert attempts._first(replace(data, persons={}), 3).labels["train"].tolist() == [0, 1, 2]
    assert few.samples("test") == 2


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": 1}])
def test_inversion_repeats_the_sites_steps_of_sgd(settings):
    victim = Unguarded.of(settings=settings, local_epochs=2, **FULLY_CONNECTED)
    images, labels = (by["train"][:5] for by in (victim.data.images, victim.data.labels))
    few = ImageTensors({**victim.data.images, "train": images}, {**victim.data.labels, "train": labels})
    (exchange,) = honest_rounds(Line(victims(victim.federation, "site-1", few)), victim.known, 1)
    (x, _) = next(iter(few.batches("train", 5)))
    model = victim.known.model_of(exchange.sent).train()
    names = sorted(victim.known.whole)
    change = _local_training(victim.known, model, x, labels, names)
    alike = _cosine(change, {name: exchange.change[name] for name in names}).detach()
    assert float(alike) == pytest.approx(1, abs=1e-5)
