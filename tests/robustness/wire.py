"""A client that may say anything: frames on the wire, without a library that would refuse to build them."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

TIMEOUT_S = 120.0

Message = dict[str, object]


class Wire:
    """A language server in a process of its own, and what it answered."""

    def __init__(
        self,
        folder: Path,
        encodings: tuple[str, ...] = ("utf-16",),
        options: Mapping[str, object] | None = None,
        before: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [*before, sys.executable, "-I", "-B", "-m", "torchwise_server.lsp", "--log-level", "error"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._out = self._process.stdin
        self._news: queue.Queue[Message | None] = queue.Queue()
        self._last_id = 0
        self._answers: dict[object, Message] = {}  # to requests that nobody has waited for yet
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        general = {"positionEncodings": list(encodings)}
        text: dict[str, object] = {"diagnostic": {}, "hover": {}, "codeAction": {}}
        self.greeting = self.ask(
            "initialize",
            {
                "processId": None,
                "rootUri": folder.as_uri(),
                "capabilities": {"general": general, "textDocument": text},
                "initializationOptions": options,
            },
        )
        self.tell("initialized", {})

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def answered(self) -> set[object]:
        """The requests that have an answer which nobody has taken yet."""
        return set(self._answers)

    def tell(self, method: str, params: object) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def request(self, method: str, params: object) -> int:
        """Ask without waiting; the number of the request."""
        self._last_id += 1
        self.send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params})
        return self._last_id

    def ask(self, method: str, params: object) -> Message:
        """Ask and wait: the answer, a result or an error."""
        return self.answer(self.request(method, params))

    def answer(self, number: int) -> Message:
        """The answer to a request; what the server asks meanwhile is answered with nothing."""
        while number not in self._answers:
            message = self._news.get(timeout=TIMEOUT_S)
            assert message is not None, "the server went away"
            if "method" in message and "id" in message:
                self.send({"jsonrpc": "2.0", "id": message["id"], "result": None})
            elif "method" not in message:
                self._answers[message.get("id")] = message
        return self._answers.pop(number)

    def send(self, message: Mapping[str, object]) -> None:
        self.send_bytes(json.dumps(message).encode())

    def send_bytes(self, body: bytes) -> None:
        self._out.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._out.flush()

    def close(self) -> int:
        """Say goodbye; the exit status."""
        self.ask("shutdown", None)
        self.tell("exit", None)
        self._out.close()
        return self._process.wait(TIMEOUT_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self, stream: IO[bytes]) -> None:
        while True:
            length = 0
            while (line := stream.readline()).strip():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if not line:
                self._news.put(None)
                return
            self._news.put(cast("Message", json.loads(stream.read(length))))
