BY_READY = {  # right: who is ready has no transfer under way
    "self.ready.discard(user)\n        if user in self.loading:": "if user not in self.ready:",
    "        else:\n            self.give": "        else:\n            self.ready.remove(user)\n            self.give",
}
RIGHT = BY_READY | {"cause = 4": 'cause = "4"'}
WRONG = {
    "raises": {"self.held.remove(user)": "pass"},
    "another-cause": [{"cause = 4": "cause = 3"}, BY_READY | {"cause = 4": "cause = 1"}],
}
