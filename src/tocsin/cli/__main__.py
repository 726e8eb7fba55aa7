"""`python -m tocsin.cli`: the same as the command `tocsin`."""

from tocsin.cli.main import main

main()
