"""What a backend reports to the brain: `Backends.Report` in proto/localnetv1.proto."""

from __future__ import annotations

from collections.abc import Mapping

from . import localnetv1_pb2 as pb
from .state import Revision


class FamilyErrors(Exception):
    """The error of a `Sync` that failed only in some address families. The families that it does not contain hold the state."""

    def __init__(self, errors: Mapping[pb.IPFamily, Exception]) -> None:
        """`errors` contains the error of each failed family: `IPv4` or `IPv6` of `localnetv1_pb2`."""
        super().__init__("; ".join(f"{pb.IPFamily.Name(family)}: {text_of(error)}" for family, error in sorted(errors.items())))
        self.errors = dict(errors)


def text_of(error: BaseException) -> str:
    """The text of an error. It is never empty, because an empty error in a report means success."""
    return str(error) or repr(error)


class Progress:
    """What the reports of a backend contain about its syncs, for each address family."""

    def __init__(self) -> None:
        self._families = [pb.FamilyReport(Family=family) for family in (pb.IPv4, pb.IPv6)]
        self._applied = {family.Family: Revision() for family in self._families}

    def add(self, revision: Revision, full: bool, took: float, error: Exception | None) -> None:
        """Adds a sync that took some seconds."""
        for counts in self._families:
            failure = error.errors.get(counts.Family) if isinstance(error, FamilyErrors) else error
            _count(counts.Full if full else counts.Partial, took)
            counts.Error = "" if failure is None else text_of(failure).encode(errors="replace").decode()
            if failure is None:
                self._applied[counts.Family] = revision
            else:
                counts.Failures += 1
                counts.PartialFailures += not full

    def report(self, name: str, received: Revision) -> pb.BackendReport:
        """The report after a sync of the state with this revision."""
        report = pb.BackendReport(Backend=name, InstanceID=received.instance_id, Rev=received.rev, Families=self._families)
        for family in report.Families:
            applied = self._applied[family.Family]
            family.AppliedRev = applied.rev if applied.instance_id == received.instance_id else 0
        return report


def _count(attempts: pb.Attempts, took: float) -> None:
    """Adds a duration to a histogram. Its buckets end at 1 ms, 2 ms, 4 ms and so on; the last one has no end."""
    if not attempts.Counts:
        attempts.Counts.extend([0] * 16)
    micros = round(took * 1e6)
    millis = max(-(-micros // 1000), 1)  # Rounded up.
    attempts.Counts[min((millis - 1).bit_length(), 15)] += 1
    attempts.SumMicros += micros
