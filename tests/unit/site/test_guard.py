"""A site behind its contract, as a server that means harm meets it."""

import pytest
import torch
from tiny import Net, config, plan_of, same, sites_of

from medpfl.core.messages import Failure, Message
from medpfl.core.parameters import StateError
from medpfl.core.server_state import ServerState
from medpfl.core.statefile import fingerprint
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.server.rounds import advance, messages
from medpfl.site.account import Account
from medpfl.site.answer import answer
from medpfl.site.book import Book
from medpfl.site.contract import Contract
from medpfl.site.copied_rows import copied
from medpfl.site.ledger import Ledger
from medpfl.site.policy import HOSPITAL, OPEN, SitePolicy
from medpfl.site.seal import Seal
from medpfl.site.store import DiskStore
from medpfl.site.words import listed
from medpfl.training.loop import train_plainly

KEY = bytes(range(32))


class Guarded:
    """One guarded site of a federation, spoken to by hand."""

    def __init__(self, algorithm="fedbn", policy=OPEN, folder=None, key=None, submitter="", **fields):
        self.federation = Federation.of(config(algorithm, **fields))
        seal = Seal(key, "experiment/site-1") if key else None
        store = DiskStore(folder, durable=False, seal=seal) if folder else None
        site = self.federation.site("site-1", store, policy) if store else sites_of(self.federation)["site-1"]
        site.selects, site.least = policy.measures == "none", policy.least_patients
        contract = Contract(self.federation.config, submitter=submitter)
        ledger = Ledger(folder.parent, Seal(key, "ledger")) if key else None
        account = Account(ledger, policy, contract, folder.name, "job-1") if ledger else None
        self.site = self.federation.guarded(
            site, policy=policy, contract=contract, book=Book(folder, seal), account=account
        )
        self.model = self.federation.model()

    def ask(self, task, round_=0, shared=None, **info):
        info = ({"split": self.federation.split.description()} if task == "prepare" else {}) | info
        tensors = {} if shared is None and task in ("prepare", "test") else shared or self.federation.initial_shared
        return answer(self.site, Message(task, round_, tensors, info), self.model)

    def ask_hello(self, shared=None, **info):
        """One that must be refused."""
        message = Message("prepare", 0, shared or {}, {"split": self.federation.split.description()} | info)
        assert isinstance(answer(self.site, message, self.model), Failure)

    def hello(self):
        assert not isinstance(self.ask("prepare"), Failure)
        return self

    def refused(self, *arguments, **options):
        reply = self.ask(*arguments, **options)
        assert isinstance(reply, Failure), "it was answered"
        return reply.reason

    def near(self, share=0.0):
        """What an honest server sends next: here the site's own last update, or so much beyond it."""
        return {k: t + share * torch.randn(t.shape) for k, t in self.last.items()}

    def train(self, round_, shared=None):
        update = self.ask("train", round_, shared)
        assert not isinstance(update, Failure), update.reason
        self.last = update.tensors
        return update


def imprinting(shared):
    """Rows that are all one direction, with other thresholds: each row's gradient is a sum over a few images."""
    weights = {name: t.clone() for name, t in shared.items()}
    weights["fc1.weight"][:] = 1.0
    weights["fc1.bias"][:] = torch.linspace(-8, 8, len(weights["fc1.bias"]))
    return weights


def test_weights_of_the_servers_choice_are_refused_in_the_first_round():
    guarded = Guarded().hello()
    assert guarded.refused("train", 1, imprinting(guarded.federation.initial_shared)) == (
        "contract: the start weights are not the contract's: 'fc1.weight' differs"
    )
    guarded.train(1)


def test_the_first_model_may_differ_in_its_last_bits():
    guarded = Guarded().hello()
    near = {name: t * (1 + 1e-7) for name, t in guarded.federation.initial_shared.items()}
    guarded.train(1, near)


@pytest.mark.parametrize("late", [False, True])
def test_weights_of_the_servers_choice_are_refused_in_later_rounds(late):
    """Also of a site that is told that the first rounds went by without it."""
    guarded = Guarded(policy=SitePolicy(largest_jump=10)).hello()
    if not late:
        guarded.train(1)
    start = guarded.federation.initial_shared
    words = guarded.refused("train", 2, {k: 30 * t for k, t in imprinting(start).items()})
    what = "this site's first update would be" if late else "this site's own update"
    assert f"times as far from what came before as {what}" in words
    assert "(policy: largest_jump)" in words
    guarded.train(2, start if late else guarded.near())


