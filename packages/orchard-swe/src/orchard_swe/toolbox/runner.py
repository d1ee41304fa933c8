"""Runs chosen tests of a package and reports each one's outcome; standard library only.

Reads one JSON request line and one marker line from stdin. The tests run in a forked child that
knows neither the marker nor the result path; the parent writes the result file. A child that
ends early (a crash, `os._exit`) leaves the tests that it did not report without an outcome.

Request: {"root", "paths" (import roots, relative), "site" (a site-packages folder or ""),
"runner" ("unittest" | "pytest"), "tests" (ids) or "modules" (all their tests), "trace" (source
prefixes or []), "timeout" (s), "out" (result path), "brief" (stop at the first failure)}.
Result: {"marker", "status" (child's exit status), "timed_out", "outcomes": {id: [outcome, error]},
"seconds": {id: s}, "lines": {id: {file: [line]}}}.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # the typing module would cost several milliseconds at each start
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class Tracer:
    """Collects the lines of the files under `prefixes` that run while a test does."""

    def __init__(self, root: str, prefixes: list[str]) -> None:
        self.root = os.path.join(root, "")
        self.prefixes = tuple(self.root + prefix for prefix in prefixes)
        self.known: dict[str, str | None] = {}
        self.lines: dict[str, set[int]] = {}

    def _wanted(self, filename: str) -> str | None:
        if filename not in self.known:
            path = os.path.abspath(filename)
            self.known[filename] = path[len(self.root) :] if path.startswith(self.prefixes) else None
        return self.known[filename]

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = self._wanted(frame.f_code.co_filename)
        if name is None:
            return None
        seen = self.lines.setdefault(name, set())

        def line(inner: FrameType, what: str, value: Any) -> Any:
            if what == "line":
                seen.add(inner.f_lineno)
            return line

        return line

    def start(self) -> None:
        import threading

        self.lines = {}
        threading.settrace(self._call)
        sys.settrace(self._call)

    def stop(self) -> dict[str, list[int]]:
        import threading

        sys.settrace(None)
        threading.settrace(None)
        return {name: sorted(lines) for name, lines in self.lines.items() if lines}


class Reporter:
    """Sends one JSON line for each test to the parent."""

    def __init__(self, descriptor: int, tracer: Tracer | None) -> None:
        self.descriptor = descriptor
        self.tracer = tracer
        self.started = 0.0

    def begin(self) -> None:
        self.started = time.perf_counter()
        if self.tracer:
            self.tracer.start()

    def end(self, test: str, outcome: str, error: str, where: list[list[Any]]) -> None:
        lines = self.tracer.stop() if self.tracer else {}
        row = [test, outcome, error[:300], round(time.perf_counter() - self.started, 4), lines, where]
        data = (json.dumps(row) + "\n").encode()
        while data:
            data = data[os.write(self.descriptor, data) :]


def short_error(kind: type[BaseException], value: BaseException | None) -> str:
    """`Type: first line of the message`."""
    message = str(value).strip().split("\n")[0]
    return f"{kind.__name__}: {message}" if message else kind.__name__


def places(traceback: TracebackType | None, root: str) -> list[list[Any]]:
    """The frames of a traceback inside `root`, as [file, line], innermost last."""
    found: list[list[Any]] = []
    root = os.path.join(root, "")
    while traceback is not None:
        name = os.path.abspath(traceback.tb_frame.f_code.co_filename)
        if name.startswith(root):
            found.append([name[len(root) :], traceback.tb_lineno])
        traceback = traceback.tb_next
    return found


def run_unittest(request: dict[str, Any], reporter: Reporter) -> None:
    import unittest

    class Result(unittest.TestResult):
        def startTest(self, test: unittest.TestCase) -> None:
            super().startTest(test)
            self.outcome, self.error = PASSED, ""
            self.where: list[list[Any]] = []
            reporter.begin()

        def stopTest(self, test: unittest.TestCase) -> None:
            reporter.end(test.id(), self.outcome, self.error, self.where)
            super().stopTest(test)
            if request.get("brief") and self.outcome == FAILED:
                self.stop()

        def _fail(self, error: Any) -> None:
            if self.outcome == FAILED:
                return
            self.outcome = FAILED
            self.error = short_error(error[0], error[1])
            self.where = places(error[2], request["root"])

        def addError(self, test: Any, err: Any) -> None:
            if isinstance(test, unittest.TestCase):
                self._fail(err)

        def addFailure(self, test: Any, err: Any) -> None:
            self._fail(err)

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None:
                self._fail(err)

        def addSkip(self, test: Any, reason: Any) -> None:
            if isinstance(test, unittest.TestCase):
                self.outcome = SKIPPED

        def addExpectedFailure(self, test: Any, err: Any) -> None:
            self.outcome = PASSED

        def addUnexpectedSuccess(self, test: Any) -> None:
            self.outcome, self.error = FAILED, "unexpected success"

    loader = unittest.TestLoader()
    suite = unittest.TestSuite()
    if request.get("tests"):
        classes: dict[str, Any] = {}
        for name in request["tests"]:
            owner, _, method = name.rpartition(".")
            module, _, label = owner.rpartition(".")
            if owner not in classes:
                try:
                    __import__(module)
                    classes[owner] = getattr(sys.modules[module], label)
                except Exception as error:  # noqa: BLE001 - a package under test may raise anything
                    classes[owner] = error
            if isinstance(classes[owner], Exception):
                broken = classes[owner]
                reporter.begin()
                where = places(broken.__traceback__, request["root"])
                reporter.end(name, FAILED, short_error(type(broken), broken), where)
            elif hasattr(classes[owner], method):
                suite.addTest(classes[owner](method))
    else:
        for module in request["modules"]:
            try:
                __import__(module)
            except Exception as error:  # noqa: BLE001 - a test module may need what is not installed
                sys.stderr.write(f"{module}: {short_error(type(error), error)}\n")
                continue
            for value in list(vars(sys.modules[module]).values()):
                if not (isinstance(value, type) and issubclass(value, unittest.TestCase)):
                    continue
                if value.__module__ == module and value.__qualname__ == value.__name__:
                    suite.addTest(loader.loadTestsFromTestCase(value))
    suite.run(Result())


def run_pytest(request: dict[str, Any], reporter: Reporter) -> None:
    import pytest

    class Plugin:
        def __init__(self) -> None:
            self.outcome, self.error = PASSED, ""
            self.where: list[list[Any]] = []

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Any:
            self.outcome, self.error, self.where = PASSED, "", []
            reporter.begin()
            yield
            reporter.end(item.nodeid, self.outcome, self.error, self.where)

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            made = yield
            report = made.get_result()
            if report.failed and self.outcome != FAILED:
                self.outcome = FAILED
                if call.excinfo is not None:
                    self.error = short_error(call.excinfo.type, call.excinfo.value)
                    self.where = places(call.excinfo.tb, request["root"])
            elif report.skipped and self.outcome == PASSED and not hasattr(report, "wasxfail"):
                self.outcome = SKIPPED

    arguments = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", request["root"]]
    if request.get("brief"):
        arguments.append("-x")
    pytest.main(arguments + (request.get("tests") or request["modules"]), plugins=[Plugin()])


def child(request: dict[str, Any], descriptor: int) -> None:
    """Never returns."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    if not request.get("verbose"):
        os.dup2(null, 2)
    os.chdir(request["root"])
    if request.get("site"):
        sys.path.insert(0, request["site"])
    sys.path[:0] = [os.path.normpath(os.path.join(request["root"], path)) for path in request["paths"]]
    sys.argv[:] = ["tests"]
    tracer = Tracer(request["root"], request["trace"]) if request.get("trace") else None
    reporter = Reporter(descriptor, tracer)
    run = run_pytest if request["runner"] == "pytest" else run_unittest
    code = 1
    try:
        run(request, reporter)
        code = 0
    finally:
        os._exit(code)


