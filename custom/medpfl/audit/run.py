"""The audit of one site: every attack in turn, within a time limit, judged by the site's thresholds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from medpfl.audit import attempts
from medpfl.audit.attacked import Attacked
from medpfl.audit.finding import Finding
from medpfl.core.seeding import drawn_apart

ATTACKS: dict[str, Callable[[Attacked], Finding]] = {
    "imprint": attempts.imprint,
    "chosen f": attempts.chosen_f,
    "constant class": attempts.constant_class,
    "known image": attempts.known_image,
    "personal batch norm": attempts.batch_norm,
    "replay": attempts.replay,
    "inversion": attempts.inversion,
    "membership": attempts.membership,
}
"""By the names that reports have, in their order."""


@dataclass
class Audit(Attacked):
    """All attacks on one site; none is begun after ``seconds``.

    Attributes:
        watch: called with the name of each attack before it begins.
    """

    watch: Callable[[str], None] = lambda _: None

    def run(self) -> list[Finding]:
        """All findings, in the order of the attacks; torch's global generator is left as it was."""
        begun = time.process_time()
        findings = []
        with drawn_apart():
            for name, attack in ATTACKS.items():
                self.watch(name)
                if time.process_time() - begun > self.seconds:
                    findings.append(Finding(name, "the time limit was reached", "", "no time"))
                else:
                    findings.append(attack(self))
        return findings
