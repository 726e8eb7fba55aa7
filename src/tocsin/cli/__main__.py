"""`python -m tocsin.cli`: the same as the command `tocsin`."""

from tocsin.cli.main import main

if __name__ == "__main__":
    main()
