"""What a job is, once its folder was read: in words and as JSON, and what a site's policy says to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medpfl.core.numbers_in_words import count, size
from medpfl.core.site_data import Part
from medpfl.flare.admin.enough import too_few_to_send, verdict_stays
from medpfl.site.contract import Contract
from medpfl.site.many_patients import balances
from medpfl.site.many_values import too_many_values
from medpfl.site.policy import SitePolicy


@dataclass(frozen=True)
class Leaving:
    """One kind of thing that leaves a site in a job.

    Attributes:
        what: in words.
        task: with which answer.
        times: how often in the whole run, at most.
        tensors: shape by name.
        bytes: of one answer.
        reveals: what may be learned from it.
    """

    what: str
    task: str
    times: int
    tensors: Mapping[str, list[int]]
    bytes: int
    reveals: str


@dataclass(frozen=True)
class Review:
    """What a job is.

    Attributes:
        job: the folder's name.
        contract: what a site agrees to by it.
        sites: who it is for.
        classes: by ``sites`` and ``server``: the exact classes that it names.
        foreign: those that no job of this package needs.
        code: files that it brings.
        named: others' code that it names: what each is, and ``module:name``.
        unlisted: modules of it that the site does not allow.
        unread: further files: FLARE looks for configurations at any depth, and in other forms than JSON.
        gpus: the most that it asks of a site.
        launchers: what it says of other ways to start its process than FLARE's plain one.
        leaving: what leaves a site.
        parameters: of its network.
        steering: a channel by which a server moves weights past a site's limits on them; empty if there is none.
        unusual: of its network, see :func:`medpfl.site.unlike_training.unusual`.
        public: its data are a published set, unless the site calls something of its own so.
        patients: of the site's own data by part, as the job divides them; None where they are not at hand.
        values: that the job makes of them, at most; None where that is not known.
    """

    job: str
    contract: Contract
    sites: tuple[str, ...]
    classes: Mapping[str, tuple[str, ...]]
    foreign: tuple[str, ...]
    code: tuple[str, ...]
    named: tuple[tuple[str, str], ...]
    unlisted: tuple[str, ...]
    unread: tuple[str, ...]
    gpus: int
    launchers: tuple[str, ...]
    leaving: tuple[Leaving, ...]
    parameters: int
    steering: str
    unusual: str
    public: bool
    patients: Mapping[Part, int] | None = None
    values: int | None = None

    @property
    def bytes(self) -> int:
        """All that leaves one site."""
        return sum(kind.times * kind.bytes for kind in self.leaving)

    @property
    def _told_alone(self) -> bool:
        """Whether each site trains a model alone too."""
        return self.contract.joining or self.contract.config.has_rival

    def _verdict(self, policy: SitePolicy) -> bool:
        """Whether what taking part was worth leaves the site."""
        return self._told_alone and policy.verdict and policy.measures != "none" and not self._stays(policy)

    def _stays(self, policy: SitePolicy) -> str:
        """Why that stays though the policy lets it leave."""
        return verdict_stays(policy, self.patients) if self.contract.config.resolved_use != "received" else ""

    @property
    def _through(self) -> str:
        config = self.contract.config
        if config.turnout.lets_one_through:
            return ", so that a site's alone may reach the others as it is"
        of_two = config.mixes and config.turnout.trained == 2
        return ", and of two each can compute the other's" if of_two else ""

    def _made(self, policy: SitePolicy) -> Iterator[str]:
        """How many values the job makes of the site's data, in words."""
        limit = f"{policy.data_values:,} at most" if policy.data_values else "any number"
        if self.values is not None:
            made = f"up to {self.values:,} values (samples x channels x shape; with masks more)"
            yield f"as it reads this site's data, they are {made} (policy: data_values, {limit})"
        elif not self.public:
            yield f"how many values it makes of this site's data could not be told (policy: data_values, {limit})"

    def refusals(self, policy: SitePolicy) -> list[str]:
        """Why a policy would not take the job, as far as can be told without looking at the data's images."""
        config, found = self.contract.config, []
        if policy.jobs == "approved" and self.contract.hash not in policy.approved:
            found.append("its contract is not approved (site init --job approves it)")
        for pattern in dict.fromkeys(str(half.patient_pattern or "") for half in self.contract.halves):
            if not policy.lets_say_whose(pattern):
                why = "it says whose an image is, and that is none of the policy's patient_patterns"
                found.append(f"by {pattern!r} {why}")
        tells = any(kind.tensors for kind in self.leaving)
        if tells and (few := too_few_to_send(policy, self.patients)):
            found.append(few)
        if many := too_many_values(policy, self.values):
            found.append(many)
        says_counts = any(half.says_counts for half in self.contract.halves)
        leaves_out = says_counts or (tells and self.contract.leaves_samples_out and not self.public)
        if policy.least_patients > 1 and leaves_out:
            found.append("it leaves single images of patients out (holdout, train_counts)")
        if tells and (wrong := policy.unlike_training(config.all_settings)):
            found.append(wrong)
        if tells and policy.least_patients > 1 and self.unusual:
            found.append(self.unusual)
        if not policy.lets_divide(self.contract.divides_folders):
            found.append("it says which of the site's folders are sites (folders=sites, held_out)")
        if tells and not policy.lets_augment(config.augment):
            found.append("it changes training images by a list of transforms of its own (own_augmentation)")
        if not policy.lets_pretrain(config, public=self.public):
            found.append("it names no fingerprint of its pretrained model f")
        if (tells or self.contract.brings_start) and not (self.public or policy.lets_bring(config, self.contract.hash)):
            found.append("it brings weights (f, start weights), which can be made to show single patients: approve it")
        if not policy.lets_weigh(config):
            found.append(f"one other site may weigh {config.weight_cap:g}, and {policy.largest_weight:g} is allowed")
        if self.steering and not policy.lets_steer:
            found.append(f"by {self.steering!r} a server leads training past largest_jump and copied_rows")
        if policy.rounds and config.rounds > policy.rounds:
            found.append(f"it has {config.rounds} rounds, and the data may serve {policy.rounds}")
        if self.foreign:
            found.append(f"it names classes that are no part of this package's jobs: {', '.join(self.foreign)}")
        if self.unread:
            found.append(
                f"it has files that no job of this package has, and that are not reviewed: {_some(self.unread)}"
            )
        if self.code:
            found.append(f"it brings code (BYOC): {_some(self.code)}")
        if self.unlisted:
            listed = ", ".join(f'"{module}"' for module in self.unlisted)
            found.append(f'it names code of others, which is allowed by "code": [{listed}] in local/medpfl.json')
        if self.launchers:
            found.append(f"it says how its process is to be started: {_some(self.launchers)}")
        return found

    def to_json(self, policy: SitePolicy) -> dict[str, Any]:
        """All of it."""
        return {
            "job": self.job,
            "hash": self.contract.hash,
            "joining": self.contract.joining,
            "sites": list(self.sites),
            "submitter": None,
            "algorithm": self.contract.config.algorithm,
            "network": {
                "name": self.contract.config.model,
                "arguments": self.contract.config.model_args,
                "parameters": self.parameters,
            },
            "data": {"name": self.contract.data, "arguments": self.contract.data_args},
            "rounds": self.contract.config.rounds,
            "participation": self.contract.config.participation,
            "quorum": self.contract.config.turnout.quorum_of_round,
            "local_epochs": self.contract.config.local_epochs,
            "settings": dict(self.contract.config.all_settings),
            "augment": self.contract.config.augment,
            "alone": self.contract.config.has_rival,
            "use": self.contract.config.resolved_use,
            "classes": {where: list(names) for where, names in self.classes.items()},
            "code": list(self.code),
            "named_code": [spec for _, spec in self.named],
            "gpus": self.gpus,
            "leaves": [vars(kind) for kind in self.leaving],
            "bytes": self.bytes,
            "least_patients": policy.least_patients,
            "patients": self.patients,
            "data_values": policy.data_values,
            "values": self.values,
            "measures": policy.measures,
            "verdict": self._verdict(policy),
            "refused_because": self.refusals(policy),
        }

    def lines(self, policy: SitePolicy) -> Iterator[str]:
        """All of it, in words."""
        config = self.contract.config
        yield f"{self.job}: {config.algorithm}{', by which sites join a finished run' if self.contract.joining else ''}"
        yield f"contract {self.contract.hash}"
        yield "submitter: not in the folder; FLARE verifies the signature, and the site's ledger will have the name"
        yield f"for: {', '.join(self.sites)}"
        arguments = f" with {json.dumps(config.model_args)}" if config.model_args else ""
        yield f"network: {config.model}{arguments}, {self.parameters:,} parameters"
        told = f" with {json.dumps(self.contract.data_args)}" if self.contract.data_args else ""
        yield f"data: what the site calls {self.contract.data!r}{told}"
        yield from self._made(policy)
        gpus = f", {count(self.gpus, 'GPU')}" if self.gpus else ""
        yield f"{count(config.rounds, 'round')} of {count(config.local_epochs, 'epoch')}{gpus}"
        turnout = config.turnout
        drawn = f"the {turnout.trained} that are drawn of " if turnout.draws else ""
        yield f"a round needs updates of {turnout.quorum_of_round} of {drawn}{config.sites} sites{self._through}"
        yield f"settings: {json.dumps(config.all_settings)}"
        yield f"training images are changed by: {config.augment}"
        if config.has_rival and not self.contract.joining:
            yield f"each site trains a model alone too, which stays; what it uses at the end: {config.resolved_use}"
        for where, names in self.classes.items():
            yield f"classes at the {where}: {', '.join(names) or 'none'}"
        yield f"code that it brings: {', '.join(self.code) or 'none'}"
        if self.named:
            yield f"code of others that it names: {', '.join(f'{what} {spec}' for what, spec in self.named)}"
        for kind in self.leaving:
            what = f"{len(kind.tensors)} tensors, {size(kind.bytes)}" if kind.tensors else "numbers alone"
            times = "once" if kind.times == 1 else f"{kind.times} times{' at most' if turnout.draws else ''}"
            yield f"leaves {times} ({kind.task}): {kind.what}, {what}"
        yield "what may be learned"
        yield from (f"  {reveals}" for reveals in dict.fromkeys(kind.reveals for kind in self.leaving))
        yield f"in all, besides numbers: {size(self.bytes)}"
        if policy.least_patients and any(kind.tensors for kind in self.leaving):
            of_each = ", of each class," if balances(config) else ""
            counted = f"; this site has {self.patients['train']:,} to train on" if self.patients else ""
            if not (self.patients or self.public):
                counted = "; how many this site has could not be told"
            yield (
                f"taken only where {policy.least_patients} patients or more{of_each} are trained on "
                f"(policy: least_patients){counted}"
            )
        yield f"measures leave {policy.measures} here"
        if self._verdict(policy):
            yield "what taking part was worth leaves too (policy: verdict): measures of the model trained alone, gains"
        elif self._told_alone and (stays := self._stays(policy)):
            yield stays
        elif config.resolved_use != "received":
            yield "measures on test data are of what the site uses, and so of the model trained alone too"
        refusals = self.refusals(policy)
        yield "this site's policy takes it" if not refusals else "this site's policy refuses it:"
        yield from (f"  {reason}" for reason in refusals)


def _some(files: Sequence[str]) -> str:
    return ", ".join(files[:3]) + " ..." * (len(files) > 3)
