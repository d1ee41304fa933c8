"""The sandbox handle over a connection to sandboxd; the same for every provider."""

from orchard_core.env.client.execs import Execs
from orchard_core.env.client.files import Files
from orchard_core.env.client.lifetime import Lifetime
from orchard_core.env.client.ports import Ports
from orchard_core.env.client.snapshots import Changes


class SandboxClient(Execs, Files, Ports, Changes, Lifetime):
    """Commands, files, ports and the lease of one sandbox. Providers add how it begins and ends."""


__all__ = ["SandboxClient"]
