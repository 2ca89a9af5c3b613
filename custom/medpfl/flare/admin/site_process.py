"""What a site's FLARE process refuses, whoever asks: code that jobs bring, files, log lines, other folders than jobs'.

And jobs whose configuration it would fill in from its environment.

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


_PACKAGE, _CONFIGURATION = "medpfl", "config_fed_client"
"""This package; what FLARE calls a job's configuration for sites, in whichever form."""
_UNREADABLE = (BadZipFile, NotImplementedError, RuntimeError, OSError, zlib.error)
_NO_CODE = "this site takes no code from jobs (BYOC); it opens that with `medpfl site init --allow-byoc`"


class NoCode(AppValidator):
    """Refuses jobs that bring code, FLARE's BYOC, whoever submitted them."""

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """FLARE's word for a deployed app: why it is refused. Called by FLARE."""
        if (Path(app_folder) / WorkspaceConstants.CUSTOM_FOLDER_NAME).exists():
            return _NO_CODE, {}
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
            if found := _not_as_it_stands(req.body, every=not _takes_others(app_ctx)):
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


def _not_as_it_stands(app: Any, *, every: bool) -> str:
    """Why a zipped job's configuration for sites is none that is taken as it stands; empty where it is.

    Args:
        app: the job.
        every: whether also of jobs in which this package is not named; a name may be put together by what is filled in.
    """
    for entry in _entries(app):
        *_, file = _parts(entry.filename)
        if not file.startswith(_CONFIGURATION):
            continue
        content, found, name = b"", None, repr(entry.filename[-80:])
        with suppress(*_UNREADABLE, ValueError, RecursionError), ZipFile(io.BytesIO(app)) as archive:
            content = archive.read(entry)
            found = json.loads(content.decode())
        if not (every or _PACKAGE.encode() in content or _PACKAGE in json.dumps(found)):
            continue
        if file != WorkspaceConstants.CLIENT_APP_CONFIG or not isinstance(found, dict):
            return f"the job's {name} is no configuration in JSON, which is all that this site takes"
        if filled_in(found):
            return f"the job's {name} has what FLARE fills in at each site: this site takes no such job"
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


def _takes_others(engine: Any) -> bool:
    """Whether the site allows others' classes too, whose jobs may have what FLARE fills in."""
    local = Path(engine.args.workspace) / "local"
    try:
        listed = read_object(local / "resources.json").get("class_allow_list")
    except UserError:
        return False
    return not isinstance(listed, list) or any(not f"{entry}.".startswith(f"{_PACKAGE}.") for entry in listed)


def _is_job(job: Any) -> bool:
    with suppress(ValueError, AttributeError, TypeError):
        return str(UUID(job)) == job
    return False
