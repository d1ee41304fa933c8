"""A small client of the Kubernetes API on the standard library: JSON calls, and lists that are watched."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.processes import run

Object = dict[str, Any]


class ApiError(Exception):
    """The API server refused; `status` is the HTTP status code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Calls as the user of a kubeconfig; safe for many threads (each has a connection of its own)."""

    def __init__(self, kubeconfig: Path) -> None:
        view = ["config", "view", "--raw", "--flatten", "--minify", "-o", "json"]
        config = json.loads(run("kubectl", "--kubeconfig", kubeconfig, *view))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urllib.parse.urlsplit(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        self._headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        if "client-certificate-data" in user:
            with tempfile.NamedTemporaryFile() as pair:
                for part in ("client-certificate-data", "client-key-data"):
                    pair.write(base64.b64decode(user[part]))
                pair.flush()
                self._tls.load_cert_chain(pair.name)
        self._own = threading.local()

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Object:
        """One call; tried once more on a fresh connection when a kept one had been closed."""
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Content-Type": kind}
        for last in (False, True):
            connection: http.client.HTTPSConnection | None = getattr(self._own, "connection", None)
            if connection is None:
                connection = self._own.connection = self._connect(timeout=30)
            try:
                connection.request(method, path, data, headers)
                reply = connection.getresponse()
                content = reply.read()
                break
            except (http.client.HTTPException, OSError):
                connection.close()
                self._own.connection = None
                if last:
                    raise
        if reply.status >= 400:
            raise ApiError(reply.status, content.decode(errors="replace")[:500])
        answer: Object = json.loads(content)
        return answer

    def patch(self, path: str, body: object) -> Object:
        """A JSON merge patch."""
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def follow(self, path: str, query: str, stop: threading.Event) -> Iterator[Object]:
        """Events of a collection, without end: {"type": "LISTED", "items": [...]} after each list, then changes.

        Lists anew whenever the watch breaks or is too old.
        """
        while not stop.is_set():
            try:
                listed = self.call("GET", f"{path}?{query}")
                yield {"type": "LISTED", "items": listed["items"]}
                yield from self._watch(path, query, listed["metadata"]["resourceVersion"], stop)
            except (ApiError, http.client.HTTPException, OSError):
                stop.wait(1)

    def _watch(self, path: str, query: str, version: str, stop: threading.Event) -> Iterator[Object]:
        connection = self._connect(timeout=330)
        try:
            since = f"watch=true&timeoutSeconds=300&resourceVersion={version}"
            connection.request("GET", f"{path}?{query}&{since}", headers=self._headers)
            reply = connection.getresponse()
            if reply.status >= 400:
                raise ApiError(reply.status, reply.read().decode(errors="replace")[:500])
            for line in reply:
                event = json.loads(line)
                if event["type"] == "ERROR" or stop.is_set():
                    return
                yield event
        finally:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        host, port = self._address.hostname, self._address.port
        assert host is not None
        return http.client.HTTPSConnection(host, port or 443, timeout=timeout, context=self._tls)
