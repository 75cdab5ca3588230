"""`python -m tfpolicy` is the command line."""

from tfpolicy.cli import main

main()
