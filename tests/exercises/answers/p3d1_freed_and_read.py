"""Answers to the debugging lab of phase 3 that learners give."""

from exercises.phase3.small_manager import SmallManager


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


class Planted(SmallManager):
    def remember(self, user):
        table = self.tables[user]
        for i, name in enumerate(self.names(self.texts[user])):
            same = self.cached.setdefault(name, table[i])
            if same != table[i]:
                self.drop(table[i])


class NotCounted(SmallManager):
    """The table follows, and nobody counts it."""

    def remember(self, user):
        table = self.tables[user]
        for i, name in enumerate(self.names(self.texts[user])):
            same = self.cached.setdefault(name, table[i])
            if same != table[i]:
                self.drop(table[i])
                table[i] = same


class NeverDrops(SmallManager):
    """The table follows, and the user's own block is never given back."""

    def remember(self, user):
        table = self.tables[user]
        for i, name in enumerate(self.names(self.texts[user])):
            same = self.cached.setdefault(name, table[i])
            if same != table[i]:
                self.point_to(same)
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


class WrongIndex(Merges):
    """The merged block goes to the front of the table, not to its place."""

    def remember(self, user):
        table = self.tables[user]
        for i, name in enumerate(self.names(self.texts[user])):
            same = self.cached.setdefault(name, table[i])
            if same != table[i]:
                self.point_to(same)
                self.drop(table[i])
                del table[i]
                table.insert(0, same)


class LastWins(SmallManager):
    """Right: the name leads to the latest block. The older one keeps its content, and its table."""

    def remember(self, user):
        self.cached.update(zip(self.names(self.texts[user]), self.tables[user]))


class FreesByHand(SmallManager):
    """Puts the block into the free list, and drops it as well."""

    def remember(self, user):
        table = self.tables[user]
        for i, name in enumerate(self.names(self.texts[user])):
            same = self.cached.setdefault(name, table[i])
            if same != table[i]:
                self.point_to(same)
                self.drop(table[i])
                self.free.append(table[i])
                table[i] = same


RIGHT = [(Merges, 3), (KeepsBoth, "3"), (LastWins, 3)]
WRONG = {
    "reads-anothers-text": [(Planted, 3), (FirstBlockOnly, 3)],
    "pointed-to-and-not-counted": (NotCounted, 3),
    "duplicate-leaks": (NeverDrops, 3),
    "nothing-is-remembered": (RemembersNothing, 3),
    "wrong-text": (WrongIndex, 3),
    "freed-twice": (FreesByHand, 3),
    "another-cause": [(Merges, 4), (KeepsBoth, "1")],
    "wrong-type": [(Merges, "remember"), (Merges, 6)],
}
