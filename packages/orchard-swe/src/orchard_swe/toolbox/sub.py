"""`sub ROW OLD NEW [N]`: one exact substitution on the line that a row of the issue shows."""

import json
import os
import sys


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def main(arguments: list[str]) -> int:
    if len(arguments) not in (3, 4) or not all(part.isdecimal() for part in (arguments[0], *arguments[3:])):
        say("usage: sub ROW OLD NEW [N]")
        return 1
    row, old, new = int(arguments[0]), arguments[1], arguments[2]
    focus = json.loads(os.environ["SWE_FOCUS"])
    if not 1 <= row <= len(focus):
        say(f"no row {row}")
        return 1
    number = focus[row - 1]
    path = os.path.join(os.environ["SWE_ROOT"], os.environ["SWE_FILE"])
    with open(path, encoding="utf-8", newline="") as file:
        lines = file.read().splitlines(True)
    if number > len(lines):
        say(f"no row {row} any more")
        return 1
    text, column = lines[number - 1], -len(old)
    for _ in range(int(arguments[3]) if arguments[3:] else 1):
        column = text.find(old, column + len(old)) if old else -1
        if column < 0:
            say(f"not on row {row}: {old}")
            return 1
    lines[number - 1] = text[:column] + new + text[column + len(old) :]
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write("".join(lines))
    say(f"{row}|{lines[number - 1].rstrip()}")
    return 0


sys.exit(main(sys.argv[1:]))
