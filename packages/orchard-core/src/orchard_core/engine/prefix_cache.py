"""Remembers keys and values of token prefixes, so that an agent's next turn computes only what is new.

Prefixes are cut into pages of PAGE tokens. A page is found by its tokens and its parent page, so
requests with a common prefix share pages (the idea of vLLM's automatic prefix caching). A page's
numbers do not depend on the request that computed it, so reuse never changes a result.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orchard_core.engine.kv_store import KVShape, KVStore

PAGE = 16

_Key = tuple[int, tuple[int, ...]]
_ROOT = 0


@dataclass(slots=True)
class CacheStats:
    """Counts since the start: prompt tokens that were asked for, and those found in the cache."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    evicted_pages: int = 0


class PrefixCache:
    """At most `capacity_bytes` of pages; the least recently used is dropped first."""

    def __init__(self, shape: KVShape, dtype: torch.dtype, capacity_bytes: int) -> None:
        page_bytes = PAGE * shape.bytes_per_token(dtype)
        self.capacity = max(1, capacity_bytes // page_bytes)
        self.stats = CacheStats()
        self._pages: OrderedDict[_Key, tuple[int, Tensor]] = OrderedDict()
        self._next_id = _ROOT + 1

    def __len__(self) -> int:
        return len(self._pages)

    def clear(self) -> None:
        self._pages.clear()

    def load(self, ids: Sequence[int], store: KVStore, slot: int, done: int = 0) -> int:
        """Copy the longest known prefix of `ids` into a slot that already holds `done` tokens.

        Returns how many tokens the slot then holds. The last token is never taken from the cache:
        its logits are wanted.
        """
        held = done
        for index, (_, page) in enumerate(self._walk(ids[: len(ids) - 1])):
            start = index * PAGE
            if start + PAGE > done:
                store.fill(slot, start, page)
                held = start + PAGE
        return held

    def save(self, ids: Sequence[int], store: KVStore, slot: int) -> None:
        """Remember the full pages of `ids`, whose keys and values the slot holds."""
        known = self._walk(ids)
        parent = known[-1][0] if known else _ROOT
        for start in range(len(known) * PAGE, len(ids) - PAGE + 1, PAGE):
            self._evict(self.capacity - 1)
            page = store.read(slot, start, start + PAGE)
            self._pages[parent, tuple(ids[start : start + PAGE])] = (self._next_id, page)
            parent = self._next_id
            self._next_id += 1

    def _walk(self, ids: Sequence[int]) -> list[tuple[int, Tensor]]:
        keys: list[_Key] = []
        found: list[tuple[int, Tensor]] = []
        parent = _ROOT
        for start in range(0, len(ids) - PAGE + 1, PAGE):
            key = (parent, tuple(ids[start : start + PAGE]))
            entry = self._pages.get(key)
            if entry is None:
                break
            keys.append(key)
            found.append(entry)
            parent = entry[0]
        for key in reversed(keys):  # a parent must outlive its children
            self._pages.move_to_end(key)
        return found

    def _evict(self, limit: int) -> None:
        while len(self._pages) > limit:
            self._pages.popitem(last=False)
            self.stats.evicted_pages += 1
