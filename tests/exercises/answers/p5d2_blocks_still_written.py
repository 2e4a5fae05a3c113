"""Answers to debugging lab 5b that learners give."""

from exercises.phase5.small_loader import SmallLoader


class Held(SmallLoader):
    """Right: as vLLM does it."""

    def abort(self, user):
        self.ready.discard(user)
        if user in self.loading:
            self.held.add(user)
        else:
            self.give_back(user)

    def loaded(self, user):
        if user in self.held:
            self.held.remove(user)
            self.give_back(user)
        else:
            self.ready.add(user)


class ByReady(SmallLoader):
    """Right: who is ready has nothing under way."""

    def abort(self, user):
        if user in self.ready:
            self.ready.remove(user)
            self.give_back(user)
        else:
            self.held |= {user}

    def loaded(self, user):
        (self.give_back if user in self.held else self.ready.add)(user)
        self.held -= {user}


class Planted(SmallLoader):
    def abort(self, user):
        self.ready.discard(user)
        self.give_back(user)

    def loaded(self, user):
        if user in self.tables:
            self.ready.add(user)


class Erases(Planted):
    """Believes in sentence 3."""

    def abort(self, user):
        for block in self.tables[user]:
            self.memory[block] = ""
        super().abort(user)


class ToTheBack(Planted):
    """The blocks of an aborted user are used again last: rarer, and not gone."""

    def abort(self, user):
        self.ready.discard(user)
        self.free = self.free + self.tables.pop(user)


class NeverGivesBack(Held):
    def loaded(self, user):
        if user not in self.held:
            self.ready.add(user)


class HoldsAlways(Held):
    """As the first version of vLLM's repair."""

    def abort(self, user):
        self.ready.discard(user)
        self.held.add(user)


class ForgetsTheAbort(Held):
    """Does nothing while it is loading."""

    def abort(self, user):
        if user not in self.loading:
            self.ready.discard(user)
            self.give_back(user)


class Twice(SmallLoader):
    """Gives back at the abort and at the arrival."""

    def abort(self, user):
        self.ready.discard(user)
        self.free = self.tables[user] + self.free
        if user in self.loading:
            self.held.add(user)
        else:
            del self.tables[user]

    def loaded(self, user):
        if user in self.held:
            self.give_back(user)
        else:
            self.ready.add(user)


class TellsNobody(Held):
    def loaded(self, user):
        if user in self.held:
            self.held.remove(user)
            self.give_back(user)


RIGHT = [(Held, 4), (ByReady, "4")]
WRONG = {
    "overwritten": [(Planted, 4), (Erases, 3), (ToTheBack, 4)],
    "never-freed": [(NeverGivesBack, 4)],
    "held-after-arrival": (HoldsAlways, 4),
    "ready-after-abort": (ForgetsTheAbort, 4),
    "freed-twice": (Twice, 4),
    "never-ready": (TellsNobody, 4),
    "another-cause": [(Held, 3), (ByReady, 1)],
    "wrong-type": [(Held, "four")],
}