def test_whoever_asks_how_far_a_first_round_leads_asks_for_a_round(tmp_path, monkeypatch):
    """A server could ask for ever, and find the length of what never left by bisection; the words do not tell it."""
    policy, trained = SitePolicy(largest_jump=10, rounds=2), []
    guarded = Guarded(folder=tmp_path / "a", key=KEY, policy=policy).hello()
    start = guarded.federation.initial_shared
    monkeypatch.setattr("medpfl.site.worker.train_plainly", lambda *args: trained.append(train_plainly(*args)))
    for times in (1e3, 1e4):
        words = guarded.refused("train", 2, {k: times * t for k, t in start.items()})
        assert "more than 14.1421 times as far" in words
    assert len(trained) == 1
    assert "(rounds)" in guarded.refused("train", 2, start)
    tasks = [(entry["task"], "refused" in entry) for entry in guarded.site.account.ledger.entries()]
    assert tasks == [("open", False), ("prepare", False), ("train", True), ("train", True)]


def test_and_of_validation_it_has_its_repeats():
    guarded = Guarded(policy=SitePolicy(largest_jump=10, repeats=1), rounds=3).hello()
    start = guarded.federation.initial_shared
    asked = [guarded.refused("validate", 3, {k: times * t for k, t in start.items()}) for times in (1e3, 1e4, 1e5)]
    assert ["repeats 1 times" in words for words in asked] == [False, False, True]


def test_how_far_a_first_round_leads_under_noise_is_of_the_contract_alone(monkeypatch):
    """Epsilon counts what leaves, and that a site with noise comes late is no reason to refuse it."""
    settings = {"update_clip": 0.05, "update_noise": 5.0}
    guarded = Guarded(policy=SitePolicy(largest_jump=10), settings=settings).hello()
    monkeypatch.setattr("medpfl.site.worker.train_plainly", None)
    start = guarded.federation.initial_shared
    numbers = sum(t.numel() for t in start.values())
    length = guarded.site.party.first_step(start, guarded.model)
    assert length == pytest.approx(0.05 * (1 + 25 * numbers) ** 0.5)


def test_a_hello_that_fails_each_round_is_asked_again_for_as_long_as_the_run():
    guarded = Guarded(rounds=150)
    handle, guarded.site.party.handle = guarded.site.party.handle, failing
    for _ in range(151):
        assert guarded.refused("prepare") == "no memory"
    guarded.site.party.handle = handle
    guarded.hello().train(1)


def failing(message, model):
    raise StateError("no memory")


def test_a_round_that_failed_does_not_switch_the_limit_off():
    """One tensor too many fails the round; the next one must not pass for lack of something to compare with."""
    guarded = Guarded(policy=SitePolicy(largest_jump=10)).hello()
    start = guarded.federation.initial_shared
    assert "does not belong to the shared state" in guarded.refused("train", 1, start | {"more": torch.zeros(1)})
    assert "largest_jump" in guarded.refused("train", 2, {k: 30 * t for k, t in imprinting(start).items()})


def test_asking_a_round_again_does_not_switch_the_limit_off():
    guarded = Guarded(policy=SitePolicy(largest_jump=10)).hello()
    for round_ in (1, 2, 3):
        guarded.train(round_, guarded.near() if round_ > 1 else None)
    far = {k: t + 50 for k, t in guarded.last.items()}
    said = []
    for _ in range(3):
        guarded.ask("train", 3, guarded.near(0.01))
        said.append(guarded.refused("train", 3, far))
    assert "largest_jump" in said[0] and "repeats 3 times" in said[-1]  # what is too far counts too


def test_a_control_of_the_servers_choice_is_refused_as_weights_are():
    """Its first step would make any weights of the received ones, and the others would be taken there."""
    guarded = Guarded("scaffold", policy=SitePolicy(largest_jump=10)).hello()
    guarded.train(1)
    start, near = guarded.federation.initial_shared, guarded.near()
    trained = {k: t for k, t in start.items() if t.is_floating_point() and "running" not in k}
    there = {k: 30 * t for k, t in imprinting(start).items()}
    control = {f"control/{k}": (near[k] - there[k]) / 0.1 for k in trained}
    assert "largest_jump" in guarded.refused("train", 2, near | control)
    update = guarded.train(2, near | {name: 1e-3 * torch.sign(t) for name, t in control.items()})
    assert update.round == 2


def test_a_control_does_not_widen_the_next_limit():
    """What it adds to the way is the server's, and no step of the site's own."""
    guarded = Guarded("scaffold", policy=SitePolicy(largest_jump=10)).hello()
    guarded.train(1)
    first = guarded.site.book.read(guarded.site.contract).step
    near = guarded.near()
    parameters = dict(guarded.model.named_parameters())
    control = {f"control/{k}": torch.zeros_like(near[k]) for k in parameters}
    way = 4 * 0.1  # 13 images in batches of 4, 4 and 5, and a rate of 0.1
    control["control/fc1.bias"] += 5 * first / way / 6**0.5
    guarded.train(2, near | control)
    assert guarded.site.book.read(guarded.site.contract).step < 3 * first


