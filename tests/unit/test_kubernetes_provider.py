"""Blocks as pods: what is asked of Kubernetes, and what becomes of pods.

Method: the real client talks to a small HTTP server that keeps the pods it is sent.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ckptflow.errors import ConfigError
from ckptflow.site import load_site
from ckptflow.workflow.blocks.providers import provider_of

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
clusters: [{{name: here, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: here, context: {{cluster: here, user: me}}}}]
users: [{{name: me, user: {{}}}}]
"""


class Pods(ThreadingHTTPServer):
    """Keeps what it is sent; ``phases`` says what became of pods, ``broken`` that it fails."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pods: dict[str, Any] = {}
        self.broken = False

    def say(self, name: str, phase: str, reason: str | None = None) -> None:
        self.pods[name]["status"] = {"phase": phase, "reason": reason}


class Handler(BaseHTTPRequestHandler):
    server: Pods

    def do_POST(self) -> None:
        pod = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        pod["status"] = {"phase": "Pending"}
        self.server.pods[pod["metadata"]["name"]] = pod
        self._answer(201, pod)

    def do_GET(self) -> None:
        pod = self.server.pods.get(self.path.rsplit("/", 1)[1])
        if self.server.broken:
            self._answer(500, {})
        else:
            self._answer(200 if pod else 404, pod or {})

    def do_DELETE(self) -> None:
        self._answer(200, self.server.pods.pop(self.path.rsplit("/", 1)[1], {}))

    def _answer(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    with Pods() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        config = tmp_path / "kubeconfig"
        config.write_text(KUBECONFIG.format(port=server.server_port))
        # The client reads the variable when it is imported.
        monkeypatch.setattr(
            "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config)
        )
        yield server
        server.shutdown()
        thread.join()


def provider() -> Any:
    given = {"executor.allocation.image": "registry/image:1"}
    site = load_site("kubernetes", overrides={**given, "executor.allocation.gpus_per_node": 2})
    return provider_of(site.executor, "export A=1")


def states(blocks: Any, *ids: str) -> list[str]:
    return [one.state.name for one in blocks.status(list(ids))]


def test_what_is_asked_for_is_what_the_site_says(cluster: Pods) -> None:
    provider().submit("work --hard", 1, "block-0")
    (pod,) = cluster.pods.values()
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "registry/image:1"
    assert container["resources"]["limits"] == {
        "cpu": "2.0", "memory": "4Gi", "nvidia.com/gpu": "2",
    }  # fmt: skip
    assert container["volumeMounts"] == [{"mountPath": "/ckptflow", "name": "ckptflow"}]
    assert container["args"][1].split() == ["export", "A=1", "work", "--hard"]
    assert pod["spec"]["restartPolicy"] == "Never", "a block that has ended stays ended"


def test_what_becomes_of_pods_is_seen(cluster: Pods) -> None:
    blocks = provider()
    one = blocks.submit("work", 1, "block-0")
    (name,) = cluster.pods
    assert states(blocks, one) == ["PENDING"]
    cluster.say(name, "Running")
    assert states(blocks, one) == ["RUNNING"]
    cluster.broken = True
    assert states(blocks, one) == ["RUNNING"], "no answer changes nothing"
    cluster.broken = False
    cluster.say(name, "Failed", "Evicted")
    assert states(blocks, one) == ["FAILED"]
    assert blocks.resources[one]["status"].lost
    assert blocks.resources[one]["status"].lasted_s >= 0


def test_a_pod_that_is_gone_is_over(cluster: Pods) -> None:
    blocks = provider()
    one = blocks.submit("work", 1, "block-0")
    cluster.pods.clear()
    assert states(blocks, one) == ["TIMEOUT"]
    two = blocks.submit("work", 1, "block-1")
    assert blocks.cancel([two]) == [True]
    assert cluster.pods == {}


def test_without_a_cluster_it_is_a_wrong_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", "/nowhere/config"
    )
    with pytest.raises(ConfigError, match="Kubernetes cannot be reached from here"):
        provider()