def supervise(request: dict[str, Any]) -> tuple[list[list[Any]], int, bool]:
    """Run the child; (rows, exit status, timed out)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        child(request, writing)
    os.close(writing)
    deadline = time.monotonic() + request.get("timeout", 10)
    chunks: list[bytes] = []
    timed_out = False
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            timed_out = True
            break
        data = os.read(reading, 1 << 16)
        if not data:
            break
        chunks.append(data)
    if timed_out:
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    rows: list[list[Any]] = []
    for line in b"".join(chunks).split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, list) and len(row) == 6:
            rows.append(row)
    return rows, os.waitstatus_to_exitcode(status), timed_out


def report(rows: list[list[Any]], status: int, timed_out: bool, marker: str) -> dict[str, Any]:
    """The result; a test that is reported twice keeps its worst outcome."""
    outcomes: dict[str, list[str]] = {}
    seconds: dict[str, float] = {}
    lines: dict[str, dict[str, list[int]]] = {}
    where: dict[str, list[list[Any]]] = {}
    for test, outcome, error, took, covered, at in rows:
        if test not in outcomes or outcome == FAILED:
            outcomes[test], where[test] = [outcome, error], at
        seconds[test], lines[test] = took, covered
    return {
        "marker": marker, "status": status, "timed_out": timed_out, "outcomes": outcomes,
        "seconds": seconds, "lines": lines, "where": where,
    }  # fmt: skip


def main() -> int:
    first = b""
    while not first.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return 2
        first += byte
    request = json.loads(first)
    out = request.pop("out")
    rows, status, timed_out = supervise(request)
    marker = os.read(0, 4096).decode().strip()
    with open(out + ".part", "w") as file:
        json.dump(report(rows, status, timed_out, marker), file)
    os.rename(out + ".part", out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
