"""The plans of classes of sizes that one network has: found, made for the first sizes of a class, compiled behind NumPy's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from hetero_core.network.graph import Network
from hetero_core.network.types import ValueSpec
from hetero_cpu.kernel_choice import AUTO
from hetero_cpu.machine.orders import OrderDroppedError
from hetero_cpu.planning.plans_in_use import OpenPlanInUse, PlanInUse
from hetero_cpu.planning.signature import Signature

if TYPE_CHECKING:
    from hetero_cpu.machine.compiler import Kernel
    from hetero_cpu.open.plan import OpenPlan
    from hetero_cpu.planning.weights import PackedWeights
    from hetero_cpu.sources import NetworkSource
    from hetero_cpu.stored.stored_classes import StoredClasses

logger = logging.getLogger(__name__)

MOST_CLASSES = 16
_MOST_SEEN = 256
RUNS_WITHOUT_PLAN = 4
"""Runs of a set of sizes while kernels are compiled for which NumPy makes no plan: making one takes two to three times as long as a run of
the toolkit (a decoder of 230 nodes: 29 ms and 12)."""
_MANY_CONSTANTS = 1 << 24
"""Bytes of constants from which on a load reads the plans of earlier processes: a run would wait 2 ms for each megabyte, which is read
and packed. Loads of smaller networks are to be short."""
_MOST_FAILURES = 3
"""Sets of input shapes that none but themselves could share a plan with, after which a network without a class gets none."""


class OpenPlans:
    """Used under the lock of the network that has them, but for orders, which are claimed and ended without it, and plans on disk."""

    __slots__ = (
        "_failures", "_inputs", "_keeping", "_open_stored", "_order", "_reading", "_seen", "_stored", "_verifies", "appended", "plans",
    )  # fmt: skip

    def __init__(self, inputs: tuple[ValueSpec, ...], *, verifies: bool) -> None:
        self.plans: list[OpenPlanInUse] = []
        self.appended: frozenset[str] = frozenset()
        """Outputs that only the next run reads, to which a run may append where they lie."""
        self._failures, self._inputs, self._verifies = 0, inputs, verifies
        self._order, self._reading = Lock(), Lock()
        self._open_stored: Callable[[], StoredClasses] | None = None
        self._stored: StoredClasses | None = None
        self._keeping: list[Thread] = []
        # The runs of sets of sizes that came while kernels were compiled, in order.
        self._seen: dict[Signature, int] = {}

    def keep_on_disk(self, source: NetworkSource, weights: PackedWeights, workers: int) -> None:
        """Has plans read from earlier processes, and kept for later ones; those of a network with many constants are read at once."""

        def open_stored() -> StoredClasses:
            from hetero_cpu.stored.stored_classes import StoredClasses

            return StoredClasses(source.open(), weights, workers)

        self._open_stored = open_stored
        # A blob that brings a plan need not be read.
        is_read = source.plan is None
        if is_read and sum(constant.nbytes for constant in source.open().initializers.values()) >= _MANY_CONSTANTS:
            stored = self._read_stored()
            for opened in [] if stored is None else stored.open_all():
                self.add(opened)

    def find_stored(self, signature: Signature) -> OpenPlanInUse | None:
        """Returns the plan of an earlier process for a class that input shapes belong to; None where there is none."""
        stored = self._read_stored()
        return None if stored is None else stored.find(signature)

    def keep(self, opened: OpenPlanInUse, special: Network) -> None:
        """Keeps a plan that was made of a network for one set of sizes for later processes, where plans are kept."""
        stored = self._read_stored()
        if stored is not None:
            stored.keep(opened, special)

    def keep_aside(self, opened: OpenPlanInUse, special: Network) -> None:
        """Does what `keep` does while the caller goes on; the process does not end before."""
        thread = Thread(target=self.keep, args=(opened, special), name="hetero-cpu-plans")
        try:
            thread.start()
        except RuntimeError:
            # There may be no further thread.
            self.keep(opened, special)
        else:
            self._keeping = [*(other for other in self._keeping if other.is_alive()), thread]

    def wait(self) -> None:
        """Waits until what is to be kept is."""
        for thread in self._keeping:
            thread.join()

    def _read_stored(self) -> StoredClasses | None:
        with self._reading:
            if self._stored is None and self._open_stored is not None:
                self._stored = self._open_stored()
            return self._stored

    @property
    def is_ordered(self) -> bool:
        """Whether kernels of a class are being compiled."""
        return self._order.locked()

    def claim_order(self) -> bool:
        """Says whether the caller may have the kernels of a class compiled: True for one thread until `end_order`."""
        return self._order.acquire(blocking=False)

    def end_order(self) -> None:
        """Lets the next class be ordered."""
        self._order.release()

    def is_passing(self, signature: Signature) -> bool:
        """Says whether input shapes come for one of the first times while kernels are compiled: a plan of NumPy's would not pay."""
        runs = self._seen.get(signature, 0)
        if not self.is_ordered or runs >= RUNS_WITHOUT_PLAN:
            return False
        self._seen[signature] = runs + 1
        if len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        return True

    def find(self, signature: Signature) -> OpenPlanInUse | None:
        """Returns the plan of a class that input shapes belong to, the newest one where there are several."""
        return next((opened for opened in reversed(self.plans) if opened.covers(signature)), None)

    def is_wanted(self, signature: Signature) -> bool:
        """Says whether another class may be made, of which these input shapes are an example; sizes of 0 and 1 are no symbols."""
        if self.is_ordered or (self._failures >= _MOST_FAILURES and not self.plans):
            return False
        return any(
            size > 1 and not isinstance(dimension, int)
            for spec, sizes in zip(self._inputs, signature, strict=True)
            if sizes is not None
            # A declared rank is a hint.
            for size, dimension in zip(sizes, spec.shape or (None,) * len(sizes), strict=False)
        )

    def add(self, opened: OpenPlanInUse) -> None:
        """Adds the plan of a class; the oldest one leaves where there are too many. An interim one goes when its order ends."""
        opened.appended, opened.needs_check = self.appended, self._verifies
        if not opened.is_interim:
            self.plans.append(opened)
            del self.plans[:-MOST_CLASSES]
        elif self.is_ordered:
            self.plans.insert(0, opened)

    def end_with(self, opened: OpenPlanInUse | None, error: BaseException | None, *, is_refuted: bool) -> bool:
        """Ends an order with the plan whose kernels are there, which is added; returns whether there is one."""
        self.end_order()
        if error is not None or opened is None:
            self.note_failure()
            return False
        self.plans = [own for own in self.plans if not own.is_interim]
        opened.is_refuted |= is_refuted
        self.add(opened)
        return True

    def note_failure(self) -> None:
        """Says that a class could not be made."""
        self._failures += 1

    def refute(self) -> None:
        """Keeps all plans from being used again."""
        for opened in self.plans:
            opened.is_refuted = True


