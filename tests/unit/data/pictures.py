"""Folders of pictures that tests make."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from medpfl.config.run import make_config

CPU = torch.device("cpu")
CENTRES = {"north": (220, 60, 40), "south": (60, 200, 60), "west": (60, 60, 220)}
CLASSES = ("glaucoma", "normal")
EACH = 6
TINY = {"rounds": 1, "local_epochs": 1, "settings": {"batch_size": 4}}


def paint(file: Path, colour, seed, size=(48, 40), **options) -> Path:
    """A noisy picture of a colour, unlike that of any other seed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-30, 30, (size[1], size[0], 3))
    Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(file, **options)
    return file


def write_centres(root: Path, backwards: bool = False) -> Path:
    """Three centres of two classes; two eyes of a patient; a grey, a palette and a turned picture among them."""
    wanted = [
        (centre, label, person, eye)
        for centre in CENTRES
        for label in CLASSES
        for person in range(EACH // 2)
        for eye in ("left", "right")
    ]
    for centre, label, person, eye in reversed(wanted) if backwards else wanted:
        number = list(CENTRES).index(centre)
        seed = wanted.index((centre, label, person, eye))
        file = root / centre / label / f"{label[0]}{person}_{eye}.{('png', 'jpg', 'bmp')[number]}"
        colour = [c - 40 * CLASSES.index(label) * (c > 100) for c in CENTRES[centre]]
        paint(file, colour, seed, size=(40 + 8 * number, 40))
    first, second, third = (root / "north" / "normal" / f"n{k}_left.png" for k in range(3))
    Image.open(first).convert("L").save(first)
    Image.open(second).quantize(16).save(second)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(third).save(third, exif=exif)
    (root / "north" / "readme.txt").write_text("not a picture")
    return root


def config(data, **fields):
    arguments = {"size": 32} | fields.pop("data_args", {})
    defaults = {"algorithm": "fedavg", "sites": 3, "fractions": (0.5, 0.0, 0.5), "partition": "natural"} | TINY
    return make_config(data=str(data), data_args=arguments, device="cpu", **(defaults | fields))


def pixels(images):
    return {image.numpy().tobytes() for image in images}
