"""A small imitation of the Transfer service of Globus that really copies files.

Collections are folders. It answers the requests of ``globus_sdk.TransferClient`` that ckptflow
makes, in the shapes of the SDK's canned answers (``globus_sdk.testing``); it knows nothing of
the real service beyond them. A transfer writes half of the file when it is submitted, straight
under its final name, and the rest when somebody polls: whoever believed in a file before its
task has succeeded would see half of it. A rename does not replace.

``imitated`` puts it below the SDK's own HTTP layer, in this process. As a program it is a
server in a process of its own, that survives what is killed:

    python globus_service.py FOLDER     # writes FOLDER/port; logs requests to FOLDER/requests
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

STAGING, REMOTE = (str(uuid.UUID(int=number)) for number in (1, 2))
API = "https://transfer.api.globus.org"

Answer = tuple[int, dict]


class GlobusService:
    """The service.

    Attributes:
        requests: what was asked, as (method, path).
        hold: while true, tasks do not end.
        faults: by path below the API, what a request is answered instead; used up.
        trouble: fields that every task shows instead of succeeding.
        paths: what collections see, by id.
        page: most entries of one listing.
    """

    def __init__(self, folder: Path) -> None:
        self.paths = {STAGING: folder / "staging", REMOTE: folder / "remote"}
        for path in self.paths.values():
            path.mkdir(parents=True, exist_ok=True)
        self.requests: list[tuple[str, str]] = []
        self.tasks: dict[str, dict] = {}
        self.submitted: dict[str, str] = {}
        self.issued: set[str] = set()
        self.hold = False
        self.trouble: dict = {}
        self.faults: dict[str, list[Answer]] = {}
        self.page = 100_000
        self.bodies: list[dict] = []
        self._lock = threading.RLock()

    def answer(self, method: str, path: str, query: dict[str, str], body: dict) -> Answer:
        """Answer one request."""
        path = path.removeprefix("/v0.10")
        with self._lock:
            self.requests.append((method, path))
            for pattern, answers in self.faults.items():
                if answers and re.search(pattern, f"{method} {path}"):
                    return answers.pop(0)
            match (method, *path.strip("/").split("/")):
                case ("GET", "submission_id"):
                    self.issued.add(value := str(uuid.uuid4()))
                    return 200, {"DATA_TYPE": "submission_id", "value": value}
                case ("POST", "transfer" | "delete" as kind):
                    return self._submit(kind, body)
                case ("GET", "task", task_id, *events):
                    return self._task(task_id, events=bool(events))
                case ("POST", "task", task_id, "cancel"):
                    return self._cancel(task_id)
                case (_, "operation", "endpoint", collection, operation):
                    return self._operation(collection, operation, query, body)
        return 400, {"code": "ClientError.BadRequest", "message": f"{method} {path}"}

    # --- tasks ---

    def _submit(self, kind: str, body: dict) -> Answer:
        identity = body["submission_id"]
        if identity not in self.issued:
            return 400, {"code": "ClientError.BadRequest", "message": "unknown submission_id"}
        if identity in self.submitted:
            return self._accepted("Duplicate", self.submitted[identity])
        self.bodies.append(body)
        task_id = str(uuid.uuid4())
        self.submitted[identity] = task_id
        self.tasks[task_id] = {"body": body, "kind": kind, "status": "ACTIVE", "events": []}
        if kind == "transfer":
            for source, target in self._items(body):
                if source.exists() and target.parent.is_dir():
                    value = source.read_bytes()
                    target.write_bytes(value[: len(value) // 2])
        return self._accepted("Accepted", task_id)

    def _accepted(self, code: str, task_id: str) -> Answer:
        return 202, {"DATA_TYPE": "transfer_result", "code": code, "task_id": task_id}

    def _items(self, body: dict) -> Iterator[tuple[Path, Path]]:
        for item in body["DATA"]:
            yield (
                self._path(body["source_endpoint"], item["source_path"]),
                self._path(body["destination_endpoint"], item["destination_path"]),
            )

    def _task(self, task_id: str, *, events: bool) -> Answer:
        if task_id not in self.tasks:
            return 404, {"code": "TaskNotFound", "message": f"no task {task_id}"}
        task = self.tasks[task_id]
        if events:
            return 200, {"DATA_TYPE": "event_list", "DATA": task["events"]}
        if task["status"] == "ACTIVE" and not self.hold:
            self._work(task)
        shown = {"nice_status": "OK", "fatal_error": None, "is_paused": False}
        shown |= task.get("shown", {})
        return 200, {"DATA_TYPE": "task", "task_id": task_id, **shown, "status": task["status"]}

    def _work(self, task: dict) -> None:
        if self.trouble:
            shown = dict(self.trouble)
            task["events"] = shown.pop("events", [])
            task["status"] = shown.pop("status", "ACTIVE")
            task["shown"] = shown
            return
        try:
            if task["kind"] == "transfer":
                for source, target in self._items(task["body"]):
                    target.write_bytes(source.read_bytes())
            else:
                for item in task["body"]["DATA"]:
                    self._path(task["body"]["endpoint"], item["path"]).unlink(missing_ok=True)
        except OSError as error:
            task["status"] = "FAILED"
            task["shown"] = {
                "fatal_error": {"code": "FILE_NOT_FOUND", "description": str(error)}
            }
        else:
            task["status"] = "SUCCEEDED"

    def _cancel(self, task_id: str) -> Answer:
        task = self.tasks.get(task_id, {"status": "unknown"})
        if task["status"] != "ACTIVE":
            return 200, {"code": "TaskComplete", "message": "it has ended"}
        task["status"] = "FAILED"
        task["shown"] = {"fatal_error": {"code": "CANCELED", "description": "by its owner"}}
        return 200, {"code": "Canceled", "message": "The task has been cancelled successfully."}

    # --- operations ---

    def _path(self, collection: str, path: str) -> Path:
        return self.paths[collection] / path.strip("/")

    def _operation(self, collection: str, name: str, query: dict, body: dict) -> Answer:
        if collection not in self.paths:
            return 404, {
                "code": "EndpointNotFound",
                "message": f"No such endpoint {collection}",
            }
        if name == "rename":
            old, new = (
                self._path(collection, body[f"{which}_path"]) for which in ("old", "new")
            )
            if not old.exists() or not new.parent.is_dir():
                return 404, {"code": "NotFound", "message": "No such file or directory"}
            if new.exists():
                return 502, {"code": "ExternalError.RenameFailed", "message": "File exists"}
            old.rename(new)
            return 200, {"code": "FileRenamed", "message": "renamed"}
        path = self._path(collection, query.get("path") or body["path"])
        if name == "mkdir":
            if path.exists():
                code = "ExternalError.MkdirFailed.Exists"
                return 502, {"code": code, "message": "Path already exists"}
            if not path.parent.is_dir():
                return 404, {"code": "NotFound", "message": "No such file or directory"}
            path.mkdir()
            return 202, {"code": "DirectoryCreated", "message": "created"}
        if not path.exists():
            return 404, {"code": "NotFound", "message": "Path not found"}
        if name == "stat":
            return 200, _document(path)
        return self._list(path, query)

    def _list(self, path: Path, query: dict) -> Answer:
        if not path.is_dir():
            code = "ExternalError.DirListingFailed.NotDirectory"
            return 502, {"code": code, "message": "Not a directory"}
        first, limit = int(query.get("offset", 0)), int(query["limit"])
        entries = sorted(path.iterdir())[first : first + min(limit, self.page)]
        return 200, {"DATA_TYPE": "file_list", "DATA": [_document(entry) for entry in entries]}


def _document(path: Path) -> dict:
    modified = datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(microsecond=0)
    return {
        "DATA_TYPE": "file",
        "name": path.name,
        "type": "dir" if path.is_dir() else "file",
        "size": path.stat().st_size,
        "last_modified": str(modified),
        "link_target": str(path.readlink()) if path.is_symlink() else None,
    }


@contextlib.contextmanager
def imitated(service: GlobusService) -> Iterator[GlobusService]:
    """Answer, meanwhile, what this process sends to Globus."""
    import responses

    def answer(request: object) -> tuple[int, dict, str]:
        url = urlsplit(request.url)
        body = json.loads(request.body) if request.body else {}
        status, document = service.answer(
            request.method, url.path, dict(parse_qsl(url.query)), body
        )
        return status, {"Content-Type": "application/json"}, json.dumps(document)

    with responses.RequestsMock(assert_all_requests_are_fired=False) as mock:
        for method in ("GET", "POST"):
            mock.add_callback(method, re.compile(re.escape(API)), callback=answer)
        yield service


def client(base_url: str = API) -> object:
    """Return the SDK's client, without a login and without waiting between its retries."""
    import globus_sdk
    from globus_sdk.transport import RetryConfig

    return globus_sdk.TransferClient(
        authorizer=globus_sdk.AccessTokenAuthorizer("a-token-for-tests"),
        base_url=base_url,
        retry_config=RetryConfig(max_retries=0),
    )


class _Handler(BaseHTTPRequestHandler):
    service: GlobusService
    folder: Path

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        url = urlsplit(self.path)
        self.service.hold = (self.folder / "hold").exists()
        status, document = self.service.answer(
            self.command, url.path, dict(parse_qsl(url.query)), body
        )
        with (self.folder / "requests").open("a") as log:
            log.write(json.dumps([self.command, url.path, document.get("code")]) + "\n")
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


def main(folder: Path) -> None:
    _Handler.service, _Handler.folder = GlobusService(folder), folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    (folder / "port.new").write_text(str(server.server_port))
    (folder / "port.new").rename(folder / "port")
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
