"""Why a site does not answer, in words of a fixed list: nothing else may leave it as a reason.

The texts are this package's own. What varies in them is a site's name, the name of a tensor of the run's model, a
number of at most six digits, or one of a few listed words; anything else is said in the site's log alone.
"""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Collection
from functools import cache

from medpfl.algorithms import mechanisms, mixings
from medpfl.core.own_loaders import BALANCED, NO_PAIR, NOT_IN_ORDER, NOT_PLAIN, SEVERAL, USED_UP
from medpfl.site.answer import LESS_MEMORY, NO_MEMORY
from medpfl.site.unlike_training import RATES

UNKNOWN = "the site cannot answer (its log says more)"
"""In place of a reason that is not listed."""

_ERRORS = sorted(
    {name for name, thing in vars(builtins).items() if isinstance(thing, type) and issubclass(thing, Exception)}
    | {
        "AcceleratorError",
        "OutOfMemoryError",
        "UserError",
        "TornFile",
        "ValidationError",
        "SafetensorError",
        "StateError",
    }
)
_TASKS = ("prepare", "train", "validate", "test", "statistics", "join")
_SLOTS = {
    "site": r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}",
    "number": r"-?\d{1,6}(?:\.\d{1,6})?(?:e[-+]?\d{1,2})?",
    "shape": r"\[(?:\d{1,6}(?:, \d{1,6}){0,5})?\]",
    "dtype": r"torch\.[a-z]+\d{0,2}",
    "side": "shared|personal",
    "access": "read|write",
    "channel": "[a-z][a-z_]{0,40}",
    "task": "|".join(_TASKS),
    "error": "|".join(_ERRORS),
    "system": "|".join(sorted({re.escape(os.strerror(code)) for code in range(1, 134)})),
    "inexact": "nan|inf|-inf",
    "hash": "[0-9a-f]{12}",
    "part": "training|test",
    "size": "number of channels|number of classes|image size",
    "mixing": "[a-z][a-z-]{0,40}",
    "algorithm": "[a-z][a-z-]{0,40}",
    "model": "[A-Za-z0-9_:.-]{1,60}",
    "metric": "'[a-z_.0-9]{1,40}'",
}
_MORE = r" \(its log says more\)"
_TEXTS = (
    "{site} and the server disagree on what is shared: (?:here|only here|only there) {entry}(?:, there {entry})?",
    "it and the server disagree on what is shared: (?:here|only here|only there) {entry}(?:, there {entry})?",
    "{site} has no training sample",
    "it has no {part} sample",
    r"{site}: the record of its data is damaged, so nobody can say whether they have changed since the run began; "
    "begin a new experiment",
    r"{site}: its data have changed since the run began, so training and test samples would mix; restore them or begin "
    "a new experiment",
    "{site} has a model neither of round {number} nor of round {number}: it was absent, or the files are damaged",
    "mixing {mixing} needs no 'other' tensors, so none leave",
    r"{side} entry {name} is missing \({number} in all\)",
    r"entry {name} does not belong to the {side} state \({number} in all\)",
    "{side} entry {name} has shape {shape}, expected {shape}",
    "{side} entry {name} has type {dtype}, expected {dtype}",
    "{side} entry {name} has non-finite values",
    "{side} entry {name} has negative variances",
    r"(?:the training loss became {inexact}|training led to weights that are not finite): lower the learning rate "
    r"\(lr={number}\) or check the data",
    "the site cannot {access} its state: {system}" + _MORE,
    "the site cannot write its model: {system}",
    "the site cannot begin: {error}" + _MORE,
    r"{error} in task '{task}' \(the site's log says more\)",
    f"{NO_MEMORY} in task '{{task}}'(?:{LESS_MEMORY})?",
    "unknown task",
    r"site policy forbids {name}(?: and {number} more)? to leave, which {algorithm} sends",
    "a site of this name took part in that run here; joining would replace its model",
    "its {size} is not the run's, {number}" + _MORE,
    r"its {size} is not the run's, {shape}" + _MORE,
    r"its classes are not the run's, or in another order \(--data-arg classes=\.\.\. gives it, for scans a "
    r"manifest\.json too\)" + _MORE,
    "a label lies outside 0 to {number}: the model has {number} outputs",
    "a batch has {number} labels a sample, and the model {number} outputs: one for each is needed",
    "a batch has (?:bool|uint8|int8|int16) inputs: networks take floating point, scaled as training wants it",
    re.escape(NO_PAIR),
    re.escape(SEVERAL),
    re.escape(NOT_PLAIN),
    re.escape(NOT_IN_ORDER),
    re.escape(USED_UP),
    re.escape(BALANCED),
    r"its samples do not fit {model} as the run trained it" + _MORE,
    # The contract (medpfl.site.contract), the gate (medpfl.site.gate) and the policy.
    "contract: task '{task}' of round {number} is out of order here: {number} was the last that this site did",
    "contract: task '{task}' before the hello: this site has no record of a hello in this run; if its state was "
    "removed, begin a new experiment",
    "contract: round {number} of {number} does not exist",
    "contract: this site has answered task '{task}' of round {number}, and repeats {number} times in a run at most",
    "contract: the start weights are not the contract's: {name} differs",
    "contract: a site that joins trains {number} epochs at most",
    "contract: the start weights are not those that the contract names",
    "contract: the start weights came with an earlier message, and this site has not kept them",
    "contract: what came is {number} times as far from what came before as this site's own update, "
    r"{number} times is the limit \(policy: largest_jump\)",
    r"contract: rows of {name} copy each other, as weights do that show single images \(policy: copied_rows\)",
    "contract: the pretrained model f is another than the contract names",
    r"contract: the site takes no pretrained model f without its fingerprint in the contract \(policy: "
    r"named_pretrained\)",
    "policy: the job brings weights, a pretrained model f or start weights, which can be made to show single patients: "
    r"this site takes them of approved contracts alone \(approved_weights\)",
    "contract: {channel} were given already",
    "contract: {channel} are due in round {number} at the earliest",
    "contract: '{channel}' is not as the method has it",
    "contract: something came that the method does not have",
    "contract: another run has begun here meanwhile",
    "contract: the experiment belongs to another submitter here; choose another name",
    r"contract: the experiment belongs to another contract here \({hash}\); choose another name",
    "contract: the record of this run at the site is damaged; begin a new experiment",
    "contract: {hash} is not approved at this site",
    r"policy: no update or statistics of fewer than {number} training patients leave \(least_patients\)",
    "policy: the training patients are an earlier run's but for few, so that both updates would tell of these; the "
    r"same ones, or {number} others \(least_patients\)",
    "policy: an earlier run trained on the same images and labels but for few patients', so that both updates would "
    r"tell of these; the same ones, or of {number} patients others \(least_patients\)",
    "policy: the data have served {number} different sets of training patients, and of one more, updates together "
    r"would tell of few; the same ones as an earlier run's \(least_patients\)",
    r"policy: single images of a patient are not left out here \(holdout, train_counts\): the difference of two "
    r"updates would be theirs \(least_patients\)",
    r"policy: lr times weight_decay and mu is {number} at most here: updates would be of the last steps alone "
    r"\(least_patients\)",
    r"policy: momentum and beta1 are {number} at most here: updates would be of the first steps alone "
    r"\(least_patients\)",
    f"policy: optimizer is one of {', '.join(RATES)} here: of others' steps a single one may be the update "
    r"\(least_patients\)",
    "policy: lr is {number} at most here, of this optimizer: beyond, the first step may leave nothing to others "
    r"\(least_patients\)",
    r"policy: beta2 and square_decay are {number} at least here: a single step may be the update \(least_patients\)",
    "policy: mu goes with optimizer=sgd here, and weight_decay with sgd and adamw: others' steps may take off what "
    r"earlier ones made \(least_patients\)",
    "policy: the network begins with a fully connected layer, whose gradient shows single images: take one that begins "
    r"with convolutions \(least_patients\)",
    r"policy: narrow layers drop all units of most samples: an update would be of the rest \(least_patients\)",
    r"policy: dropout is {number} at most here: an update would be of few \(least_patients\)",
    r"policy: batch norm's momentum is 0 to {number} here: its statistics would be of one batch \(least_patients\)",
    "policy: as the job reads them, the images of fewer than {number} training patients show anything "
    r"\(least_patients\)",
    "policy: by batch_size and accumulate the last step of an epoch is of few samples, and much of an update would be "
    r"theirs: choose another batch_size \(least_patients\)",
    "policy: few of the training patients have nearly all samples, and an update would be theirs: they weigh as fewer "
    r"than half of {number} \(least_patients\)",
    r"policy: it cannot be told on how many patients this update rests \(least_patients\)",
    "policy: few patients have nearly all of this update: it rests on fewer than a quarter of {number} alike "
    r"\(least_patients\)",
    r"policy: which folders are sites, is not the job's to say here \(folders=sites, held_out\)",
    r"policy: training images are changed by presets alone here, not by a list of the job's own \(own_augmentation\)",
    "policy: of one class there are fewer than {number} training patients, and what tells it from others would rest on "
    r"these \(least_patients\)",
    "policy: whose an image is, is not the job's to say here: its 'patient' is none of patient_patterns",
    r"policy: the data have served {number} experiments, which is the limit \(experiments\)",
    r"policy: the data have served {number} rounds, which is the limit \(rounds\)",
    r"policy: one other site may weigh {number} at most here \(largest_weight\), and the contract allows more",
    r"policy: by {name} a server leads training past largest_jump and copied_rows, so none",
    r"policy: the network has {number} parameters or more, {number} is the limit \(network_parameters\)",
    r"policy: a forward pass of a batch has {number} values or more, {number} is the limit \(network_values\)",
    r"policy: a forward pass of a batch has {number} operations or more, {number} is the limit \(network_operations\)",
    "policy: a model argument is beyond {number}, which no network here takes",
    "policy: the network cannot be measured before it is built, so its limits cannot be held",
    r"policy: the site's ledger (?:cannot be (?:read|written)|is not as the site wrote it), so nothing leaves",
    "gate: {name} may not leave",
    "gate: metric {metric} may not leave as it is",
)


def _pattern(text: str) -> re.Pattern[str]:
    for slot, expression in _SLOTS.items():
        text = text.replace(f"{{{slot}}}", f"(?:{expression})")
    return re.compile(text.replace("{name}", "'([^']+)'").replace("{entry}", "'([^']+)'"))


@cache
def _known() -> tuple[re.Pattern[str], ...]:
    """The package's own words and those of its methods; another package's methods have none."""
    parts = (*mixings().values(), *mechanisms().values())
    own = dict.fromkeys(text for part in parts if part.__module__.startswith("medpfl.") for text in part.words)
    return tuple(map(_pattern, (*_TEXTS, *own)))


def listed(reason: str, names: Collection[str]) -> str:
    """The reason if it is of the list, else :data:`UNKNOWN`.

    Args:
        reason: why a site does not answer.
        names: of the run's tensors, and the lines that describe them (:meth:`ParameterSplit.description`).
    """
    for pattern in _known():
        if (found := pattern.fullmatch(reason)) is not None:
            return reason if all(said in names for said in found.groups() if said is not None) else UNKNOWN
    return UNKNOWN
