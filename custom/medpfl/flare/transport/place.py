"""What a site's process knows of its site: name, folders, policy, key, and whose the job is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from medpfl.config.run import RunConfig
from medpfl.core.parameters import StateError
from medpfl.data.source import DataSource, training_patients
from medpfl.engine.federation import Federation
from medpfl.engine.first_model import pick_device
from medpfl.flare.transport.policy import SiteForbids
from medpfl.flare.transport.state import state_folder
from medpfl.flare.transport.trust import is_rehearsal, submitter
from medpfl.site import words
from medpfl.site.account import Account
from medpfl.site.book import Book
from medpfl.site.contents import contents
from medpfl.site.contract import Contract
from medpfl.site.guard import Guarded
from medpfl.site.ledger import Ledger
from medpfl.site.local_file import read_policy, read_site_manifest
from medpfl.site.many_patients import require_words
from medpfl.site.newcomer import Newcomer
from medpfl.site.policy import SitePolicy
from medpfl.site.seal import Seal, make_key, read_key
from medpfl.site.store import DiskStore
from medpfl.site.training_sets import open_training_sets
from medpfl.site.worker import Site


@dataclass(frozen=True)
class Place:
    """A site in one job.

    Attributes:
        name: the site's.
        own: where it has data, by the names that jobs use.
        policy: what it allows.
        folder: its own, for the job's experiment.
        root: the folder of all experiments, with the ledger.
        key: the site's; None in a rehearsal.
        submitter: whose job it is.
        job: FLARE's number of it.
    """

    name: str
    own: Mapping[str, Path]
    policy: SitePolicy
    folder: Path
    root: Path
    key: bytes | None
    submitter: str
    job: str

    @classmethod
    def of(cls, fl_ctx: FLContext, state_dir: str | None, experiment: str) -> Place:
        """From the context of a task.

        Args:
            fl_ctx: FLARE's.
            state_dir: where the job says that state is; None for the site's workspace.
            experiment: the job's name for it; empty for the job's own number.

        Raises:
            UserError: the site's files are not as they must be.
        """
        workspace = fl_ctx.get_engine().get_workspace()
        local, rehearsal = Path(workspace.get_site_config_dir()), is_rehearsal(fl_ctx)
        if not rehearsal:
            make_key(local)
        job, name = fl_ctx.get_job_id(), fl_ctx.get_identity_name()
        folder = state_folder(workspace.get_root_dir, state_dir, experiment or job)
        return cls(
            name=name,
            own=read_site_manifest(local),
            policy=read_policy(local, rehearsal=rehearsal),
            folder=folder / name,
            root=folder.parent,
            key=None if rehearsal else read_key(local),
            submitter=submitter(fl_ctx),
            job=str(job),
        )

    @property
    def seal(self) -> Seal | None:
        """For the files in :attr:`folder`."""
        if self.key is None:
            return None
        return Seal(self.key, f"{self.folder.parent.name}/{self.name}", self.policy.encrypted)

    @property
    def secret(self) -> bytes | None:
        """For noise and for what is drawn in training; None in a rehearsal, where figures repeat."""
        return None if self.key is None else Seal(self.key, self.name).secret("noise")

    def contract(self, config: RunConfig, newcomers: RunConfig | None = None) -> Contract:
        """Of the job; SiteForbids if the site does not take it, whatever its data are."""
        found = Contract(config, newcomers, self.submitter)
        if self.policy.jobs == "approved" and found.hash not in self.policy.approved:
            raise SiteForbids(words.NOT_APPROVED(found.hash[:12]))
        try:
            require_words(self.policy, found)
        except StateError as error:
            raise SiteForbids(str(error)) from None
        return found

    def opens(self, contract: Contract) -> None:
        """Counts the run, before the site's data are opened for it.

        Raises:
            SiteForbids: the data have served as many experiments as they may, or the site's record is not at hand.
            UserError: the site has not the device that the run asks for; then nothing is counted.
        """
        pick_device(contract.config)
        try:
            run = Book(self.folder, self.seal).read(contract).run
            if account := self._account(contract):
                account.open(run)
        except StateError as error:
            raise SiteForbids(str(error)) from None

    def _account(self, contract: Contract) -> Account | None:
        if self.key is None:
            return None
        ledger = Ledger(self.root, Seal(self.key, "ledger"))
        return Account(ledger, self.policy, contract, self.folder.parent.name, self.job)

    def store(self) -> DiskStore:
        """The site's states; StateNotKept if the folder cannot be made."""
        store = DiskStore(self.folder, durable=True, seal=self.seal)
        if self.seal:
            self.folder.parent.chmod(0o700)
            self.root.chmod(0o700)
        return store

    def guarded(
        self, federation: Federation, party: Site | Newcomer, source: DataSource, contract: Contract
    ) -> Guarded:
        """Who answers here with data from a source, behind the contract, the policy, the gate and the ledger."""
        whose, read = partial(training_patients, source, self.name), cache(partial(contents, party.data))
        return federation.guarded(
            party,
            policy=self.policy,
            contract=contract,
            book=Book(self.folder, self.seal),
            account=self._account(contract),
            sets=open_training_sets(self.root, self.key, whose, read) if self.key else None,
        )
