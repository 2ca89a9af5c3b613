"""A site under attack, and what its attacker knows of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from medpfl.audit.probe import Probe, make_probe
from medpfl.audit.victim import Known, Line, Truth, Victim, known_of, victims
from medpfl.core.site_data import SiteData
from medpfl.engine.federation import Federation
from medpfl.site.policy import AuditThresholds, SitePolicy

OpenVictims = Callable[[Federation, str, SiteData, SitePolicy], Callable[[], Victim]]


@dataclass
class Attacked:
    """One site under attack.

    Attributes:
        federation: the job's.
        site: the site's name.
        data: its data.
        policy: its policy.
        thresholds: its limits.
        seconds: of the processor, for all attacks together.
        open_victims: from the federation, the name, the data and the policy to what opens the site.
    """

    federation: Federation
    site: str
    data: SiteData
    policy: SitePolicy
    thresholds: AuditThresholds
    seconds: float
    open_victims: OpenVictims = victims

    @cached_property
    def known(self) -> Known:
        """What the attacker knows."""
        return known_of(self.federation, self.site, self.data, self.policy)

    @cached_property
    def truth(self) -> Truth:
        """What it is judged by."""
        return Truth.of(self.data)

    @cached_property
    def probe(self) -> Probe | None:
        """The network's layer, with its encoder."""
        return make_probe(self.known, min(60.0, self.seconds / 6))

    def line(self, data: SiteData | None = None) -> Line:
        """A new line to the site, or to it with less data."""
        return Line(self.open_victims(self.federation, self.site, self.data if data is None else data, self.policy))
