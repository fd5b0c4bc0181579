"""Command line as `python -m vergence`, where scripts are not on the PATH."""

from vergence.cli.main import main

if __name__ == "__main__":
    main()
