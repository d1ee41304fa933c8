"""The ReAct loop: runs inside the sandbox as one file, standard library only.

    python3 -I -S react_agent.py CONFIG.json RESULT.json

The session's secret comes in the environment as ORCHARD_API_KEY and is hidden from commands: they
neither inherit it nor can read it from this process.
Only light modules are imported and HTTP/1.1 is spoken over a plain socket, because thousands of
short episodes pay this program's start-up.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is slow to import
    from typing import Any, BinaryIO

EXIT_CODES = {"submitted": 0, "final": 0, "limits": 10, "time": 11, "format_error": 12, "model_error": 13}
SUBMIT_MARK = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
KEY_VARIABLE = "ORCHARD_API_KEY"
LIMIT_ERRORS = ("budget_exceeded", "context_length_exceeded")
ATTEMPTS = 4
KEEP_BYTES = 1 << 20
PR_SET_DUMPABLE = 4
GRACE_S = 0.1


class Ended(Exception):
    """The episode is over; `status` is one of EXIT_CODES."""

    def __init__(self, status: str, detail: str = "") -> None:
        super().__init__(status)
        self.status = status
        self.detail = detail


class Client:
    """A keep-alive HTTP/1.1 client for one endpoint."""

    def __init__(self, base_url: str, key: str) -> None:
        scheme, _, rest = base_url.partition("://")
        if scheme != "http":
            raise Ended("model_error", f"only http endpoints can be reached, not {scheme}")
        authority, slash, path = rest.partition("/")
        host, _, port = authority.partition(":")
        self.address = (host, int(port or 80))
        self.path = (slash + path).rstrip("/") + "/chat/completions"
        self.head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {authority}\r\nAuthorization: Bearer {key}\r\n"
            "Content-Type: application/json\r\nAccept: application/json\r\nContent-Length: "
        )
        self.stream: Any = None

    def post(self, payload: dict[str, Any], call: str) -> dict[str, Any]:
        """One completion. `call` marks a re-send, so that nothing is sampled twice."""
        body = json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        message = f"{self.head}{len(body)}\r\nIdempotency-Key: {call}\r\n\r\n".encode() + body
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(0.05 * 4 ** (attempt - 1))
            try:
                status, answer = self._exchange(message)
            except (OSError, ValueError, IndexError) as error:
                problem = f"the model endpoint was lost: {error}"
                self._drop()
                continue
            if status == 200:
                return answer
            problem = _explain(status, answer)
            if status < 500:
                break
        raise Ended("model_error", problem)

    def _exchange(self, message: bytes) -> tuple[int, dict[str, Any]]:
        if self.stream is None:
            with socket.create_connection(self.address) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.stream = connection.makefile("rwb")
        self.stream.write(message)
        self.stream.flush()
        status = int(self.stream.readline().split(None, 2)[1])
        headers = {}
        while line := self.stream.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip().lower()
        answer = json.loads(_body(self.stream, headers))
        if headers.get("connection") == "close":
            self._drop()
        if not isinstance(answer, dict):
            raise ValueError("the answer is no JSON object")
        return status, answer

    def _drop(self) -> None:
        if self.stream is not None:
            with contextlib.suppress(OSError):
                self.stream.close()
            self.stream = None


def _body(stream: BinaryIO, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") == "chunked":
        chunks = []
        while size := int(stream.readline().split(b";")[0], 16):
            chunks.append(_exactly(stream, size))
            stream.readline()
        stream.readline()
        return b"".join(chunks)
    if "content-length" in headers:
        return _exactly(stream, int(headers["content-length"]))
    headers["connection"] = "close"
    return stream.read()


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise ValueError("the connection was closed")
    return data


def _explain(status: int, answer: dict[str, Any]) -> str:
    """What an error reply says. Raises Ended where it tells of a limit."""
    error = answer.get("error")
    if not isinstance(error, dict):
        error = {"message": error}
    for name in (error.get("code"), error.get("type")):
        if name in LIMIT_ERRORS:
            raise Ended("limits", name)
    return f"HTTP {status}: {str(error.get('message', ''))[:500]}"


class Output:
    """Keeps the first and the last bytes of a stream, so that memory stays bounded."""

    def __init__(self) -> None:
        self.head = bytearray()
        self.tail = bytearray()
        self.dropped = 0

    def add(self, data: bytes) -> None:
        room = KEEP_BYTES - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 2 * KEEP_BYTES:
            self.dropped += len(self.tail) - KEEP_BYTES
            del self.tail[:-KEEP_BYTES]

    def text(self) -> str:
        """What was kept, with line ends made uniform."""
        text = (self.head + self.tail).decode("utf-8", "replace")
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def shorten(self, text: str, head: int, tail: int) -> str:
        """At most `head` + `tail` characters, with a note of how many were cut between them."""
        cut = len(text) - head - tail
        if cut <= 0:
            return text
        return f"{text[:head]}\n[{cut + self.dropped} characters cut]\n{text[len(text) - tail :]}"


def run_command(
    argv: list[str], stdin: bytes, env: dict[str, str], timeout: float
) -> tuple[Output, int | None]:
    """Run in an own process group; returns (output, exit code or None when timed out)."""
    source = subprocess.DEVNULL
    if stdin:
        source = os.memfd_create("arguments")
        os.write(source, stdin)
        os.lseek(source, 0, os.SEEK_SET)
    output = Output()
    try:
        process = subprocess.Popen(
            argv,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        output.add(f"{argv[0]}: {error.strerror}\n".encode())
        return output, 127
    finally:
        if source != subprocess.DEVNULL:
            os.close(source)
    assert process.stdout is not None
    with process.stdout as pipe:
        code = _follow(process, pipe.fileno(), output, time.monotonic() + timeout)
    return output, code


def _follow(process: subprocess.Popen[bytes], descriptor: int, output: Output, deadline: float) -> int | None:
    """Read until the command is over. A background child that keeps the pipe open doesn't count."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _drain(descriptor, output)
            return None
        if select.select([descriptor], [], [], min(left, GRACE_S))[0]:
            data = os.read(descriptor, 1 << 16)
            if data:
                output.add(data)
                continue
            try:
                return process.wait(left)
            except subprocess.TimeoutExpired:
                continue
        if process.poll() is not None:
            _drain(descriptor, output)
            return process.returncode


