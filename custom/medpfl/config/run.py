"""Everything that defines a run, checked before anything starts; it travels to the sites as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pydantic import ValidationError, field_validator, model_validator
from pydantic_core import PydanticSerializationError, to_jsonable_python

from medpfl.algorithms import algorithm, mechanisms, mixings
from medpfl.algorithms.failing import asking
from medpfl.algorithms.mechanism import Mechanism
from medpfl.algorithms.mixing_kinds import Mixing
from medpfl.algorithms.start import StartWeights
from medpfl.config.fields import RunFields
from medpfl.config.settings import Accepted, accepted
from medpfl.config.turnout import Turnout
from medpfl.core.errors import UserError
from medpfl.core.gain import Use
from medpfl.core.measure import LOSS
from medpfl.core.near import did_you_mean
from medpfl.core.plain import plain_problem
from medpfl.core.settings import Settings, Value, named_fields
from medpfl.models.lora import LoRA
from medpfl.tasks import Task, tasks
from medpfl.tasks.selection import AUTO
from medpfl.training import augment
from medpfl.training.trainer import Trainer


class RunConfig(RunFields):
    """A run, as the user asked for it. Unknown fields and senseless combinations are refused.

    ``settings`` are what ``--set`` gave; :attr:`all_settings` has the defaults too.
    """

    @field_validator("task")
    @classmethod
    def _known_task(cls, task: str) -> str:
        if task not in tasks():
            raise ValueError(f"task must be one of {', '.join(tasks())}, got {task!r}")
        return task

    @model_validator(mode="before")
    @classmethod
    def _tasks_defaults(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or not (task := tasks().get(fields.get("task", "classification"))):
            return fields
        return {"model": task.network} | fields

    @model_validator(mode="after")
    def _known_measure(self) -> RunConfig:
        names = (AUTO, *self.learned.selecting, LOSS.name)
        if self.select_by not in names:
            raise ValueError(f"select_by must be one of {', '.join(names)}, got {self.select_by!r}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _papers_names(cls, fields: Any) -> Any:
        # Two papers may call a setting lambda: a setting of that name comes first, then the only one of that symbol.
        if not isinstance(fields, dict) or "algorithm" not in fields:
            return fields
        given, chosen = fields.get("settings"), [fields.get(name) for name in ("personal", "mixing")]
        if not isinstance(given, Mapping) or not given or not all(isinstance(c, str | None) for c in chosen):
            return fields  # what is of a wrong type is refused as any field is
        known = accepted(algorithm(fields["algorithm"]), *chosen, given)
        return fields | {"settings": {known.meant(name, given): value for name, value in given.items()}}

    @model_validator(mode="after")
    def _plain_network(self) -> RunConfig:
        # Every site's bundle has them; what it cannot hold must not be found after the training.
        if problem := plain_problem(self.model, "model") or plain_problem(self.model_args, "model_args"):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _data_args_travel(self) -> RunConfig:
        # In results, in the contract and in a job: what these cannot hold must not be found at the sites.
        for name, value in self.data_args.items():
            try:
                to_jsonable_python(value)
            except PydanticSerializationError:
                kind = type(value).__name__
                is_one = f"{kind} holds what" if isinstance(value, dict | list | tuple) else kind
                raise ValueError(
                    f"data_args.{name}: {is_one} is no plain value; use numbers, text, lists and dictionaries"
                ) from None
        return self

    @model_validator(mode="after")
    def _sensible(self) -> RunConfig:
        if self.names and len(self.names) != self.sites:
            raise ValueError(f"{len(self.names)} site names are given, and there are {self.sites} sites")
        if self.resolved_mixing not in mixings():
            hint = did_you_mean(self.mixing, mixings())
            raise ValueError(f"unknown mixing {self.mixing!r}{hint}: use {', '.join(mixings())}")
        if (self.personal or self.mixing) and algorithm(self.algorithm).shares_nothing:
            raise ValueError(
                f"{self.algorithm} training shares and mixes nothing: choose another algorithm to change its choices"
            )
        self._check_settings()
        if problem := self.turnout.problem(self.resolved_mixing):
            raise ValueError(problem)
        if self.resolved_personal == "everything" and self.resolved_mixing != "identity":
            raise ValueError(
                f"with everything personal there is nothing to mix by {self.resolved_mixing!r}: use --mixing identity"
            )
        for part in self.parts:
            if reason := _asked(part, "refuses", self) or _asked(part, "displaced", self.parts):
                raise ValueError(reason)
        self._check_moves()
        masks = self.learned.labels == "mask"
        if reason := augment.problem(self.augment, masks=masks) or self.trainer.refuses(self.learned):
            raise ValueError(reason)
        return self

    def _check_moves(self) -> None:
        """A move at the server is of one model that all sites get."""
        moving = [part for part in self.parts if type(part).server_move is not Mechanism.server_move]
        if moving and not self.common_mix:
            switch = moving[0].switch
            others = ", ".join(name for name, kind in mixings().items() if kind.common)
            raise ValueError(
                f"{switch or moving[0].name} moves one common model, and mixing {self.resolved_mixing!r} gives each "
                f"site its own: use one of the mixings {others}{f', or --set {switch}=0' if switch else ''}"
            )

    @model_validator(mode="after")
    def _something_to_choose_from(self) -> RunConfig:
        if self.use in ("best", "blend") and not self.has_rival:
            why = "--alone no" if self.alone == "no" else f"{self.algorithm}, which shares nothing"
            raise ValueError(
                f"use {self.use!r} is a choice between a method's model and the one that a site trains alone, and with "
                f"{why} there is only one"
            )
        return self

    @model_validator(mode="after")
    def _adapters_as_a_whole(self) -> RunConfig:
        if self.adapters:
            LoRA.parse(self.adapters)
            if "heads:" in self.resolved_personal:
                raise ValueError(
                    "adapters lie across all heads of a layer, so that none can stay at a site by itself: use "
                    "--personal adapters, or leave --adapters out"
                )
            if self.pooling == "attention":
                raise ValueError("adapters and the output layer are all that is trained, not --pooling attention's own")
        return self

    def _check_settings(self) -> None:
        known = self._accepted
        for name in self.settings:
            if name in known.kinds:
                continue
            for kind in (*mixings().values(), *mechanisms().values()):
                if reason := kind.lacking(name, self):
                    raise ValueError(reason)
            if switches := _switches_of(name, known):
                on = " or ".join(f"--set {switch}=..." for switch in switches)
                raise ValueError(f"setting {name!r} does something only with {on}, which turns its mechanism on")
            further = ", ".join(n for n in known.kinds if n not in known.defaults)
            raise ValueError(
                f"setting {name!r} has no meaning for {self.algorithm} with personal part "
                f"{self.personal or 'as published'} and mixing {self.resolved_mixing}{known.near(name)}; "
                f"it has: {', '.join(known.defaults)}" + (f"; it can take up: {further}" if further else "")
            )
        known.check(self.settings)

    @cached_property
    def _accepted(self) -> Accepted:
        return accepted(algorithm(self.algorithm), self.personal, self.mixing, self.settings)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> RunConfig:
        """A copy with some fields changed; what follows from them is made anew."""
        copied = super().model_copy(update=update, deep=deep)
        for name, member in vars(type(self)).items():
            if isinstance(member, cached_property):
                copied.__dict__.pop(name, None)
        return copied

    @property
    def learned(self) -> Task:
        """What is learned."""
        return tasks()[self.task]

    @cached_property
    def trainer(self) -> Trainer:
        """How sites take their steps."""
        return Trainer.of(self.all_settings, self.rounds, self.augment)

    @cached_property
    def mixer(self) -> Mixing:
        """How the server mixes."""
        kind = mixings()[self.resolved_mixing]
        return kind(self._accepted.of(kind, self.settings))

    @cached_property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """What else the run has, in the order in which it takes effect."""
        on = [kind for kind in self._accepted.in_force if not kind.switch or kind.is_on(self.all_settings)]
        start = (StartWeights(Settings()),) if self.init else ()
        return (*(kind(self._accepted.of(kind, self.settings)) for kind in on), *start)

    @property
    def parts(self) -> tuple[Mechanism, ...]:
        """The mixing and the mechanisms."""
        return (self.mixer, *self.mechanisms)

    @property
    def resolved_mixing(self) -> str:
        """The mixing in force."""
        return self.mixing or algorithm(self.algorithm).mixing.name

    @property
    def choices_by_default(self) -> dict[str, str]:
        """By field: what an empty choice stands for, in this run."""
        emptied = {name: self.model_copy(update={name: None}) for name in ("personal", "mixing", "use")}
        return {name: getattr(config, f"resolved_{name}") for name, config in emptied.items()}

    @property
    def mixes(self) -> bool:
        """Whether the sites' models reach each other; where not, each site selects its own round."""
        return self.resolved_mixing != "identity"

    @property
    def common_mix(self) -> bool:
        """Whether the mix is the same for all sites."""
        return type(self.mixer).common

    @property
    def has_rival(self) -> bool:
        """Whether every site trains alone too."""
        return self.alone == "yes" and self.mixes

    @property
    def resolved_use(self) -> Use:
        """What a site uses, in force."""
        return (self.use or algorithm(self.algorithm).use) if self.has_rival else "received"

    @property
    def resolved_personal(self) -> str:
        """The personal part in force, as :func:`medpfl.core.declarations.parse_declaration` reads it."""
        return self.personal or algorithm(self.algorithm).personal.format(**self.all_settings)

    @cached_property
    def all_settings(self) -> dict[str, Value]:
        """The settings in force, defaults included."""
        return self._accepted.in_full(self.settings)

    def settings_unlike(self, given: Mapping[str, Value]) -> dict[str, tuple[Value | None, Value | None]]:
        """By name the settings in force that are others where ``given`` was given, as ``(there, here)``; None for off.

        Of the same method and choices; a default may be given or left out.
        """
        known = accepted(algorithm(self.algorithm), self.personal, self.mixing, given)
        theirs = {n: value for n, value in given.items() if n not in known.kinds} | known.in_full(given)
        mine = self.all_settings
        return {n: (theirs.get(n), mine.get(n)) for n in {**theirs, **mine} if theirs.get(n) != mine.get(n)}

    def settings_of_sites(self) -> dict[str, Value]:
        """What the user gave, without what is the server's business alone: paths of what messages are made of."""
        return {name: value for name, value in self.settings.items() if not self._accepted.at_server(name)}

    @property
    def turnout(self) -> Turnout:
        """How many sites train in a round, and how many must answer."""
        participation = self.participation if self.mixes else 1.0
        return Turnout(self.sites, participation, self.min_sites, self.mixer.least_updates)

    @property
    def site_names(self) -> list[str]:
        """:attr:`names` if they are given, else ``site-1`` to ``site-N``, FLARE's own names in a simulation."""
        return list(self.places)

    @cached_property
    def places(self) -> dict[str, int]:
        """By site its place in :attr:`site_names`."""
        return {name: i for i, name in enumerate(self.names or [f"site-{i + 1}" for i in range(self.sites)])}

    @cached_property
    def numbers(self) -> dict[str, tuple[float, float]]:
        """What mechanisms report of a site in each round: by name the least and the most that it can be."""
        return {name: limits for part in self.parts for name, limits in part.numbers.items()}

    @property
    def resists_forgetting(self) -> bool:
        """Whether the method's aim is that local training forgets less, which is then measured."""
        return any(part.resists_forgetting for part in self.parts)

    @property
    def further(self) -> str:
        """How much sites train on after the last round, in words; empty for nothing."""
        return " and ".join(filter(None, (_asked(part, "further") for part in self.parts)))

    @property
    def each_round(self) -> str:
        """What sites train in a round beside the local epochs, in words; empty for nothing."""
        return " and ".join(filter(None, (_asked(part, "each_round") for part in self.parts)))

    def privacy(self) -> dict[str, dict[str, Any]]:
        """The account of the run's differential privacy, by what it covers; UserError if an accountant is missing."""
        return {what: said for part in self.parts for what, said in part.privacy(self).items()}

    def choices(self) -> dict[str, Any]:
        """What the method is made of, for the results."""
        terms = [term for part in self.parts if (term := _asked(part, "objective", self))]
        return {
            "personal": self.resolved_personal,
            **({"frozen": self.frozen} if self.frozen else {}),
            **({"adapters": self.adapters} if self.adapters else {}),
            "mixing": self.resolved_mixing,
            "objective": " + ".join([self.learned.loss_name, *terms]),
            "use": self.resolved_use,
            "server": [step for part in self.parts if (step := _asked(part, "at_server", self))],
        }


