"""`python -m spectune`."""

from spectune.cli.app import main

main()
