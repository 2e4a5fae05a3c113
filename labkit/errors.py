"""One kind of error for a user's mistake."""


class LabError(Exception):
    """A mistake of the user or a limit of the machine: what, which value, and the remedy, in one line.

    Scripts print it and end with exit code 2. It is never a bug of the course.
    """

    def _render_traceback_(self) -> list[str]:
        """What Jupyter shows in place of a traceback."""
        return [f"error: {self}"]