def _asked(part: Mechanism, what: str, *of: Any) -> str:
    """What a part of the method says in words, empty for nothing; UserError where it fails, or gives something else."""
    with asking(part, f"its {what}"):
        said = getattr(part, what)(*of)
    if said is not None and not isinstance(said, str):
        raise UserError(f"{part.name}: its {what} gave {said!r}, not text")
    return said or ""


def _switches_of(name: str, known: Accepted) -> list[str]:
    """By which settings a run could take up the mechanism that has a setting; none if it cannot."""
    parts = (part for part in mechanisms().values() if name in named_fields(part.settings_class))
    return [switch for part in parts for switch in part.switches() if switch in known.kinds]


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
    if not isinstance(name := fields.get("algorithm", ""), str):
        raise UserError(f"algorithm: give a method's name, not {type(name).__name__}")
    method = algorithm(name)
    if strange := next((name for name in method.schedule if name not in RunConfig.model_fields), ""):
        there = did_you_mean(strange, RunConfig.model_fields)
        raise UserError(f"{method.name}: its schedule sets {strange!r}, which is no field of a run{there}")
    try:
        return RunConfig(**{**method.schedule, **{k: v for k, v in fields.items() if v is not None}})
    except ValidationError as error:
        first = error.errors()[0]
        # Of a value that may be of several types the last part is the type that was tried first.
        where = ".".join(str(part) for part in first["loc"] if part not in ("int", "float", "str", "bool"))
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] != "value_error" and isinstance(first["input"], str | int | float):
            message += f", not {first['input']!r}"
        raise UserError(f"{where}: {message}" if where else message) from None