def are_at_hand(kernels: Iterable[Kernel]) -> bool:
    """Says whether kernels are in the wheel or stored, and loads them."""
    from hetero_cpu.machine.compiler import COMPILER  # LLVM

    return COMPILER.load_stored(kernels)


def has_interpreters(workers: int) -> bool:
    """Says whether what all plans of machine code need is compiled already."""
    from hetero_cpu.machine.compiler import COMPILER  # LLVM
    from hetero_cpu.machine.interpreter import list_interpreters

    return COMPILER.load_stored(list_interpreters(workers))


def load_kernels(opened: PlanInUse, kernels: str) -> bool:
    """Says whether the kernels of a plan are there; they are compiled now, unless NumPy answers meanwhile."""
    from hetero_cpu.machine.compiler import COMPILER  # LLVM

    if kernels == AUTO:
        return COMPILER.load_stored(opened.plan.kernels)
    try:
        COMPILER.compile_all(opened.plan.kernels)
    finally:
        COMPILER.rest()
    return True


def order_kernels(
    prepare: Callable[[], PlanInUse | None],
    take_over: Callable[[PlanInUse | None, BaseException | None], None],
    *,
    is_wanted: Callable[[], bool],
    begin: Event,
    workers: int,
) -> None:
    """Has a plan made and its kernels compiled by the thread that does so for all, then handed to `take_over`."""
    from hetero_cpu.machine.background import BACKGROUND
    from hetero_cpu.machine.interpreter import list_interpreters

    prepared: list[PlanInUse] = []

    def list_kernels() -> Iterator[Kernel]:
        # LLVM is at what all plans need while this one is made.
        yield from list_interpreters(workers)
        # Whoever compiles holds nothing but the plan.
        plan = prepare()
        if plan is not None:
            prepared.append(plan)
            yield from plan.plan.kernels

    BACKGROUND.order(
        list_kernels(), lambda error: take_over(prepared[0] if prepared else None, error), is_wanted=is_wanted, begin=begin
    )


def warn_of_error(error: BaseException | None, network: str) -> None:
    """Logs that a network stays with NumPy's plans because of an error; an order that nobody wants any more is none."""
    if error is not None and not isinstance(error, OrderDroppedError):
        logger.warning("network '%s' goes on with NumPy: its kernels could not be compiled: %s", network, error)


def make_plan_in_use(
    network: str,
    opened: OpenPlan,
    signature: Signature,
    *,
    checks_plan: bool,
    is_interim: bool = False,
) -> OpenPlanInUse:
    """Returns a plan for runs, checked as a whole for these input shapes if `checks_plan`; `network` is a name.

    `is_interim`: its kernels are those that are at hand.
    """
    own = OpenPlanInUse(opened, network=network if checks_plan else "")
    own.is_interim = is_interim
    own.covers(signature)
    return own
