"""The delays before retries."""

import random


class Delays:
    """Delays that double from 100 ms up to a limit, in seconds, with jitter."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._full = 0.0  # The longest possible value of the last delay; 0 before the first failure.

    def next(self) -> float:
        """The delay after one more failure, between half and all of the full delay."""
        self._full = min(max(2 * self._full, 0.1), self._limit)
        return random.uniform(self._full / 2, self._full)

    def reset(self) -> None:
        """Starts again with the shortest delay, after a success."""
        self._full = 0.0
