"""The desired and the applied entries of a backend."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, ItemsView, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass
class Diff(Generic[K, V]):
    """What turns the applied entries into the desired ones. It is true if there is something to change."""

    unknown: bool
    """Whether the applied entries are unknown. If so, replace all of them with `set`."""
    set: dict[K, V]
    """The desired entries that are new or different."""
    removed: dict[K, V]
    """The applied entries to remove."""

    def __bool__(self) -> bool:
        return self.unknown or bool(self.set) or bool(self.removed)


class DiffStore(Generic[K, V]):
    """Contains the desired and the applied entries of a backend, and computes their difference. The cost of a diff is
    proportional to the number of changes.

    Fill in the desired entries with `set`, `delete` and `replace`. Request the `diff` and apply it. Then:

    - If the diff was applied, call `commit`. If only a part of it was applied, call `commit_key` for each key of this part.
    - If it is unknown what is applied now, call `forget`.
    - If nothing was applied, call neither. The next diff is the same.

    A new DiffStore has no desired entries, and the applied entries are unknown. If the backend starts with nothing applied,
    call `adopt({})` first. Do not modify a value that is in a DiffStore.
    """

    def __init__(self, equal: Callable[[V, V], bool] = operator.eq) -> None:
        """`equal` compares two values. Messages can be compared with ==."""
        self._equal = equal
        self._desired: dict[K, V] = {}
        self._applied: dict[K, V] | None = None  # None if unknown.
        self._changed: dict[K, None] = {}  # The keys at which both differ, in the order of the changes; empty while unknown.

    def set(self, key: K, value: V) -> None:
        """Sets the desired value at a key."""
        self._desired[key] = value
        self._compare(key)

    def delete(self, key: K) -> None:
        """Deletes the desired value at a key."""
        self._desired.pop(key, None)
        self._compare(key)

    def replace(self, desired: Mapping[K, V]) -> None:
        """Replaces all desired entries."""
        for key in self._desired.keys() - desired.keys():
            self.delete(key)
        for key, value in desired.items():
            self.set(key, value)

    def desired(self, key: K) -> V | None:
        """The desired value at a key; None if there is none."""
        return self._desired.get(key)

    def applied(self, key: K) -> V | None:
        """The applied value at a key; None if none is known."""
        return (self._applied or {}).get(key)

    def items(self) -> ItemsView[K, V]:
        """All desired entries."""
        return self._desired.items()

    def adopt(self, applied: Mapping[K, V]) -> None:
        """Sets all applied entries, for instance as read from the kernel."""
        self._applied = dict(applied)
        self._changed.clear()
        for key in self._applied.keys() | self._desired.keys():
            self._compare(key)

    def diff(self) -> Diff[K, V]:
        """The difference between the applied and the desired entries."""
        if self._applied is None:
            return Diff(True, dict(self._desired), {})
        diff: Diff[K, V] = Diff(False, {}, {})
        for key in self._changed:
            if key in self._desired:
                diff.set[key] = self._desired[key]
            else:
                diff.removed[key] = self._applied[key]
        return diff

    def commit(self) -> None:
        """Records that the diff was applied."""
        if self._applied is None:
            self._applied = dict(self._desired)
        for key in list(self._changed):
            self.commit_key(key)

    def commit_key(self, key: K) -> None:
        """Records that the diff was applied at one key. While the applied entries are unknown, it has no effect."""
        if self._applied is None:
            return
        if key in self._desired:
            self._applied[key] = self._desired[key]
        else:
            self._applied.pop(key, None)
        self._changed.pop(key, None)

    def forget(self) -> None:
        """Records that the applied entries are unknown."""
        self._applied = None
        self._changed.clear()

    def _compare(self, key: K) -> None:
        """Records whether the values at a key differ."""
        if self._applied is None:
            return
        is_desired, is_applied = key in self._desired, key in self._applied
        if is_desired == is_applied and (not is_desired or self._equal(self._desired[key], self._applied[key])):
            self._changed.pop(key, None)
        else:
            self._changed[key] = None
