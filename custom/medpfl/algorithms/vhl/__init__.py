"""VHL: every site also trains on the same images of noise, and draws what it learns of a class towards theirs.

Tang, Zhang, Shi, He, Han, Chu: Virtual homogeneity learning: defending against data heterogeneity in federated
learning. ICML 2022.

Virtual images (:mod:`medpfl.algorithms.vhl.noise_images`) are of an untrained generator, another distribution of its
latent noise for each class: nobody's data, alike at all sites, and separable. With batches (x, y) of the site's own and
(v, c) of virtual ones a site minimises

    CE(x, y) + a CE(v, c) + l A(x, y, v, c) + s S(v, c)

A draws the features of natural images to those of virtual ones of their class (the paper's distance between conditional
distributions of features): the supervised contrastive loss (Khosla et al., NeurIPS 2020) of all features of both
batches, at unit length and a temperature of 0.07, virtual ones without gradient; S is the same of the virtual ones
alone, with it. Features are the inputs of the classification layer.

The whole text of the paper was not at hand; terms and defaults a = 1, l = 1, s = 0.1, and 200 images a class, are those
of the authors' public code (wizard1203/VHL, configuration VHL_alignNoiseContrast). **Another thing than there**: there
the network gets an output more for each virtual class, and c is matched to the class that many outputs before. Here a
network has as many outputs as there are classes, and virtual images bear the classes' own labels. Also there the
generator is a StyleGAN-v2 of 512 channels, images are cropped and flipped, and only the first five epochs of a round
align; here images are as made, and all epochs do.

Each site makes the images itself, from the run's seed: nothing travels, and a server cannot choose them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from medpfl.algorithms.base import Algorithm
from medpfl.algorithms.mechanism import LocalRound, Mechanism, Rule, Run
from medpfl.algorithms.mixing import Samples
from medpfl.algorithms.vhl.noise_images import noise_images
from medpfl.core.channels import Channel
from medpfl.core.errors import UserError
from medpfl.core.parameters import ParameterSplit
from medpfl.core.reasons import Reason
from medpfl.core.settings import Settings, setting
from medpfl.core.site_data import Batch, endless_batches
from medpfl.models.outputs import NO_FEATURES, listen, with_features
from medpfl.training.part import Beside, Part

_TEMPERATURE = 0.07
_MOST = 2 * 10**9
"""Numbers of all virtual images, of a byte each, that a site makes."""
TOO_MANY = Reason("virtual images would hold more than 2e9 numbers: take fewer virtual_images, or smaller pictures")
FROZEN = Reason(
    "align and spread draw features towards each other, and all that makes features is frozen: freeze less, or set "
    "both to 0"
)
NO_PICTURES = Reason("virtual images are pictures of channels, height and width: volumes, series and bags have none")


class VirtualSettings(Settings):
    """How much sites learn of virtual images."""

    virtual: float = setting(0.0, "weight of virtual images' cross-entropy", ge=0)
    align: float = setting(1.0, "weight of drawing features to virtual ones of their class", symbol="lambda", ge=0)
    spread: float = setting(0.1, "weight of keeping virtual features of a class together", ge=0)
    virtual_images: int = setting(200, "virtual images of each class", gt=0, le=10_000)


class Virtual(Mechanism):
    """Virtual images beside each batch, and the agreement of features."""

    settings_class = VirtualSettings
    name = "virtual"
    switch = "virtual"
    newcomer = Rule("the same virtual images", "it makes them as the others did, from the run's seed")
    words = (NO_PICTURES, TOO_MANY, NO_FEATURES, FROZEN)

    def refuses(self, run: Run) -> str | None:
        """Virtual images bear one class each, and one pass through the model gives their features."""
        if not run.learned.one_class:
            return f"virtual images are of one class each; {run.learned.name} has other labels"
        if "heads:" in run.resolved_personal and run.all_settings["consistency"]:
            return "virtual takes features from one pass through the model, and consistency makes three: set one to 0"
        return None

    def objective(self, run: Run) -> str:
        """Three terms."""
        values = run.all_settings
        return (
            f"{values['virtual']} cross-entropy of virtual images + {values['align']} contrast of features with theirs "
            f"+ {values['spread']} contrast among theirs"
        )

    def channels(self, run: Run, model: nn.Module, split: ParameterSplit) -> tuple[Channel, ...]:
        """None; UserError where the model has no linear layer that classifies: its inputs are the features."""
        split.classification_layer(model)
        return ()

    def suits(self, model: nn.Module, split: ParameterSplit, x: Tensor) -> None:
        """Inputs must be pictures, and each has one row of features, in which something is trained."""
        if x.ndim != 4:
            raise UserError(NO_PICTURES())
        _, layer = split.classification_layer(model)
        if self.settings.virtual_images * layer.out_features * x[0].numel() > _MOST:
            raise UserError(TOO_MANY())
        with torch.enable_grad():
            _, features = with_features(model, layer, x)
        if self._draws and not features.requires_grad:
            raise UserError(FROZEN())

    def begin(self, round_: LocalRound) -> Part:
        """Batches of virtual images, as large as the site's own are."""
        _, layer = round_.split.classification_layer(round_.model)
        size, seed = round_.run.all_settings["batch_size"], round_.run.seed
        order = round_.order("virtual")
        features: list[Tensor] = []
        batches = None

        def made(x: Tensor, y: Tensor) -> Batch:
            nonlocal batches
            if batches is None:
                images, labels = noise_images(
                    seed, layer.out_features, self.settings.virtual_images, (int(x.shape[1]), *map(int, x.shape[2:]))
                )
                batches = endless_batches(images, labels, size, order)
            features.clear()
            listen(layer, features, once=True)
            images, labels = next(batches)
            return images.to(x.device), labels.to(x.device)

        def agreement(y: Tensor, labels: Tensor, rows: slice) -> Tensor:
            natural, virtual = features[0][: len(y)].float(), features[0][rows].float()
            both = torch.cat((natural, virtual.detach()))
            return self.settings.align * contrast(both, torch.cat((y, labels))) + self.settings.spread * contrast(
                virtual, labels
            )

        return Part(beside=[Beside(made, self.settings.virtual, agreement if self._draws else None)])

    @property
    def _draws(self) -> bool:
        """Whether features are drawn anywhere."""
        return bool(self.settings.align or self.settings.spread)

    def adapts(self, round_: LocalRound) -> Part:
        """A site that joins, likewise."""
        return self.begin(round_)


def contrast(features: Tensor, labels: Tensor, temperature: float = _TEMPERATURE) -> Tensor:
    """The supervised contrastive loss (Khosla et al. 2020, eq. 2), mean over all samples.

    A sample that is the only one of its class counts as 0; one whose label is below 0, which a loss leaves out, not at
    all.

    Args:
        features: (n, F), of any length.
        labels: (n,).
        temperature: by which similarities are divided.
    """
    with torch.autocast(features.device.type, enabled=False):
        unit = normalize(features)
        alike = unit @ unit.T / temperature
        alone, known = torch.eye(len(labels), dtype=torch.bool, device=labels.device), labels >= 0
        log_share = alike - alike.masked_fill(alone | ~known, -torch.inf).logsumexp(1, keepdim=True)
        same = (labels[:, None] == labels) & ~alone & known
        of_each = log_share.where(same, 0).sum(1) / same.sum(1).clamp(min=1)
        return -of_each.sum() / known.sum().clamp(min=1)


VHL = Algorithm(
    name="vhl",
    title="VHL",
    paper="Tang et al., ICML 2022",
    summary="sites also train on the same images of noise, and draw features of a class towards theirs",
    mixing=Samples,
    mechanisms=(Virtual,),
    settings={"virtual": 1.0},
)
