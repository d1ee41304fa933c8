"""Tasks, rewards and the domain plug-in seam."""

from orchard_core.domain.discovery import available_domains, load_domain
from orchard_core.domain.protocol import Domain
from orchard_core.domain.types import Reward, Split, Task, Verdict

__all__ = ["Domain", "Reward", "Split", "Task", "Verdict", "available_domains", "load_domain"]
