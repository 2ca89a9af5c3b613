"""What a site keeps for itself between rounds: personal state and the models it may select at the end.

Nothing of it is sent, but for what left with noise, again, where the same is asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from torch import nn

from medpfl.core.errors import TornFile, UserError
from medpfl.core.parameters import State
from medpfl.core.statefile import read_state, write_state
from medpfl.site import words
from medpfl.site.seal import Seal

logger = logging.getLogger(__name__)


PERSONAL, MODEL, RECEIVED = "personal", "model", "received"
"""Kinds of states: after training in a round; the whole model in use after a round's mix; the model as received, where
that is another."""
OPTIMIZER = "optimizer"
"""What optimizers left in a round, where they do not start afresh in each."""
FINISHED, USED = "finished", "used"
"""What mechanisms have made of the model at the end; what the site has chosen to use, where it had a choice."""
SENT = "sent"
"""What left with noise in a round, and the question that it answered."""
DATA, BEST = "data", "best"
"""What the site's data were when the run began; the round that the site has selected by itself, and its measure."""


class StateNotKept(UserError):
    """A site's state could not be written or read (disk full, no permission); what was there before is still there."""


class SiteStore(Protocol):
    """Named states of one site, one for each round kept."""

    def put(self, kind: str, round_: int, state: State) -> None:
        """Keeps a state; an earlier one of the same kind and round is replaced."""

    def get(self, kind: str, round_: int) -> State | None:
        """The state, or None if there is none. Raises TornFile if it is damaged."""

    def keep(self, kind: str, rounds: Iterable[int]) -> None:
        """Drops all states of the kind but those of the given rounds."""

    def rounds(self, kind: str) -> list[int]:
        """Of which rounds there are states of the kind, in order."""


class MemoryStore:
    """States in memory, for runs that need no resume."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, int], State] = {}

    def put(self, kind: str, round_: int, state: State) -> None:
        """See :class:`SiteStore`."""
        self._states[kind, round_] = state

    def get(self, kind: str, round_: int) -> State | None:
        """See :class:`SiteStore`."""
        return self._states.get((kind, round_))

    def keep(self, kind: str, rounds: Iterable[int]) -> None:
        """See :class:`SiteStore`."""
        wanted = set(rounds)
        self._states = {k: v for k, v in self._states.items() if k[0] != kind or k[1] in wanted}

    def rounds(self, kind: str) -> list[int]:
        """See :class:`SiteStore`."""
        return sorted(round_ for name, round_ in self._states if name == kind)


class DiskStore:
    """States as files in a folder that belongs to the site.

    Args:
        folder: made if needed; one for each site and experiment.
        durable: wait for the disk at every write, so that states outlive a power failure and not just a kill.
        seal: of the site; files without it count as damaged.

    Raises:
        StateNotKept: the folder cannot be made.
    """

    def __init__(self, folder: Path, durable: bool, seal: Seal | None = None) -> None:
        self.folder, self.durable, self.seal = folder, durable, seal
        with self._access("write"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if seal:
                folder.chmod(0o700)  # one that an earlier version made

    def put(self, kind: str, round_: int, state: State) -> None:
        """See :class:`SiteStore`. Raises StateNotKept."""
        with self._access("write"):
            write_state(self._path(kind, round_), state, durable=self.durable, seal=self.seal, mode=0o600)

    def get(self, kind: str, round_: int) -> State | None:
        """See :class:`SiteStore`. Raises StateNotKept."""
        path = self._path(kind, round_)
        with self._access("read"):
            return read_state(path, self.seal)[0] if path.exists() else None

    def keep(self, kind: str, rounds: Iterable[int]) -> None:
        """See :class:`SiteStore`. Raises StateNotKept."""
        wanted = {self._path(kind, r) for r in rounds}
        with self._access("write"):
            for path in self._files(kind):
                if path not in wanted:
                    path.unlink()
            for unfinished in self.folder.glob(f".{kind}-[0-9]*.safetensors.*.tmp"):  # a kill left it
                unfinished.unlink()

    def rounds(self, kind: str) -> list[int]:
        """See :class:`SiteStore`. Raises StateNotKept."""
        with self._access("read"):
            return sorted(int(path.stem.rpartition("-")[2]) for path in self._files(kind))

    def _files(self, kind: str) -> list[Path]:
        """Of one kind: another's name may begin with its, and a hyphen."""
        found = ((path, *path.stem.rpartition("-")[::2]) for path in self.folder.glob(f"{kind}-*.safetensors"))
        return [path for path, name, number in found if name == kind and number.isdecimal()]

    @contextmanager
    def _access(self, what: str) -> Iterator[None]:
        """Words for what the file system refuses. The folder is the site's own business: its log alone has it."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or type(error).__name__
            logger.warning(
                "cannot %s the site's state: %s: %s; whoever runs this must be able to write in %s, and the disk "
                "must have room",
                what,
                error.filename or self.folder,
                reason,
                self.folder,
            )
            raise StateNotKept(words.NO_STATE(what, reason)) from error

    def _path(self, kind: str, round_: int) -> Path:
        return self.folder / f"{kind}-{round_:06d}.safetensors"


def copied(model: nn.Module) -> State:
    """A model's whole state, as it is now."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def keep_latest(store: SiteStore, kind: str, round_: int, counted: Sequence[int] = ()) -> None:
    """Keeps the state of a round and the last two before it, whenever those were: a site may have missed rounds.

    A server whose checkpoint is damaged asks for the round before again, which starts from the one before that. With
    the last two whose answers the server used, older where answers were lost, for the same reason; or the last one up
    to each of these.
    """
    before = [r for r in store.rounds(kind) if r < round_]
    used = {max(there) for last in counted if (there := [r for r in before if r <= last])}
    store.keep(kind, sorted({*used, *before[-2:], round_}))


def usable(store: SiteStore, kind: str, round_: int, site: str) -> State | None:
    """A stored state; a damaged one is as good as none, and the site's log says so."""
    try:
        return store.get(kind, round_)
    except TornFile as error:
        logger.warning("%s: %s; an earlier one is used", site, error)
        return None
