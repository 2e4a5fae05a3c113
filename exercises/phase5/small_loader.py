"""A decode side for debugging lab 5b. Each block holds one word, and another engine sends the words some steps later.

ask     takes blocks for a user whose text another engine has computed, and begins a transfer into them
step    continues all transfers; a transfer that arrives writes all its words, and `loaded` is called
read    returns the words in a user's blocks
end     ends a user that has read everything
"""


class SmallLoader:
    """Blocks, tables, and the transfers under way.

    Attributes:
        memory: the word in each block; block 0 is never allocated.
        free: blocks without a request; the first one is taken next.
        tables: the blocks of each user.
        loading: user of a running transfer -> its target blocks, its words, and the steps until it arrives.
        ready: users whose words have arrived.
    """

    def __init__(self, num_blocks: int) -> None:
        self.memory = ["" for _ in range(num_blocks)]
        self.free = list(range(1, num_blocks))
        self.tables: dict[str, list[int]] = {}
        self.loading: dict[str, tuple[list[int], list[str], int]] = {}
        self.ready: set[str] = set()
        self.held: set[str] = set()  # for your repair, if you need it

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
        """Free a user's blocks."""
        self.free = self.tables.pop(user) + self.free

    def end(self, user: str) -> None:
        self.ready.remove(user)
        self.give_back(user)

    def read(self, user: str) -> list[str]:
        return [self.memory[block] for block in self.tables[user]]

    def abort(self, user: str) -> None:
        """Cancel the request of a user that has asked and not ended."""
        raise NotImplementedError

    def loaded(self, user: str) -> None:
        """Handle the end of this user's transfer."""
        raise NotImplementedError
