"""`python -m litz`: the command line, which is `litz/cli.py`."""

from litz.cli import main

main()
