"""Everything that defines a run, checked before anything starts; it travels to the sites as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from math import isfinite
from string import Formatter
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, field_validator, model_validator

from medpfl.algorithms import algorithm
from medpfl.algorithms.base import Value
from medpfl.bundle.plain import plain_problem
from medpfl.differential_privacy import OF_STATISTICS, OF_UPDATES, misplaced
from medpfl.errors import UserError
from medpfl.server.mixing import LEAST_ROBUST, MIXINGS, ROBUST

TRAINING: dict[str, Value] = {"lr": 0.01, "batch_size": 32, "momentum": 0.0, "nesterov": 0, "weight_decay": 0.0}
"""Settings of local training (SGD), for every method (FedAP's values)."""

PRETRAINING: dict[str, Value] = {"pretrain": "pooled", "pretrain_share": 0.2, "pretrain_epochs": 5}
"""Where the similarity methods' pretrained model f comes from: ``pooled`` or the path of a checkpoint."""

_PRETRAINED = ("similarity", "similarity-classifier")
_POSITIVE = {"lr", "batch_size", "layers", "pretrain_epochs", "temperature", "images", "inner_steps", "pixel_lr"}
_POSITIVE |= {"statistics_delta", "statistics_clip"}
_WHOLE = {"batch_size", "layers", "pretrain_epochs", "nesterov", "warmup", "images", "admm_iterations", "inner_steps"}
_WHOLE |= {"constraint"}
_SHARE = {"lambda", "pretrain_share", "p", "nesterov", "constraint", "statistics_delta"}
_TEXTS = {"pretrain", "start"}
_SITE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


class RunConfig(BaseModel):
    """A run, as the user asked for it. Unknown fields and senseless combinations are refused.

    Attributes:
        personal: overrides the algorithm's personal part (:func:`medpfl.declarations.parse_declaration`).
        mixing: overrides the algorithm's mixing (:data:`medpfl.server.mixing.MIXINGS`).
        settings: what ``--set`` gave; :attr:`all_settings` has the defaults too.
        data: a data set's name, a file, or ``module:function`` of the user's own (see :mod:`medpfl.data.sites`).
        names: what FLARE calls the sites, one for each; by default ``site-1`` to ``site-N``. In a simulation the k-th
            is the k-th site of the partition.
        fractions: shares of each site's samples for training, validation and test.
        official: keep the data set's own split into training, validation and test; otherwise the parts are pooled.
        held_out: centres that take no part in training and test the models at the end: how many (the last ones), or
            their names, separated by commas, where the data have centres of their own.
        pooling: how a scan's slices make its prediction: ``mean`` of the slices' probabilities, or ``attention`` over
            their features (:class:`medpfl.models.bag_attention.BagAttention`).
        holdout: share of the images that no site gets; FedImpres may start from them, without their labels.
        min_sites: quorum: the least number of usable updates a round needs; 0 stands for the default (:attr:`quorum`).
        timeout: seconds after which a site's answer is no longer awaited.
        grace: seconds that stragglers get once the quorum is met; None gives them ten times what the quorum took, and
            two minutes at least.
        largest_weight: how many times the median of the sites' numbers of training samples a site's own counts at most,
            where models are mixed by them: the number is what the site says.
        weight_cap: the most that another site may weigh in a site's mix by similarity or uniform mixing; 1 is as
            published.
        large_updates: what happens to an update much larger than the others' of its round
            (:mod:`medpfl.server.magnitude`): ``clip`` (scale it back to the limit), ``refuse`` or ``accept``.
        large_factor: how many times the median of the others' an update may be; honest sites of the benchmarks stay
            below 3.
        intra_op_threads: torch threads a site computes with; sites side by side beat threads inside a step.
        pretrained: ``sha256:`` and the fingerprint (:func:`medpfl.statefile.fingerprint`) of the pretrained model f, by
            which sites know it; empty where it is not agreed on beforehand.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: str
    personal: str | None = None
    mixing: str | None = None
    settings: dict[str, Value] = Field(default_factory=dict)
    data: str = "organamnist-sample"
    data_args: dict[str, Any] = Field(default_factory=dict)
    partition: str = "equal-dirichlet:0.1"
    sites: int = Field(default=20, ge=1)
    names: tuple[str, ...] = ()
    fractions: tuple[FiniteFloat, FiniteFloat, FiniteFloat] = (0.5, 0.1, 0.4)
    train_fraction: float = Field(default=1.0, gt=0, le=1)
    official: bool = False
    held_out: int | str = 0
    holdout: float = Field(default=0.0, ge=0, lt=1)
    model: str = "lenet5"
    model_args: dict[str, Any] = Field(default_factory=dict)
    rounds: int = Field(default=20, ge=1)
    local_epochs: int = Field(default=1, ge=1)
    seed: int = Field(default=0, ge=0)
    select_by: Literal["accuracy", "balanced_accuracy", "auroc"] = "accuracy"
    pooling: Literal["mean", "attention"] = "mean"
    device: str = "auto"
    min_sites: int = Field(default=0, ge=0)
    timeout: float = Field(default=3600.0, gt=0, allow_inf_nan=False)
    grace: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    largest_weight: float = Field(default=10.0, ge=1, allow_inf_nan=False)
    weight_cap: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    large_updates: Literal["refuse", "clip", "accept"] = "clip"
    large_factor: float = Field(default=5.0, gt=1, allow_inf_nan=False)
    intra_op_threads: int = Field(default=1, ge=1)
    pretrained: str = Field(default="", pattern="^(sha256:[0-9a-f]{64})?$")

    @field_validator("held_out")
    @classmethod
    def _some_or_none(cls, held_out: int | str) -> int | str:
        if isinstance(held_out, int) and held_out < 0:
            raise ValueError(f"held_out must be a number of centres or their names, got {held_out}")
        return held_out

    @field_validator("names")
    @classmethod
    def _usable_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known: dict[str, str] = {}
        for name in names:
            if not _SITE_NAME.fullmatch(name):
                raise ValueError(
                    f"site name {name!r}: letters, digits, - and _ are allowed, as in FLARE's client names"
                )
            if name.casefold() == "server":
                raise ValueError(f"site name {name!r} is the server's: choose another")
            # They are folders' names too, and some file systems do not tell case.
            if (other := known.setdefault(name.casefold(), name)) != name or names.count(name) > 1:
                raise ValueError(f"site names must differ, and not in case alone: {other!r} and {name!r}")
        return names

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if device not in ("auto", "cpu") and not device.startswith("cuda"):
            raise ValueError(f"device must be auto, cpu or cuda, got {device!r}")
        return device

    @model_validator(mode="before")
    @classmethod
    def _papers_names(cls, fields: Any) -> Any:
        # Two papers call a setting lambda: it means the mixing's where the mixing has one, else the consistency's.
        if not isinstance(fields, dict) or "lambda" not in (settings := fields.get("settings") or {}):
            return fields
        accepted = accepted_settings(fields["algorithm"], fields.get("personal"), fields.get("mixing"))
        if "lambda" in accepted or "consistency" not in accepted or "consistency" in settings:
            return fields
        return fields | {"settings": {"consistency" if k == "lambda" else k: v for k, v in settings.items()}}

    @model_validator(mode="after")
    def _plain_network(self) -> RunConfig:
        # Every site's bundle has them; what it cannot hold must not be found after the training.
        if problem := plain_problem(self.model, "model") or plain_problem(self.model_args, "model_args"):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _sensible(self) -> RunConfig:
        if self.names and len(self.names) != self.sites:
            raise ValueError(f"{len(self.names)} site names are given, and there are {self.sites} sites")
        if self.min_sites > self.sites:
            raise ValueError(f"the quorum of {self.min_sites} sites can never be met by {self.sites} sites")
        if self.resolved_mixing not in MIXINGS:
            raise ValueError(f"unknown mixing {self.mixing!r}: use {', '.join(MIXINGS)}")
        if self.algorithm == "local" and (self.personal or self.mixing):
            raise ValueError("local training shares and mixes nothing: choose another algorithm to change its choices")
        self._check_settings()
        private, mixing = self.resolved_personal, self.resolved_mixing
        if private == "everything" and mixing != "identity":
            raise ValueError(f"with everything personal there is nothing to mix by {mixing!r}: use --mixing identity")
        if mixing == "identity" and private != "everything":
            raise ValueError(
                f"identity mixing with the personal part {private!r} would send models to no use: "
                "use --personal everything, or the algorithm `local`"
            )
        if private == "everything" and self.all_settings.get("mu"):
            raise ValueError("mu penalises moving away from received parameters; with everything personal none come")
        if mixing not in ("identity", "samples") and self.sites < 2:
            raise ValueError(f"mixing {mixing!r} weighs sites against each other and needs at least 2 of them")
        self._check_robust()
        self._check_weight_cap()
        if mixing == "similarity-running" and self.rounds < 2:
            raise ValueError("f-FedAP spends half of the rounds on FedBN and needs at least 2 rounds")
        return self

    def _check_robust(self) -> None:
        if self.resolved_mixing not in ROBUST:
            return
        if self.sites < LEAST_ROBUST:
            raise ValueError(
                f"mixing {self.resolved_mixing!r} outvotes a site and needs at least {LEAST_ROBUST} of them, there are "
                f"{self.sites}: use --mixing samples"
            )
        if 0 < self.min_sites < LEAST_ROBUST:
            raise ValueError(
                f"the quorum of {self.min_sites} is too small for mixing {self.resolved_mixing!r}: of fewer than "
                f"{LEAST_ROBUST} updates none can be outvoted"
            )

    def _check_weight_cap(self) -> None:
        if (self_weight := self.all_settings.get("lambda")) is None:
            return
        if (least := (1 - self_weight) / max(1, self.sites - 1)) > self.weight_cap * (1 + 1e-12):
            raise ValueError(
                f"weight_cap {self.weight_cap:g} is too small: {self.sites - 1} other sites weigh "
                f"{1 - self_weight:g} in all (1 - lambda); give {least:.4g} or more, or a larger lambda"
            )

    def _check_settings(self) -> None:
        everything = (self.personal or algorithm(self.algorithm).personal) == "everything"
        if reason := misplaced(self.settings, self.resolved_mixing, everything):
            raise ValueError(reason)
        accepted = self._accepted
        for name, value in self.settings.items():
            if name not in accepted:
                raise ValueError(
                    f"setting {name!r} has no meaning for {self.algorithm} with personal part "
                    f"{self.personal or 'as published'} and mixing {self.resolved_mixing}; "
                    f"it has: {', '.join(accepted)}"
                )
            if name in _TEXTS:
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
                raise ValueError(f"setting {name} must be a number, got {value!r}")
            if value < 0 or (name in _POSITIVE and value == 0):
                raise ValueError(f"setting {name} must be {'positive' if name in _POSITIVE else '>= 0'}, got {value}")
            if name in _WHOLE and value != int(value):
                raise ValueError(f"setting {name} must be a whole number, got {value}")
            if name in _SHARE and value > 1:
                raise ValueError(f"setting {name} must lie between 0 and 1, got {value}")
            if name == "trim" and value >= 0.5:
                raise ValueError(f"setting trim must lie below 0.5, got {value}: nothing would be left")
        if self.all_settings.get("start") == "holdout" and not self.holdout:
            raise ValueError("start=holdout needs images that are set aside: give --holdout, e.g. 0.1")
        if self.all_settings["nesterov"] and not self.all_settings["momentum"]:
            raise ValueError("setting nesterov looks ahead along the momentum: give momentum too, e.g. momentum=0.9")

    @cached_property
    def _accepted(self) -> dict[str, Value]:
        return accepted_settings(self.algorithm, self.personal, self.mixing)

    @property
    def resolved_mixing(self) -> str:
        """The mixing in force."""
        return self.mixing or algorithm(self.algorithm).mixing

    @property
    def resolved_personal(self) -> str:
        """The personal part in force, as :func:`medpfl.declarations.parse_declaration` reads it."""
        return self.personal or algorithm(self.algorithm).personal.format(**self.all_settings)

    @cached_property
    def all_settings(self) -> dict[str, Value]:
        """The settings in force, defaults included."""
        values = self._accepted | self.settings
        return {k: int(v) if k in _WHOLE else v for k, v in values.items()}

    @property
    def quorum(self) -> int:
        """The least number of usable updates a round needs.

        By default half of the sites, but two where models are mixed: what one site alone sent would reach the others
        as it is. Robust mixing has three: of two updates none can be outvoted.
        """
        least = {"identity": 1}.get(self.resolved_mixing, LEAST_ROBUST if self.resolved_mixing in ROBUST else 2)
        least = min(least, self.sites)
        return self.min_sites or max(least, (self.sites + 1) // 2)

    @property
    def site_names(self) -> list[str]:
        """:attr:`names` if they are given, else ``site-1`` to ``site-N``, FLARE's own names in a simulation."""
        return list(self.names) or [f"site-{i + 1}" for i in range(self.sites)]

    @property
    def needs_pretraining(self) -> bool:
        """Whether the mixing rests on a pretrained model's statistics."""
        return self.resolved_mixing in _PRETRAINED

    @property
    def mixes_by_samples(self) -> bool:
        """Whether sites' numbers of training samples decide their weights, in some rounds at least."""
        return self.resolved_mixing in ("samples", "similarity-running")

    @property
    def noise_at_sites(self) -> bool:
        """Whether sites add noise of differential privacy, for which a real one needs a secret."""
        return any(self.all_settings.get(name) for name in ("statistics_epsilon", "update_noise"))

    @property
    def makes_impressions(self) -> bool:
        """Whether the server synthesises images that sites train with."""
        return bool(self.all_settings.get("beta"))

    def choices(self) -> dict[str, Any]:
        """The four choices, for the results."""
        objective = "cross-entropy"
        if mu := self.all_settings["mu"]:
            objective += f" + {mu}/2 |psi - psi_received|^2"
        if (weight := self.all_settings.get("consistency")) and self.all_settings.get("p") not in (0, 1):
            objective += f" + {weight} consistency of shared and personal heads, T = {self.all_settings['temperature']}"
        if beta := self.all_settings.get("beta"):
            objective += f" + {beta} cross-entropy of the impression"
        server = ["statistics under a pretrained model, once"] if self.needs_pretraining else []
        server += ["a federated impression after every round from the warm-up on"] if self.makes_impressions else []
        return {
            "personal": self.resolved_personal,
            "mixing": self.resolved_mixing,
            "objective": objective,
            "server": server,
        }


def accepted_settings(name: str, personal: str | None = None, mixing: str | None = None) -> dict[str, Value]:
    """The settings that have a meaning for an algorithm with these choices, with their defaults."""
    method = algorithm(name)
    own: dict[str, Value] = {"mu": 0.0, **method.settings}
    if personal is not None:
        for _, setting, _, _ in Formatter().parse(method.personal):
            own.pop(setting, None)
    if "heads:" in (personal or method.personal):
        own = {"consistency": 0.0, "temperature": 4.0, **own}
    else:
        own = {k: v for k, v in own.items() if k not in ("consistency", "temperature")}
    mixing = mixing or method.mixing
    own.pop("lambda", None)
    if mixing.startswith("similarity") or mixing == "uniform":
        own["lambda"] = method.settings.get("lambda", 0.5)
    if mixing == "trimmed-mean":
        own["trim"] = 0.2
    if mixing in _PRETRAINED:
        own |= PRETRAINING | OF_STATISTICS
    of_updates = {} if (personal or method.personal) == "everything" else OF_UPDATES
    return own | TRAINING | of_updates | dict(method.training)


def published_defaults(names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Value]]:
    """Fields of a run and settings of training that the papers of these algorithms fix, for a comparison of them.

    Raises:
        UserError: two papers fix them differently.
    """
    fixed = {n: (dict(a.schedule), dict(a.training)) for n in names if (a := algorithm(n)).schedule or a.training}
    if not fixed:
        return {}, {}
    first, *others = fixed
    for other in others:
        if fixed[other] != fixed[first]:
            raise UserError(
                f"{first} and {other} were published with different models, rounds and training: compare them in two "
                "comparisons"
            )
    return fixed[first]


def make_config(**fields: Any) -> RunConfig:
    """A checked configuration; None stands for the default, which is the method's own where its paper fixes one.

    Raises:
        UserError: a field is unknown or wrong, in one line.
    """
    method = algorithm(fields.get("algorithm", ""))
    try:
        return RunConfig(**{**method.schedule, **{k: v for k, v in fields.items() if v is not None}})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{where}: {message}" if where else message) from None
