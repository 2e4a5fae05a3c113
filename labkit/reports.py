"""Reads the reports of earlier runs in `outputs/reports/`, which may be old or damaged."""

from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ValidationError

from labkit.foreign import visible
from labkit.paths import outputs, short
from labkit.predictions import Prediction

AT_MOST = 20_000_000  # bytes


class Report(BaseModel):
    """The fields of a report that are read again."""

    predictions: list[Prediction]
    in_full: bool = False  # this run or an earlier one was not --quick


def report_of(script: Path) -> Path:
    """Return the path of the report of a script's last run."""
    return outputs() / "reports" / script.parent.name / f"{script.stem}.json"


def was_run_in_full(script: Path) -> bool:
    """Tell whether some run of a script was not --quick."""
    with suppress(ValueError):
        return read_report(report_of(script)).in_full
    return False


def read_report(file: Path) -> Report:
    """Read a report.

    Raises:
        ValueError: it is damaged, or no report. The message is one line.
    """
    try:
        if not file.is_file():
            raise ValueError("it is no file")
        with file.open("rb") as stream:
            return Report.model_validate_json(stream.read(AT_MOST))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        why = ".".join(map(str, first["loc"])) + ": " * bool(first["loc"]) + first["msg"]
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
    raise ValueError(
        f"{visible(short(file), 300)} cannot be used ({visible(why, 200)}): run its script again"
    )


def all_predictions() -> tuple[list[list[Prediction]], list[str]]:
    """Read the predictions of all reports; the second result has a line for each report that cannot be used."""
    found, problems = [], []
    for file in sorted((outputs() / "reports").glob("*/*.json")):
        try:
            found.append(read_report(file).predictions)
        except ValueError as error:
            problems.append(str(error))
    return found, problems
