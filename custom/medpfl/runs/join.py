"""Sites that join a finished run: what the user asks for, checked, and the steps in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medpfl.algorithms import LOCAL
from medpfl.config.fields import CIRCUMSTANCES, flag_of
from medpfl.config.named_code import permit_named
from medpfl.config.run import RunConfig, make_config
from medpfl.core.errors import UserError
from medpfl.core.lock import run_folder
from medpfl.core.messages import Failure, Message, Update
from medpfl.core.seeding import drawn_apart
from medpfl.core.threads import intra_op_threads
from medpfl.data.kinds.kind import CentreKind
from medpfl.data.kinds.registry import kind_of
from medpfl.data.sites import fixed_sites, open_source
from medpfl.engine.federation import Federation
from medpfl.engine.first_model import pick_device
from medpfl.engine.newcomers import EPOCHS, JOINED, finished, joined_results
from medpfl.engine.results import write_json
from medpfl.report.reading import load_results
from medpfl.runs.folder import JOB, RESULTS, checkpoint_in, require_own_folder
from medpfl.server.checkpoint import checkpoint_exists
from medpfl.server.newcomer import Welcome, require_new
from medpfl.site.answer import answer
from medpfl.site.newcomer import Newcomer
from medpfl.training.settings import Training

_DATA = ("data", "data_args", "partition", "sites", "names", "fractions", "train_fraction", "official")
SAME_DATA = (
    "The run's sites trained on these data: their cases are in the new sites' test, and its figures are not of new "
    "ones; give data that the run has not seen."
)
_MAY_CHANGE = {*_DATA, *CIRCUMSTANCES, "settings", "local_epochs", "init"}


@dataclass(frozen=True)
class Joining:
    """Who joins which run.

    Attributes:
        run: the run's folder.
        config: the run, with the time that newcomers get.
        trained: the same with the newcomers' training settings and device.
        newcomers: says which data they have and how they are called; None for the centres that the run held out.
        epochs: how long they adapt, at most.
        start: the file of the weights that the run began from; None where it began from random ones. Newcomers in
            other processes get its values from the server.
    """

    run: Path
    config: RunConfig
    trained: RunConfig
    newcomers: RunConfig | None
    epochs: int
    start: Path | None = None

    @classmethod
    def of(
        cls,
        algorithm: str | None,
        run: Path,
        config: RunConfig,
        said: Mapping[str, Any],
        *,
        real: bool = False,
    ) -> Joining:
        """What the user asks for.

        Args:
            algorithm: the run's, to be sure; None for whatever it is.
            run: the run's folder.
            config: the run.
            said: fields of a configuration that the user gave: ``data`` and what belongs to it, by default the run's
                held-out centres; ``local_epochs`` to train at the new site; ``settings`` of that training; ``device``;
                ``timeout`` of a newcomer's answer, by default the run's; ``init``, the file that the run began from, if
                it began from one: of real sites' runs, where their server has it, by default as in the run.
            real: the newcomers are real sites, whose data are where they are; by default of the run's own name.

        Raises:
            UserError: the run is another algorithm's, or the user asks for what a newcomer may not choose.
        """
        if algorithm not in (None, config.algorithm):
            raise UserError(f"--join {run}: that run is of {config.algorithm}, not {algorithm}")
        start = _start(config, run, said)
        trained = _with_training(config, run, said)
        config = config.model_copy(update={"timeout": trained.timeout})
        newcomers = _newcomers(config, run, said, real)
        permit_named(config)  # the run is the user's own
        if newcomers:
            permit_named(newcomers)
            require_new(newcomers.site_names, config.site_names)
        return cls(run, config, trained, newcomers, said.get("local_epochs", EPOCHS), start)

    def federation(self, config: RunConfig) -> Federation:
        """The run's parts, with what it began from; UserError if that is another file's, or the file is not here."""
        if self.start is None:
            return Federation.of(config)
        if str(self.start) == self.config.init and not self.start.exists():
            raise UserError(
                f"--join {self.run}: that run began from the start weights in {self.start}, and there is no such file "
                "here: give the file with --init, as its server has it"
            )
        found = Federation.of(config.model_copy(update={"init": str(self.start)}))
        if self.config.init.startswith("sha256:") and found.config.init != self.config.init:
            raise UserError(
                f"--init {self.start}: these are not the start weights of the run in {self.run}, which has "
                f"{self.config.init[:19]}...: give its file"
            )
        return found

    def write(self, results: Mapping[str, Any], out: Path) -> dict[str, Any]:
        """Writes join.json: what the server says, with the run's folder and the newcomers' configuration.

        Start weights are named by their fingerprint there, not by where the server has their file.
        """
        run = {"folder": self.run.name, **results["run"]}
        config = self.trained.model_dump(mode="json") | {"init": run.get("init", "")}
        whole = {**results, "run": run, "config": config}
        if self._on_the_runs_data():
            whole["notes"] = [SAME_DATA]
        write_json(out / JOINED, whole)
        return whole

    def _on_the_runs_data(self) -> bool:
        """Whether the newcomers' data are the run's own, by the checksum that its results.json has of them.

        That of real sites is nowhere in one place.
        """
        file = self.run / RESULTS
        if self.newcomers is None or (self.run / JOB).exists() or not file.exists():
            return False
        known = load_results(self.run, finished=False)["data"]["md5"]
        return known is not None and known == open_source(self.newcomers).describe()["md5"]


def join(algorithm: str | None, run: Path, said: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Lets sites join a finished run of this machine, in this process, and writes ``join.json`` and their models.

    Args:
        algorithm: the run's, to be sure; None for whatever it is.
        run: the run's folder.
        said: see :meth:`Joining.of`.
        out: where to write.

    Returns:
        The content of join.json: ``run``, ``rules``, ``epochs``, and for each site how it started, the epochs kept,
        and measures on its test data ``received``, ``adapted`` and ``alone`` (from the first model, as long).

    Raises:
        UserError: the run has not ended, is another algorithm's, or the new data do not fit it.
    """
    file = checkpoint_to_join(run)
    config, server = finished(file, f"--join {run}")
    joining = Joining.of(algorithm, run, config, said)
    require_own_folder(out)
    with run_folder(out):
        federation = joining.federation(config.model_copy(update={"device": joining.trained.device}))
        sites = _sites(joining, out)
        model = federation.model()

        def exchange(messages: Mapping[str, Message]) -> Iterator[Update | Failure]:
            return (answer(sites[name], message, model) for name, message in messages.items())

        with drawn_apart(pick_device(federation.config)), intra_op_threads(config.intra_op_threads):
            welcome = Welcome(federation.plan(steps=False), server, federation.input_format(), joining.epochs)
            found = welcome.run(list(sites), exchange)
        return joining.write(joined_results(welcome.plan, server, model, joining.epochs, found), out)


