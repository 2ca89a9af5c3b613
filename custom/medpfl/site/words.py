"""Why a site does not answer, in words of a fixed list: nothing else may leave it as a reason.

The list has the reasons of this file, those of the modules that :func:`_known` names, and those of this package's
methods: it is the same whatever else has been imported. What ``site/`` and ``flare/`` refuse is said here and not
beside what raises it: the gate asks this list and has reasons of its own, and whoever reviews what leaves a site reads
one file. A text that is typed where it is raised stays in the site's log; a test finds it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

from medpfl.algorithms import mechanisms, mixings
from medpfl.core import own_loaders, parameters
from medpfl.core.reasons import Reason
from medpfl.models import cost
from medpfl.site import training_sets, unlike_training
from medpfl.training import loop

UNKNOWN = "the site cannot answer (its log says more)"
"""In place of a reason that is not listed."""
MORE = " (its log says more)"
POLICY = "policy: "
"""Before what :mod:`medpfl.site.training_sets` and :mod:`medpfl.site.unlike_training` say."""

# Any task.
OTHER_SPLIT = Reason("{site} and the server disagree on what is shared: {difference}")
NO_TRAINING_SAMPLE = Reason("{site} has no training sample")
DATA_UNKNOWN = Reason(
    "{site}: the record of its data is damaged, so nobody can say whether they have changed since the run began; begin "
    "a new experiment"
)
DATA_CHANGED = Reason(
    "{site}: its data have changed since the run began, so training and test samples would mix; restore them or begin "
    "a new experiment"
)
NO_MODEL = Reason(
    "{site} has a model neither of round {number} nor of round {number}: it was absent, or the files are damaged"
)
NOT_NEEDED = Reason("mixing {method} needs no 'other' tensors, so none leave")
NO_STATE = Reason("the site cannot {read|write} its state: {system}" + MORE)
FAILED = Reason("{error} in task '{task}' (the site's log says more)")
FAILED_IN = Reason("{error} in the {hook} of {mechanism} in task '{task}' (the site's log says more)")
WRONG_FORM = Reason(
    "what the {hook} of {mechanism} gave in task '{task}' is not as it must be (the site's log says more)"
)
NO_MEMORY = Reason("the GPU has not enough memory in task '{task}'")
NO_MEMORY_TO_TRAIN = Reason(
    "the GPU has not enough memory in task 'train': a smaller batch_size with a larger accumulate, or precision=bf16, "
    "takes less"
)
"""In place of torch's words, which have sizes and numbers of processes."""

# FLARE.
UNKNOWN_TASK = Reason("unknown task")
CANNOT_BEGIN = Reason("the site cannot begin: {error}" + MORE)
FORBIDDEN = Reason("site policy forbids {name}{and more} to leave, which {method} sends")
TOOK_PART = Reason("a site of this name took part in that run here; joining would replace its model")

# A site that joins.
NEWCOMERS_SPLIT = Reason("it and the server disagree on what is shared: {difference}")
NO_SAMPLE = Reason("it has no {training|test} sample")
OTHER_SIZE = Reason("its {number of channels|number of classes|image size} is not the run's, {number or shape}" + MORE)
OTHER_CLASSES = Reason(
    "its classes are not the run's, or in another order (--data-arg classes=... gives it, for scans a manifest.json "
    "too)" + MORE
)
NO_FIT = Reason("its samples do not fit {model} as the run trained it" + MORE)
NO_NEW_MODEL = Reason("the site cannot write its model: {system}")

# The contract.
OUT_OF_ORDER = Reason(
    "contract: task '{task}' of round {number} is out of order here: {number} was the last that this site did"
)
BEFORE_HELLO = Reason(
    "contract: task '{task}' before the hello: this site has no record of a hello in this run; if its state was "
    "removed, begin a new experiment"
)
NO_ROUND = Reason("contract: round {number} of {number} does not exist")
NONE_FOLLOWS = Reason("contract: in this run every site trains in each round, and none is asked task 'follow'")
REPEATED = Reason(
    "contract: this site has answered task '{task}' of round {number}, and repeats {number} times in a run at most"
)
ASKED_AGAIN = Reason(
    "contract: this site was asked task '{task}' of round {number} before, and is asked so again {number} times at most"
)
OTHER_START = Reason("contract: the start weights are not the contract's: {name} differs")
MANY_EPOCHS = Reason("contract: a site that joins trains {number} epochs at most")
UNNAMED_START = Reason("contract: the start weights are not those that the contract names")
START_NOT_KEPT = Reason("contract: the start weights came with an earlier message, and this site has not kept them")
TOO_FAR = Reason(
    "contract: what came is {number} times as far from what came before as this site's own update, {number} times is "
    "the limit (policy: largest_jump)"
)
FAR_AT_FIRST = Reason(
    "contract: what came is more than {number} times as far from what came before as this site's first update would "
    "be, and that is the limit (policy: largest_jump)"
)
FAR_BY_STEPS = Reason(
    "contract: what is added to every step leads more than {number} times as far as this site's own update, and that "
    "is the limit (policy: largest_jump)"
)
COPIED_ROWS = Reason(
    "contract: rows of {name} copy each other, as weights do that show single images (policy: copied_rows)"
)
OTHER_PRETRAINED = Reason("contract: the pretrained model f is another than the contract names")
UNNAMED_PRETRAINED = Reason(
    "contract: the site takes no pretrained model f without its fingerprint in the contract (policy: named_pretrained)"
)
GIVEN_ALREADY = Reason("contract: {channel} were given already")
NOT_DUE = Reason("contract: {channel} are due in round {number} at the earliest")
NOT_AS_HAD = Reason("contract: '{channel}' is not as the method has it")
NOT_HAD = Reason("contract: something came that the method does not have")
OTHER_RUN = Reason("contract: another run has begun here meanwhile")
OTHER_SUBMITTER = Reason("contract: the experiment belongs to another submitter here; choose another name")
OTHER_CONTRACT = Reason("contract: the experiment belongs to another contract here ({hash}); choose another name")
RECORD_DAMAGED = Reason("contract: the record of this run at the site is damaged; begin a new experiment")
NOT_APPROVED = Reason("contract: {hash} is not approved at this site (there: medpfl site init KIT --job JOB)")

