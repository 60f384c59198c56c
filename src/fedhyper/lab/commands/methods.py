"""``fedhyper methods``: what there is to choose from."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedhyper.lab.commands.options import Imports, Json


def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="one method", show_default=False)] = None,
    as_json: Json = False,
    imports: Imports = None,
) -> None:
    """Every method: what it does and what can be set of it; with a name, what each option does.

    fedhyper methods fedhyper-g+cl
    """
    from fedhyper.lab.methods_table import describe, methods_table, print_methods
    from fedhyper.lab.plugins import import_modules

    import_modules(imports or ())
    if not as_json:
        print_methods(name)
        return
    for record in methods_table() if name is None else [describe(name)]:
        print(json.dumps(record))
