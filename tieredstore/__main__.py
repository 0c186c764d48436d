"""`python -m tieredstore`."""

from tieredstore.cli.main import main

if __name__ == "__main__":
    main()
