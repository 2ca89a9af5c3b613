"""Start weights of the server's choice, as a site's policy meets them."""

import pytest
import torch
from safetensors.torch import save_file
from test_guard import Guarded
from tiny import Wide, config, imprinting

from medpfl.algorithms.start import START
from medpfl.core.errors import UserError
from medpfl.core.messages import Failure, Message, named
from medpfl.core.parameters import StateError
from medpfl.engine.federation import Federation
from medpfl.site.answer import answer
from medpfl.site.contract import Contract
from medpfl.site.policy import SitePolicy
from medpfl.site.store import MemoryStore

POLICY = SitePolicy(copied_rows=0.1)


def hello(tmp_path, weights, algorithm="fedavg", policy=POLICY, public=False, **fields):
    save_file(weights, tmp_path / "first.safetensors")
    federation = Federation.of(config(algorithm, model="tiny:Wide", init=str(tmp_path / "first.safetensors"), **fields))
    if policy.approved:
        policy = policy.model_copy(update={"approved": (Contract(federation.config).hash,)})
    site = federation.guarded(federation.site("site-1", MemoryStore()), policy=policy)
    site.public = public
    info = {"split": federation.split.description()}
    return answer(site, Message("prepare", 0, named(START, federation.start.state), info), federation.model())


def test_rows_that_copy_each_other_are_refused_in_start_weights_too(tmp_path):
    """Compared with themselves they would hold no more copies than the first model."""
    reply = hello(tmp_path, imprinting())
    assert isinstance(reply, Failure)
    assert reply.reason.startswith("contract: rows of 'fc1.weight' copy each other")


def test_in_personal_parts_too(tmp_path):
    assert isinstance(hello(tmp_path, imprinting(), personal="modules:fc1"), Failure)


def test_what_nobody_trains_shows_nothing(tmp_path):
    assert not isinstance(hello(tmp_path, imprinting(), frozen="modules:fc1"), Failure)


@pytest.mark.parametrize("algorithm", ["fedavg", "local"])
def test_start_weights_are_taken_of_approved_contracts_alone(tmp_path, algorithm):
    """Where no update leaves, too: under gates for one patient the training loss was a pixel of theirs."""
    weights, own = Wide().state_dict(), SitePolicy(approved_weights=True)
    assert hello(tmp_path, weights, algorithm, own).reason.startswith("policy: the job brings weights")
    approving = own.model_copy(update={"approved": ("this one's",)})
    assert not isinstance(hello(tmp_path, weights, algorithm, approving), Failure)
    assert not isinstance(hello(tmp_path, weights, algorithm, own, public=True), Failure)


def test_other_start_weights_are_taken(tmp_path):
    assert not isinstance(hello(tmp_path, Wide().state_dict()), Failure)


@pytest.mark.parametrize(
    "fields", [{"personal": p} for p in ("nothing", "below-top:1", "modules:fc1")] + [{"frozen": "modules:fc1"}]
)
def test_nor_do_such_rows_come_with_f_whatever_of_it_is_personal_or_frozen(fields):
    federation = Federation.of(config("d-fedap", model="tiny:Wide", **{"personal": "nothing", **fields}))
    site = federation.guarded(federation.site("site-1", MemoryStore()), policy=POLICY)
    with pytest.raises(StateError, match=r"rows of 'fc1\.weight' copy each other"):
        site.arriving.require_own_rows(imprinting())


def test_a_hello_is_of_no_round():
    """Its statistics have noise once: another round would have other noise, and the mean of many less of it."""
    federation = Federation.of(config("fedavg"))
    site = federation.guarded(federation.site("site-1", MemoryStore()), policy=POLICY)
    info = {"split": federation.split.description()}
    reply = answer(site, Message("prepare", 1, {}, info), federation.model())
    assert isinstance(reply, Failure) and "round 1 of 3 does not exist" in reply.reason


def test_a_network_whose_type_cannot_travel_is_refused_in_words():
    with pytest.raises(UserError, match=r"tiny:Half: fc1\.weight is bfloat16, which cannot travel; give it in float32"):
        Federation.of(config("fedavg", model="tiny:Half"))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("said", r"tiny:Odd: _extra_state of its state is of type dict; keep it out of state_dict"),
        ("lazy", r"tiny:Odd: odd has no shape before images come \(a lazy layer\); give the layer its sizes"),
        ("sparse", "tiny:Odd: odd is sparse; register it with persistent=False"),
        ("expanded", r"tiny:Odd: odd has one place in memory for several values, as expand\(\) gives"),
        ("infinite", r"tiny:Odd: odd has values that are no numbers \(NaN or infinite\); register a mask of them"),
    ],
)
def test_a_network_whose_state_no_site_could_take_up_is_refused_before_training(entry, words):
    with pytest.raises(UserError, match=words):
        Federation.of(config("fedavg", model="tiny:Odd", model_args={"entry": entry}))


def test_a_frozen_mask_may_be_infinite():
    fields = {"model": "tiny:Odd", "model_args": {"entry": "infinite"}, "frozen": "modules:odd"}
    assert "odd" in Federation.of(config("fedavg", **fields)).split.frozen


def test_images_to_train_with_come_no_earlier_than_the_method_has_them():
    images = torch.full((8, 1, 4, 4), 0.5, dtype=torch.float16)
    impression = {"impression/images": images, "impression/labels": torch.zeros(8, dtype=torch.int64)}
    settings = {"warmup": 1, "images": 8, "start": "noise"}
    guarded = Guarded("fedimpres", model="tiny:Net", rounds=3, local_epochs=1, settings=settings).hello()
    early = guarded.federation.initial_shared | impression
    assert guarded.refused("train", 1, early) == "contract: 'impression' is not as the method has it"
    guarded.train(1)
    guarded.train(2, guarded.near() | impression)