# The policy.
BRINGS_WEIGHTS = Reason(
    "policy: the job brings weights, a pretrained model f or start weights, which can be made to show single patients: "
    "this site takes them of approved contracts alone (approved_weights)"
)
FEW_PATIENTS = Reason("policy: no update or statistics of fewer than {number} training patients leave (least_patients)")
IMAGES_LEFT_OUT = Reason(
    "policy: single images of a patient are not left out here (holdout, train_counts): the difference of two updates "
    "would be theirs (least_patients)"
)
FEW_SHOW = Reason(
    "policy: as the job reads them, the images of fewer than {number} training patients show anything (least_patients)"
)
SMALL_LAST_STEP = Reason(
    "policy: by batch_size and accumulate the last step of an epoch is of few samples, and much of an update would be "
    "theirs: choose another batch_size (least_patients)"
)
FEW_HAVE_ALL = Reason(
    "policy: few of the training patients have nearly all samples, and an update would be theirs: they weigh as fewer "
    "than half of {number} (least_patients)"
)
UPDATE_OF_UNKNOWN = Reason("policy: it cannot be told on how many patients this update rests (least_patients)")
UPDATE_OF_FEW = Reason(
    "policy: few patients have nearly all of this update: it rests on fewer than a quarter of {number} alike "
    "(least_patients)"
)
SAYS_FOLDERS = Reason("policy: which folders are sites, is not the job's to say here (folders=sites, held_out)")
OWN_AUGMENTATION = Reason(
    "policy: training images are changed by presets alone here, not by a list of the job's own (own_augmentation)"
)
FEW_OF_CLASS = Reason(
    "policy: of one class there are fewer than {number} training patients, and what tells it from others would rest on "
    "these (least_patients)"
)
SAYS_WHOSE = Reason(
    "policy: whose an image is, is not the job's to say here: its 'patient' is none of patient_patterns"
)
MANY_VALUES = Reason(
    "policy: as the job reads this site's data, they are more than {number} values (samples x channels x shape; with "
    "masks more), which is the limit: ask for smaller images or fewer, or the site for a higher limit (data_values)"
)
EXPERIMENTS = Reason("policy: the data have served {number} experiments, which is the limit (experiments)")
ROUNDS = Reason("policy: the data have served {number} rounds, which is the limit (rounds)")
LARGE_WEIGHT = Reason(
    "policy: one other site may weigh {number} at most here (largest_weight), and the contract allows more"
)
STEERS = Reason("policy: by {name} a server leads training past largest_jump and copied_rows, so none")
LEDGER = Reason(
    "policy: the site's ledger {cannot be read|cannot be written|is not as the site wrote it}, so nothing leaves"
)

# The gate.
MAY_NOT_LEAVE = Reason("gate: {name} may not leave")
METRIC_MAY_NOT_LEAVE = Reason("gate: metric {metric} may not leave as it is")
NO_ENTRY_OF_THE_RUN = Reason("gate: {a tensor|a number} that the run does not have may not leave" + MORE)
"""What it is called is the code's, made as it ran."""


@cache
def _known() -> tuple[Reason, ...]:
    """The package's own words and those of its methods; another package's methods have none."""
    parts = (*mixings().values(), *mechanisms().values())
    of_methods = (one for part in parts if part.__module__.startswith("medpfl.") for one in part.words)
    here = _reasons(globals(), *map(vars, (parameters, own_loaders, loop, cost)))
    of_policy = (Reason(POLICY + one.text) for one in _reasons(*map(vars, (training_sets, unlike_training))))
    return tuple(dict.fromkeys((*here, *of_policy, *of_methods)))


def _reasons(*places: Mapping[str, object]) -> list[Reason]:
    return [thing for place in places for thing in place.values() if isinstance(thing, Reason)]


def listed(reason: str, names: Collection[str]) -> str:
    """The reason if it is of the list, else :data:`UNKNOWN`.

    Args:
        reason: why a site does not answer.
        names: of the run's tensors, the lines that describe them (:meth:`ParameterSplit.description`), and of its
            mechanisms.
    """
    for known in _known():
        if (found := known.pattern.fullmatch(reason)) is not None:
            return reason if all(said in names for said in found.groups() if said is not None) else UNKNOWN
    return UNKNOWN