@pytest.mark.parametrize("image", [60.0, float("nan")])
def test_images_to_train_with_are_the_methods_alone(image):
    images_ = torch.full((8, 1, 4, 4), image, dtype=torch.float16)
    impression = {"impression/images": images_, "impression/labels": torch.zeros(8, dtype=torch.int64)}
    method = {"model": "tiny:Net", "rounds": 3, "local_epochs": 1}
    settings = {"warmup": 1, "images": 8, "start": "noise"}
    for algorithm, fields in (("fedavg", {}), ("fedimpres", {**method, "settings": settings})):
        guarded = Guarded(algorithm, **fields).hello()
        words = "contract: something came that the method does not have"
        if algorithm == "fedimpres":
            words = "contract: 'impression' is not as the method has it"
        assert guarded.refused("train", 1, guarded.federation.initial_shared | impression) == words
        guarded.train(1)
        assert guarded.refused("train", 2, guarded.near() | impression) == words


def test_an_update_that_leaps_does_not_widen_the_next_limit():
    guarded = Guarded(policy=SitePolicy(largest_jump=10)).hello()
    guarded.train(1)
    step = guarded.site.book.read(guarded.site.contract).step
    party = guarded.site.party
    party.config = party.config.model_copy(update={"settings": {"lr": 5.0, "batch_size": 4}})
    party.config.__dict__.pop("all_settings", None)
    guarded.ask("train", 2, guarded.near())
    assert step < guarded.site.book.read(guarded.site.contract).step <= 5 * step


def test_the_limit_on_jumps_holds_for_validation_too():
    guarded = Guarded(policy=SitePolicy(largest_jump=10)).hello()
    for round_ in (1, 2, 3):
        guarded.train(round_, guarded.near() if round_ > 1 else None)
    constant = guarded.near()
    constant["fc2.bias"][0] = 1e4
    assert "largest_jump" in guarded.refused("validate", 3, constant)
    assert not isinstance(guarded.ask("validate", 3, guarded.near()), Failure)


@pytest.mark.parametrize(
    "algorithm",
    [
        "fedap",
        "scaffold",
        *(
            pytest.param(m, marks=pytest.mark.slow)
            for m in ("fedavg", "fedprox", "fedbn", "fedper", "lg-fedavg", "f-fedap", "local")
        ),
    ],
)
def test_an_honest_federation_never_meets_the_limits(algorithm):
    """All of a hospital's rules but its least number of patients, which these sites do not have."""
    policy = HOSPITAL.model_copy(
        update={
            "least_patients": 0,
            "measures": "full",
            "verdict": True,
            "named_pretrained": False,
            "approved_weights": False,
        }
    )
    plain, strict = [], []
    for policy_, found in ((None, plain), (policy, strict)):
        federation = Federation.of(config(algorithm, rounds=6))
        sites = sites_of(federation)
        if policy_:
            sites = {name: federation.guarded(site, policy=policy_) for name, site in sites.items()}
        state = run_in_process(plan_of(federation), sites, federation.model, workers=1)
        assert not state.failures
        found.append(state)
    assert all(same(plain[0].shared[name], strict[0].shared[name]) for name in plain[0].shared)
    assert plain[0].final == strict[0].final


@pytest.mark.parametrize("measures", ["full", "coarse", "none"])
def test_whatever_measures_leave_the_models_are_the_same(measures):
    federation = Federation.of(config("fedavg", rounds=3))
    sites = {
        name: federation.guarded(site, policy=SitePolicy(measures=measures))
        for name, site in sites_of(federation).items()
    }
    state = run_in_process(plan_of(federation), sites, federation.model, workers=1)
    assert not state.failures
    validation = state.history[-1]["sites"]["site-1"]["validation"]
    assert validation is None if measures == "none" else validation["n"] == (5 if measures == "full" else 10)


def test_a_site_whose_measures_stay_selects_its_round_by_itself():
    guarded = Guarded(policy=SitePolicy(measures="none")).hello()
    party, own = guarded.site.party, []
    for round_ in (1, 2, 3):
        update = guarded.train(round_, guarded.near(0.3) if round_ > 1 else None)
        assert update.metrics == {"train_loss": None, "validation": None}
    guarded.ask("validate", 3, guarded.near(0.3))
    for round_ in (1, 2, 3):
        state = party.store.get("model", round_)
        own.append(state is not None)
    update = guarded.ask("test", 3, selected_round=3)
    assert update.metrics["test"] == {"selected": None, "last": None}
    assert update.metrics["tested"]["selected"] == int(party.store.get("best", 0)["round"])
    assert own[2]
    assert own[update.metrics["tested"]["selected"] - 1]


