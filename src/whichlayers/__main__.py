"""Entry point of `python -m whichlayers`, the same as `whichlayers`."""

from whichlayers.cli import main

if __name__ == "__main__":
    main()
