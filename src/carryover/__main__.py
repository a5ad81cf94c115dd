"""`python -m carryover` does what `carryover` does."""

from carryover.cli import main

if __name__ == "__main__":
    main()
