"""Every random choice derives from (seed, who, when, what for), so a run repeats bit for bit in any engine."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, e.g. ``derive_seed(0, "site-3", 12, "shuffle")``.

    Args:
        seed: the seed of the run.
        purpose: what the random numbers are for; every distinct tuple gives an independent seed.
    """
    text = "\x1f".join([str(int(seed)), *map(str, purpose)])
    content = text.encode(errors="surrogateescape")  # a purpose may be a file's name, which need not be UTF-8
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator seeded with :func:`derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


def seed_global(seed: int) -> None:
    """Seeds torch's global generators, the CPU's and all GPUs', from which layers like dropout draw.

    ``torch.manual_seed`` does so too, and for each kind of accelerator that has not begun it notes where it was called
    from: a millisecond, in which a small network takes a step.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def drawn_apart(device: torch.device | None = None) -> Iterator[None]:
    """What is drawn meanwhile leaves torch's global generators as they were: the CPU's, and a GPU's that is named.

    To look at every GPU's would begin each of them, also in a run on the CPU.
    """
    with torch.random.fork_rng(devices=[device] if device and device.type == "cuda" else []):
        yield


class Order(torch.Generator):
    """The order of an epoch's samples.

    Attributes:
        changes: random numbers for what is done to samples, augmentation and where patches lie; None where they go on
            in the same.
        even: batches are as alike in size as can be.
        batch: which training samples, (B,) int64, the batch has that is trained on; None while there is none. Whoever
            gives batches says it.
        step: of what it is trained on: the round's own, or a further step of a method's (:func:`trained_on_too`).
        given: of samples of which nobody knows which they are, how many there were so far.
        taken: called after each of the round's own steps with what its gradients were multiplied by, 0 where the step
            was left out; None where nobody listens.
    """

    changes: torch.Generator | None = None
    even: bool = False
    batch: torch.Tensor | None = None
    step: str = ""
    given: int = 0
    taken: Callable[[torch.Tensor | float], None] | None = None


def is_even(order: torch.Generator) -> bool:
    """Whether batches are as alike in size as can be, in an order that is the same in every round."""
    return isinstance(order, Order) and order.even


def end_batch(order: torch.Generator) -> None:
    """What goes through the model until the next batch is none that is trained on."""
    if isinstance(order, Order):
        order.batch = None


def listener(order: torch.Generator) -> Callable[[torch.Tensor | float], None] | None:
    """Who is to hear of each step that is taken in this order; None for nobody."""
    return order.taken if isinstance(order, Order) else None


@contextmanager
def trained_on_too(order: torch.Generator | None, samples: torch.Tensor | None, step: str) -> Iterator[None]:
    """Inside, what goes through the model is made of these samples of the site's, and its weights move by that, too."""
    if not isinstance(order, Order):
        yield
        return
    before = order.batch, order.step
    order.batch, order.step = samples, step
    try:
        yield
    finally:
        order.batch, order.step = before


def changes_of(order: torch.Generator) -> torch.Generator:
    """Random numbers for what is done to samples in this order."""
    return (order.changes if isinstance(order, Order) else None) or order


@dataclass(frozen=True)
class Chance:
    """What a site draws at random while it trains: the order of samples, augmentation, dropout.

    Attributes:
        seed: all derives from it.
        one_order: the order of samples, and dropout, are the same in every round; what is done to samples never is, nor
            what loaders of one's own draw.
    """

    seed: int
    one_order: bool = False

    def order(self, site: str, when: str | int, purpose: str) -> Order:
        """Random numbers of a site for a purpose, in a round or whenever else (``join``, ``end``)."""
        found, one = Order(), self.one_order and isinstance(when, int)
        found.manual_seed(derive_seed(self.seed, site, *([] if one else [when]), purpose))
        if one:
            found.even, found.changes = True, generator(self.seed, site, when, purpose, "changes")
        return found
