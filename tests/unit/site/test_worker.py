import logging

import pytest
import torch
from tiny import Net, config, images, plan_of, same, sites_of, without_channels

from medpfl.core.messages import Failure, Message, Update
from medpfl.core.parameters import StateError
from medpfl.core.seeding import Chance
from medpfl.core.server_state import ServerState
from medpfl.engine.federation import Federation
from medpfl.server.rounds import advance, messages
from medpfl.site.answer import answer
from medpfl.site.store import MODEL, PERSONAL, DiskStore
from medpfl.tasks import TASKS

METHODS = ("local", "fedavg", "fedprox", "fedbn", "fedper", "lg-fedavg", "fedap", "d-fedap", "f-fedap")


class Lone:
    """One site of a federation, spoken to by hand."""

    def __init__(self, algorithm="fedbn", **fields):
        self.federation = Federation.of(config(algorithm, **fields))
        self.site = sites_of(self.federation)["site-1"]
        self.model = self.federation.model()

    def ask(self, task, round_, shared=None, **info):
        tensors = self.federation.initial_shared if shared is None else shared
        return self.site.handle(Message(task, round_, tensors, info), self.model)

    def shared(self, value):
        return {name: torch.full_like(t, value) for name, t in self.federation.initial_shared.items()}

    def trained_from(self, shared, personal, round_):
        """What training gives when it starts from these parts, at a site without a past."""
        other = Lone("fedbn")
        other.site.initial_personal = personal
        update = other.ask("train", round_, shared)
        return update.tensors, other.site.store.get(PERSONAL, round_)


@pytest.mark.parametrize("algorithm", METHODS)
def test_personal_state_is_never_in_an_update(algorithm):
    federation = Federation.of(config(algorithm))
    plan, sites, model = plan_of(federation), sites_of(federation), federation.model()
    state, updates = ServerState(), []
    while state.phase != "done":
        phase = state.phase
        replies = [answer(sites[s], m, model) for s, m in messages(plan, state).items()]
        assert all(isinstance(r, Update) for r in replies)
        for reply in replies:
            shared = without_channels(reply.tensors)
            assert set(shared) == (set(federation.split.shared_names) if phase == "train" else set())
            # Statistics leave where the method is made of them, once.
            asked = algorithm in ("fedap", "d-fedap") and phase == "prepare"
            asked |= algorithm == "f-fedap" and phase == "train" and state.round == 0
            assert any(name.startswith("statistics/") for name in reply.tensors) == asked
            updates.append(reply)
        state = advance(plan, state, replies, 0)
    assert len(updates) == 3 * (1 + 3 + 1 + 1)


def test_hello():
    lone = Lone()
    update = lone.ask("prepare", 0, split=lone.federation.split.description())
    assert update.metrics == {
        "samples": {"train": 13, "validation": 5, "test": 7},
        "selecting": {"cases": 5, "majority": None},
    }
    assert update.tensors == {}


def test_another_idea_of_what_is_shared_is_named():
    lone, other = Lone("fedbn"), Federation.of(config("fedavg"))
    with pytest.raises(StateError, match=r"site-1 and the server disagree on what is shared: here 'norm.weight"):
        lone.ask("prepare", 0, split=other.split.description())


def test_a_site_without_training_data():
    lone = Lone(data_args={"train": 0})
    with pytest.raises(StateError, match="site-1 has no training sample"):
        lone.ask("prepare", 0, split=lone.federation.split.description())


def test_statistics_under_the_pretrained_model():
    lone = Lone("fedap")
    f = lone.federation.model().state_dict()
    update = lone.ask("prepare", 0, f, split=lone.federation.split.description(), asked=["statistics"])
    x = torch.cat([x for x, _ in lone.site.data.batches("train", 99)]).flatten(1)
    inputs = torch.nn.functional.linear(x, f["fc1.weight"], f["fc1.bias"]).double()
    torch.testing.assert_close(update.tensors["statistics/norm/mean"], inputs.mean(0), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        update.tensors["statistics/norm/variance"], inputs.var(0, correction=0), atol=1e-6, rtol=1e-6
    )
    lone = Lone("d-fedap")
    update = lone.ask("prepare", 0, f, split=lone.federation.split.description(), asked=["statistics"])
    assert {name: t.shape for name, t in update.tensors.items()} == {
        "statistics/fc2/mean": (6,),
        "statistics/fc2/variance": (6,),
    }


