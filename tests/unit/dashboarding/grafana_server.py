"""The endpoints of Grafana that a push uses, over HTTP, with what Grafana would refuse.

Not a Grafana: folders and dashboards by uid, versions that must agree, one token. Run it as a
script; its first line says where it listens.
"""

import json
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "of-a-service-account"  # noqa: S105 - of this server alone

folders: dict[str, dict[str, Any]] = {}
dashboards: dict[str, dict[str, Any]] = {}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        *_, kind, uid = self.path.split("/")
        found = (folders if kind == "folders" else dashboards).get(uid)
        self.answer(HTTPStatus.OK, found) if found else self.refuse(
            HTTPStatus.NOT_FOUND, "not found"
        )

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/api/folders"):
            folders[sent["uid"]] = sent
            self.answer(HTTPStatus.OK, sent)
        else:
            self.save(sent)

    def do_PUT(self) -> None:
        """What a test puts there by hand."""
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        dashboards[sent["dashboard"]["uid"]] = sent
        self.answer(HTTPStatus.OK, sent)

    def save(self, sent: dict[str, Any]) -> None:
        dashboard = sent["dashboard"]
        there = dashboards.get(dashboard["uid"])
        if sent["folderUid"] not in folders:
            self.refuse(HTTPStatus.BAD_REQUEST, "folder not found")
        elif (
            there
            and not sent["overwrite"]
            and dashboard.get("version") != there["dashboard"]["version"]
        ):
            self.refuse(
                HTTPStatus.PRECONDITION_FAILED, "The dashboard has been changed by someone else"
            )
        else:
            version = there["dashboard"]["version"] + 1 if there else 1
            dashboards[dashboard["uid"]] = {
                "dashboard": {**dashboard, "id": 7, "version": version},
                "meta": {"folderUid": sent["folderUid"], "message": sent["message"]},
            }
            self.answer(HTTPStatus.OK, {"status": "success"})

    def answer(self, status: HTTPStatus, body: object) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status, body = HTTPStatus.UNAUTHORIZED, {"message": "Invalid API key"}
        elif self.command != "PUT" and "/api/" not in self.path:
            status, body = HTTPStatus.BAD_GATEWAY, {"message": "nothing is served here"}
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def refuse(self, status: HTTPStatus, message: str) -> None:
        self.answer(status, {"message": message})

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # Ends with whoever started it.
    sys.stdin.read()
