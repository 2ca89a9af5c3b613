"""Server and sites in one process: a loop over the same functions that FLARE's controller and executors call."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from medpfl.core.errors import first_line
from medpfl.core.growing import Growing
from medpfl.core.messages import Failure, Message, Update
from medpfl.core.quiet import traced_once
from medpfl.core.seeding import drawn_apart
from medpfl.core.server_state import ServerState
from medpfl.core.stopping import OF_SITES, ends_when
from medpfl.core.threads import intra_op_threads
from medpfl.engine.first_model import pick_device
from medpfl.engine.progress import Progress, Watch, watch_nothing
from medpfl.server.checkpoint import CHECKPOINT, save_checkpoint
from medpfl.server.rounds import Plan, advance, messages
from medpfl.server.state import require_same_pretrained
from medpfl.site.answer import Party, answer

logger = logging.getLogger(__name__)


def run_in_process(
    plan: Plan,
    sites: Mapping[str, Party],
    make_model: Callable[[], nn.Module],
    *,
    workers: int,
    earlier: ServerState | None = None,
    checkpoint: Path | None = None,
    watch: Watch = watch_nothing,
    after_step: Callable[[ServerState], None] = lambda _: None,
    started: float | None = None,
) -> ServerState:
    """Runs a federation to its end.

    Args:
        plan: the server's.
        sites: every site by name.
        make_model: a fresh model on the device; called once a worker, before sites are at work: all draw from one
            generator, and what is no part of its state, such as a buffer that is not persistent, must be alike.
        workers: sites computed side by side, each with the threads that the configuration gives a site.
        earlier: the state that a run is gone on from; by default it begins.
        checkpoint: folder of the server's checkpoint; None keeps none.
        watch: called with every answer.
        after_step: called with the state after every step, once it is in the checkpoint.
        started: when the call began that the run is part of, by :func:`time.perf_counter`; by default now.

    Raises:
        QuorumNotMet: too few sites gave a usable answer; the checkpoint holds the state before.
        UserError: f is another one than before.
    """
    state = earlier or ServerState()
    since = (time.perf_counter() if started is None else started) - state.seconds
    file = checkpoint / CHECKPOINT if checkpoint else None
    require_same_pretrained(plan, state)
    local, stop = threading.local(), threading.Event()

    def work(name: str, message: Message) -> Update | Failure:
        torch.set_num_threads(plan.config.intra_op_threads)
        with ends_when(stop):
            if not hasattr(local, "model"):
                local.model = models.pop()
            return answer(sites[name], message, local.model)

    # The server's own work has all the threads there are, as on a server.
    own_threads = torch.get_num_threads()
    apart = drawn_apart(pick_device(plan.config))
    with apart, intra_op_threads(own_threads), traced_once(answer.__module__), _workers(workers, stop) as pool:
        models, rounds = [make_model() for _ in range(workers)], Growing()
        while state.phase != "done":
            asked = time.perf_counter()
            outgoing = messages(plan, state)
            watch(Progress(state.phase, state.round, 0, len(outgoing)))
            pending = [pool.submit(work, name, message) for name, message in outgoing.items()]
            replies: list[Update | Failure] = []
            for future in as_completed(pending):
                replies.append(future.result())
                watch(Progress(state.phase, state.round, len(replies), len(outgoing)))
            now = time.perf_counter()
            state = replace(advance(plan, state, replies, now - asked), seconds=time.perf_counter() - since)
            if file:
                save_checkpoint(file, plan.config, state, durable=False, rounds=rounds)
            after_step(state)
    return state


@contextmanager
def _workers(number: int, stop: threading.Event) -> Iterator[ThreadPoolExecutor]:
    """Threads for sites. On an interrupt none begins, and those at work end after their batch; another waits for none.

    Args:
        number: of threads.
        stop: set on an interrupt.
    """
    pool = ThreadPoolExecutor(number, OF_SITES)
    try:
        yield pool
    except BaseException as error:
        stop.set()
        if isinstance(error, KeyboardInterrupt):
            logger.warning("stopping: the sites that are at work end after their batch; interrupt again to end at once")
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def parallel_sites(sites: Mapping[str, Party], model: nn.Module, device: torch.device, cores: int) -> int:
    """How many sites can be computed side by side with the same results as one after another.

    Layers like dropout draw from torch's global generator, and so do the user's own loaders: such sites take turns.
    """
    if device.type != "cpu" or not all(site.data.reproducible for site in sites.values()):
        return 1
    some = max(sites.values(), key=lambda site: site.data.samples("train")).data
    inputs, _ = next(iter(some.batches("train", 2)))
    try:
        random = _draws_random_numbers(model, torch.cat([inputs, inputs]))  # batch norm needs two, and there may be one
    except Exception as error:  # of a network that does not take these images, as each site is going to say
        logger.warning("%s on images %s: %s", type(model).__name__, list(inputs.shape[1:]), first_line(error))
        random = True
    if random:
        return 1
    return max(1, min(cores, len(sites)))


def _draws_random_numbers(model: nn.Module, inputs: Tensor) -> bool:
    with drawn_apart(), torch.no_grad():
        before = torch.get_rng_state()
        copy.deepcopy(model).train()(inputs)
        return not torch.equal(before, torch.get_rng_state())
