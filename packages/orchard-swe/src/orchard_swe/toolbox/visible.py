"""`t`: run the tests that the issue names; print OK, or FAIL and the first error in short."""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import runner  # type: ignore[import-not-found]


def say(text: str, status: int) -> int:
    sys.stdout.write(text + "\n")
    return status


def main() -> int:
    tests = json.loads(os.environ["SWE_TESTS"])
    request = {
        "root": os.environ["SWE_ROOT"],
        "paths": json.loads(os.environ["SWE_PATHS"]),
        "site": os.environ.get("SWE_SITE", ""),
        "runner": os.environ["SWE_RUNNER"],
        "tests": tests,
        "timeout": 5,
        "brief": True,
    }
    rows, _, timed_out = runner.supervise(request)
    outcomes = {row[0]: row for row in rows}
    for test in tests:
        row = outcomes.get(test)
        if row is None:
            return say("FAIL timeout" if timed_out else "FAIL no result", 1)
        if row[1] == runner.FAILED:
            return say(f"FAIL {row[2][:60]}", 1)
    return say("OK", 0)


sys.exit(main())
