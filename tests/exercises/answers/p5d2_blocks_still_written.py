"""Answers to debugging lab 5b that learners give."""

from exercises.phase5.small_loader import SmallLoader


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


ABORTED = "if user in self.loading:"
HELD = "if user in self.held:"
RELEASED = "            self.held.remove(user)\n            self.give_back(user)\n"
READY = "self.ready.add(user)"
# As it is handed out: the blocks go back while the transfer still writes.
PLANTED = {ABORTED: "if False:", HELD: "if user not in self.tables:", RELEASED: "            pass\n"}
ERASES = "for block in self.tables[user]:\n            self.memory[block] = ''\n        "
RIGHT = [{"Loader": ByReady, "cause = 4": 'cause = "4"'}]
WRONG = {
    "overwritten": [
        PLANTED,
        {**PLANTED, ABORTED: f"{ERASES}if False:", "cause = 4": "cause = 3"},  # believes in sentence 3
        # The blocks of an aborted user are used again last: rarer, and not gone.
        {
            **PLANTED,
            ABORTED: "self.free = self.free + self.tables.pop(user)\n        if True:",
            "self.held.add(user)  #": "return  #",
        },
    ],
    "never-freed": {RELEASED: "            pass\n"},
    "held-after-arrival": {ABORTED: "if True:"},  # as the first version of vLLM's repair
    # Does nothing while it is loading.
    "ready-after-abort": {"self.ready.discard(user)": "if user in self.loading:\n            return"},
    # Gives back at the abort and at the arrival.
    "freed-twice": {
        "self.held.add(user)": "self.held.add(user)\n            self.free = self.tables[user] + self.free"
    },
    "never-ready": {READY: "pass"},
    "another-cause": [{"cause = 4": "cause = 3"}, {"Loader": ByReady, "cause = 4": "cause = 1"}],
    "wrong-type": {"cause = 4": 'cause = "four"'},
}
