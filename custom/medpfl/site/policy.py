"""What a site allows: its measures, its least number of patients, how often it answers, which jobs it takes.

At a real site ``policy`` in ``local/medpfl.json`` overrides :data:`HOSPITAL`; a simulation has :data:`OPEN`, where all
data are in one hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from medpfl.config.run import RunConfig
from medpfl.core.errors import UserError
from medpfl.models.cost import Limits
from medpfl.site.unlike_training import unlike_training


class AuditThresholds(BaseModel):
    """A site's limits; an attack that goes beyond its limit fails the audit.

    Attributes:
        images: recognisable training images that an attack may bring back.
        membership: the lower end of the 95 % interval of the AUC of membership may be at most this.
        class_share: an attack may not know the shares of all classes of a part within this; 0 lets it know them.
        known_images: share of known images about whose presence and label the attack may be right and sure: beyond the
            half that always saying the same is right about.
        batch_norm: an attack may not know a personal batch-norm number within this relative error; 0 lets it know them.
        replays: answers beyond those that the policy's ``repeats`` allows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    images: int = Field(default=0, ge=0)
    membership: float = Field(default=0.6, ge=0.5, le=1)
    class_share: float = Field(default=0.02, ge=0, le=1)
    known_images: float = Field(default=0.75, ge=0.5, le=1)
    batch_norm: float = Field(default=0.05, ge=0, le=1)
    replays: int = Field(default=0, ge=0)


