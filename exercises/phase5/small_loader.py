"""A decode side for debugging lab 5b: blocks hold a word each, and words come from elsewhere, some steps later.

ask     a user's text has been computed elsewhere: blocks are taken, and a transfer into them begins
step    transfers go on; one that arrives writes all its words, and `loaded` is called
read    what a user's blocks hold
end     a user who has read everything leaves
"""


class SmallLoader:
    """Blocks, tables, and the transfers under way.

    Attributes:
        memory: a word for each block; block 0 is never given out.
        free: blocks that no request has, the one to be taken next first.
        tables: the blocks of each user.
        loading: for each transfer under way: its user, where it writes, what, and in how many steps.
        ready: users whose words are here.
    """

    def __init__(self, num_blocks: int) -> None:
        self.memory = ["" for _ in range(num_blocks)]
        self.free = list(range(1, num_blocks))
        self.tables: dict[str, list[int]] = {}
        self.loading: dict[str, tuple[list[int], list[str], int]] = {}
        self.ready: set[str] = set()
        self.held: set[str] = set()  # for you, if you need it

    def ask(self, user: str, words: list[str], steps: int) -> None:
        blocks = [self.free.pop(0) for _ in words]
        self.tables[user] = blocks
        self.loading[user] = list(blocks), list(words), steps

    def step(self) -> None:
        for user, (blocks, words, steps) in list(self.loading.items()):
            if steps > 1:
                self.loading[user] = blocks, words, steps - 1
                continue
            for block, word in zip(blocks, words, strict=True):
                self.memory[block] = word
            del self.loading[user]
            self.loaded(user)

    def give_back(self, user: str) -> None:
        """A user's blocks are free again."""
        self.free = self.tables.pop(user) + self.free

    def end(self, user: str) -> None:
        self.ready.remove(user)
        self.give_back(user)

    def read(self, user: str) -> list[str]:
        return [self.memory[block] for block in self.tables[user]]

    def abort(self, user: str) -> None:
        """A user does not want an answer any more; it has asked, and not ended."""
        raise NotImplementedError

    def loaded(self, user: str) -> None:
        """The transfer of this user has just arrived."""
        raise NotImplementedError
