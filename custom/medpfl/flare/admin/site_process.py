"""What a site's FLARE process refuses, whoever asks: code that jobs bring, files, log lines, other folders than jobs'.

And jobs whose configuration it would fill in from its environment, which a server refuses too.

FLARE 2.9's client looks at ``authorization.json`` only where the server's message wishes it, and takes the user's role
from that message: a server whose code was changed is bound by none of it. These two stand in the site's own
``local/resources.json`` (``medpfl site init``) and ask nobody. They guard the process that the site starts; a job's own
process answers a server of its job too, about that job's errors and how much it logs.
"""

from __future__ import annotations

import io
import json
import logging
import re
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID
from zipfile import BadZipFile, ZipFile, ZipInfo

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import WorkspaceConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.private.admin_defs import Message, error_reply, ok_reply
from nvflare.private.defs import InfoCollectorTopic, RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.admin import RequestProcessor
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.utils.app_authz import AppAuthzService

from medpfl.core.errors import UserError
from medpfl.flare.job.filled_in import filled_in
from medpfl.site.local_file import read_object

logger = logging.getLogger(__name__)

CLOSED = (
    SysCommandTopic.SHELL,
    SysCommandTopic.REPORT_ENV,
    SysCommandTopic.CONFIGURE_SITE_LOG,
    TrainingTopic.CONFIGURE_JOB_LOG,
    InfoCollectorTopic.SHOW_ERRORS,
)
"""Messages whose answers hold files, folders or log lines, or that change what is logged."""
_PACKAGE = "medpfl"
_OURS = (f"{_PACKAGE}.", "nvflare.app_opt.tracking.")
"""How the classes of this package's jobs begin; by name, for the process that starts jobs loads none of them."""
_UNREADABLE = (BadZipFile, NotImplementedError, RuntimeError, OSError, zlib.error)
_LARGEST = 2**26
"""Bytes of a configuration, which is read as a whole."""
_NO_CODE = "this site takes no code from jobs (BYOC); it opens that with `medpfl site init --allow-byoc`"


class NoCode(AppValidator):
    """Refuses jobs that bring code, FLARE's BYOC, whoever submitted them."""

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """FLARE's word for a deployed app: why it is refused. Called by FLARE."""
        if (Path(app_folder) / WorkspaceConstants.CUSTOM_FOLDER_NAME).exists():
            return _NO_CODE, {}
        return "", {}


class AsItStands(AppValidator):
    """Refuses jobs whose configuration for the server FLARE would fill in there.

    From the server's environment, before a class is made: it would stand in the job's log, which its submitter gets.
    """

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """FLARE's word for a job that the server has unpacked: why it is refused. Called by FLARE."""
        folder, wanted = Path(app_folder), WorkspaceConstants.SERVER_APP_CONFIG
        every = not _takes_others(folder.absolute().parent.parent)
        for file in sorted(folder.rglob(f"{_stem(wanted)}*")):
            content = file.read_bytes() if file.is_file() else b""
            if found := _not_as_it_stands(str(file.relative_to(folder)), content, wanted, every=every):
                return found, {}
        return "", {}


