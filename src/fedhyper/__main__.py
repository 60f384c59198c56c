"""``python -m fedhyper`` is the command ``fedhyper``."""

from fedhyper.lab.cli import main

main()
