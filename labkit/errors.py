"""The error for a user's mistake."""


class LabError(Exception):
    """A mistake of the user or a limit of the machine. The message is one line with the mistake, the value and the remedy.

    Scripts print it and end with exit code 2. A bug of the course never raises it.
    """

    def _render_traceback_(self) -> list[str]:
        """Return the line that Jupyter shows in place of a traceback."""
        return [f"error: {self}"]
