"""What a site's log may say, since FLARE can stream the error log to the server."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from torch import nn

from medpfl.config.run import make_config
from medpfl.core.messages import Message, Update
from medpfl.core.parameters import StateError
from medpfl.engine.federation import Federation
from medpfl.flare.transport.executor import PersonalizedExecutor
from medpfl.flare.transport.join_executor import JoinExecutor
from medpfl.flare.transport.payload import REASON, message_to_model
from medpfl.flare.transport.place import Place
from medpfl.flare.transport.trust import REHEARSAL
from medpfl.site.contents import contents
from medpfl.site.hooks import WrongForm
from medpfl.site.policy import HOSPITAL, OPEN
from medpfl.site.words import NEWCOMERS_SPLIT, NO_ENTRY_OF_THE_RUN, WRONG_FORM


def test_a_site_that_cannot_read_its_data_says_nothing_of_them_in_its_error_log(tmp_path, caplog, at_site):
    folder = tmp_path / "secret-hospital"
    folder.mkdir()
    (folder / "labels.csv").write_text("series,label\nsecret-series,9\n")
    arguments = {"classes": ["no", "yes"]}
    config = make_config(
        algorithm="vit-heads", data=str(folder), data_args=arguments, partition="natural", sites=2, device="cpu"
    )
    executor = PersonalizedExecutor(config.model_dump(mode="json"))
    with caplog.at_level(logging.DEBUG):
        reply = executor.execute("prepare", Shareable(), at_site(tmp_path), Signal())
    assert "secret" not in reply.get_header(REASON)
    assert "secret-hospital" in caplog.text  # in the site's other log
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert errors
    assert not any("secret" in message for message in errors)
    assert not any(r.exc_info for r in caplog.records if r.levelno >= logging.ERROR)


def test_a_site_that_cannot_make_its_folder_says_so_and_not_where(tmp_path, caplog, at_site):
    (tmp_path / "medpfl").write_text("in the folder's place")
    executor = PersonalizedExecutor(make_config(algorithm="fedavg", sites=2).model_dump(mode="json"), "mine")
    with caplog.at_level(logging.DEBUG):
        reply = executor.execute("prepare", Shareable(), at_site(tmp_path, "site-1"), Signal())
    assert reply.get_header(REASON) == "policy: the site's ledger cannot be written, so nothing leaves"
    assert f"File exists: '{tmp_path / 'medpfl'}'" in caplog.text
    assert not any(str(tmp_path) in r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR)


def test_of_what_a_mechanism_gave_wrongly_its_names_leave_and_the_text_is_in_the_sites_own_log(
    tmp_path, caplog, at_site
):
    federation = Federation.of(make_config(algorithm="fedprox", sites=2, device="cpu", train_fraction=0.1))

    class Wrong:
        name, gate = "site-1", federation.gate()

        def handle(self, message, model):
            raise WrongForm("proximal", "term", "its term gave 'Jane Doe', not a scalar tensor")

    executor = PersonalizedExecutor({})
    executor._ready = Wrong(), nn.Identity()
    asked = FLModelUtils.to_shareable(message_to_model(Message("train", 1), 2))
    with caplog.at_level(logging.DEBUG):
        reply = executor.execute("train", asked, at_site(tmp_path), Signal())
    assert reply.get_header(REASON) == WRONG_FORM("term", "proximal", "train")
    assert "its term gave 'Jane Doe', not a scalar tensor" in caplog.text
    assert not any("Jane" in r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR)


@pytest.mark.parametrize("what", ["prototypes/Jane-Doe", "loss_jane_doe"])
def test_what_code_calls_what_it_made_as_it_ran_never_leaves(tmp_path, caplog, at_site, what):
    """Not even where the server lists it among the names that it says are shared, as one guess of many."""
    federation = Federation.of(make_config(algorithm="fedavg", sites=2, device="cpu", train_fraction=0.1))

    class Careless:
        name, gate = "site-1", federation.gate()

        def handle(self, message, model):
            tensors = federation.initial_shared | ({what: torch.zeros(1)} if "/" in what else {})
            numbers = {} if "/" in what else {"numbers": {what: 2.5}}
            metrics = {"train_loss": 0.5, "validation": None} | numbers
            return self.gate.passed("train", Update("site-1", 1, tensors, metrics, 1.0))

    executor = PersonalizedExecutor({})
    executor._ready = Careless(), nn.Identity()
    guesses = {"split": [what, "prototypes/John-Doe"]}
    asked = FLModelUtils.to_shareable(message_to_model(Message("train", 1, {}, guesses), 2))
    with caplog.at_level(logging.DEBUG):
        reply = executor.execute("train", asked, at_site(tmp_path), Signal())
    kind = "a tensor" if "/" in what else "a number"
    assert reply.get_header(REASON) == NO_ENTRY_OF_THE_RUN(kind)
    assert what in caplog.text  # in the site's other log
    assert not any(what in r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR)


@pytest.mark.parametrize("task", ["prepare", "statistics", "join"])
def test_where_a_site_and_the_server_disagree_on_what_is_shared_is_named(tmp_path, at_site, task):
    class Other:
        name, gate = "site-1", Federation.of(make_config(algorithm="fedavg", sites=2, device="cpu")).gate()

        def handle(self, message, model):
            raise StateError(NEWCOMERS_SPLIT("only there 'theirs'"))

    executor = PersonalizedExecutor({}) if task == "prepare" else JoinExecutor({}, {})
    executor._ready = Other(), nn.Identity()
    asked = FLModelUtils.to_shareable(message_to_model(Message(task, 0, {}, {"split": ["theirs"]}), 2))
    reply = executor.execute(task, asked, at_site(tmp_path), Signal())
    assert reply.get_header(REASON) == "it and the server disagree on what is shared: only there 'theirs'"


def test_noise_comes_from_a_key_of_the_site_and_in_a_rehearsal_from_the_seed(tmp_path, at_site, monkeypatch):
    monkeypatch.delenv(REHEARSAL, raising=False)
    secrets = []
    for folder, name in ((tmp_path / "a", "north"), (tmp_path / "a", "north"), (tmp_path / "b", "north")):
        folder.mkdir(exist_ok=True)
        secrets.append(Place.of(at_site(folder, name), None, "mine").secret)
    assert secrets[0] == secrets[1] != secrets[2]  # the site's for good, and no other's
    assert len(secrets[0]) == 32
    monkeypatch.setenv(REHEARSAL, "1")
    assert Place.of(at_site(tmp_path / "a", "north"), None, "mine").secret is None


def test_a_real_site_compares_what_it_trains_on_and_draws_from_its_secret(tmp_path):
    place = Place("site-1", {}, HOSPITAL, tmp_path / "run" / "site-1", tmp_path, bytes(range(32)), "coordinator", "job")
    federation = Federation.of(make_config(algorithm="fedavg", sites=2, rounds=1, device="cpu", train_fraction=0.1))
    site = federation.site(place.name, place.store(), place.policy, place.secret)
    guarded = place.guarded(federation, site, federation.source, place.contract(federation.config))
    assert guarded.sets.contents() == contents(site.data) != frozenset()
    assert len(guarded.sets.whose()) == site.data.samples("train") == len(guarded.sets.contents())
    assert site.chance != federation.site(place.name, place.store(), OPEN, place.secret).chance


def test_tasks_that_come_at_once_are_done_one_after_the_other(tmp_path, at_site, monkeypatch):
    """FLARE gives an executor what a server sends besides in other threads; a tested model would leave as an update."""
    executor, inside, most = PersonalizedExecutor({}), [], []

    def done(self, task, *_):
        inside.append(task)
        most.append(len(inside))
        time.sleep(0.05)
        inside.remove(task)

    monkeypatch.setattr(PersonalizedExecutor, "_execute", done)
    context = at_site(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda task: executor.execute(task, Shareable(), context, Signal()), executor.tasks))
    assert most == [1] * len(executor.tasks)


def test_a_task_that_waited_is_not_begun_after_an_abort(tmp_path, at_site, monkeypatch):
    monkeypatch.setattr(PersonalizedExecutor, "_execute", lambda *_: 1 / 0)
    aborted = Signal()
    aborted.trigger(True)
    reply = PersonalizedExecutor({}).execute("train", Shareable(), at_site(tmp_path), aborted)
    assert reply.get_return_code() == ReturnCode.TASK_ABORTED
