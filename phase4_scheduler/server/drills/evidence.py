"""From figures to a cause: each cause says what the metrics would show, and one that they contradict is out.

    cause "queue"     most of the time to the first token passes in the queue        0.83 > 0.5    agrees
    cause "prompts"   prompts are at least twice as long as before                   1.01 > 2      no: it is out

A rule never asks for milliseconds, since those depend on the machine. It asks for shares (of a whole measured at the same
time), for counts, or for ratios (now to a healthy minute of the same machine).
"""

import math
import operator
from dataclasses import dataclass
from typing import Literal

from phase4_scheduler.server.drills.promql import number
from phase4_scheduler.server.drills.recording import Recording


@dataclass(frozen=True)
class Moments:
    """A recording, and when to ask it.

    Attributes:
        before, during: moments at which a query is asked: the ends of the healthy window and of the one in question.
        window: seconds of each. In queries `[1m]` stands for it.
    """

    recording: Recording
    before: float
    during: float
    window: int

    def text(self, query: str) -> str:
        """A query with the window of this drill in place of a minute."""
        return query.replace("[1m]", f"[{self.window}s]")

    def now(self, query: str) -> float:
        return number(self.recording, self.text(query), self.during)

    def then(self, query: str) -> float:
        return number(self.recording, self.text(query), self.before)

    def ratio(self, query: str) -> float:
        now, then = self.now(query), self.then(query)
        if now == then == 0:
            return 1.0
        return now / then if then else math.inf


@dataclass(frozen=True)
class Check:
    """What a query would show if a cause were the right one.

    Attributes:
        says: in words.
        query: PromQL, one value.
        of: "now" (its value in the window in question) or "ratio" (that, divided by its value in the healthy window).
        op, bound: such as ">" and 0.5.
        margin: share of the bound. A value as near to it as that is too close to call, and contradicts nothing.
    """

    says: str
    query: str
    of: Literal["now", "ratio"]
    op: Literal["<", ">"]
    bound: float
    margin: float = 0.0

    def value(self, moments: Moments) -> float:
        return moments.now(self.query) if self.of == "now" else moments.ratio(self.query)

    def close(self, moments: Moments) -> bool:
        """Whether the value is too near to the bound to decide anything."""
        return abs(self.value(moments) - self.bound) < self.margin * self.bound

    def holds(self, moments: Moments) -> bool:
        """An empty or meaningless result (NaN) speaks for nothing."""
        compare = {"<": operator.lt, ">": operator.gt}[self.op]
        return self.close(moments) or compare(self.value(moments), self.bound)


@dataclass(frozen=True)
class Cause:
    """A possible cause.

    Attributes:
        name: a word to answer with. says: a sentence.
        checks: all of them hold if it is the cause. remedy: what to do then.
    """

    name: str
    says: str
    checks: tuple[Check, ...]
    remedy: str

    def contradiction(self, moments: Moments) -> Check | None:
        """The first check that does not hold; None if the metrics agree with this cause."""
        return next((check for check in self.checks if not check.holds(moments)), None)


@dataclass(frozen=True)
class Findings:
    """What the metrics say.

    Attributes:
        alarm: whether anything got worse at all, or whether that is not the question.
        refuted: by cause, the check that speaks against it. left: the causes that nothing speaks against.
        close: of these, the ones that hang on a value which is too close to call.
    """

    alarm: bool
    refuted: dict[str, Check]
    left: list[str]
    close: list[str]

    @property
    def verdict(self) -> str:
        """The one cause that is left, "nothing" if nothing is wrong; otherwise "undecided: too close to call" or "unclear"."""
        if not self.alarm:
            return "nothing"
        if len(self.left) == 1:
            return self.left[0]
        return "undecided: too close to call" if self.close else "unclear"


def investigate(alarms: tuple[Check, ...], causes: tuple[Cause, ...], moments: Moments) -> Findings:
    """Ask for each cause whether the metrics contradict it."""
    found = {cause.name: cause.contradiction(moments) for cause in causes}
    left = [cause for cause in causes if not found[cause.name]]
    return Findings(
        not alarms or any(alarm.holds(moments) for alarm in alarms),
        {name: check for name, check in found.items() if check},
        [cause.name for cause in left],
        [cause.name for cause in left if any(check.close(moments) for check in cause.checks)],
    )
