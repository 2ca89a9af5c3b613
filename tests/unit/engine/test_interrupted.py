"""A run that is killed, or whose disk fails, goes on with the same figures."""

import threading
import time

import pytest
from test_inprocess import IsAway, same_runs, swap
from tiny import config, figures, no_space, plan_of, run, sites_of

from medpfl.core.messages import Failure
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.server.checkpoint import CHECKPOINT, last_state
from medpfl.site.store import DiskStore
from medpfl.site.worker import Site


@pytest.mark.parametrize("stop", [0, 2, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 4))])
def test_a_killed_run_goes_on_as_if_nothing_had_been(tmp_path, stop):
    run_config = config("fedap")
    federation = Federation.of(run_config)
    sites, steps = sites_of(federation), []

    def kill(state):
        steps.append(state.phase)
        if len(steps) == stop + 1:
            raise KeyboardInterrupt

    def go(after_step=lambda _: None):
        plan = plan_of(federation)
        earlier = last_state(tmp_path / CHECKPOINT, run_config)
        options = {"checkpoint": tmp_path, "earlier": earlier, "after_step": after_step}
        return run_in_process(plan, sites, federation.model, workers=1, **options)

    with pytest.raises(KeyboardInterrupt):
        go(kill)
    resumed, whole = (go(), sites), run(run_config)
    assert same_runs(resumed, whole)
    assert figures(resumed[0].history) == figures(whole[0].history)
    assert resumed[0].final == whole[0].final


def test_who_interrupts_a_run_waits_for_no_site_that_has_not_begun():
    federation = Federation.of(config(min_sites=1))
    trained, begun = [], threading.Event()

    class Slow:
        def __init__(self, site):
            self.site, self.name, self.data = site, site.name, site.data

        def handle(self, message, model):
            if message.task == "train":
                trained.append(self.name)
                if len(trained) == 2:
                    begun.wait(20)
            return self.site.handle(message, model)

    def interrupt(progress):
        if progress.phase == "train" and progress.answered == 1:
            threading.Timer(0.5, begun.set).start()
            raise KeyboardInterrupt

    sites = {name: Slow(site) for name, site in sites_of(federation).items()}
    with pytest.raises(KeyboardInterrupt):
        run_in_process(plan_of(federation), sites, federation.model, workers=1, watch=interrupt)
    assert len(trained) < len(sites) == 3


def test_who_interrupts_a_run_waits_for_no_more_than_a_batch_of_the_sites_at_work(caplog):
    """A round of theirs would take minutes; the first site is away once both train."""
    federation = Federation.of(config(min_sites=1, local_epochs=10_000))
    sites, others = sites_of(federation), threading.Semaphore(0)

    class Away(Site):
        def handle(self, message, model):
            others.acquire()
            others.acquire()
            raise KeyError

    class Busy(Site):
        def handle(self, message, model):
            others.release()
            return super().handle(message, model)

    for name, kind in zip(sites, (Away, Busy, Busy), strict=True):
        s = sites[name]
        sites[name] = kind(s.name, s.config, s.split, s.initial_personal, s.data, s.store, s.chance)

    def interrupt(progress):
        if progress.phase == "train" and progress.answered == 1:
            raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_in_process(plan_of(federation), sites, federation.model, workers=3, watch=interrupt)
    assert time.monotonic() - started < 20
    assert "stopping: the sites that are at work end after their batch" in caplog.text


@pytest.mark.parametrize("stop", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4)), 5])
def test_a_torn_checkpoint_costs_two_steps_and_no_figure(tmp_path, stop):
    """The sites have done the step after the torn one when the server is killed."""
    run_config = config("fedap")
    federation = Federation.of(run_config)
    sites = {n: federation.site(n, DiskStore(tmp_path / n, durable=False)) for n in run_config.site_names}
    file, answered = tmp_path / CHECKPOINT, []

    def kill(progress):
        if progress.answered == progress.expected:
            answered.append(progress)
            if len(answered) == stop + 2:
                raise KeyboardInterrupt

    def go(watch=lambda _: None):
        plan = plan_of(federation)
        options = {"checkpoint": tmp_path, "earlier": last_state(file, run_config), "watch": watch}
        return run_in_process(plan, sites, federation.model, workers=1, **options)

    if stop < 5:
        with pytest.raises(KeyboardInterrupt):
            go(kill)
    else:
        go()
    file.write_bytes(file.read_bytes()[:-9])
    resumed, whole = (go(), sites), run(run_config)
    assert same_runs(resumed, whole)
    assert figures(resumed[0].history) == figures(whole[0].history)
    assert resumed[0].final == whole[0].final
    (note,) = resumed[0].failures
    assert (note.site, note.reason) == (
        "server",
        "its last checkpoint was damaged; the run went on from the one before",
    )


class HasAFullDisk(Site):
    def handle(self, message, model):
        with no_space(message.task == "train" and message.round == 2):
            return super().handle(message, model)


def test_a_full_disk_at_a_site_costs_it_one_round(tmp_path):
    def change(sites):
        swap(HasAFullDisk)(sites)
        sites["site-2"].store = DiskStore(tmp_path, durable=True)

    state, sites = run(config("fedbn"), change)
    assert state.failures == (
        Failure("site-2", 2, "the site cannot write its state: File too large (its log says more)"),
    )
    away, without = run(config("fedbn"), swap(IsAway))
    assert same_runs((state, sites), (away, without))
    assert not [file for file in tmp_path.iterdir() if file.suffix != ".safetensors"]
