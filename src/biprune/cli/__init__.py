"""The command line: the library's words, its only printing, and no import of torch for help."""

from biprune.cli.app import main

__all__ = ["main"]
