"""`python -m whichlayers` does what `whichlayers` does."""

from whichlayers.cli import main

if __name__ == "__main__":
    main()
