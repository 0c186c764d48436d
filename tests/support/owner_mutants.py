"""The ownership of a tier with one rule changed; see `protocol_mutants.py`."""

import socket
from typing import Any

import pytest

from container.journal import ownership
from container.journal.frame import apply_entry
from container.journal.heartbeat import Heartbeat, Lease, OwnerWatch
from container.journal.ownership import Outcome
from tests.support.protocol_mutants import Mutant
from tieredstore import process_name
from tieredstore.process_name import ProcessLife, ProcessName


def the_lease_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """A silent owner is replaced at the first look."""
    patch.setattr(Lease, "pass_time", lambda *_: True)


def no_sign_of_life_is_written(patch: pytest.MonkeyPatch) -> None:
    """An idle owner shows nothing."""

    async def silent(self: Heartbeat) -> bool:
        self._note()
        return True

    patch.setattr(Heartbeat, "_show", silent)


def a_dead_process_of_this_host_is_not_recognised(patch: pytest.MonkeyPatch) -> None:
    """A start waits for the lease of a process that is known to be gone."""
    life = ProcessName.life

    def unsure(self: ProcessName) -> ProcessLife:
        found = life(self)
        return ProcessLife.UNKNOWN if found == ProcessLife.GONE else found

    patch.setattr(ProcessName, "life", unsure)


def a_clean_end_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """The sign of a clean end counts for nothing."""

    async def never(_: OwnerWatch) -> bool:
        return False

    patch.setattr(OwnerWatch, "has_ended", never)


def a_new_owner_writes_no_fence(patch: pytest.MonkeyPatch) -> None:
    """A start applies its fence to its own state alone."""

    async def enter(self: Any, loaded: Any, name: Any, raw: bytes) -> Outcome:
        del self
        loaded.last = apply_entry(loaded.state, raw, name)
        return Outcome.LANDED

    patch.setattr(ownership._Race, "enter", enter)


def the_pid_namespace_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """A process of another PID namespace is looked for among those of this one."""

    def is_here(self: ProcessName) -> bool:
        return self.is_detailed and (self.host, self.boot) == (
            socket.gethostname(),
            process_name.boot_id(),
        )

    patch.setattr(ProcessName, "is_here", property(is_here))


OF_OWNERS: list[Mutant] = [
    the_lease_is_ignored,
    no_sign_of_life_is_written,
    a_dead_process_of_this_host_is_not_recognised,
    a_clean_end_is_ignored,
    a_new_owner_writes_no_fence,
    the_pid_namespace_is_ignored,
]
"""Mutants that the simulation of owners kills."""
