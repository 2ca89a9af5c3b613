"""The sets of MedMNIST v2 (Yang et al., Scientific Data 10, 2023): what the loader must know without a network.

Addresses and checksums are not repeated here: they come from the medmnist package, see :func:`official`.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from medpfl.core.errors import UserError

SIZES = (28, 64, 128, 224)
"""Edge lengths in pixels that MedMNIST is published in."""


@dataclass(frozen=True)
class MedMnistSet:
    """One set of the collection.

    Attributes:
        title: the name as its authors write it.
        what: modality and task in a few words.
        images: number of images, all parts together.
        names: class names in the order of the labels, separated by semicolons.
        licence: of the images.
        task: that it is for.
        volumes: whether it holds volumes, cubes of that edge length.
    """

    title: str
    what: str
    images: int
    names: str
    licence: str = "CC BY 4.0"
    task: str = "classification"
    volumes: bool = False

    @property
    def classes(self) -> list[str]:
        """Class names; the label is the index."""
        return self.names.split("; ")


_ORGANS = (
    "bladder; femur-left; femur-right; heart; kidney-left; kidney-right; liver; lung-left; lung-right; pancreas; spleen"
)

MEDMNIST = {
    "pathmnist": MedMnistSet(
        "PathMNIST",
        "colon pathology",
        107180,
        "adipose; background; debris; lymphocytes; mucus; smooth muscle; normal colon mucosa; "
        "cancer-associated stroma; colorectal adenocarcinoma epithelium",
    ),
    "chestmnist": MedMnistSet(
        "ChestMNIST",
        "chest X-ray, several labels per image",
        112120,
        "atelectasis; cardiomegaly; effusion; infiltration; mass; nodule; pneumonia; pneumothorax; consolidation; "
        "edema; emphysema; fibrosis; pleural; hernia",
        task="multi-label",
    ),
    "dermamnist": MedMnistSet(
        "DermaMNIST",
        "dermatoscopy",
        10015,
        "actinic keratoses and intraepithelial carcinoma; basal cell carcinoma; benign keratosis-like lesions; "
        "dermatofibroma; melanoma; melanocytic nevi; vascular lesions",
        licence="CC BY-NC 4.0",
    ),
    "octmnist": MedMnistSet(
        "OCTMNIST", "retinal OCT", 109309, "choroidal neovascularization; diabetic macular edema; drusen; normal"
    ),
    "pneumoniamnist": MedMnistSet("PneumoniaMNIST", "paediatric chest X-ray", 5856, "normal; pneumonia"),
    "retinamnist": MedMnistSet("RetinaMNIST", "fundus photographs, severity", 1600, "0; 1; 2; 3; 4", task="ordinal"),
    "breastmnist": MedMnistSet("BreastMNIST", "breast ultrasound", 780, "malignant; normal, benign"),
    "bloodmnist": MedMnistSet(
        "BloodMNIST",
        "blood cells, microscopy",
        17092,
        "basophil; eosinophil; erythroblast; immature granulocyte; lymphocyte; monocyte; neutrophil; platelet",
    ),
    "tissuemnist": MedMnistSet(
        "TissueMNIST",
        "kidney cortex cells, microscopy",
        236386,
        "collecting duct, connecting tubule; distal convoluted tubule; glomerular endothelial cells; "
        "interstitial endothelial cells; leukocytes; podocytes; proximal tubule segments; thick ascending limb",
    ),
    "organamnist": MedMnistSet("OrganAMNIST", "abdominal CT, axial, organs", 58830, _ORGANS),
    "organcmnist": MedMnistSet("OrganCMNIST", "abdominal CT, coronal, organs", 23583, _ORGANS),
    "organsmnist": MedMnistSet("OrganSMNIST", "abdominal CT, sagittal, organs", 25211, _ORGANS),
    "organmnist3d": MedMnistSet(
        "OrganMNIST3D",
        "abdominal CT volumes, organs",
        1742,
        "liver; kidney-right; kidney-left; femur-right; femur-left; bladder; heart; lung-right; lung-left; spleen; "
        "pancreas",
        volumes=True,
    ),
    "nodulemnist3d": MedMnistSet(
        "NoduleMNIST3D", "chest CT volumes, lung nodules", 1633, "benign; malignant", volumes=True
    ),
    "adrenalmnist3d": MedMnistSet(
        "AdrenalMNIST3D", "abdominal CT, shapes of adrenal glands", 1584, "normal; hyperplasia", volumes=True
    ),
    "fracturemnist3d": MedMnistSet(
        "FractureMNIST3D",
        "chest CT volumes, rib fractures",
        1370,
        "buckle rib fracture; nondisplaced rib fracture; displaced rib fracture",
        volumes=True,
    ),
    "vesselmnist3d": MedMnistSet(
        "VesselMNIST3D", "brain MR angiography, shapes of vessels", 1908, "vessel; aneurysm", volumes=True
    ),
    "synapsemnist3d": MedMnistSet(
        "SynapseMNIST3D", "electron microscopy volumes", 1759, "inhibitory synapse; excitatory synapse", volumes=True
    ),
}
"""By the name that files and the command line use."""


def split_name(name: str) -> tuple[str, int]:
    """``organamnist_64`` is set ``organamnist`` at 64 pixels; without a number it is 28. Any text is taken."""
    match = re.fullmatch(r"(.+)_(64|128|224)", name)
    return (match[1], int(match[2])) if match else (name, 28)


def known_set(name: str) -> MedMnistSet | None:
    """The MedMNIST set that a file of this name holds, at any size or as the embedded sample; None if there is none."""
    return MEDMNIST.get(split_name(name)[0].removesuffix("-sample"))


def brought_by_sites(data: str, partition: str) -> bool:
    """Whether a job takes a published set as it naturally is: the set has no sites, so each site brings its own."""
    return partition == "natural" and Path(data).name == data and known_set(data) is not None


def official(name: str) -> tuple[str, str]:
    """Address and MD5 of a published file.

    Args:
        name: e.g. ``bloodmnist`` or ``bloodmnist_64``.

    Raises:
        UserError: MedMNIST has no set of this name, or the medmnist package is not installed.
    """
    base, size = split_name(name)
    if base not in MEDMNIST:
        raise UserError(f"MedMNIST has no set {name!r}: use one of {', '.join(MEDMNIST)}")
    entry, suffix = _table()[base], "" if size == 28 else f"_{size}"
    return entry[f"url{suffix}"], entry[f"MD5{suffix}"]


def official_md5(name: str) -> str | None:
    """MD5 of the published file of this name, None if it is not one of MedMNIST's sets."""
    return official(name)[1] if split_name(name)[0] in MEDMNIST else None


def image_shape(name: str) -> tuple[int, int] | None:
    """Channels and edge length of a published set's images, without reading any; None for other names."""
    base, size = split_name(name.removesuffix("-sample"))
    return (_table()[base]["n_channels"], size) if base in MEDMNIST else None


@cache
def _table() -> dict[str, dict]:
    # Read, not imported: the package imports pandas and torchvision, and makes a folder in the user's home.
    package = importlib.util.find_spec("medmnist")
    if package is None or package.origin is None:
        raise UserError("the medmnist package, which lists addresses and checksums, is missing: pip install medmnist")
    lines = ast.parse(Path(package.origin).with_name("info.py").read_text(encoding="utf-8")).body
    (table,) = (line.value for line in lines if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "INFO")
    return ast.literal_eval(table)
