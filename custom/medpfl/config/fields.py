"""The fields of a run: each is defined once, with what the command line says of it. Quick to import.

:class:`medpfl.config.run.RunConfig` checks them together, :mod:`medpfl.cli.options` makes options of them, and
:mod:`medpfl.config.preset` reads them from a file.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator
from pydantic_core import PydanticUndefined

from medpfl.core.gain import Use
from medpfl.core.settings import Value, extra

DATA, METHOD, TRAINING = "Data", "Method", "Network and training"
RUN, PLACE, FAULTS = "Run and results", "Where it runs", "Faults and protection"

CIRCUMSTANCES = frozenset({"device", "timeout", "grace", "min_sites"})
"""Fields that do not touch what is computed."""

_SITE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


def option(default: Any, help: str, panel: str = "", *, words: str = "", flag: str = "", **checks: Any) -> Any:
    """A field that the command line has an option for.

    Args:
        default: where nobody says anything; ``dict`` for an empty mapping.
        help: a line for ``--help``.
        panel: the heading it has there; empty for what a newcomer needs first.
        words: the default in words, where they say more than the value.
        flag: the option, where it is not called like the field.
        checks: ``ge``, ``gt``, ``le``, ``lt``, ``pattern``, ``allow_inf_nan``.
    """
    value = {"default_factory": dict} if default is dict else {"default": default}
    line = {"panel": panel, "words": words, "flag": flag}
    return Field(**value, description=help, json_schema_extra=line, **checks)


class RunFields(BaseModel):
    """What a user can say of a run. Where ``--help`` does not say all:

    Attributes:
        personal: overrides the algorithm's personal part (:func:`medpfl.core.declarations.parse_declaration`).
        frozen: said as the personal part is, which it goes before.
        mixing: overrides the algorithm's mixing (:func:`medpfl.algorithms.mixings`).
        data: a data set's name, a file, or ``module:function`` of the user's own (see :mod:`medpfl.data.sites`).
        names: what FLARE calls the sites, one for each; by default ``site-1`` to ``site-N``. In a simulation the k-th
            is the k-th site of the partition.
        official: otherwise the data set's own parts are pooled.
        held_out: how many centres (the last ones) take no part in training, or their names, separated by commas, where
            the data have centres of their own.
        pooling: how a scan's slices make its prediction: ``mean`` of the slices' probabilities, or ``attention`` over
            their features (:class:`medpfl.models.bag_attention.BagAttention`).
        augment: see :mod:`medpfl.training.augment`; of a file of the user's own, what is in it.
        holdout: a method may start from these images, without their labels.
        task: one of :data:`medpfl.tasks.TASKS`.
        init: a path, and at sites ``sha256:`` with the fingerprint of the whole model that it makes
            (:mod:`medpfl.models.start_weights`).
        participation: the others follow (:data:`medpfl.core.messages.Task`). McMahan et al. (AISTATS 2017), C; of
            ``local``, which mixes nothing, every site trains.
        min_sites: the least number of usable updates a round needs; 0 stands for the default
            (:attr:`medpfl.config.turnout.Turnout.quorum`).
        grace: None gives stragglers ten times what the quorum took, and two minutes at least.
        largest_weight: where models are mixed by numbers of training samples: the number is what the site says.
        weight_cap: 1 is as published.
        large_updates: what happens to them (:mod:`medpfl.server.magnitude`): ``clip`` (scale back to the limit),
            ``refuse`` or ``accept``.
        large_factor: honest sites of the benchmarks stay below 3.
        intra_op_threads: torch threads a site computes with; sites side by side beat threads inside a step.
        pretrained: the fingerprint (:func:`medpfl.core.statefile.fingerprint`) of the pretrained model f; empty where
            it is not agreed on beforehand.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: str
    personal: str | None = option(
        None,
        "What stays at the sites: nothing, batch-norm, any-batch-norm, top:K, below-top:K, heads:P, adapters, "
        "modules:A,B; joined by +.",
        METHOD,
    )
    frozen: str = option(
        "", "What is neither trained nor sent: modules:A,B, batch-norm, top:K, below-top:K; joined by +.", METHOD
    )
    mixing: str | None = option(
        None,
        "samples, similarity, similarity-classifier, similarity-running, uniform, equal, identity, median, "
        "trimmed-mean.",
        METHOD,
    )
    settings: dict[str, Value] = option(
        dict, "KEY=VALUE: lr, batch_size, optimizer, schedule, lambda, mu, ...; repeatable.", METHOD, flag="--set"
    )
    data: str = option(
        "organamnist-sample",
        "Data set name (`medpfl data list`), file, folder of scans, pictures or series, or FILE.py:FUNCTION.",
        words="sample",
    )
    data_args: dict[str, Any] = option(
        dict,
        "KEY=VALUE. CT, MR: size, slices, depth, spacing, normalise, window, lung_crop; pictures: size, fit, "
        "channels, patient; npz: pad; time series: normalise, divide, length.",
        DATA,
        flag="--data-arg",
    )
    partition: str = option(
        "equal-dirichlet:0.1",
        "How images are divided: dirichlet:A, equal-dirichlet:A, shards:K, iid, natural, fedimpres-A, file:PATH.",
        DATA,
        words="equal-dirichlet:0.1 (folders: their centres)",
    )
    sites: int = option(20, "Number of sites, or their names: north,south,east.", ge=1, le=10**5)
    names: tuple[str, ...] = ()
    fractions: tuple[FiniteFloat, FiniteFloat, FiniteFloat] = option(
        (0.5, 0.1, 0.4), "Shares of a site's images: training,validation,test.", DATA, words="0.5,0.1,0.4"
    )
    train_fraction: float = option(1.0, "Share of each site's training images that is used.", DATA, gt=0, le=1)
    official: bool = option(False, "Keep the data set's own training/validation/test parts.", DATA, words="no-official")
    held_out: int | str = option(
        0, "Centres that only test the models: how many (the last ones), or their names.", DATA
    )
    holdout: float = option(
        0.0, "Share of the images that no site gets; a method may start from them.", DATA, ge=0, lt=1
    )
    model: str = option(
        "lenet5", "Network (`medpfl models`), or FILE.py:NAME.", TRAINING, words="lenet5 or unet, or the method's"
    )
    model_args: dict[str, Any] = option(dict, "KEY=VALUE for the network; repeatable.", TRAINING, flag="--model-arg")
    init: str = option(
        "",
        "Start weights: a .safetensors, .pt or .pth file, or a MONAI bundle's folder.",
        TRAINING,
        words="random weights",
    )
    adapters: str = option(
        "",
        "lora:RANK trains low-rank adapters of a transformer and its output layer, and nothing else of it.",
        TRAINING,
        words="no adapters",
    )
    rounds: int = option(20, "Rounds of training and mixing.", words="20, or the method's", ge=1, le=10**6)
    participation: float = option(
        1.0, "Share of the sites, drawn anew each round, that train in it.", METHOD, words="1", gt=0, le=1
    )
    local_epochs: int = option(
        1, "Epochs a site trains in a round.", TRAINING, words="1, or the method's", ge=1, le=10**4
    )
    augment: str | dict[str, Any] = option(
        "none",
        "Random changes of training images: none, light, strong, light:ct (mr, xray, microscopy), or a YAML file.",
        TRAINING,
    )
    seed: int = option(0, "Seed of everything random.", TRAINING, ge=0)
    use: Use | None = option(
        None,
        "What a site uses: received (as published), best (that or its own), blend (both together).",
        METHOD,
        words="received, or the method's",
    )
    alone: Literal["yes", "no"] = option(
        "yes",
        "Each site trains alone too, to know what it gains: yes or no.",
        RUN,
        words="yes; in a comparison where the method chooses or trains further",
    )
    task: str = option(
        "classification",
        "What is learned: classification, multi-label, ordinal, segmentation.",
        TRAINING,
        words="what the data's labels are",
    )
    select_by: str = option(
        "auto",
        "Validation measure that selects the round, or loss.",
        TRAINING,
        words="the task's first, or what fits few or one-sided cases",
    )
    pooling: Literal["mean", "attention"] = option("mean", "Over a scan's slices: mean or attention.", TRAINING)
    device: str = option("auto", "auto, cpu, cuda, or one of several GPUs, e.g. cuda:1.", PLACE)
    min_sites: int = option(0, "Quorum of a round.", FAULTS, words="half of those that train", ge=0)
    timeout: float = option(3600.0, "Seconds to wait for a site.", FAULTS, gt=0, allow_inf_nan=False)
    grace: float | None = option(
        None,
        "Seconds for stragglers once the quorum is met.",
        FAULTS,
        words="10 x the quorum's",
        ge=0,
        allow_inf_nan=False,
    )
    largest_weight: float = option(
        10.0,
        "By samples: how many times the median site's number a site's counts at most.",
        FAULTS,
        ge=1,
        allow_inf_nan=False,
    )
    weight_cap: float = option(
        1.0,
        "By similarity or uniform: the most another site may weigh in a mix.",
        FAULTS,
        gt=0,
        le=1,
        allow_inf_nan=False,
    )
    large_updates: Literal["refuse", "clip", "accept"] = option(
        "clip", "Updates far larger than the others': clip, refuse or accept.", FAULTS
    )
    large_factor: float = option(
        5.0, "How many times the others' median an update may be.", FAULTS, gt=1, allow_inf_nan=False
    )
    intra_op_threads: int = Field(default=1, ge=1)
    pretrained: str = option(
        "",
        "sha256:FINGERPRINT of the model f, by which sites know it, where the file is not here.",
        METHOD,
        pattern="^(sha256:[0-9a-f]{64})?$",
    )

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
        if not re.fullmatch(r"auto|cpu|cuda(:(0|[1-9][0-9]?))?", device):
            raise ValueError(f"device must be auto, cpu, cuda or one of several GPUs, e.g. cuda:1, got {device!r}")
        return device


OPTIONS = {name: field for name, field in RunFields.model_fields.items() if field.description}
"""The fields that the command line has options for."""


def flag_of(name: str) -> str:
    """What the command line calls a field."""
    if name == "names":
        return "--sites"
    return extra(RunFields.model_fields[name], "flag") or f"--{name.replace('_', '-')}"


def default_in_words(name: str) -> str:
    """A field's default as ``--help`` has it; empty where there is nothing to say."""
    words, default = extra(OPTIONS[name], "words"), OPTIONS[name].default
    if words or default in (None, "", PydanticUndefined):
        return words
    return f"{default:g}" if isinstance(default, float) else str(default)
