"""What a step and an epoch of a site's training cost, against a plain loop that does the same by torch and MONAI.

    python benchmarks/step_time.py [--cases lenet5 ...] [--epochs 15] [--device cuda] [--out step_time.json]

Both train the same network on the same images in memory, in turns, an epoch each; the ratio is the median over pairs.
Seconds are those of the processor, with one thread, so that what else a machine does counts little; on a GPU those that
pass until it has done all. Peak memory is that of a process of its own; on a GPU what its tensors take there. A case
says how data, network, loss and both augmentations are made, so that another task is one more entry of CASES.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from medpfl.core.masked_data import MaskedImages, MaskedVolumes
from medpfl.core.seeding import generator
from medpfl.core.site_data import PARTS, ImageTensors, SiteData
from medpfl.models import build_model, logits
from medpfl.tasks import tasks
from medpfl.training.loop import plain_objective, train_epochs
from medpfl.training.trainer import Trainer

Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Feed = Callable[[SiteData, torch.Generator], Iterator[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class Case:
    """What is trained.

    Attributes:
        data: the site's.
        feed: the same images and labels to the plain loop: an epoch's batches.
        network: makes the network.
        task: its loss.
        settings: of training.
        augment: as ``--augment`` has it.
        plainly: the same for the plain loop: changes a batch of images and labels.
        batch: samples in a step.
        loss: the plain loop's; the task's own where it says nothing.
    """

    data: Callable[[], SiteData]
    feed: Feed
    network: Callable[[], nn.Module]
    task: str = "classification"
    settings: Mapping[str, Any] = field(default_factory=dict)
    augment: str = "none"
    plainly: Callable[[], Change] = lambda: lambda x, y: (x, y)
    batch: int = 32
    loss: Callable[[], Callable[[Tensor, Tensor], Tensor]] | None = None


def pictures(number: int, edge: int) -> ImageTensors:
    """Random pictures of 11 classes."""
    x = torch.randint(0, 256, (number, 1, edge, edge), generator=generator(0)).to(torch.uint8)
    parts = {"train": x, "validation": x[:0], "test": x[:0]}
    return ImageTensors(parts, {part: torch.arange(len(p)) % 11 for part, p in parts.items()})


def from_memory(data: SiteData, order: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of images and labels or masks that lie in memory, images in [-1, 1]."""
    images, labels = data.images["train"], data.labels["train"]
    for chosen in torch.randperm(len(labels), generator=order).to(labels.device).split(32):
        yield images[chosen].float().sub_(127.5).div_(127.5), labels[chosen]


def slices(number: int, edge: int) -> MaskedImages:
    """Random pictures with masks of one structure."""
    x = pictures(number, edge).images["train"]
    mask = (torch.rand(number, edge, edge, generator=generator(1)) < 0.1).to(torch.uint8)
    return MaskedImages(
        {p: x[: number * (p == "train")] for p in PARTS}, {p: mask[: number * (p == "train")] for p in PARTS}
    )


def volumes(number: int, shape: tuple[int, int, int], window: tuple[int, int, int]) -> MaskedVolumes:
    """Random volumes with masks of one structure, of which a step takes patches."""
    draw = generator(2)
    images = [torch.randn(1, *shape, generator=draw) for _ in range(number)]
    masks = [(torch.rand(shape, generator=draw) < 0.1).to(torch.uint8) for _ in range(number)]
    return MaskedVolumes({"train": images}, {"train": masks}, window)


