"""The commands, a file each: read what was asked for, call what does it, print what came out."""

from fedhyper.lab.commands.app import invoke

__all__ = ["invoke"]
