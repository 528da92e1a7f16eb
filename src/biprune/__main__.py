"""`python -m biprune` is `biprune`."""

from biprune.cli import main

main()
