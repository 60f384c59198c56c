"""Altair charts, one kind a file. Importing any of them without the ``[report]`` extra is one line, not a traceback."""

from fedhyper.errors import UserError, install

try:
    import altair  # noqa: F401
    import vl_convert  # noqa: F401
except ModuleNotFoundError as error:
    raise UserError(f"reports need {error.name}, which is not installed; {install('report')}") from error