@pytest.mark.parametrize(
    ("algorithm", "task", "asked"),
    [
        ("fedbn", "prepare", ["statistics"]),
        ("fedap", "prepare", ["classifier"]),
        ("fedap", "train", ["statistics"]),
        ("f-fedap", "prepare", ["statistics"]),
        ("fedavg", "train", ["statistics"]),
        ("fedavg", "train", 7),
    ],
)
def test_what_the_method_does_not_need_stays(algorithm, task, asked):
    lone = Lone(algorithm)
    with pytest.raises(StateError, match=f"^mixing {lone.federation.config.resolved_mixing} needs no .*so none leave"):
        lone.ask(task, 1, split=lone.federation.split.description(), asked=asked)


def test_personal_state_goes_on_from_round_to_round():
    lone = Lone()
    lone.ask("train", 1)
    first = lone.site.store.get(PERSONAL, 1)
    assert not same(first, lone.federation.initial_personal)
    expected = lone.trained_from(lone.shared(0.1), first, 2)
    update = lone.ask("train", 2, lone.shared(0.1))
    assert same(update.tensors, expected[0])
    assert same(lone.site.store.get(PERSONAL, 2), expected[1])


def test_a_site_that_was_absent_goes_on_from_the_last_personal_state():
    lone = Lone(rounds=9)
    lone.ask("train", 1)
    first = lone.site.store.get(PERSONAL, 1)
    expected = lone.trained_from(lone.shared(0.1), first, 6)
    assert same(lone.ask("train", 6, lone.shared(0.1)).tensors, expected[0])


def test_a_round_that_is_tried_again_gives_the_same():
    """As after a kill of the server, or of the site after it had written its state."""
    lone = Lone()
    lone.ask("train", 1)
    first, again = (lone.ask("train", 2, lone.shared(0.1)) for _ in range(2))
    assert same(first.tensors, again.tensors)
    assert {k: v for k, v in first.metrics.items()} == again.metrics


def test_nothing_hangs_on_what_the_model_held_before():
    a, b = Lone(), Lone()
    with torch.no_grad():
        for tensor in b.model.state_dict().values():
            tensor.fill_(float("nan") if tensor.is_floating_point() else 3)
    assert same(a.ask("train", 1).tensors, b.ask("train", 1).tensors)


def test_the_data_are_untouched():
    lone = Lone()
    before = images(train=13, seed=1, brightness=20)
    for round_ in (1, 2):
        lone.ask("train", round_)
    lone.ask("validate", 2)
    for part in ("train", "validation", "test"):
        assert torch.equal(lone.site.data.images[part], before.images[part])
        assert torch.equal(lone.site.data.labels[part], before.labels[part])


def expect_measures(lone, shared, personal, part):
    model = Net()
    lone.site.split.load_shared(model, shared)
    lone.site.split.load_personal(model, personal)
    return TASKS["classification"].evaluate(model, lone.site.data, part)


def test_validation_is_of_the_mix_with_the_sites_own_part():
    lone = Lone()
    assert lone.ask("train", 1).metrics["validation"] is None
    personal = lone.site.store.get(PERSONAL, 1)
    expected = expect_measures(lone, lone.shared(0.3), personal, "validation")
    assert lone.ask("train", 2, lone.shared(0.3)).metrics["validation"] == expected


