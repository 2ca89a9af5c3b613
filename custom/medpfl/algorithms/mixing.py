"""The plain mixings: nothing, by numbers of samples, uniformly."""

from __future__ import annotations

import numpy as np

from medpfl.algorithms.mechanism import Rule, Run
from medpfl.algorithms.mixing_kinds import MatrixMixing
from medpfl.core.mixing import counted_samples, sample_weights, uniform_weights
from medpfl.core.server_state import ServerState
from medpfl.core.settings import Settings, setting


class Identity(MatrixMixing):
    """Every site keeps its own."""

    name = "identity"
    what = "every site keeps its own"
    least_updates = 1
    newcomer = Rule("nothing", "nothing is shared")

    def refuses(self, run: Run) -> str | None:
        """Something to mix, and no mixing."""
        if run.resolved_personal == "everything":
            return None
        return (
            f"identity mixing with the personal part {run.resolved_personal!r} would send models to no use: "
            "use --personal everything, or the algorithm `local`"
        )

    def matrix(self, run: Run, state: ServerState) -> np.ndarray:
        """The unit matrix."""
        return np.eye(run.sites)


class Samples(MatrixMixing):
    """By number of training samples, the same for all sites (McMahan et al., FedAvg)."""

    name = "samples"
    what = "by number of training samples, the same for all sites (FedAvg)"
    by_samples = True
    common = True
    newcomer = Rule("the common model", "all sites have the same")

    def matrix(self, run: Run, state: ServerState) -> np.ndarray:
        """n_j / sum n in every row."""
        return by_samples(run, state)


class SelfWeight(Settings):
    """The self-weight."""

    lambda_: float = setting(0.5, "a site's own weight in its mix", ge=0, le=1, name="lambda")


class Equal(MatrixMixing):
    """Every site counts the same."""

    name = "equal"
    what = "every site counts the same, the same for all sites"
    common = True
    newcomer = Rule("the common model", "all sites have the same")

    def matrix(self, run: Run, state: ServerState) -> np.ndarray:
        """1 / N in every row, over the sites that have joined."""
        joined = [float(site in state.samples) for site in run.site_names]
        return np.tile(np.array(joined) / sum(joined), (run.sites, 1))


class WeighsSites(MatrixMixing):
    """A mixing that weighs sites against each other, with a share of its own for each."""

    settings_class = SelfWeight
    weighs_sites = True

    @property
    def own_share(self) -> float:
        """lambda."""
        return self.settings.lambda_

    def refuses(self, run: Run) -> str | None:
        """Too few sites, or a cap that the others' weights cannot keep."""
        if run.sites < 2:
            return f"mixing {self.name!r} weighs sites against each other and needs at least 2 of them"
        others = 1 - self.own_share
        if (least := others / max(1, run.sites - 1)) > run.weight_cap * (1 + 1e-12):
            return (
                f"weight_cap {run.weight_cap:g} is too small: {run.sites - 1} other sites weigh {others:g} in all "
                f"(1 - lambda); give {least:.4g} or more, or a larger lambda"
            )
        return None


class Uniform(WeighsSites):
    """lambda for the site itself, the rest equally (FedAP's ablation)."""

    name = "uniform"
    what = "lambda for the site itself, the rest equally (FedAP's ablation)"
    newcomer = Rule("the mean of the sites' models", "it has no own update to give lambda to")

    def matrix(self, run: Run, state: ServerState) -> np.ndarray:
        """lambda on the diagonal, (1 - lambda) / (N - 1) elsewhere."""
        return uniform_weights(run.sites, self.settings.lambda_)


def by_samples(run: Run, state: ServerState) -> np.ndarray:
    """W of FedAvg over all sites of the run, with numbers of samples as they count."""
    samples = [state.samples.get(site, 0) for site in run.site_names]
    return sample_weights(counted_samples(samples, run.largest_weight))
