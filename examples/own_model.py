"""Your own network and your own data loaders with FedAP's relatives, in FLARE's simulator: python examples/own_model.py

Two hospitals, each with a scanner of its own. `Net` and `hospital` are ordinary PyTorch; nothing in them knows of
federated learning. For other environments give `execute` a PocEnv or ProdEnv, or call `export`.
"""

import sys
from pathlib import Path

import torch
from nvflare.recipe import SimEnv
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from medpfl.core.site_data import SiteLoaders
from medpfl.flare.job.recipes import FFedAPRecipe


class Net(nn.Module):
    """Any module; FedAP's family needs batch norm in it."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.classifier = nn.Linear(4 * width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 1, H, W) -> logits (B, 2)."""
        return self.classifier(self.features(x).flatten(1))


def hospital(site: str, seed: int, images: int = 64) -> SiteLoaders:
    """One site's loaders; called at the site, with the site's name."""
    gain = {"site-1": 1.0, "site-2": 3.0}[site]  # the scanners differ

    def images_of(part: int, shuffle: bool = False) -> DataLoader:
        generator = torch.Generator().manual_seed(1000 * seed + part)
        labels = torch.randint(2, (images,), generator=generator)
        noise = torch.randn(images, 1, 16, 16, generator=generator)
        noise[:, :, 4:12, 4:12] += labels[:, None, None, None]
        return DataLoader(TensorDataset(gain * noise, labels), batch_size=16, shuffle=shuffle)

    # Statistics are taken from the training samples in order, each once: plain.
    return SiteLoaders(train=images_of(0, shuffle=True), validation=images_of(1), test=images_of(2), plain=images_of(0))


if __name__ == "__main__":
    workspace = sys.argv[1] if len(sys.argv) > 1 else "/tmp/medpfl-example"
    own = {"model": Net, "model_args": {"width": 8}, "data": hospital, "data_args": {"images": 64}}
    recipe = FFedAPRecipe(**own, sites=2, rounds=4)
    run = recipe.execute(SimEnv(num_clients=2, workspace_root=workspace))
    folder = Path(run.get_result()) / "server" / "simulate_job"
    print(f"Results: medpfl report {folder} writes them as a page")
