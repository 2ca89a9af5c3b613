"""Sites that misbehave, each in its own way, as a user's own code may."""

import time

import torch
from nvflare.apis.dxo import DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_constant import ReservedKey
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from medpfl.core.site_data import SiteLoaders


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.norm(x))


class FailsOnce(TensorDataset):
    """Cannot be read in the first round."""

    read = False

    def __getitem__(self, i):
        if not self.read:
            self.read = True
            raise OSError("the archive is away")
        return super().__getitem__(i)


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        raise OSError("cannot read /archive/patient-1234.dcm")


def site_data(site: str, seed: int) -> SiteLoaders:
    generator = torch.Generator().manual_seed(seed + int(site[-1]))
    x = torch.randn(24, 4, generator=generator)
    y = (x[:, 0] > 0).long()
    if site == "site-3":
        x[5, 2] = float("nan")
    kind = {"site-2": lambda *_: Broken(), "site-8": FailsOnce}.get(site, TensorDataset)
    dataset = kind(x, y)
    good = TensorDataset(torch.nan_to_num(x), y)
    return SiteLoaders(DataLoader(dataset, 8, shuffle=True), DataLoader(good, 8), DataLoader(good, 8))


class Slow(torch.utils.data.Dataset):
    """Does not answer for longer than the limits of the tests; the simulator waits for it at the end."""

    def __len__(self):
        return 1

    def __getitem__(self, i):
        time.sleep(25)


def slow_site_data(site: str, seed: int) -> SiteLoaders:
    data = site_data("site-1", seed)
    if site == "site-2":
        data.train = DataLoader(Slow(), 8)
    return data


class Tamper(DXOFilter):
    """What sites send: 4 a weight of another shape, 5 something personal, 7 in another's name, 9 far too much."""

    def __init__(self):
        super().__init__([DataKind.WEIGHTS], [DataKind.WEIGHTS])

    def process_dxo(self, dxo, shareable, fl_ctx):
        site = fl_ctx.get_identity_name()
        if "fc.weight" in dxo.data:
            if site == "site-4":
                dxo.data["fc.weight"] = dxo.data["fc.weight"][:, :3].copy()
            if site == "site-5":
                dxo.data["norm.running_mean"] = dxo.data["fc.bias"].repeat(2)
            if site == "site-7":
                dxo.meta["client_name"] = "site-1"
                shareable.set_peer_props({ReservedKey.IDENTITY_NAME: "site-1"})
            if site == "site-9":
                dxo.data["fc.weight"] = dxo.data["fc.weight"] * 1e6
        return dxo
