"""What a backend reports to the brain: `BackendService.ReportStatus` in proto/localnet/v1/backend.proto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import grpc

from ..brain import REPORT_TIMEOUT
from ..localnet import v1 as pb
from ..localnet.v1.backend_pb2_grpc import BackendServiceStub
from ..reports import text_of
from ..state import Revision
from .state import State

_FAMILIES = (pb.IP_FAMILY_IPV4, pb.IP_FAMILY_IPV6)
_LONGEST_ERROR = 1024  # In bytes.
_MOST_SKIPPED = 256


class FamilyErrors(Exception):
    """The error of a `Sync` that failed only in some address families. The families that it does not contain hold the state."""

    def __init__(self, errors: Mapping[pb.IpFamily, Exception]) -> None:
        """`errors` contains the error of each failed family: `IP_FAMILY_IPV4` or `IP_FAMILY_IPV6`."""
        names = {family: pb.IpFamily.Name(family).removeprefix("IP_FAMILY_") for family in errors}
        super().__init__("; ".join(f"{names[family]}: {text_of(error)}" for family, error in sorted(errors.items())))
        self.errors = dict(errors)


class Progress:
    """What the reports of a backend contain about its syncs, for each address family."""

    def __init__(self) -> None:
        self._families = [pb.FamilyStatus(family=family) for family in _FAMILIES]
        self._known: pb.SkippedParts | None = None  # What the brain knows of the skipped parts.

    def add(self, revision: Revision, error: Exception | None) -> None:
        """Adds a sync."""
        for status in self._families:
            failure = error.errors.get(status.family) if isinstance(error, FamilyErrors) else error
            status.error = "" if failure is None else text_of(failure).encode(errors="replace")[:_LONGEST_ERROR].decode(errors="ignore")
            if failure is None:
                status.applied.CopyFrom(_message(revision))

    def report(self, name: str, received: Revision) -> pb.ReportStatusRequest:
        """The report after a sync of the state with this revision."""
        skipped = pb.SkippedParts()
        return pb.ReportStatusRequest(reader_name=name, received=_message(received), families=self._families, skipped=skipped)

    async def deliver(self, channel: grpc.aio.Channel, report: pb.ReportStatusRequest) -> None:
        """Sends a report without the skipped parts that the brain knows. A restarted brain knows none, and asks for them."""
        send, request = BackendServiceStub(channel).ReportStatus, report
        if report.skipped == self._known and report.HasField("skipped"):
            request = pb.ReportStatusRequest()
            request.CopyFrom(report)
            request.ClearField("skipped")
        response = await send(request, timeout=REPORT_TIMEOUT)
        if response.complete_report_wanted and request is not report:
            await send(report, timeout=REPORT_TIMEOUT)
        if report.HasField("skipped"):
            self._known = report.skipped


def add_withheld(skipped: pb.SkippedParts, state: State, capabilities: Sequence[pb.Capability]) -> None:
    """Adds the Services that the brain withholds to the skipped parts of a report, as far as the list has room."""
    withheld = sorted(state.withheld)
    skipped.count += len(withheld)
    for key in withheld[: max(0, _MOST_SKIPPED - len(skipped.parts))]:
        lacks = [required for required in state.services[key].service.requires if required not in capabilities]
        names = [pb.Capability.Name(one) if one in pb.Capability.values() else str(one) for one in lacks]
        diagnostic = pb.Diagnostic(
            code="service-withheld",
            severity=pb.SEVERITY_ERROR,
            problem=f"the brain withholds the Service, because the backend lacks {' and '.join(names)}",
            remedy="Use a version of the backend that has the capabilities that the message names.",
        )
        skipped.parts.add(service=pb.ServiceKey(namespace=key.namespace, name=key.name), diagnostic=diagnostic)


def _message(revision: Revision) -> pb.Revision:
    return pb.Revision(instance=f"{revision.instance_id:016x}", number=revision.rev)