class SiteGuard(FLComponent):
    """Has a site's FLARE process not serve :data:`CLOSED`, and touch no folder of the kit but jobs'."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Before the site takes its first message. Called by FLARE."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            processors = ClientRequestProcessors.request_processors
            processors[:] = [p if isinstance(p, _Guarded) else _Guarded(p) for p in processors]


class _Guarded(RequestProcessor):
    def __init__(self, processor: RequestProcessor):
        self.processor = processor

    def get_topics(self) -> list[str]:
        return self.processor.get_topics()

    def process(self, req: Message, app_ctx: Any) -> Message:
        if req.topic in CLOSED:
            return error_reply("this site serves no files, folders and log lines, and logs as it chose itself")
        # FLARE deletes and rewrites the folder of this name in the kit, which could be local/ or the site's state.
        job = req.get_header(RequestHeader.JOB_ID)
        if job is not None and not _is_job(job):
            return error_reply(f"{str(job)[:80]!r} is no job's id")
        # FLARE starts the process of the job that this names, with the code in that one's folder.
        meta = req.get_header(RequestHeader.JOB_META)
        if meta is not None and not (isinstance(meta, dict) and job == meta.get(JobMetaKey.JOB_ID.value)):
            return error_reply("the job is said to be another one")
        # FLARE looks for code once it has unpacked the job, and leaves it there if it fails before it has looked.
        if req.topic == TrainingTopic.DEPLOY:
            if not _takes_code() and _brings_code(req.body):
                return error_reply(_NO_CODE)
            # FLARE fills it in before it makes a class: which tasks there are, and whether the job starts, would tell.
            if found := _of_zip(req.body, every=not _takes_others(Path(app_ctx.args.workspace))):
                return error_reply(found)
        try:
            reply = self.processor.process(req, app_ctx)
        except Exception as error:  # whatever FLARE raises: its text may name the kit's files
            logger.warning("%s: %s", req.topic, error, exc_info=True)
            return error_reply(f"{type(error).__name__} (the site's log says more)")
        # FLARE says where the kit lies.
        return ok_reply(body="deleted") if req.topic == TrainingTopic.DELETE_RUN else reply


def _takes_code() -> bool:
    validator = AppAuthzService.app_validator
    return not any(isinstance(v, NoCode) for v in (validator, *getattr(validator, "validators", ())))


def _brings_code(app: Any) -> bool:
    """Whether a zipped job has a folder of code, wherever it may be unpacked to."""
    return any(WorkspaceConstants.CUSTOM_FOLDER_NAME in _parts(entry.filename) for entry in _entries(app))


def _of_zip(app: Any, *, every: bool) -> str:
    """Why the configuration for sites in a zipped job is not taken, as :func:`_not_as_it_stands` says it."""
    for entry in _entries(app):
        if _parts(entry.filename)[-1].startswith(_stem(WorkspaceConstants.CLIENT_APP_CONFIG)):
            if entry.file_size > _LARGEST:  # once it is unpacked; no more is read
                return f"the job's {entry.filename[-80:]!r} is too large"
            content = b""
            with suppress(*_UNREADABLE), ZipFile(io.BytesIO(app)) as archive:
                content = archive.read(entry)
            if found := _not_as_it_stands(entry.filename, content, WorkspaceConstants.CLIENT_APP_CONFIG, every=every):
                return found
    return ""


def _not_as_it_stands(name: str, content: bytes, wanted: str, *, every: bool) -> str:
    """Why a job's configuration is none that is taken as it stands; empty where it is.

    Args:
        name: of the file.
        content: of the file.
        wanted: what it is to be called.
        every: whether also of a job that does not name this package: what is filled in may put its name together.
    """
    ours, filled = _PACKAGE.encode() in content, ""
    try:
        found = json.loads(content.decode())
        ours = ours or _PACKAGE in json.dumps(found)
        filled = filled_in(found) if isinstance(found, dict) else ""
    except (ValueError, RecursionError):
        found = None
    if not (every or ours):
        return ""
    if _parts(name)[-1] != wanted or not isinstance(found, dict):
        return f"the job's {name[-80:]!r} is no configuration in JSON, which is all that is taken here"
    if filled:
        return f"the job's {name[-80:]!r} has what FLARE fills in where it is read: such a job is not taken here"
    return ""


def _entries(app: Any) -> list[ZipInfo]:
    """What a zipped job holds; nothing of what is no zip, which FLARE refuses."""
    try:
        with ZipFile(io.BytesIO(app)) as archive:
            return archive.infolist()
    except (BadZipFile, TypeError, ValueError):
        return []


def _parts(name: str) -> list[str]:
    return [part.strip(" .").casefold() for part in re.split(r"[/\\]", name)]


def _stem(name: str) -> str:
    return name.partition(".")[0]


def _takes_others(kit: Path) -> bool:
    """Whether a kit allows others' classes too, whose jobs may have what FLARE fills in."""
    try:
        listed = read_object(kit / "local" / "resources.json").get("class_allow_list")
    except UserError:
        return False
    return not isinstance(listed, list) or any(not f"{entry}.".startswith(_OURS) for entry in listed)


def _is_job(job: Any) -> bool:
    with suppress(ValueError, AttributeError, TypeError):
        return str(UUID(job)) == job
    return False
