"""Which sites are connected to a FLARE server, and whether they are enough for a job."""

from __future__ import annotations

from nvflare.fuel.flare_api.api_spec import NoClientsAvailable
from nvflare.fuel.flare_api.flare_api import Session

from medpfl.core.errors import UserError


class Refused(UserError):
    """A job that FLARE's server has not taken, for certain."""


def connected_sites(session: Session) -> list[str]:
    """Names of the sites that are connected to the server."""
    try:
        return sorted(client.name for client in session.get_connected_client_list())
    except NoClientsAvailable:
        return []


def require_sites(connected: list[str], sites: list[str], need: int) -> None:
    """Refuses a job whose sites are not there.

    Args:
        connected: the sites that are.
        sites: those that are to take part.
        need: how many of them there must be; 0 for all, where the user may be content with fewer.

    Raises:
        Refused: it names the absent ones.
    """
    hint = "" if need else ", or give --min-sites"
    need = need or len(sites)
    if len(present := [s for s in sites if s in connected]) >= need:
        return
    absent = [s for s in sites if s not in connected]
    others = [s for s in connected if s not in sites]
    raise Refused(
        f"{len(present)} of {len(sites)} sites are connected and {need} are needed: {', '.join(absent)} "
        f"{'is' if len(absent) == 1 else 'are'} missing"
        + (f" (there are also {', '.join(others)})" if others else "")
        + ("; name those that are meant: --sites NAME,NAME" if others else "; start them")
        + hint
    )