def test_the_selected_and_the_last_model_are_tested():
    lone = Lone()
    mixes, personal = {}, {}
    for round_, best in ((1, 0), (2, 0), (3, 1)):
        lone.ask("train", round_, mixes.get(round_ - 1), best_round=best)
        personal[round_] = lone.site.store.get(PERSONAL, round_)
        torch.manual_seed(round_)
        mixes[round_] = {n: torch.randn_like(t) for n, t in lone.federation.initial_shared.items()}
    lone.ask("validate", 3, mixes[3], best_round=1)
    metrics = lone.ask("test", 3, {}, selected_round=1).metrics
    assert metrics["tested"] == {"selected": 1, "last": 3}
    for which, round_ in metrics["tested"].items():
        expected = expect_measures(lone, mixes[round_], personal[round_], "test")
        assert metrics["test"][which].items() >= expected.items()
    assert metrics["test"]["selected"] != metrics["test"]["last"]
    assert lone.site.store.get(MODEL, 2) is None


def test_absent_at_the_selected_round():
    lone = Lone()
    lone.ask("train", 1)
    lone.ask("validate", 3)
    metrics = lone.ask("test", 3, {}, selected_round=2).metrics
    assert metrics["tested"] == {"selected": 3, "last": 3}
    assert metrics["test"]["selected"].items() >= metrics["test"]["last"].items()


def test_absent_at_the_last_validation():
    lone = Lone()
    lone.ask("train", 1)
    lone.ask("validate", 2)
    metrics = lone.ask("test", 3, {}, selected_round=2).metrics
    assert metrics["tested"] == {"selected": 2, "last": 2}


def test_absent_all_the_time():
    with pytest.raises(StateError, match="site-1 has a model neither of round 2 nor of round 3"):
        Lone().ask("test", 3, {}, selected_round=2)


def test_without_validation_data_the_round_that_others_select_is_kept():
    lone = Lone(data_args={"validation": 0})
    lone.ask("train", 1)
    assert lone.ask("train", 2).metrics["validation"] is None
    lone.ask("train", 3, best_round=1)
    lone.ask("validate", 3, best_round=1)
    metrics = lone.ask("test", 3, {}, selected_round=1).metrics
    assert metrics["tested"] == {"selected": 1, "last": 3}
    assert metrics["test"]["last"]["n"] == 7


def test_data_that_changed_during_a_run_are_refused():
    lone = Lone()
    lone.ask("prepare", 0, {}, split=lone.site.split.description())
    lone.ask("train", 1)
    other = Lone(data_args={"train": 20})
    other.site.store = lone.site.store
    with pytest.raises(StateError, match="its data have changed since the run began"):
        other.ask("train", 2)
    assert lone.ask("train", 2).metrics["train_loss"] > 0


def test_a_wrong_message_changes_nothing():
    lone = Lone()
    lone.ask("train", 1)
    with pytest.raises(StateError, match=r"'fc1.bias' has non-finite values"):
        lone.ask("train", 2, lone.shared(float("nan")) | {"fc1.weight": lone.shared(0.0)["fc1.weight"]})
    assert lone.site.store.get(PERSONAL, 2) is None
    assert lone.site.store.get(PERSONAL, 1) is not None


def test_diverged_training_is_a_failure_and_leaves_the_stored_state():
    lone = Lone(settings={"lr": 1e30})
    reply = answer(lone.site, Message("train", 1, lone.federation.initial_shared), lone.model)
    assert isinstance(reply, Failure)
    assert (reply.site, reply.round) == ("site-1", 1)
    assert "the training loss became" in reply.reason or "non-finite values" in reply.reason
    assert lone.site.store.get(PERSONAL, 1) is None


def test_texts_of_foreign_errors_do_not_leave(caplog):
    lone = Lone()

    class Unreadable(type(lone.site.data)):
        def training_batches(self, batch_size, generator):
            raise OSError("cannot read /data/patient-Smith.dcm")

    lone.site.data = Unreadable(lone.site.data.images, lone.site.data.labels)
    with caplog.at_level(logging.WARNING):
        reply = answer(lone.site, Message("train", 1, lone.federation.initial_shared), lone.model)
    assert reply == Failure("site-1", 1, "OSError in task 'train' (the site's log says more)")
    assert "patient-Smith" in caplog.text


