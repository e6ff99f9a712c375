"""A running `hetero serve` and plain requests to it, for tests. Listens on 127.0.0.1 alone, on any ports."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.parser


def write_model(path: Any, factor: int) -> None:
    """Writes the model y = factor * x of float[N]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"<ir_version: 8, opset_import: ['': 17]> g (float[N] x) => (float[N] y) <float f = {{{factor}}}> {{ y = Mul(x, f) }}"
    onnx.save(onnx.parser.parse_model(text.replace("'", '"')), str(path))


@dataclass(frozen=True)
class RunningServer:
    """The process of a server, and its addresses."""

    process: subprocess.Popen[str]
    http: str
    grpc: str

    def ask(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Returns status and answer of a request on a connection of its own; the answer is read as JSON if it is JSON."""
        connection = http.client.HTTPConnection(self.http, timeout=60)
        with contextlib.closing(connection):
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request("GET" if content is None else "POST", path, content, dict(headers or {}))
            response = connection.getresponse()
            answer = response.read()
            is_json = response.getheader("Content-Type") == "application/json"
            return response.status, json.loads(answer) if is_json else (response.headers, answer)


@contextlib.contextmanager
def run_server(*arguments: Any) -> Iterator[RunningServer]:
    """Gives a server that is ready, and kills it at the end if it still runs."""
    command = [sys.executable, "-m", "hetero_core", "serve", "--http-port", "0", "--grpc-port", "0", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            addresses = re.search(r"http://(\S+), gRPC (\S+)", line)
            assert addresses, f"the server has not started: {line}"
            yield RunningServer(process, addresses[1], addresses[2])
        finally:
            process.kill()
