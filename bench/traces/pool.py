"""The block pool of one process: shared system prompts, frees that come late, and what is lost."""

import heapq

from bench.traces.plan import Tenants


class Pool:
    """Counts blocks. `private` ones of running requests are the engine's to tell."""

    def __init__(self, blocks: int, tenants: Tenants | None) -> None:
        self.blocks = blocks
        self.leaked = 0
        self.handed_out = 0
        """Blocks handed out since the start: a prefix stays cached until so many were that its place is taken."""
        self._tenants = tenants
        self._users: dict[tuple[int, int], int] = {}
        self._seen: set[tuple[int, int]] = set()
        self._shared = 0
        self._late: list[tuple[float, int]] = []
        self._held = 0

    @property
    def set_aside(self) -> int:
        """Return the blocks in use that no running request has to itself."""
        return self.leaked + self._held + self._shared

    def size_of(self, tenant: tuple[int, int] | None) -> int:
        """Return the blocks of a system prompt."""
        if tenant is None or self._tenants is None:
            return 0
        return self._tenants.blocks[tenant[0]][tenant[1]]

    def price_of(self, tenant: tuple[int, int] | None) -> int:
        """Return the blocks that a system prompt would take now: none where somebody uses it already."""
        return 0 if tenant is None or self._users.get(tenant) else self.size_of(tenant)

    def is_cached(self, tenant: tuple[int, int]) -> bool:
        """Tell whether a system prompt was seen before; from now on it was."""
        known = tenant in self._seen
        self._seen.add(tenant)
        return known

    def use(self, tenant: tuple[int, int] | None) -> None:
        """Count one more user of a system prompt."""
        if tenant is not None:
            self._shared += self.price_of(tenant)
            self._users[tenant] = self._users.get(tenant, 0) + 1

    def leave(self, tenant: tuple[int, int] | None) -> None:
        """Count one user of a system prompt less."""
        if tenant is not None:
            self._users[tenant] -= 1
            self._shared -= self.price_of(tenant)

    def lose(self, blocks: int) -> None:
        """Lose blocks for as long as the process lives."""
        self.leaked += blocks

    def hold(self, blocks: int, until_s: float) -> None:
        """Keep blocks of a request that ended for a while."""
        self._held += blocks
        heapq.heappush(self._late, (until_s, blocks))

    def release(self, at_s: float) -> None:
        """Free what was held until now."""
        while self._late and self._late[0][0] <= at_s:
            self._held -= heapq.heappop(self._late)[1]

    def next_release_s(self) -> float | None:
        """Return when held blocks come free next."""
        return self._late[0][0] if self._late else None