def tear(folder, pattern):
    for file in folder.glob(pattern):
        file.write_bytes(file.read_bytes()[:-5])


@pytest.mark.parametrize(("torn", "used"), [("*3", 2), ("*[23]", 1), ("*[123]", 0)])
def test_a_torn_personal_state_falls_back_to_an_earlier_round(tmp_path, torn, used):
    lone, other = Lone(), Lone()
    lone.site.store = DiskStore(tmp_path, durable=False)
    for round_ in (1, 2, 3):
        lone.ask("train", round_)
    for round_ in range(1, used + 1):
        other.ask("train", round_)
    tear(tmp_path, f"personal-{torn}.safetensors")
    update = lone.ask("train", 4)
    assert update.metrics["restored_round"] == used
    # What a site does that was absent since.
    assert same(update.tensors, other.ask("train", 4).tensors)
    assert "restored_round" not in lone.ask("train", 5).metrics


@pytest.mark.parametrize(
    ("left", "counted", "told"), [(2, [2, 3], 2), (0, [2, 3], 0), (2, [1, 2], None), (0, [], None)]
)
def test_a_personal_state_that_is_gone_is_told(tmp_path, left, counted, told):
    """Of a round whose answer the server used; a site that was away then, or not used, has none."""
    lone = Lone()
    lone.site.store = DiskStore(tmp_path, durable=False)
    for round_ in (1, 2, 3):
        lone.ask("train", round_)
    lone.site.store.keep("personal", range(1, left + 1))
    assert lone.ask("train", 4, counted=counted).metrics.get("restored_round") == told


def test_a_torn_model_is_tested_at_the_other_round(tmp_path):
    lone = Lone()
    lone.site.store = DiskStore(tmp_path, durable=False)
    for round_ in (1, 2, 3):
        lone.ask("train", round_, best_round=1)
    lone.ask("validate", 3, best_round=1)
    tear(tmp_path, "model-000001.safetensors")
    assert lone.ask("test", 3, selected_round=1).metrics["tested"] == {"selected": 3, "last": 3}
    tear(tmp_path, "model-*")
    with pytest.raises(StateError, match="it was absent, or the files are damaged"):
        lone.ask("test", 3, selected_round=1)


def test_a_torn_record_of_the_data_names_no_path(tmp_path):
    lone = Lone()
    lone.site.store = DiskStore(tmp_path, durable=False)
    lone.ask("prepare", 0, {}, split=lone.federation.split.description())
    tear(tmp_path, "data-*")
    reply = answer(lone.site, Message("train", 1, lone.federation.initial_shared), lone.model)
    assert isinstance(reply, Failure)
    assert "the record of its data is damaged" in reply.reason
    assert str(tmp_path) not in reply.reason


def test_the_proximal_term_holds_the_site_near():
    def distance(mu):
        lone = Lone("fedprox", settings={"mu": mu}, local_epochs=3)
        update, start = lone.ask("train", 1), lone.federation.initial_shared
        return sum((update.tensors[n] - start[n]).square().sum().item() for n in ("fc1.weight", "fc2.weight"))

    assert distance(5.0) < 0.5 * distance(0.0)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_under_noise_the_same_question_gets_the_first_answer(noise):
    """Else whoever repeats it averages the noise away where training does not repeat, as here with another order."""
    lone = Lone(settings={"update_clip": 1.0, "update_noise": noise})
    lone.ask("prepare", 0, split=lone.federation.split.description())
    lone.site.secret = bytes(32)
    first = lone.ask("train", 1).tensors
    lone.site.chance = Chance(99)
    second = lone.ask("train", 2).tensors
    lone.site.chance = Chance(98)
    again = lone.ask("train", 1).tensors  # a server may go one round back
    assert same(first, again) == same(second, lone.ask("train", 2).tensors) == bool(noise)
    other = lone.ask("train", 1, lone.shared(0.5)).tensors
    assert not same(first, other)
    lone.ask("prepare", 0, split=lone.federation.split.description())
    assert not same(first, lone.ask("train", 1).tensors)
