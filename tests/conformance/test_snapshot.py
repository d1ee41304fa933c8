"""What a sandbox changed can be put into another one."""

from __future__ import annotations

from orchard_core.env import Provider, Sandbox, SandboxSpec

LOOK = (
    "cd /workspace && find . -mindepth 1 | LC_ALL=C sort | while read -r f; do "
    'stat -c \'%n %F %a %Y\' "$f"; [ -L "$f" ] && readlink "$f"; [ -f "$f" ] && cksum < "$f"; done; true'
)
MAKE = (
    "cd /workspace && mkdir -p deep/er && echo one > deep/er/file && chmod 750 deep && ln -s ../gone deep/link && "
    "head -c 3000000 /dev/urandom > big && printf '\\001' > 'odd name\\t' && : > .hidden && chmod 4711 big && "
    "mkdir -m 1777 sticky && touch -d @1000000 deep/er/file"
)


async def test_changes_make_another_sandbox_equal(provider: Provider, sandbox: Sandbox) -> None:
    await sandbox.exec(MAKE)
    want = await sandbox.exec(LOOK)
    async with await provider.create(SandboxSpec()) as other:
        await other.apply_changes(sandbox.changes())
        assert (await other.exec(LOOK)).text == want.text
        again = [data async for data in other.changes()]
        assert again


async def test_removals_and_changes_of_kind_are_carried_too(provider: Provider, sandbox: Sandbox) -> None:
    await sandbox.exec(
        "cd /workspace && mkdir a b && echo x > a/x && echo y > b/y && ln -s a c && echo f > d"
    )
    async with await provider.create(SandboxSpec()) as other:
        await other.apply_changes(sandbox.changes())
        await sandbox.exec("cd /workspace && rm -r a/x b c d && mkdir c d && echo z > d/z && echo 'b' > b")
        await other.apply_changes(sandbox.changes())
        assert (await other.exec(LOOK)).text == (await sandbox.exec(LOOK)).text
        assert (await other.exec("cd /workspace; cat b d/z; ls a")).text == "b\nz\n"


async def test_equal_files_have_an_equal_digest(provider: Provider, sandbox: Sandbox) -> None:
    await sandbox.exec(MAKE)
    want = await sandbox.digest(["/workspace"])
    assert len(want) == 64
    async with await provider.create(SandboxSpec()) as other:
        await other.apply_changes(sandbox.changes())
        assert await other.digest(["/workspace"]) == want
        for change in ("chmod 600 big", "printf y >> deep/er/file", "ln -sf x deep/link", "rm .hidden"):
            await other.exec(f"cd /workspace && {change}")
            changed = await other.digest(["/workspace"])
            assert changed != want
            want = changed


async def test_the_image_is_not_part_of_the_changes(sandbox: Sandbox) -> None:
    await sandbox.exec("echo small > /workspace/small")
    size = sum([len(data) async for data in sandbox.changes()])
    assert size < 200_000