def test_rows_are_compared_all_of_them_and_by_what_the_sender_cannot_know():
    odd = torch.randn(1024, 784)
    odd[1::2] = odd[1]
    assert copied(odd) == pytest.approx(512 / 256, abs=0.02)
    assert copied(torch.randn(1024, 784)) == 0
    assert copied(torch.randn(40, 64)) == 0


@pytest.mark.parametrize("length", [1e5, 1e20, 1e38])
def test_a_long_row_hides_no_copies(length):
    rows = 0.1 * torch.randn(784).expand(256, -1).clone()
    rows[0] = length * torch.randn(784).clamp(-3, 3)
    assert copied(rows) == pytest.approx(255 / 256)


def test_a_wide_layer_has_no_more_copies_than_one_of_256_rows():
    rows = torch.randn(4096, 784)
    rows[:400] = rows[0]
    assert copied(rows) > 1


def test_rows_that_adam_trained_alike_are_no_copies():
    """A third of them come within a cosine of 0.5 of another."""
    torch.manual_seed(0)
    x, y = torch.randn(600, 784), torch.arange(600) % 3
    x += (torch.randn(3, 784) / 3)[y]
    model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 3))
    optimizer = torch.optim.Adam(model.parameters(), 0.002)
    for _ in range(150):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    unit = torch.nn.functional.normalize(model[0].weight.detach())
    alike = (unit @ unit.T).fill_diagonal_(0).abs().amax(1)
    assert (alike > 0.5).float().mean() > 0.2
    assert copied(model[0].weight) < 0.1


def f_message(guarded, f):
    info = {"split": guarded.federation.split.description(), "asked": ["statistics"]}
    return answer(guarded.site, Message("prepare", 0, f, info), guarded.model)


def test_statistics_are_taken_under_the_contracted_f_alone():
    f, other = Net().state_dict(), Net().state_dict()
    named = Guarded("fedap", policy=SitePolicy(named_pretrained=True), pretrained=f"sha256:{fingerprint(f)}")
    assert f_message(named, other).reason == "contract: the pretrained model f is another than the contract names"
    assert f_message(named, f).tensors
    unnamed = Guarded("fedap", policy=SitePolicy(named_pretrained=True))
    assert "takes no pretrained model f without its fingerprint" in f_message(unnamed, f).reason


def test_weights_that_a_job_brings_are_taken_of_approved_contracts_alone():
    """By f, or start weights, of one's own making one hello, or one round, gives single patients' images."""
    f, own = Net().state_dict(), SitePolicy(approved_weights=True)
    named = Guarded("fedap", policy=own, pretrained=f"sha256:{fingerprint(f)}")
    refused = f_message(named, f).reason
    assert refused.startswith("policy: the job brings weights") and listed(refused, set()) == refused
    approving = own.model_copy(update={"approved": (named.site.contract.hash,)})
    assert f_message(Guarded("fedap", policy=approving, pretrained=f"sha256:{fingerprint(f)}"), f).tensors
    Guarded("f-fedap", policy=own).hello()
    assert not own.lets_bring(config("fedavg", init="start.safetensors"), "a hash")
    assert HOSPITAL.approved_weights


def test_a_server_that_resumes_one_step_behind_gets_the_same_answer():
    federation = Federation.of(config("fedbn", rounds=3))
    sites = {name: federation.guarded(site) for name, site in sites_of(federation).items()}
    plan, model, state, states = plan_of(federation), federation.model(), ServerState(), []
    while state.phase != "done":
        asked = messages(plan, state)
        replies = [answer(sites[name], message, model) for name, message in asked.items()]
        assert not [r for r in replies if isinstance(r, Failure)]
        kept = {r.site: {k: t.clone() for k, t in r.tensors.items()} for r in replies}
        again = {name: answer(sites[name], message, model) for name, message in asked.items()}
        assert all(same(again[name].tensors, kept[name]) for name in again)
        states.append(state)
        state = advance(plan, state, replies, 0)
    assert state.final


def test_a_method_by_which_the_server_leads_training_is_refused():
    curved = Guarded("fedcurv", policy=SitePolicy(copied_rows=0.1))
    assert curved.refused("prepare").startswith("policy: by 'curvature' a server leads training past largest_jump")
    Guarded("fedcurv", policy=SitePolicy()).hello()
    for method in ("fedreg", "vhl", "fedvss"):  # nothing comes but the model
        Guarded(method, policy=SitePolicy(copied_rows=0.1, largest_jump=10)).hello()