def _drain(descriptor: int, output: Output) -> None:
    """What a pipe still holds; bounded, since a background child may write on."""
    for _ in range(16):
        if not select.select([descriptor], [], [], 0)[0]:
            return
        output.add(os.read(descriptor, 1 << 16))


class Agent:
    """The loop. `config` is what `ReactHarness.launch` wrote."""

    def __init__(self, config: dict[str, Any], key: str) -> None:
        self.config = config
        self.client = Client(config["base_url"], key)
        self.env = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE} | config["env"]
        self.commands = {tool["function"]["name"]: command for tool, command in config["tools"]}
        self.deadline = time.monotonic() + config["timeout_s"]
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": config["instruction"]}]
        if config["system"]:
            self.messages.insert(0, {"role": "system", "content": config["system"]})
        self.turns = 0
        self.format_errors = 0

    def run(self) -> None:
        """Never returns normally: raises Ended."""
        request = {
            "model": self.config["model"],
            "messages": self.messages,
            "tools": [tool for tool, _ in self.config["tools"]],
            "max_tokens": self.config["max_tokens"],
        }
        if not request["tools"]:
            del request["tools"]
        while True:
            if self.turns >= self.config["max_turns"]:
                raise Ended("limits", "step_limit")
            if time.monotonic() >= self.deadline:
                raise Ended("time")
            self.turns += 1
            self.step(self.client.post(request, str(self.turns)))

    def step(self, reply: dict[str, Any]) -> None:
        try:
            message = reply["choices"][0]["message"]
            calls = message.get("tool_calls") or []
            content = message.get("content")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise Ended("model_error", "the model endpoint's answer is no chat completion") from None
        kept: dict[str, Any] = {"role": "assistant"}
        if content is not None or not calls:
            kept["content"] = content or ""
        if calls:
            kept["tool_calls"] = calls
        self.messages.append(kept)
        if calls:
            self.use_tools(calls)
        elif self.config["finish"] == "text":
            raise Ended("final", kept["content"])
        else:
            self.messages.append({"role": "user", "content": self.config["reminder"]})
            self.count_format_error()

    def use_tools(self, calls: list[dict[str, Any]]) -> None:
        understood = False
        for call in calls:
            try:
                name, arguments = self.parse(call)
            except ValueError as error:
                text = self.complain(str(error))
            else:
                understood = True
                text = self.act(name, arguments)
            self.messages.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": text})
        if understood:
            self.format_errors = 0
        else:
            self.count_format_error()

    def count_format_error(self) -> None:
        self.format_errors += 1
        if self.format_errors >= self.config["max_format_errors"]:
            raise Ended("format_error", f"{self.format_errors} malformed replies in a row")

    def complain(self, error: str) -> str:
        return str(self.config["format_error"]).replace("{error}", error)

    def parse(self, call: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        function = call.get("function") or {}
        name = str(function.get("name"))
        if name not in self.commands:
            raise ValueError(f"Unknown tool '{name}'.")
        try:
            arguments = json.loads(function.get("arguments") or "")
        except ValueError as error:
            raise ValueError(f"Error parsing tool call arguments: {error}.") from None
        if not isinstance(arguments, dict):
            raise ValueError("Tool call arguments must be a JSON object.")
        schema = next(
            tool["function"] for tool, _ in self.config["tools"] if tool["function"]["name"] == name
        )
        for key in schema.get("parameters", {}).get("required", []):
            if key not in arguments:
                raise ValueError(f"Missing '{key}' argument in {name} tool call.")
        if self.commands[name] is None and not isinstance(arguments["command"], str):
            raise ValueError("The 'command' argument must be a string.")
        return name, arguments

    def act(self, name: str, arguments: dict[str, Any]) -> str:
        """Run a tool; the built-in `bash` has no command of its own."""
        command = self.commands[name]
        timeout = self.config["command_timeout_s"]
        if command is None:
            if "\0" in arguments["command"]:
                return self.complain("The command holds a NUL character.")
            argv, stdin = ["/bin/sh", "-c", arguments["command"]], b""
        else:
            argv, stdin = command, json.dumps(arguments).encode()
        output, code = run_command(argv, stdin, self.env, timeout)
        text = output.text()
        first, _, _ = text.lstrip().partition("\n")
        if first.strip() == SUBMIT_MARK and code == 0:
            raise Ended("submitted")
        text = output.shorten(text, self.config["output_head"], self.config["output_tail"])
        if code is None:
            return f"{text}(timed out after {timeout:g} s)"
        return f"{text}(exit {code})" if code else text


def hide_process() -> None:
    """Close this process's environment and memory under /proc to the commands it runs."""
    try:
        import ctypes
    except ImportError:  # a Python built without libffi
        return
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def main(config_path: str, result_path: str) -> int:
    hide_process()
    with open(config_path, encoding="utf-8") as file:
        config = json.load(file)
    turns = 0
    try:
        agent = Agent(config, os.environ.get(KEY_VARIABLE, ""))
        try:
            agent.run()
        finally:
            turns = agent.turns
    except Ended as ended:
        status = ended.status
        result = {"exit_status": status, "turns": turns, "detail": ended.detail}
    with open(result_path, "w", encoding="utf-8") as file:
        json.dump(result, file)
    return EXIT_CODES[status]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
