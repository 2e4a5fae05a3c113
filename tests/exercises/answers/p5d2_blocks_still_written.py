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


RIGHT = [{"Loader": ByReady, "cause = 4": 'cause = "4"'}]
WRONG = {
    "another-cause": [{"cause = 4": "cause = 3"}, {"Loader": ByReady, "cause = 4": "cause = 1"}],
}
