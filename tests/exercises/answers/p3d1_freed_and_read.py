"""Answers to the debugging lab of phase 3 that learners give."""

from exercises.phase3.small_manager import SmallManager
from tests.exercises.changed import changed


class Merges(SmallManager):
    """Right: the table follows, and the block is counted."""

    def remember(self, user):
        table = self.tables[user]
        for i, name in enumerate(self.names(self.texts[user])):
            same = self.cached.get(name)
            if same is None:
                self.cached[name] = table[i]
            elif same != table[i]:
                mine, table[i] = table[i], same
                self.point_to(same)
                self.drop(mine)


class KeepsBoth(Merges):
    """Right: no merging at all, as in vLLM."""

    def remember(self, user):
        for name, block in zip(self.names(self.texts[user]), self.tables[user]):
            self.cached.setdefault(name, block)


class Follows(SmallManager):
    def remember(self, user):
        table = self.tables[user]
        for i, name in enumerate(self.names(self.texts[user])):
            same = self.cached.setdefault(name, table[i])
            if same != table[i]:
                self.point_to(same)
                self.drop(table[i])
                table[i] = same


class RemembersNothing(SmallManager):
    """The symptom is gone, and so is the cache."""

    def remember(self, user):
        self.cached.clear()


class FirstBlockOnly(SmallManager):
    """Repairs what the symptom shows, one block."""

    def remember(self, user):
        table = self.tables[user]
        for i, name in enumerate(self.names(self.texts[user])):
            same = self.cached.setdefault(name, table[i])
            if same != table[i]:
                if i == 0:
                    self.point_to(same)
                self.drop(table[i])
                if i == 0:
                    table[i] = same


class LastWins(SmallManager):
    """Right: the name leads to the latest block. The older one keeps its content, and its table."""

    def remember(self, user):
        self.cached.update(zip(self.names(self.texts[user]), self.tables[user]))


RIGHT = [(Merges, 3), (KeepsBoth, "3"), (LastWins, 3)]
WRONG = {
    "reads-anothers-text": [
        (changed(Follows, {"self.point_to(same)": "pass", "table[i] = same": "pass"}), 3),
        (FirstBlockOnly, 3),
    ],
    "pointed-to-and-not-counted": (changed(Follows, {"self.point_to(same)": "pass"}), 3),
    "duplicate-leaks": (changed(Follows, {"self.drop(table[i])": "pass"}), 3),
    "nothing-is-remembered": (RemembersNothing, 3),
    "wrong-text": (changed(Follows, {"table[i] = same": "del table[i]; table.insert(0, same)"}), 3),
    "freed-twice": (changed(Follows, {"table[i] = same": "self.free.append(table[i]); table[i] = same"}), 3),
    "another-cause": [(Merges, 4), (KeepsBoth, "1")],
    "wrong-type": [(Merges, "remember"), (Merges, 6)],
}
