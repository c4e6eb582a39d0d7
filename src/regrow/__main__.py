"""`python -m regrow` is the command line of the lab."""

from regrow.lab.cli import main

if __name__ == "__main__":
    main()