def cropped(data: SiteData, order: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Patches of volumes by MONAI's random crop, half of them around a structure, two a step."""
    from monai.transforms import RandCropByPosNegLabeld

    crop = RandCropByPosNegLabeld(["x", "y"], "y", data.window, pos=1, neg=1, num_samples=data.patches)
    crop.set_random_state(seed=order.initial_seed() % 2**32)
    pieces = []
    for volume in torch.randperm(data.samples("train"), generator=order).tolist():
        pieces += crop({"x": data.images["train"][volume], "y": data.masks["train"][volume][None]})
    for chosen in torch.randperm(len(pieces), generator=order).split(2):
        patches = [pieces[i] for i in chosen.tolist()]
        yield (torch.stack([p[k].as_tensor() for p in patches]) for k in "xy")


def dice_and_entropy() -> Callable[[Tensor, Tensor], Tensor]:
    """MONAI's loss of a segmentation."""
    from monai.losses import DiceCELoss

    loss = DiceCELoss(include_background=False, to_onehot_y=True, softmax=True, batch=True)
    return lambda output, masks: loss(output, masks if masks.ndim == output.ndim else masks[:, None])


def network(name: str, edge: Any, classes: int = 11) -> nn.Module:
    """A network, seeded."""
    torch.manual_seed(0)
    return build_model(name, in_channels=1, num_classes=classes, image_size=edge)


def of_monai() -> Change:
    """The same changes as the preset ``light`` by MONAI's transforms, sample by sample, as its pipelines have them."""
    from monai.transforms import (
        Compose,
        RandAdjustContrast,
        RandAffine,
        RandGaussianNoise,
        RandScaleIntensityFixedMean,
        RandShiftIntensity,
    )

    degrees, zoom, shift = 10 * torch.pi / 180, 0.1, 0.05 * 28
    change = Compose(
        [
            RandAffine(1.0, degrees, translate_range=shift, scale_range=zoom, padding_mode="border", lazy=False),
            RandAdjustContrast(1.0, gamma=(0.9, 1 / 0.9)),
            RandScaleIntensityFixedMean(1.0, factors=0.1),
            RandShiftIntensity(0.1, prob=1.0),
            RandGaussianNoise(1.0, std=0.04),
        ]
    )
    change.set_random_state(seed=0)
    return lambda x, y: (torch.stack([change(image).as_tensor() for image in x]), y)


def of_torch() -> Change:
    """The same by torch on the whole batch, as one writes it by hand."""
    from torch.nn.functional import affine_grid, grid_sample

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        n, even = len(x), torch.rand(len(x), 8, device=x.device) * 2 - 1
        angle, zoom = torch.deg2rad(10 * even[:, 0]), 1 + 0.1 * even[:, 1]
        cos, sin = angle.cos() / zoom, angle.sin() / zoom
        rows = torch.stack((cos, -sin, 0.1 * even[:, 2])), torch.stack((sin, cos, 0.1 * even[:, 3]))
        theta = torch.stack(rows).permute(2, 0, 1)
        x = grid_sample(x, affine_grid(theta, list(x.shape), align_corners=False), "bilinear", "border", False)
        curve, contrast, brightness, noise = (even[:, i].view(n, 1, 1, 1) for i in range(4, 8))
        least, most = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
        u = ((x - least) / (most - least)) ** (0.9**curve)
        mean = u.mean((1, 2, 3), keepdim=True)
        u = (u - mean) * (1 + 0.1 * contrast) + mean + 0.05 * brightness
        return (u + torch.randn_like(u) * 0.01 * (1 + noise)) * (most - least) + least, y

    return change


def classifier(name: str, number: int, edge: int, **more: Any) -> Case:
    """A 2-D classifier on pictures in memory."""
    return Case(
        data=lambda: pictures(number, edge),
        feed=from_memory,
        network=lambda: network(name, edge),
        **more,
    )


def segmenter(data: Callable[[], SiteData], edge: Any, feed: Feed, batch: int, **settings: Any) -> Case:
    """A U-Net with batch norm that segments one structure, with MONAI's loss in the plain loop."""
    return Case(
        data=data,
        feed=feed,
        network=lambda: network("unet", edge, 2),
        task="segmentation",
        settings=ADAM | settings,
        batch=batch,
        loss=dice_and_entropy,
    )


def patches(
    edge: tuple[int, int, int] = (16, 32, 32),
    batch: int = 2,
    volume: tuple[int, int, int] = (40, 64, 64),
    **settings: Any,
) -> Case:
    """Of volumes."""
    return segmenter(lambda: volumes(8, volume, edge), edge, cropped, batch, **settings)


ADAM = {"optimizer": "adam", "lr": 1e-3}
CASES = {
    "lenet5": classifier("lenet5", 2048, 28),
    "lenet5-adam": classifier("lenet5", 2048, 28, settings=ADAM),
    "resnet32": classifier("resnet32", 192, 28),
    "lenet5-light, by hand": classifier("lenet5", 2048, 28, augment="light", plainly=of_torch),
    "lenet5-light, MONAI": classifier("lenet5", 512, 28, augment="light", plainly=of_monai),
    "unet": segmenter(lambda: slices(512, 64), 64, from_memory, 32),
    "unet, 3-D": patches(),
    "unet, 3-D large": patches((16, 48, 48), 4),
    "unet, 3-D, 96": patches((96, 96, 96), 2, volume=(112, 128, 128)),
    "vit-small, 224": classifier("vit-small", 128, 224),
    "resnet32-light, by hand": classifier("resnet32", 192, 28, augment="light", plainly=of_torch),
}
OURS_ALONE = {
    "resnet32, bf16": classifier("resnet32", 192, 28, settings={"precision": "bf16"}),
    "resnet32, channels_last": classifier("resnet32", 192, 28, settings={"channels_last": 1}),
    "unet, 3-D, channels_last": patches(channels_last=1),
    "unet, 3-D large, channels_last": patches((16, 48, 48), 4, channels_last=1),
    "unet, 3-D, 96, bf16": patches((96, 96, 96), 2, volume=(112, 128, 128), precision="bf16"),
    "unet, 3-D, 96, bf16 and channels_last": patches(
        (96, 96, 96), 2, volume=(112, 128, 128), precision="bf16", channels_last=1
    ),
    "vit-small, 224, bf16": classifier("vit-small", 128, 224, settings={"precision": "bf16"}),
    "lenet5, bf16": classifier("lenet5", 2048, 28, settings={"precision": "bf16"}),
    "lenet5, channels_last": classifier("lenet5", 2048, 28, settings={"channels_last": 1}),
}
"""Settings of ours that the plain loop, in float32, has not."""


def on(device: str, data: SiteData) -> SiteData:
    """A site's data as its engine puts them there: volumes stay where they are, and their patches go."""
    if isinstance(data, MaskedVolumes):
        return replace(data, device=torch.device(device))
    moved = {kind: {p: x.to(device) for p, x in getattr(data, kind).items()} for kind in ("images", "labels")}
    return replace(data, **moved)


def ours(case: Case, device: str) -> Callable[[int], None]:
    """An epoch as a site takes it."""
    data, model = on(device, case.data()), case.network().to(device)
    trainer = Trainer.of({"lr": 0.01, "batch_size": case.batch, **case.settings}, augment=case.augment)
    objective = plain_objective(model, tasks()[case.task].loss)
    return lambda epoch: train_epochs(model, data, trainer, 1, generator(0, epoch), objective) and None


def plain(case: Case, device: str) -> Callable[[int], None]:
    """The same written down in torch."""
    data, model = on(device, case.data()), case.network().to(device)
    change, loss_of = case.plainly(), case.loss() if case.loss else tasks()[case.task].loss
    settings = {"lr": 0.01, **case.settings}
    kind = torch.optim.Adam if settings.get("optimizer") == "adam" else torch.optim.SGD

    def epoch(number: int) -> None:
        model.train()
        optimizer, total = kind(model.parameters(), lr=settings["lr"], foreach=True), 0.0
        for x, y in case.feed(data, generator(0, number)):
            x, y = change(x.to(device), y.to(device))
            optimizer.zero_grad()
            loss = loss_of(logits(model(x)), y)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(y)
        float(total)

    return epoch


def now(device: str) -> float:
    """The processor's clock; with a GPU the wall's, once all that was asked of it is done."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def timed(case: Case, other: Case | None, epochs: int, device: str) -> dict[str, float]:
    """Seconds of an epoch of both, in turns, and the median ratio; the first pair warms up."""
    first, second = ours(case, device), plain(case, device) if other is None else ours(other, device)
    pairs = []
    for number in range(epochs + 1):
        pair = []
        for run in (first, second) if number % 2 else (second, first):
            began = now(device)
            run(number)
            pair.append(now(device) - began)
        pairs.append(pair if number % 2 else pair[::-1])
    ratios = sorted(a / b for a, b in pairs[1:])
    steps = sum(1 for _ in case.feed(case.data(), generator(0)))
    seconds, against = (median(p[i] for p in pairs[1:]) for i in (0, 1))
    return {
        "epoch_s": seconds,
        "step_ms": 1000 * seconds / steps,
        "plain_epoch_s": against,
        "ratio": median(ratios),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
    }


def peak(name: str, which: str, device: str) -> float:
    """MiB that a process of its own has at most, or its tensors on a GPU, in two epochs."""
    command = [sys.executable, __file__, "--device", device, "--peak", which, name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_peak(name: str, which: str, device: str) -> None:
    """The same, of this process."""
    epoch = {"ours": ours, "plain": plain}[which](CASES[name], device)
    for number in range(2):
        epoch(number)
    if device != "cpu":
        print(torch.cuda.max_memory_allocated() / 2**20)
        return
    with open("/proc/self/status", encoding="ascii") as status:  # rusage would have the parent's peak
        print(next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM")))


def main() -> None:
    """Prints a row a case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=[*CASES, *OURS_ALONE])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--any-order", action="store_true", help="on a GPU cuDNN may add in any, unlike in a run")
    parser.add_argument("--out")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    said = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic = not said.any_order
    if said.peak:
        which, name = said.peak
        print_peak(name, which, said.device)
        return
    found = {}
    print("| case | step, ms | epoch, s | against, s | time ratio (quartiles) | memory, MiB | against, MiB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in said.cases:
        if name in CASES:
            found[name] = timed(CASES[name], None, said.epochs, said.device)
            peaks = (peak(name, which, said.device) for which in ("ours", "plain"))
            found[name] |= dict(zip(("peak_mib", "plain_peak_mib"), peaks, strict=True))
            memory = f"{found[name]['peak_mib']:.0f} | {found[name]['plain_peak_mib']:.0f}"
        else:
            found[name] = timed(OURS_ALONE[name], CASES[name.rpartition(", ")[0]], said.epochs, said.device)
            memory = "- | -"
        t = found[name]
        low, high = t["ratio_quartiles"]
        times = f"{t['step_ms']:.2f} | {t['epoch_s']:.3f} | {t['plain_epoch_s']:.3f}"
        print(f"| {name} | {times} | {t['ratio']:.3f} ({low:.3f}-{high:.3f}) | {memory} |", flush=True)
    if said.out:
        with open(said.out, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "threads": 1, "device": said.device, "cases": found}, file, indent=2)


if __name__ == "__main__":
    main()