class SitePolicy(BaseModel):
    """A site's policy.

    Attributes:
        measures: what of the measures leaves: ``full``; ``coarse``, rounded to two digits with numbers of cases down
            to tens, and only of what rests on ``least_patients`` patients (:mod:`medpfl.tasks.told`); or ``none``, and
            the site selects its round by itself.
        verdict: how the site's model compares with the one that it trained alone leaves too, as far as ``measures`` do;
            else it stays in the site's own folder.
        least_patients: training patients (samples, where the data know no patients) below which no update and no
            statistics leave.
        patient_patterns: expressions by which a job may say whose an image is (``--data-arg patient=``): by them it
            decides what counts as a patient; None for any. Tables, PatientID and folders are the site's own word.
        own_augmentation: whether a job may change training images by a list of transforms of its own, which can blank
            those of all patients but few; else by presets alone.
        own_seed: what is drawn at random in training derives from the site's secret, not from the job's seed, and the
            order of samples is one in all rounds (:mod:`medpfl.site.chance`); its figures then are no simulation's.
        jobs: ``allowed``: jobs of this package that fit the policy; ``approved``: only those whose contract's hash is
            among ``approved``.
        approved: hashes of contracts, as ``medpfl site review`` prints them.
        experiments: how many experiments may use one data set, those among them that it refuses; 0 for any number.
        rounds: how many rounds of training one data set may serve over all experiments; 0 for any number.
        repeats: how often in a run a task may be asked again with other content, as a server does that has lost a step.
        largest_jump: how many times as far as the site's longest update so far what it receives next may lie from what
            it received before, times the square root of the rounds between, sixteen at most; 0 for any distance.
        copied_rows: the share of a layer's rows that may copy each other in what the site receives
            (:mod:`medpfl.site.copied_rows`); 1 for any.
        named_pretrained: a pretrained model f is taken only if its fingerprint stands in the contract; a public data
            set that every party has needs none.
        approved_weights: weights that a job brings, a pretrained model f or start weights, are taken of contracts in
            ``approved`` alone: whoever makes them can make them show single patients. A public data set needs none.
        largest_weight: the most that one other site's update may weigh in this site's mix by the contract; 1 for any.
        network_parameters: numbers that a run's network may hold (:mod:`medpfl.models.cost`); 0 for any number.
        network_values: numbers that a forward pass of a batch may make in it; 0 for any number.
        network_operations: that such a pass may take; 0 for any number.
        data_values: values (samples x channels x shape; with masks more) that a job may have the site make of its
            data, counted before an image is decoded (:mod:`medpfl.site.many_values`); 0 for any number.
        encrypted: state is encrypted at rest.
        audit: the limits of ``medpfl site audit``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    measures: Literal["full", "coarse", "none"] = "full"
    verdict: bool = True
    least_patients: int = Field(default=0, ge=0)
    patient_patterns: tuple[str, ...] | None = None
    own_augmentation: bool = True
    own_seed: bool = False
    jobs: Literal["allowed", "approved"] = "allowed"
    approved: tuple[str, ...] = ()
    experiments: int = Field(default=0, ge=0)
    rounds: int = Field(default=0, ge=0)
    repeats: int = Field(default=3, ge=0)
    largest_jump: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    copied_rows: float = Field(default=1.0, ge=0, le=1)
    named_pretrained: bool = False
    approved_weights: bool = False
    largest_weight: float = Field(default=1.0, gt=0, le=1)
    network_parameters: int = Field(default=0, ge=0)
    network_values: int = Field(default=0, ge=0)
    network_operations: int = Field(default=0, ge=0)
    data_values: int = Field(default=0, ge=0)
    encrypted: bool = False
    audit: AuditThresholds = AuditThresholds()

    def unlike_training(self, settings: Mapping[str, Any]) -> str:
        """Why by these settings an update would rest on few steps, where it must rest on many patients, in words."""
        return unlike_training(settings) if self.least_patients else ""

    def lets_say_whose(self, pattern: object) -> bool:
        """Whether a job may say by this expression whose an image is."""
        return not pattern or self.patient_patterns is None or pattern in self.patient_patterns

    def lets_divide(self, folders: bool) -> bool:
        """Whether a job that says which of the site's folders are sites, if it does, may say so."""
        return not folders or self.patient_patterns is None

    def lets_bring(self, config: RunConfig, contract: str) -> bool:
        """Whether a run may bring weights of its own, if it does, by its contract's hash."""
        brings = config.mixer.under_model or bool(config.init)
        return not (brings and self.approved_weights) or contract in self.approved

    def lets_pretrain(self, config: RunConfig, *, public: bool) -> bool:
        """Whether a run may have its pretrained model f, if it has one; of a public set every party makes the same."""
        return not (config.mixer.under_model and self.named_pretrained) or bool(config.pretrained) or public

    def lets_weigh(self, config: RunConfig) -> bool:
        """Whether one other site's update may weigh as much as the run lets it: a copy would take all."""
        return not config.mixer.weighs_sites or config.weight_cap <= self.largest_weight

    @property
    def lets_steer(self) -> bool:
        """Whether a channel may lead training elsewhere than the weights that come, whose limits it passes by."""
        return not self.largest_jump and self.copied_rows >= 1

    def lets_augment(self, spec: object) -> bool:
        """Whether a job may change training images so: by ``none``, a preset's name, or a list of its own."""
        return isinstance(spec, str) or self.own_augmentation

    @property
    def network(self) -> Limits:
        """On a run's network."""
        return Limits(self.network_parameters, self.network_values, self.network_operations)


OPEN = SitePolicy()
HOSPITAL = SitePolicy(
    measures="coarse",
    verdict=False,
    least_patients=20,
    patient_patterns=(),
    own_augmentation=False,
    own_seed=True,
    experiments=50,
    rounds=5000,
    largest_jump=10.0,
    copied_rows=0.1,
    named_pretrained=True,
    approved_weights=True,
    network_parameters=200_000_000,
    network_values=20_000_000_000,
    network_operations=100_000_000_000_000,
    data_values=10_000_000_000,
)


def policy_of(said: Mapping[str, Any], default: SitePolicy, where: str) -> SitePolicy:
    """The default with what a site says in its place.

    Args:
        said: ``policy`` of ``local/medpfl.json``.
        default: :data:`HOSPITAL` or :data:`OPEN`.
        where: the file, for messages.

    Raises:
        UserError: an unknown field or a value out of range, by name.
    """
    try:
        return SitePolicy(**{**default.model_dump(), **said})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise UserError(f"{where}: policy, {name}: {first['msg']} (got {first['input']!r})") from None
    except TypeError:
        raise UserError(f'{where}: policy must be an object, e.g. {{"measures": "coarse"}}') from None
