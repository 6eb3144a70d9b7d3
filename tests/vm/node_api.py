"""A scripted API server beside an agent: `python -m tests.vm.node_api FOLDER`.

FOLDER has the certificate, the token and pods.json, the pods of the node.  It prints a line when it
listens, and runs until it is killed.
"""

import json
import sys
import threading
from pathlib import Path

from tests.sources.api_server import (
    Answer,
    Certificate,
    Request,
    ScriptedApiServer,
    bookmark,
    page,
    stalled,
    status,
)

PORT = 6443


class NodeApi(ScriptedApiServer):
    """Lists the same pods to whoever asks, and has nothing new to tell a watch."""

    def __init__(self, folder: Path) -> None:
        tls = Certificate(folder / "ca.crt", folder / "server.key")
        super().__init__(tls=tls, port=PORT)
        self.pods = json.loads((folder / "pods.json").read_text())
        self.token = (folder / "token").read_text()

    def next_answer(self, request: Request) -> Answer:
        if request.token != self.token:
            return status(401, "Unauthorized")
        if request.path != "/api/v1/pods":
            return status(404, "NotFound", request.path)
        return stalled(bookmark("101")) if request.is_watch else page(*self.pods)


def main() -> None:
    NodeApi(Path(sys.argv[1])).start()
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