def checkpoint_to_join(run: Path) -> Path:
    """The state of the server of a run on this machine; UserError if there is none that sites can join."""
    file = checkpoint_in(run)
    if (run / JOB).exists():
        raise UserError(f"--join {run}: it is a run at a real federation; give --env prod and --kit")
    if not checkpoint_exists(file):
        raise UserError(f"--join {run}: there is no run in it ({file} is missing); give the --out of a run")
    return file


def _start(config: RunConfig, run: Path, said: Mapping[str, Any]) -> Path | None:
    """The file of a run's start weights, with which a new site's personal part and its model trained alone begin."""
    given = said.get("init")
    if not config.init:
        if given:
            raise UserError(f"--init {given}: the run in {run} began from random weights; leave it out")
        return None
    if not given and not config.init.startswith("sha256:"):
        return Path(config.init)  # a job's note: whoever submits and the server have it there
    if not given:
        raise UserError(
            f"--join {run}: that run began from start weights, from which a new site begins too: give their file with "
            "--init"
        )
    return Path(given)


def _with_training(config: RunConfig, run: Path, said: Mapping[str, Any]) -> RunConfig:
    for name, value in said.items():
        if name not in _MAY_CHANGE and value != getattr(config, name):
            raise UserError(
                f"{flag_of(name)} {value}: the run in {run} has {getattr(config, name)!r}, which a new site "
                "must share; leave it out"
            )
    own = said.get("settings", {})
    if fixed := [
        name for name in own if name not in Training.model_fields and own[name] != config.all_settings.get(name)
    ]:
        raise UserError(
            f"--set {fixed[0]}: a new site may choose {', '.join(Training.model_fields)}; the rest is the run's"
        )
    fields = config.model_dump()
    fields |= {name: said[name] for name in ("device", "timeout") if name in said}
    return make_config(**fields | {"settings": {**config.settings, **own}})


def _newcomers(config: RunConfig, run: Path, said: Mapping[str, Any], real: bool) -> RunConfig | None:
    """A configuration that has the newcomers' data; None for the centres that the run held out."""
    if "data" in said:
        return _given(config, said, real)
    if config.held_out:
        if other := next((name for name in _DATA if name in said), None):
            raise UserError(f"{flag_of(other)}: the held-out centres of {run} are divided as the run says")
        return None
    if real and config.partition == "natural":
        return _given(config, {"data": config.data, **said}, real)
    raise UserError(
        f"--join {run}: that run {'divided one data set' if real else 'held no centre out'}; give the new site's data "
        "with --data"
    )


def _given(before: RunConfig, said: Mapping[str, Any], real: bool) -> RunConfig:
    data = said["data"]
    # New data on this machine say their classes; a hospital's are told them, as they were told the run's sites.
    inherited = {k: v for k, v in before.data_args.items() if real or k != "classes"}
    kind = kind_of(data, inherited | said.get("data_args", {}))
    if not real:
        inherited = kind.kept_arguments(inherited)
    arguments = inherited | said.get("data_args", {})
    centres = isinstance(kind, CentreKind)
    usual = before.partition if real and before.partition == "natural" else "iid"
    partition = "natural" if centres else said.get("partition", usual)
    number = said.get("sites") or fixed_sites(data, partition, arguments) or 1
    names = said.get("names") or tuple(f"new-{i + 1}" for i in range(number))
    fields = {k: said[k] for k in ("fractions", "train_fraction", "official") if k in said}
    new = {"data": data, "data_args": arguments, "partition": partition, "sites": number, "names": names}
    new |= {"held_out": 0, "min_sites": 0}
    # Any method can be asked for the data alone; the run's own may need more sites than join.
    alone = {"algorithm": LOCAL.name, "personal": None, "mixing": None, "use": None, "settings": {}, "holdout": 0}
    return make_config(**before.model_dump() | fields | new | alone)


def _sites(joining: Joining, out: Path) -> dict[str, Newcomer]:
    """The newcomers by name, with the data that this machine has of them."""
    federation = joining.federation(joining.trained)
    source, device = federation.source, federation.device
    if joining.newcomers is None:
        data = source.held_out(device, divided=True)
    else:
        source = open_source(joining.newcomers)
        data = {name: source.site(name, device) for name in joining.newcomers.site_names}
    return {
        name: federation.newcomer(name, source, own, out / "joined" / name, here=True) for name, own in data.items()
    }
